"""What the steps of the ladder need of an H100 as compiled, by version of Triton: a
file beside the records, which `tools/compile_steps.py` writes.
"""

from pathlib import Path
from typing import TypedDict

from systems import ROOT
from systems.records import store

COMMAND = "python tools/compile_steps.py"
PATH = ROOT / "docs" / "results" / "flash_ablation-compiled.json"


class Kernel(TypedDict):
    """What a kernel of a step needs."""

    kernel: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    programs: int
    warps: int
    per_score: float


class Steps(TypedDict):
    source_hash: str
    steps: dict[str, list[Kernel]]


def read_steps(path: Path = PATH) -> dict[str, Steps]:
    """Return the steps by version; nothing where there is no file. RecordError where it
    is broken.
    """
    remedy = f"restore it, or delete it and run `{COMMAND}`"
    try:
        return store.decoded(path, dict[str, Steps], remedy)
    except FileNotFoundError:
        return {}
