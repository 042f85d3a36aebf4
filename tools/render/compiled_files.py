"""What was compiled and not timed, by version of Triton: two files beside the records,
of the steps of the ladder and of the tables of launch configurations.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta
from packaging.version import InvalidVersion, Version

from systems import ROOT
from systems.records import store
from systems.records.store import RecordError
from tools.render.load import Broken
from tools.render.markdown import note

Count = Annotated[int, Meta(ge=0, le=2**40)]
Some = Annotated[int, Meta(ge=1, le=2**40)]


class Kernel(TypedDict):
    """What a kernel of a step needs."""

    kernel: str
    registers: Count
    stack_bytes: Count
    shared_bytes: Count
    programs: Some
    warps: Some
    per_score: Annotated[float, Meta(gt=0, le=1e9)]


class Steps(TypedDict):
    source_hash: str
    steps: dict[str, Annotated[list[Kernel], Meta(min_length=1)]]


class Loop(TypedDict):
    """What a warp executes in a round: see `tools.binary.hottest_loop`."""

    instructions: Some
    matrix: Count
    products: Count
    shared_bytes: Count
    l2_bytes: Count
    special: Count
    plain: Count
    other: Count
    moves: Count
    spilled: Count
    reloaded: Count


class Entry(TypedDict):
    """What the kernel of an entry of a table needs."""

    gpu: str
    arithmetic: Literal["half", "high", "highest"]
    d: Some
    causal: bool
    kernel: str
    # A Config of `systems.attention.triton.configs`, which imports torch.
    config: tuple[Some, Some, Some, Some, Some | None, bool, str]
    shared_bytes: Count
    registers: Count
    stack_bytes: Count
    programs: Some
    repeats: float
    loop: Loop


class Tables(TypedDict):
    source_hash: str
    rows: list[Entry]


@dataclass
class CompiledFile:
    """A file, what it holds of each version, and the tool that writes it."""

    path: Path
    kind: Any
    tool: str

    def read(self) -> dict[str, Any]:
        """What it holds, by version; nothing where there is none. RecordError where it
        is broken.
        """
        remedy = f"restore it, or delete it and run `python tools/{self.tool}`"
        try:
            found = store.decoded(self.path, dict[str, self.kind], remedy)
            for version in found:
                Version(version)
        except FileNotFoundError:
            return {}
        except InvalidVersion as error:
            raise RecordError(f"{self.path}: {error}; {remedy}") from None
        return found

    @property
    def broken(self) -> Broken | None:
        try:
            self.read()
        except RecordError as error:
            return Broken("", self.path, str(error))

    def versions(self) -> dict[str, Any]:
        """What it holds; nothing where it is broken."""
        return {} if self.broken else self.read()

    def missing(self, words: str) -> str:
        """What stands in the place of a table of it."""
        told = f"{words}: run `python tools/{self.tool}`.\n"
        return note(self.path) if self.broken else told


RESULTS = ROOT / "docs" / "results"
STEPS, TABLES = (
    CompiledFile(RESULTS / f"{name}-compiled.json", kind, tool)
    for name, kind, tool in (
        ("flash_ablation", Steps, "compile_steps.py"),
        ("tables", Tables, "compile_tables.py"),
    )
)
