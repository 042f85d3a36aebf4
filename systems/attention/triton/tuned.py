"""Launch configurations that `tools/tune_flash.py` timed on the owner's GPU: one JSON
file per GPU model. If a file is damaged, or was timed with other kernels or another
Triton, this is logged once and the built-in tables apply.
"""

import hashlib
import json
import logging
from functools import cache
from pathlib import Path
from typing import Any

from systems.records.source_hash import hash_of

LOG = logging.getLogger(__name__)
FOLDER = Path(__file__).with_name("tuned")
# A file is valid for these kernels; choosing a configuration doesn't change them.
LAUNCHES = [("systems.attention.triton.launches", None)]
CHOICE = [("systems.attention.triton.chooser", "choose_config")]
# What is tuned, in this order: the most common head dimensions first.
ARITHMETICS, KERNELS = ("half", "high", "highest"), ("forward", "dkdv", "dq")
HEAD_DIMS = (64, 128, 32, 256, 16)
ROWS = (16, 32, 64, 128, 256)
# (arithmetic, kernel, padded head dimension, causal).
Key = tuple[str, str, int, bool]
# The fields of a `Config`, which is not imported because its module imports torch.
Numbers = tuple[int, int, int, int, int | None, bool, str]


@cache
def kernels_hash() -> str:
    """Return the source hash of the kernels and their launches, without the tables."""
    return hash_of(LAUNCHES, without=CHOICE)


def path_of(slug: str) -> Path:
    """Return the path of a GPU's file; `slug` is the GPU's folder name in records."""
    return FOLDER / f"{slug}.json"


def read(path: Path) -> dict[str, Any]:
    """Return the content of a file. ValueError with one line if it is damaged."""
    try:
        found = json.loads(path.read_bytes())
        whole = found["software"]["triton"] and found["source_hash"]
        if not whole or not all(map(is_entry, found["entries"])):
            raise ValueError("something in it is no launch configuration")
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "remove it, or run python tools/tune_flash.py --force"
        raise ValueError(f"{path} can't be used ({error!r}): {remedy}") from None
    return found


def is_entry(entry: dict[str, Any]) -> bool:
    """Return whether an entry names a kernel and holds a valid configuration of it."""
    arithmetic, kernel, d, causal = key_of(entry)
    q, k, warps, stages, registers, ahead, anew = entry["config"]
    return (
        (arithmetic in ARITHMETICS and kernel in KERNELS and d in HEAD_DIMS)
        and (q in ROWS and k in ROWS and warps in (4, 8) and stages in range(1, 9))
        and (registers is None or registers in range(16, 256))
        and (isinstance(causal, bool) and isinstance(ahead, bool))
        and anew in ("", "addresses", "tiles")
    )


def key_of(entry: dict[str, Any]) -> Key:
    return entry["arithmetic"], entry["kernel"], entry["d"], entry["causal"]


@cache
def configs(slug: str, triton: str) -> dict[Key, Numbers]:
    """Return the configurations timed on this GPU with the current kernels and this
    Triton; none, with one log message, if the file is damaged or outdated.
    """
    path = path_of(slug)
    try:
        found = read(path)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        LOG.warning("%s", error)
        return {}
    timed_with, against = found["software"]["triton"], ""
    if timed_with != triton:
        against = f"with Triton {timed_with}, here is {triton}"
    elif found["source_hash"] != kernels_hash():
        against = "with kernels that have changed since"
    if against:
        remedy = "our tables are used; run python tools/tune_flash.py"
        LOG.warning("%s was timed %s: %s", path, against, remedy)
        return {}
    return {key_of(entry): tuple(entry["config"]) for entry in found["entries"]}


def digest(slug: str, triton: str) -> str | None:
    """Return a short hash of the configurations in use, for records, or None."""
    found = configs(slug, triton)
    text = repr(sorted(found.items())).encode()
    return hashlib.sha256(text).hexdigest()[:16] if found else None
