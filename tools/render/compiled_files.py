"""Read the file that `tools/compile_steps.py` writes: registers, shared memory and
spills of the kernels in the FlashAttention "ladder" on an H100, by Triton version.
"""

from pathlib import Path
from typing import TypedDict

from systems import ROOT
from systems.records import store

COMMAND = "python tools/compile_steps.py"
PATH = ROOT / "docs" / "results" / "flash_ablation-compiled.json"


class Kernel(TypedDict):
    """Resources of a kernel: `programs` is the thread blocks per SM, `per_score` the
    instructions per attention score in the loop.
    """

    kernel: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    programs: int
    warps: int
    per_score: float


class CompiledSteps(TypedDict):
    source_hash: str
    steps: dict[str, list[Kernel]]


def read_compiled_steps(path: Path = PATH) -> dict[str, CompiledSteps]:
    """Return steps by Triton version, {} without file. Raise RecordError if invalid."""
    remedy = f"restore it, or delete it and run `{COMMAND}`"
    try:
        return store.read_json(path, dict[str, CompiledSteps], remedy)
    except FileNotFoundError:
        return {}
