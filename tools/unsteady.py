"""Measure rows of a record again that a slow host may have touched:
`regen_tables.py --again`.
"""

import time
from pathlib import Path

from systems.experiments import STEMS
from tools.measuring import OUT_OF_TIME, Lane, Outcome, run_child


def measure_unsteady(
    stem: str, results: Path, deadline: float, lane: Lane | None = None
) -> Outcome:
    """Measure the unsteady rows of a record again until `deadline`, and those that
    took longer than the same cell of another record. In a `lane`, where others are
    measured beside it.
    """
    from systems.records.device import no_gpu
    from systems.running.machine import device_for
    from systems.running.resuming import record_path
    from tools.checks.same_cell import slower_rows
    from tools.render.load import of_gpu, sound_in

    device = device_for(STEMS[stem].full)
    if device is None:
        return Outcome(stem, f"error: {no_gpu()}", 2)
    path = record_path(results, device, stem, "full")
    if not path.is_file():
        return Outcome(stem, f"error: {path} does not exist: measure it first", 2)
    slug = device.slug

    def unsteady_and_longer() -> tuple[list[int], list[int]]:
        found = sound_in(results, slug)[0]
        record = of_gpu(found, stem, slug)
        rows = record.rows if record else []
        longer = [row.config for row in slower_rows(found, stem)]
        return (
            [i for i, row in enumerate(rows) if row.in_doubt],
            [i for i, row in enumerate(rows) if row.config in longer],
        )

    unsteady, longer = unsteady_and_longer()
    if not unsteady and not longer:
        return Outcome(stem, "no row is unsteady or differs", skipped=True)
    if time.time() >= deadline:
        # To start would take seconds for each experiment that is left.
        return Outcome(stem, OUT_OF_TIME)
    rows = ",".join(map(str, sorted({*unsteady, *longer})))
    flags = ["--again", rows, "--deadline", str(deadline)]
    outcome = run_child(stem, results, *flags, lane=lane)
    if not outcome.code:
        # Rows of other records that were measured meanwhile may show some of this one.
        left, differ = unsteady_and_longer()
        outcome.message += f"; unsteady rows: {len(left)}, before {len(unsteady)}"
        if longer or differ:
            told = f"rows that differ: {len(differ)}, before {len(longer)}"
            outcome.message += f"; {told}"
    return outcome
