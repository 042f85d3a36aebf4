"""The same cell has one value: where two records of a GPU time the same configuration,
they agree within a tenth. What differs by more was measured while something else ran,
or by another code, and one of them has to be measured again. A longer time that is not
shown to be the GPU's own is none of these: it is unsteady, and says so by itself.

`regen_tables.py --check` prints the records that differ: as an error where both are of
today's code, as a warning where one is to be measured again anyway.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from systems.records.own_times import CLOSE
from systems.records.record import Record, Row
from tools.render.hosts import ALIKE, AXES, CELLS, TIMED, is_usual
from tools.render.load import is_fresh


@dataclass(frozen=True)
class Pair:
    """One phase of one cell in two records, the larger time first."""

    cell: str
    phase: str
    slower: str
    slower_row: Row
    slower_ms: float
    faster_ms: float

    @property
    def ratio(self) -> float:
        return self.slower_ms / self.faster_ms

    @property
    def differ(self) -> bool:
        return self.ratio > CLOSE


# --8<-- [start:cells]
def cells(record: Record) -> dict[tuple[Any, ...], Row]:
    """The rows that another record may have too, by what both measured."""
    found = {}
    for row in record.rows:
        config = CELLS[record.stem] | row.config
        if row.status == "ok" and is_usual(config):
            found[tuple(config.get(axis) for axis in AXES)] = row
    return found


# --8<-- [end:cells]


def pairs(one: Record, other: Record) -> Iterator[Pair]:
    """Every phase that both timed in the same configuration."""
    mine, theirs = cells(one), cells(other)
    for key in mine.keys() & theirs.keys():
        for phase in TIMED:
            name, rows = f"{phase}_ms", (mine[key], theirs[key])
            # What a slow host may have done is said wherever such a time is shown.
            if all(name in r.metrics and not r.unsteady_in(phase) for r in rows):
                times = [median(row.metrics[name]) for row in rows]
                slower = times.index(max(times))
                yield Pair(
                    " ".join(map(str, key)),
                    phase,
                    (one, other)[slower].stem,
                    rows[slower],
                    max(times),
                    min(times),
                )


def slower_rows(found: Mapping[str, list[Record]], stem: str) -> list[Row]:
    """Rows of this record whose times another record of the same GPU and of today's
    code has shorter: what a host adds it never takes away.
    """
    return [
        pair.slower_row
        for one, other in of_one_gpu(found)
        if is_fresh(one) and is_fresh(other)
        for pair in pairs(one, other)
        if pair.differ and pair.slower == stem
    ]


def compare(found: Mapping[str, list[Record]]) -> tuple[list[str], list[str]]:
    """A line for each two records that differ: those of today's code; the others."""
    errors: list[str] = []
    warnings: list[str] = []
    for one, other in of_one_gpu(found):
        both = list(pairs(one, other))
        apart = [pair for pair in both if pair.differ]
        if apart:
            fresh = is_fresh(one) and is_fresh(other)
            line = told(one, other, apart, len(both), fresh)
            (errors if fresh else warnings).append(line)
    return errors, warnings


def of_one_gpu(found: Mapping[str, list[Record]]) -> Iterator[tuple[Record, Record]]:
    """Each two records of the same GPU."""
    for one, other in combinations(timed(found), 2):
        if one.device.slug == other.device.slug:
            yield one, other


def timed(found: Mapping[str, list[Record]]) -> Iterable[Record]:
    return [r for stem in ALIKE for r in found.get(stem, []) if r.kind == "measured"]


def told(one: Record, other: Record, apart: list[Pair], count: int, fresh: bool) -> str:
    worst = max(apart, key=lambda pair: (pair.ratio, pair.cell))
    how = f"--again {worst.slower}" if fresh else f"--only {worst.slower} --force"
    return (
        f"{one.device.slug}: {one.stem} and {other.stem} differ by more than a tenth "
        f"in {len(apart)} of {count} times of the same cell, most in {worst.phase} of "
        f"{worst.cell}: {worst.slower_ms:.1f} ms in {worst.slower}, "
        f"{worst.faster_ms:.1f} in the other; measure it again by "
        f"`regen_tables.py {how}`"
    )
