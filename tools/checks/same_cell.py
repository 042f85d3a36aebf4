"""Check that fresh records of one GPU that measure the same cell agree on its GPU time.

The sum of a cell's kernel times differs by less than 3 % between hosts and profilers,
so `regen_tables.py --check` fails at larger differences.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from systems.records.record import Record
from tools.render.clocks import CLOCK, PROFILE, cell_of, same_software
from tools.render.load import is_fresh

STEMS = (CLOCK, "compile", "model_attention", "method", PROFILE, "nsys")
CLOSE = 1.03
# Without the loss, which takes a tenth of a millisecond: too little to compare.
PHASES = ("forward", "backward", "optimizer")
# Names of GPU time after timed passes, in `kernel_profile`, and twice in `nsys`.
GPU_TIMES = (
    *("{}_gpu_ms", "{}_gpu_busy_ms"),
    *("torch_{}_gpu_busy_ms", "nsys_{}_gpu_busy_ms"),
)


def compare(found: Mapping[str, list[Record]]) -> Iterator[str]:
    """Yield a line for each phase of a cell whose GPU times differ."""
    fresh = (r for stem in STEMS for r in found.get(stem, []) if is_fresh(r))
    for records in same_software(fresh):
        for (cell, phase), times in gpu_times(records).items():
            (low, shorter), (high, longer) = min(times), max(times)
            if high > CLOSE * low:
                yield (
                    f"{records[0].device.slug}: GPU time of {phase} of "
                    f"{' '.join(map(str, cell))} differs: {low:.3f} ms in {shorter}, "
                    f"{high:.3f} ms in {longer}; measure {longer} again by "
                    f"`regen_tables.py --only {longer} --force`"
                )


def gpu_times(records: list[Record]) -> dict[Any, list[tuple[float, str]]]:
    """Return by cell and phase the median GPU times in ms, each with its stem."""
    times: dict[Any, list[tuple[float, str]]] = defaultdict(list)
    for record in records:
        for row in record.rows:
            if row.config.get("execution", "eager") != "eager":
                continue
            cell = tuple(cell_of(record, row).values())
            for phase in PHASES:
                for name in GPU_TIMES:
                    if samples := row.metrics.get(name.format(phase)):
                        times[cell, phase].append((median(samples), record.stem))
    return times
