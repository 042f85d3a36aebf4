"""Match rows (measured configurations) of experiments that ran the same model pass."""

from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import Any

from systems.records.record import Record, Row
from tools.render.rows import measured_records

PROFILE, CLOCK = "kernel_profile", "end_to_end"
# Experiments that measure under a profiler.
PROFILE_STEMS = (PROFILE, "nsys")
# Settings that rows of an experiment omit, because all its rows have the same.
FIXED_SETTINGS: dict[str, dict[str, Any]] = {
    CLOCK: {},
    PROFILE: {"attention": "eager"},
    "nsys": {"mode": "step", "attention": "eager"},
    "compile": {"mode": "step", "attention": "eager"},
    "model_attention": {"mode": "step", "precision": "bf16"},
    "method": {"mode": "forward", "attention": "eager", "batch": 4},
}
AXES = ("size", "context", "batch", "precision", "mode", "attention")
# Only records with the same driver and versions of this software are compared.
SAME_SOFTWARE = ("torch", "cuda", "cudnn")
# The phases whose GPU times are compared: all but the loss, which is too short.
PHASES = ("forward", "backward", "optimizer")
# Names of metrics with the GPU time of a phase ({}), which differ by experiment.
GPU_TIMES = ("{}_gpu_ms", *(f"{of}{{}}_gpu_busy_ms" for of in ("", "torch_", "nsys_")))


def pass_settings(record: Record, row: Row) -> dict[str, Any]:
    """Return {axis: value} for AXES (size, context, ...), which define a row's pass."""
    config = FIXED_SETTINGS[record.stem] | row.config
    return {axis: config.get(axis) for axis in AXES}


def software_key(record: Record) -> tuple[Any, ...]:
    """Return (GPU, driver, *versions): only records with equal keys are compared."""
    versions = (record.software.get(name) for name in SAME_SOFTWARE)
    return record.device.slug, record.device.driver, *versions


def attach_clock_rows(found: Mapping[str, list[Record]]) -> None:
    """Set `clock` of each profiler record and row in `found` (records by experiment) to
    the `end_to_end` record and row of the same pass, timed without a profiler, or None.
    """
    clocks = {software_key(r): r for r in measured_records(found.get(CLOCK, []))}
    for stem in PROFILE_STEMS:
        for profile in measured_records(found.get(stem, [])):
            profile.clock = clock = clocks.get(software_key(profile))
            for row in profile.rows:
                row.clock = clock.find(**pass_settings(profile, row)) if clock else None


def gpu_times(records: list[Record]) -> dict[Any, list[float]]:
    """Return {(settings, phase): [median GPU ms of each eager row in all records]}."""
    times: dict[Any, list[float]] = defaultdict(list)
    for record in records:
        for row in record.rows:
            if row.config.get("execution", "eager") != "eager":
                continue
            cell = tuple(pass_settings(record, row).values())
            for phase in PHASES:
                for name in GPU_TIMES:
                    if samples := row.metrics.get(name.format(phase)):
                        times[cell, phase].append(median(samples))
    return times
