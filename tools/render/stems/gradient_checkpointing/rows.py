"""Rows of `gradient_checkpointing`, read: what was measured, and what the formulas say
of the same pass.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from systems.formulas.memory_costs import Pass
from systems.formulas.recomputation import peaks
from systems.records.record import Record
from tools.render.rows import Cell, cell

SIZE, CONTEXT = "2.7B", 2048
# As in the experiment, which imports torch and this doesn't.
RUNS = (1, 2, 3, 4, 6, 8, 11, 16, 32)
PEAKS = ("peak_allocated_bytes", "kept_peak_allocated_bytes")


@dataclass(frozen=True)
class Row:
    """One way to compute again: its words, and its configuration."""

    words: str
    strategy: str
    run: int = 1
    attention: str = "flash"
    compiled: bool = False

    def of(self, record: Record | None) -> Cell:
        return cell(
            record,
            size=SIZE,
            context=CONTEXT,
            attention=self.attention,
            strategy=self.strategy,
            run=self.run,
            blocks_compiled=self.compiled,
        )

    @property
    def predicted(self) -> tuple[int, int] | None:
        """Both peaks; none where a compiler decides what is kept."""
        return None if self.compiled else predicted(self)


@cache
def predicted(row: Row) -> tuple[int, int]:
    # PyTorch's kernels keep what ours do: their output and the log-sum-exp.
    attention = "eager" if row.attention == "eager" else "flash"
    return peaks(pass_of(attention), row.strategy, row.run)


def pass_of(attention: str = "flash") -> Pass:
    return Pass(SIZE, CONTEXT, "forward_backward", "bf16", attention)


NONE = Row("nothing", "none")
CURVE = tuple(
    Row("every block by itself" if run == 1 else f"runs of {run} blocks", "runs", run)
    for run in RUNS
)
BEST, NEXT = CURVE[:2]
HALF = Row("every half block by itself", "half_blocks")
NESTED = (
    Row("nested: halves of halves", "halving"),
    Row("nested: all but the last block", "chain"),
)
BY_HAND = Row("every block by itself, by hand", "by_hand")
PLAIN = (
    Row("every block by itself", "runs", 1, "eager"),
    Row("runs of 2 blocks", "runs", 2, "eager"),
    Row("attention alone", "attention", 1, "eager"),
)
SDPA = Row("nothing", "none", 1, "sdpa")
COMPILED = Row("nothing, blocks compiled", "none", 1, "sdpa", compiled=True)
ALL = (NONE, HALF, *CURVE, *NESTED, BY_HAND, *PLAIN, SDPA, COMPILED)


def off(row: Row, record: Record | None, which: int) -> Any:
    """How far a measured peak is from the prediction, as a share of it."""
    assert row.predicted is not None
    return row.of(record).get(PEAKS[which]) / row.predicted[which] - 1


def all_off(record: Record | None) -> list[float]:
    """Of both peaks of every row that has a prediction; or why there is none."""
    rows = [row for row in ALL if row.predicted]
    return [abs(off(row, record, which)) for row in rows for which in (0, 1)]
