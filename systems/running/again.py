"""Rows that a slow host may have touched, measured again when it is quiet: at the end
of a run, and later for a record that is complete.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from systems.records import store
from systems.records.host import SLOW, Probe, Quiet, quietest, slowdown, usual
from systems.records.own_times import (
    CLOSE,
    OF_THE_HOST,
    by_events,
    launched_in_a_loop,
    own_times,
    settled,
    times_of,
    unsteady,
)
from systems.records.record import Record, Row
from systems.records.store import PARTIAL_SUFFIX, SUFFIX, RecordError
from systems.running.groups import gpu_is_broken, look_at_host
from systems.running.reports import report
from systems.running.software import git_state

# How often rows are measured again; and what that may take at the end of a run, in
# seconds or as a share of what all rows took: some hosts are never quiet.
TIMES_AGAIN, SECONDS_AGAIN, SHARE_AGAIN = 2, 60.0, 0.1
# And where measuring again is all that was asked for: of hosts that are now fast and
# now slow, many a row needs its fourth or fifth try.
TIMES_LATER = 8
# Rows that took so much longer than those before had a slower host, whatever its probes
# saw: the GPU's clock changes less.
LONGER = 1.03
# Of one of its times alone, which says less: of those that are this share of all.
ALONE, SHARE_ALONE = CLOSE, 0.02
# How long a quiet moment is waited for before each, in seconds: in a run, and where
# measuring again is all that was asked for.
PATIENCE, PATIENCE_LATER, PAUSE = 5.0, 60.0, 0.2

# In a record, before the day.
NOTE = "some rows measured again until"

Group = list[Any]
# The rows of a group, by the host before them and since when their time counts.
Measured = Callable[[Group, list[Probe], float], list[Row]]


class Again:
    """A complete record, how its rows are measured, what moves the process off cores
    that are slow, and how the host is `shared` out.
    """

    def __init__(
        self,
        record: Record,
        path: Path,
        module: Any,
        measured: Measured,
        move: Callable[[], None],
        shared: str = "",
    ):
        self.record, self.path = record, path
        self.module, self.measured, self.move = module, measured, move
        self.shared = shared
        self.quiet = quiet_host(record, path.parent)

    def at_the_end(self, groups: list[Group], deadline: float) -> None:
        """Of a run: rows that may be touched, a few times, the shortest first, while
        there is time for it and the host becomes quiet.
        """
        all_took = sum(row.seconds or 0 for row in self.record.rows)
        ends = time.monotonic() + max(SECONDS_AGAIN, SHARE_AGAIN * all_took)
        for _ in range(TIMES_AGAIN):
            for group in sorted(groups, key=self.seconds):
                if not self.may_be_touched(group):
                    continue
                late = time.monotonic() + self.seconds(group) > ends
                if late or time.time() >= deadline or not self.measure(group, PATIENCE):
                    return

    def later(self, groups: list[Group], deadline: float) -> int:
        """Groups that were asked for, the shortest first; then those of them that may
        still be touched, a few times. Returns how many rows are left, as they may be,
        or as the host did not become quiet or time was up before their turn.
        """
        left, asked = sorted(groups, key=self.seconds), sum(map(len, groups))
        for _ in range(TIMES_LATER):
            for group in [*left]:
                if time.time() >= deadline:
                    return sum(map(len, left))
                # Of a shared host other cores are quick now than at the try before.
                self.move()
                if not self.measure(group, PATIENCE_LATER, counts=False):
                    return sum(map(len, left))
                if not self.may_be_touched(group):
                    left.remove(group)
                    report(event="settled", done=asked - sum(map(len, left)))
        return sum(map(len, left))

    def rows(self, group: Group) -> list[Row]:
        found = (self.record.row(asdict(config)) for config in group)
        return [row for row in found if row]

    def seconds(self, group: Group) -> float:
        return sum(row.seconds or 0 for row in self.rows(group))

    def may_be_touched(self, group: Group) -> bool:
        """Whether a row of it is unsteady, as far as the row itself tells: what other
        records show, a run can't know.
        """
        return unrest(self.record, self.rows(group), self.quiet)[0] > 0

    def measure(self, group: Group, patience: float, counts: bool = True) -> bool:
        """Measure a group again once the host is quiet, and write the record, in one
        step; of old rows and new ones those of the quieter host stay. False where it
        did not become quiet, or the GPU broke. What it takes `counts` as a part of the
        run, or is another one's.
        """

        def look() -> list[Probe]:
            return look_at_host(self.record.device, self.module)

        before = quiet_moment(look, self.move, self.quiet, patience)
        if before is None:
            return False
        report(event="again")
        notes, clocks = [*self.record.notes], [*self.record.device.sm_clocks_mhz]
        rows = self.measured(group, before, time.monotonic())
        if gpu_is_broken(self.module, rows):
            return False
        if keep_quieter(self.record, rows, self.quiet, counts):
            note_again(self.record)
            if self.shared and self.shared not in self.record.notes:
                self.record.notes.append(self.shared)
        else:
            # Not what was noted of rows that are not kept.
            self.record.notes, self.record.device.sm_clocks_mhz = notes, clocks
        store.write(self.record, self.path)
        return True


def quiet_host(record: Record, folder: Path) -> Quiet:
    """What probes take on a quiet host: the least of what they usually took in this
    record and in the others of this folder that the same driver, Python and torch made.
    """
    found = [record, *complete_in(folder)]
    alike = (other for other in found if probed_alike(other, record))
    return quietest(usual(p for row in r.rows for p in row.host) for r in alike)


def complete_in(folder: Path) -> Iterator[Record]:
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        if not path.name.endswith(PARTIAL_SUFFIX):
            try:
                yield store.read(path)
            except (RecordError, OSError):
                # Whoever renders says what is wrong with it.
                continue


def probed_alike(one: Record, other: Record) -> bool:
    """Whether the same ran their probes: Python the loop, torch and the driver the
    launches.
    """
    return one.device.driver == other.device.driver and all(
        one.software.get(name) == other.software.get(name)
        for name in ("python", "torch")
    )


def quiet_moment(
    look: Callable[[], list[Probe]],
    move: Callable[[], None],
    quiet: Quiet,
    patience: float,
) -> list[Probe] | None:
    """The host at the first moment at which it is quiet, wherever `move` leads; None if
    there is none for so many seconds.
    """
    ends = time.monotonic() + patience
    while slowdown(probes := look(), quiet) > SLOW:
        if time.monotonic() >= ends:
            return None
        time.sleep(PAUSE)
        move()
    return probes


def keep_quieter(
    record: Record, rows: list[Row], quiet: Quiet, counts: bool = True
) -> bool:
    """Put the rows of a group in the place of those there, where they ended as those
    did and fewer of them are unsteady, or as many on a host that was quieter by its
    probes or added less. None that took longer, all together or in one of its times:
    what a host adds it never takes away. What measuring again took `counts` with the
    first time, or not. Returns whether they are there now.
    """
    there = [old for row in rows if (old := record.row(row.config))]
    worst, before = (unrest(record, each, quiet) for each in (rows, there))
    ended_alike = all(
        row.status == old.status for row, old in zip(rows, there, strict=True)
    )
    new_ms, old_ms = took(rows), took(there)
    quieter = worst < before or worst[0] == before[0] and LONGER * new_ms < old_ms
    longer = new_ms > LONGER * old_ms or any(map(grew, rows, there))
    better = ended_alike and quieter and not longer
    kept = rows if better else there
    for row, new, old in zip(kept, rows, there, strict=True):
        took_again = (new.seconds or 0) if counts else 0
        row.seconds = round((old.seconds or 0) + took_again, 3)
    record.rows = [
        next((new for new in kept if new.config == row.config), row)
        for row in record.rows
    ]
    return better


def note_again(record: Record) -> None:
    """The day and the commit of a record are those of its first row: say until when
    others were measured again, and by which commit, if it was another day or commit.
    """
    now, git = f"{datetime.now(UTC):%Y-%m-%d}", git_state()
    by = f", commit {git.commit[:10]}" if git and git != record.git else ""
    if by or now != (record.started_utc or "")[:10]:
        others = [note for note in record.notes if not note.startswith(NOTE)]
        record.notes = [*others, f"{NOTE} {now}{by}"]


def took(rows: list[Row]) -> float:
    """The sum of the medians of all that a host can have lengthened, in ms."""
    return sum(sum(medians(row).values()) for row in rows)


def medians(row: Row) -> dict[str, float]:
    """Of what a host can have lengthened, in ms, by name."""
    return {
        name: median(samples)
        for name, samples in times_of(row.metrics).items()
        if not OF_THE_HOST.fullmatch(name)
    }


def grew(row: Row, old: Row) -> bool:
    """Whether one of its times, which others might hide in a sum, is clearly longer."""
    new_ms, old_ms = medians(row), medians(old)
    least = SHARE_ALONE * sum(old_ms.values())
    return any(
        ms > ALONE * old_ms[name]
        for name, ms in new_ms.items()
        if old_ms.get(name, 0) > least
    )


def unrest(record: Record, rows: list[Row], quiet: Quiet) -> tuple[int, float]:
    """How many of these rows are unsteady, and how slow their hosts were at most."""
    events, slowest, count = by_events(record.protocol), 1.0, 0
    for row in rows:
        looped, slow = launched_in_a_loop(row.config), slowdown(row.host, quiet)
        own = own_times(row.metrics, events, {}, {}, looped)
        count += unsteady(row.metrics, own, events, slow > SLOW, settled(row.config))
        slowest = max(slowest, slow)
    return count, slowest
