"""Read the file of `tools/compile_steps.py`: what the ladder's compiled steps need on
an H100, by version of Triton.
"""

from pathlib import Path
from typing import TypedDict

from systems import ROOT
from systems.records import store

COMMAND = "python tools/compile_steps.py"
PATH = ROOT / "docs" / "results" / "flash_ablation-compiled.json"


class Kernel(TypedDict):
    """What a kernel of a step needs. `programs` are thread blocks per SM, `per_score`
    the instructions of its loop per attention score.
    """

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
    """Return the steps by version of Triton, or {} without a file. Raise RecordError if
    it is damaged.
    """
    remedy = f"restore it, or delete it and run `{COMMAND}`"
    try:
        return store.decode(path, dict[str, Steps], remedy)
    except FileNotFoundError:
        return {}
