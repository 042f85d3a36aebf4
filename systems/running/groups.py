"""Measure rows in alternation if they differ only in the field `IN_TURNS` names."""

import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from systems.records.device import sm_clock_mhz
from systems.records.outcome import one_line
from systems.records.record import Record, Row
from systems.running import machine, profilers
from systems.running.processes import has_own_process, measure_config
from systems.running.reports import report


def make_groups(module: Any, configs: list[Any]) -> list[list[Any]]:
    """Group configurations that differ only in the field that module.IN_TURNS names."""
    varied, groups = getattr(module, "IN_TURNS", None), {}
    for config in configs:
        fixed = {k: v for k, v in asdict(config).items() if k != varied}
        key = config if varied is None else tuple(fixed.items())
        groups.setdefault(key, []).append(config)
    return list(groups.values())


def measure_rows(record: Record, module: Any, group: list, since: float) -> list[Row]:
    """Measure the rows of a group, and update the range of SM clocks in the record. The
    seconds of the first row count from `since`, a value of time.monotonic().
    """
    machine.free_memory()
    rows = measure_group(module, group)
    profilers.detach_cupti()
    for row in rows:
        row.seconds, since = round(time.monotonic() - since, 3), time.monotonic()
    if record.device.is_gpu and (clock := sm_clock_mhz()):
        clocks = [*record.device.sm_clocks_mhz, clock]
        record.device.sm_clocks_mhz = [min(clocks), max(clocks)]
    return rows


def measure_group(module: Any, configs: list[Any]) -> list[Row]:
    """Measure these configurations in alternation, and return their rows. After an
    error the row has the status "failed", and the next run measures it again.
    """
    unfinished = {config: measure_config(module, config) for config in configs}
    rows: dict[Any, Row] = {}
    while unfinished:
        for config, turns_left in list(unfinished.items()):
            if (row := run_next_turn(config, turns_left)) is not None:
                rows[config] = row
                del unfinished[config]
                if row.status == "out_of_memory":
                    # Drop inputs that rows share: a failed pass left gradients in them.
                    for shared in vars(module).values():
                        if hasattr(shared, "cache_clear"):
                            shared.cache_clear()
                    machine.free_memory()
    return [rows[config] for config in configs]


def run_next_turn(config: Any, turns_left: Iterator[Row | None]) -> Row | None:
    """Run a turn. Return the row after the last turn or an error, otherwise None."""
    try:
        return next(turns_left)
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return Row(asdict(config), "failed", reason=one_line(reason))


def report_rows(rows: list[Row]) -> None:
    """Report each row's outcome, but not its metrics, to the parent process."""
    for row in rows:
        report(event="row", config=row.config, status=row.status, reason=row.reason)


def is_gpu_broken(module: Any, rows: list[Row]) -> bool:
    """Return whether a CUDA error has made the GPU unusable in this process."""
    return not has_own_process(module) and any(
        row.status == "failed" and "CUDA error" in (row.reason or "") for row in rows
    )
