"""Rows of `gradient_checkpointing`, read: what was measured, and what the formulas say
of the same pass.
"""

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from systems.formulas.memory_costs import Pass
from systems.formulas.recomputation import peaks
from systems.records.record import Record
from tools.render.load import constant
from tools.render.rows import Cell, cell

SIZE, CONTEXT = "2.7B", 2048
# As in the experiment, which imports torch and this doesn't.
RUNS: tuple[int, ...] = constant("gradient_checkpointing", "RUNS")
PEAKS = ("peak_allocated_bytes", "kept_peak_allocated_bytes")


@dataclass(frozen=True)
class Row:
    """One way to compute again: its words, and its configuration."""

    words: str
    strategy: str
    run: int = 1
    attention: str = "flash"
    blocks_compiled: bool = False
    # Else as the assignment has it.
    size: str = SIZE
    context: int = CONTEXT
    precision: str = "bf16"
    batch: int = 4

    def of(self, record: Record | None) -> Cell:
        return cell(record, **{name: getattr(self, name) for name in CONFIG})

    @property
    def predicted(self) -> tuple[int, int] | None:
        """Both peaks; none where a compiler decides what is kept."""
        return None if self.blocks_compiled else predicted(self)


# The fields of its configuration.
CONFIG = [field.name for field in fields(Row) if field.name != "words"]


@cache
def predicted(row: Row) -> tuple[int, int]:
    # PyTorch's kernels keep what ours do: their output and the log-sum-exp.
    attention = "eager" if row.attention == "eager" else "flash"
    shape = (row.size, row.context, "forward_backward", row.precision, attention)
    return peaks(Pass(*shape, batch=row.batch), row.strategy, row.run)


def pass_of(attention: str = "flash") -> Pass:
    return Pass(SIZE, CONTEXT, "forward_backward", "bf16", attention)


WORDS = {
    "none": "nothing",
    "half_blocks": "every half block by itself",
    "halving": "nested: halves of halves",
    "chain": "nested: all but the last",
    "attention": "attention alone",
    "by_hand": "every block by itself, by hand",
}


def in_words(strategy: str, run: int, compiled: bool) -> str:
    one = "every block by itself"
    words = WORDS.get(strategy, one if run == 1 else f"runs of {run} blocks")
    return f"{words}, blocks compiled" if compiled else words


def named(
    strategy: str, run: int = 1, attention: str = "flash", compiled: bool = False
) -> Row:
    words = in_words(strategy, run, compiled)
    return Row(words, strategy, run, attention, compiled)


NONE = named("none")
CURVE = tuple(named("runs", run) for run in RUNS)
BEST, NEXT = CURVE[:2]
HALF = named("half_blocks")
NESTED = (named("halving"), named("chain"))
BY_HAND = named("by_hand")
PLAIN = (
    named("runs", 1, "eager"),
    named("runs", 2, "eager"),
    named("attention", 1, "eager"),
)
SDPA = named("none", 1, "sdpa")
COMPILED = named("none", 1, "sdpa", compiled=True)
ALL = (NONE, HALF, *CURVE, *NESTED, BY_HAND, *PLAIN, SDPA, COMPILED)


def rows_of(record: Record) -> list[Row]:
    """As they are in the record."""
    configs = ({name: row.config[name] for name in CONFIG} for row in record.rows)
    named = ("strategy", "run", "blocks_compiled")
    return [Row(in_words(*(c[name] for name in named)), **c) for c in configs]


def off(row: Row, record: Record | None, which: int) -> Any:
    """How far a measured peak is from the prediction, as a share of it; the allocator
    rounds up what shapes predict.
    """
    assert row.predicted is not None
    return row.of(record).get(PEAKS[which]) / row.predicted[which] - 1


def all_off(record: Record | None) -> list[float]:
    """Of both peaks of every row that has a prediction; or why there is none."""
    rows = [row for row in ALL if row.predicted]
    return [abs(off(row, record, which)) for row in rows for which in (0, 1)]
