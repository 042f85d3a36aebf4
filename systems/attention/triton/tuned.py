"""Launch configurations that the owner of a GPU had timed there: a file beside our
tables, for each kind of GPU, written by `tools/tune_flash.py`.

A file that can't be used, or was timed with other kernels or another Triton, is one
line in the log, and our table stands in for it. No torch is needed to read one: a
record is fresh while its GPU has the file that it had.
"""

import hashlib
import json
import logging
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct, structs

from systems.records.files import write_whole
from systems.records.source_hash import hash_of

LOG = logging.getLogger(__name__)
FOLDER = Path(__file__).with_name("tuned")
# Of a file's digest, what a record keeps.
DIGITS = 16
# What a configuration is timed with, or compiled: the kernels and their launches. Which
# one is chosen where makes it no other.
LAUNCHES = [("systems.attention.triton.launches", None)]
CHOICE = [("systems.attention.triton.chooser", "choose")]

# What the tables have a configuration for, and the order in which they are looked for:
# head dimensions, as tiles have them, that most models have come first.
Kernel = Literal["forward", "dkdv", "dq"]
HeadDim = Literal[64, 128, 32, 256, 16]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)
HEAD_DIMS: tuple[HeadDim, ...] = get_args(HeadDim)

Rows = Annotated[int, Meta(ge=16, le=256)]
# q, k, warps, stages, registers, ahead, anew, as `Config` has them.
Numbers = tuple[
    Rows, Rows, Literal[4, 8], Annotated[int, Meta(ge=1, le=8)],
    Annotated[int, Meta(ge=16, le=255)] | None, bool,
    Literal["", "addresses", "tiles"],
]  # fmt: skip
# By arithmetic, kernel, padded head dimension and mask.
Key = tuple[str, str, int, bool]


class Entry(Struct, forbid_unknown_fields=True):
    """The configuration that was right and with which its pass took least, the times of
    the pass in ms with it and with ours (if that was right), and how many were timed.

    The pass of "forward" is that kernel. That of "dq" and "dkdv" is the whole backward
    pass, in which the other kernel has a configuration of its own: no kernel's time.
    """

    arithmetic: Literal["half", "high", "highest"]
    kernel: Kernel
    d: HeadDim
    causal: bool
    config: Numbers
    pass_ms: Annotated[float, Meta(gt=0)]
    pass_with_ours_ms: Annotated[float, Meta(gt=0)] | None
    tried: int

    @property
    def key(self) -> Key:
        return self.arithmetic, self.kernel, self.d, self.causal


class Tuned(Struct, forbid_unknown_fields=True):
    """What was timed on one kind of GPU, and by what."""

    gpu: str
    capability: str
    # torch, Triton and the driver.
    software: dict[str, str]
    # `kernels_hash` of then.
    source_hash: str
    measured_utc: str
    command: str
    # What was timed: heads and rows of each.
    shape: tuple[int, int]
    entries: list[Entry]


class TunedError(ValueError):
    """Why a file can't be used, in one line."""


def path_of(slug: str) -> Path:
    """Where the file of a GPU lies, by its name as a folder of docs/results."""
    return FOLDER / f"{slug}.json"


def read(path: Path) -> Tuned:
    """The file's content. TunedError where it is none; FileNotFoundError without it."""
    remedy = "remove it, or run python tools/tune_flash.py --force"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Tuned)
    except FileNotFoundError:
        raise
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TunedError(f"{path} can't be used ({error}): {remedy}") from None


def write(found: Tuned, path: Path) -> None:
    """In one step, an entry a line."""
    data: dict[str, Any] = json.loads(json.dumps(found, default=structs.asdict))
    entries = ",\n".join(f"  {json.dumps(entry)}" for entry in data.pop("entries"))
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items()]
    text = ",\n".join([*lines, f' "entries": [\n{entries}\n ]'])
    write_whole(path, "{\n" + text + "\n}\n")


@cache
def kernels_hash() -> str:
    """Of the code of the kernels and their launches, without the tables."""
    return hash_of(LAUNCHES, without=CHOICE)


@cache
def in_use(slug: str, triton: str) -> Tuned | None:
    """What this GPU's file holds, if it was timed with these kernels and this Triton:
    another one compiles other code. What speaks against it is logged once.
    """
    try:
        found = read(path_of(slug))
    except FileNotFoundError:
        return None
    except TunedError as error:
        LOG.warning("%s", error)
        return None
    timed_with = found.software.get("triton")
    if timed_with != triton:
        against = f"with Triton {timed_with}, here is {triton}"
    elif found.source_hash != kernels_hash():
        against = f"on {found.measured_utc[:10]} with kernels that have changed since"
    else:
        return found
    LOG.warning(
        "%s was timed %s: our tables are used; run python tools/tune_flash.py",
        path_of(slug), against,
    )  # fmt: skip
    return None


def configs(slug: str, triton: str) -> dict[Key, Numbers]:
    """The numbers of each configuration that is in use."""
    found = in_use(slug, triton)
    return {entry.key: entry.config for entry in found.entries} if found else {}


def digest(slug: str, triton: str) -> str | None:
    """What a record says of the configurations that were in use, whenever and by
    whatever they were timed; None without any.
    """
    found = configs(slug, triton)
    if not found:
        return None
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:DIGITS]
