"""What the rows of an `attention` record say: cells by name, and the memory that a
configuration needs.
"""

from dataclasses import dataclass
from typing import Any

from systems.formulas.costs import attention_peak_bytes
from systems.records.record import Record
from tools.render.rows import Cell, axis, cell, cells, say

PASSES = ("forward", "backward")
EXECUTIONS = ("eager", "compiled")
ELEMENT_BYTES = {"fp32": 4, "bf16": 2}
BATCH = 8
# What tables and figures over N show, and what sentences name.
WIDTH, LONGEST = 64, 16384


@dataclass(frozen=True)
class Tried(Cell):
    """A cell that says what it needs where that was too much."""

    record: Record | None

    @property
    def why(self) -> str:
        """ "out of memory, needs 48.2 GiB"."""
        out = self.row is not None and self.row.status == "out_of_memory"
        needed = needed_bytes(self.record, self) if out else 0.0
        return super().why + (f", needs {needed / 2**30:.1f} GiB" if needed else "")


def at(
    record: Record | None,
    n: int,
    d: int = WIDTH,
    dtype: str = "fp32",
    causal: bool = False,
    execution: str = "eager",
) -> Tried:
    named = {"d": d, "n": n, "dtype": dtype, "causal": causal, "execution": execution}
    return Tried(cell(record, **named).row, record)


def tried(record: Record | None, **config: Any) -> list[Tried]:
    return [Tried(c.row, record) for c in cells(record, **config)]


def lengths(record: Record | None) -> list[int]:
    """Those of the grid. Longer ones were tried at one width."""
    return [n for n in sorted(axis(record, "n")) if n <= LONGEST]


def variants(record: Record | None) -> list[tuple[str, bool]]:
    """dtype and causal mask."""
    return [
        (dtype, causal)
        for dtype in axis(record, "dtype")
        for causal in axis(record, "causal")
    ]


def matrix_bytes(n: int) -> int:
    """One copy of the fp32 score matrices of the batch."""
    return BATCH * n**2 * ELEMENT_BYTES["fp32"]


def shape(
    n: int, d: int = WIDTH, dtype: str = "fp32", causal: bool = False
) -> dict[str, Any]:
    """What the formulas of `systems.formulas.costs` ask for."""
    sizes = {"batch": BATCH, "n": n, "d": d, "element_bytes": ELEMENT_BYTES[dtype]}
    return {**sizes, "causal": causal}


def shape_of(c: Cell) -> dict[str, Any]:
    return shape(*(c.config[key] for key in ("n", "d", "dtype", "causal")))


def needed_bytes(record: Record | None, c: Cell) -> float:
    """Peak memory by prediction: eager by formula; compiled by growth with N² from its
    longest row that fitted, 0 where none did.
    """
    if c.config["execution"] == "eager":
        return sum(attention_peak_bytes(**shape_of(c)).values())
    series = {key: c.config[key] for key in ("d", "dtype", "causal", "execution")}
    peaks = {o.config["n"]: o.get(PEAK, 0) for o in cells(record, **series) if o}
    longest = max((n for n, peak in peaks.items() if peak), default=0)
    return peaks[longest] * (c.config["n"] / longest) ** 2 if longest else 0.0


BEFORE_BACKWARD, PEAK = "before_backward_bytes", "peak_allocated_bytes"


def gib3(value: float) -> str:
    """GiB, to three decimals, since the shortest sequences need little."""
    return say(value / 2**30, "{:.3f}")
