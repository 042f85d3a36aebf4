"""What the steps of the ladder need of an H100 as compiled, by version of Triton: a
file beside the records, which `tools/compile_steps.py` writes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from msgspec import Meta
from packaging.version import InvalidVersion, Version

from systems import ROOT
from systems.records import store
from systems.records.store import RecordError
from tools.render.load import Broken
from tools.render.markdown import note

COMMAND = "python tools/compile_steps.py"
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


@dataclass
class CompiledFile:
    """A file, and what it holds of each version."""

    path: Path

    def read(self) -> dict[str, Any]:
        """What it holds, by version; nothing where there is none. RecordError where it
        is broken.
        """
        remedy = f"restore it, or delete it and run `{COMMAND}`"
        try:
            found = store.decoded(self.path, dict[str, Steps], remedy)
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
        told = f"{words}: run `{COMMAND}`.\n"
        return note(self.path) if self.broken else told


STEPS = CompiledFile(ROOT / "docs" / "results" / "flash_ablation-compiled.json")
