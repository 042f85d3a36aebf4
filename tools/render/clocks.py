"""Find the row of `end_to_end` that timed the cell of a profile."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from systems.records.record import Record, Row

PROFILE, CLOCK = "kernel_profile", "end_to_end"
# Stems whose records hold times under a profiler.
PROFILED = (PROFILE, "nsys")
# Settings that the configurations of each stem don't name.
UNSAID: dict[str, dict[str, Any]] = {
    CLOCK: {},
    PROFILE: {"attention": "eager"},
    "nsys": {"mode": "step", "attention": "eager"},
    "compile": {"mode": "step", "attention": "eager"},
    "model_attention": {"mode": "step", "precision": "bf16"},
    "method": {"mode": "forward", "attention": "eager", "batch": 4},
}
AXES = ("size", "context", "batch", "precision", "mode", "attention")
# Records of other versions may time other kernels.
SAME_SOFTWARE = ("torch", "cuda", "cudnn")


def cell_of(record: Record, row: Row) -> dict[str, Any]:
    """Return the values of AXES: passes that agree in them launch the same kernels."""
    config = UNSAID[record.stem] | row.config
    return {axis: config.get(axis) for axis in AXES}


def group_by_software(records: Iterable[Record]) -> list[list[Record]]:
    """Group measured records by GPU, driver and SAME_SOFTWARE."""
    groups: dict[Any, list[Record]] = defaultdict(list)
    for record in records:
        if record.kind == "measured":
            versions = (record.software.get(name) for name in SAME_SOFTWARE)
            groups[record.device.slug, record.device.driver, *versions].append(record)
    return list(groups.values())


def attach_clock_rows(found: Mapping[str, list[Record]]) -> None:
    """Note at each row of a profile the row of `end_to_end` that timed the same
    cell on the same GPU with the same driver and software. A profiler slows the
    launches of its own run, so its wall-clock times are not those of the step.
    """
    stems = (*PROFILED, CLOCK)
    for group in group_by_software(r for stem in stems for r in found.get(stem, [])):
        clock = next((r for r in group if r.stem == CLOCK), None)
        for profile in (r for r in group if r.stem in PROFILED):
            profile.clock = clock
            for row in profile.rows:
                row.clock = clock.find(**cell_of(profile, row)) if clock else None


# Without the loss, which takes a tenth of a millisecond: too little to compare.
PHASES = ("forward", "backward", "optimizer")
# Names of GPU time after timed passes, in `kernel_profile`, and twice in `nsys`.
GPU_TIMES = ("{}_gpu_ms", *(f"{of}{{}}_gpu_busy_ms" for of in ("", "torch_", "nsys_")))


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
