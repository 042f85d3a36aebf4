"""Read the launch configurations that `tools/tune_flash.py` timed on the user's GPU,
from one JSON file per GPU model. If the file is damaged, or was made with other kernels
or another Triton version, log a warning and use the built-in tables.
"""

import hashlib
import json
import logging
from functools import cache
from pathlib import Path
from typing import Any

from systems.records.source_hash import hash_code

LOG = logging.getLogger(__name__)
FOLDER = Path(__file__).with_name("tuned")
# Tuned files become stale if the code of LAUNCHES changes, except in CHOOSER.
LAUNCHES = [("systems.attention.triton.launches", None)]
CHOOSER = [("systems.attention.triton.chooser", "choose_config")]
# Arithmetics, kernels and head dimensions to tune, in this order.
ARITHMETICS, KERNELS = ("half", "high", "highest"), ("forward", "dkdv", "dq")
HEAD_DIMS = (64, 128, 32, 256, 16)
ROWS = (16, 32, 64, 128, 256)
# Key of a tuned configuration: (arithmetic, kernel, padded head dimension, causal).
Key = tuple[str, str, int, bool]
# Types of the fields of `configs.Config`. Importing that module would import torch.
Numbers = tuple[int, int, int, int, int | None, bool, str]


@cache
def kernels_hash() -> str:
    """Return a hash of the source code of kernels and launchers, without tables."""
    return hash_code(LAUNCHES, without=CHOOSER)


def file_path(slug: str) -> Path:
    """Return the path of a GPU's file; `slug` is the GPU's name as in "nvidia-h200"."""
    return FOLDER / f"{slug}.json"


def read(path: Path) -> dict[str, Any]:
    """Return a file's content. Raise FileNotFoundError, or ValueError if damaged."""
    try:
        content = json.loads(path.read_bytes())
        complete = content["software"]["triton"] and content["source_hash"]
        if not complete or not all(map(is_valid_entry, content["entries"])):
            raise ValueError("something in it is no launch configuration")
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "remove it, or run python tools/tune_flash.py --force"
        raise ValueError(f"{path} can't be used ({error!r}): {remedy}") from None
    return content


def is_valid_entry(entry: dict[str, Any]) -> bool:
    """Return whether the values of a file's entry are valid. Raise KeyError, TypeError
    or ValueError if its structure is not.
    """
    arithmetic, kernel, d, causal = entry_key(entry)
    q, k, warps, stages, registers, ahead, recompute = entry["config"]
    return (
        (arithmetic in ARITHMETICS and kernel in KERNELS and d in HEAD_DIMS)
        and (q in ROWS and k in ROWS and warps in (4, 8) and stages in range(1, 9))
        and (registers is None or registers in range(16, 256))
        and (isinstance(causal, bool) and isinstance(ahead, bool))
        and recompute in ("", "addresses", "tiles")
    )


def entry_key(entry: dict[str, Any]) -> Key:
    return entry["arithmetic"], entry["kernel"], entry["d"], entry["causal"]


@cache
def configs(slug: str, triton: str) -> dict[Key, Numbers]:
    """Return the configurations timed on GPU `slug` with these kernels and version
    `triton`. Return {} if there is no file or, with a warning, if it can't be used.
    """
    path = file_path(slug)
    try:
        content = read(path)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        LOG.warning("%s", error)
        return {}
    timed_with, mismatch = content["software"]["triton"], ""
    if timed_with != triton:
        mismatch = f"with Triton {timed_with}, here is {triton}"
    elif content["source_hash"] != kernels_hash():
        mismatch = "with kernels that have changed since"
    if mismatch:
        remedy = "our tables are used; run python tools/tune_flash.py"
        LOG.warning("%s was timed %s: %s", path, mismatch, remedy)
        return {}
    return {entry_key(entry): tuple(entry["config"]) for entry in content["entries"]}


def config_digest(slug: str, triton: str) -> str | None:
    """Return a short hash of `configs(slug, triton)`, or None if there are none."""
    tuned = configs(slug, triton)
    text = repr(sorted(tuned.items())).encode()
    return hashlib.sha256(text).hexdigest()[:16] if tuned else None
