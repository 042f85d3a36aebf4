"""Measure three rows of a stale record again, each together with the rows that it
alternates with. If all metrics agree, mark the record as verified.
"""

import json
import math
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from systems.experiments import STEMS
from systems.records import store
from systems.records.device import why_no_gpu
from systems.records.record import Row
from systems.records.source_hash import source_hash
from systems.records.summary import summarize
from systems.running import machine
from systems.running.command import format_metric, is_table
from systems.running.groups import make_groups, measure_group, report_rows
from systems.running.reports import CannotStart, report
from systems.running.resuming import grid_difference, lock_record, record_path
from systems.running.software import attention_names, is_tuning_current


# --8<-- [start:verify]
def metrics_agree(name: str, old: Any, new: Any) -> bool:
    """Return whether a repeated measurement agrees: times and errors within noise,
    other metrics exactly. Times in a table of kernels are ignored.

    Medians may differ by 3 % (GPU time) or 5 % (other times), or by three times the
    wider spread (p80 - p20) if that is more. Reserved bytes, which depend on earlier
    allocations, may differ by 10 %, and errors by 1 %, because PyTorch's kernels are
    not all deterministic.
    """
    if is_table(old) and is_table(new):
        return sorted(map(drop_times, old)) == sorted(map(drop_times, new))
    if name == "peak_reserved_bytes" and new is not None:
        return abs(old - new) <= 0.1 * old
    if name.endswith("_error") and isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=0.01)
    if not (name.endswith("_ms") and isinstance(old, list) and isinstance(new, list)):
        return old == new
    if not (old and new):
        return False
    a, b, close = summarize(old), summarize(new), 0.03 if is_gpu_time(name) else 0.05
    return abs(a.median - b.median) <= max(
        3 * max(a.p80 - a.p20, b.p80 - b.p20), close * a.median
    )


def is_gpu_time(name: str) -> bool:
    """Return whether a metric is a GPU time."""
    return name.endswith(("_gpu_ms", "_gpu_busy_ms"))


def require_agreement(name: str, old: Row | None, new: Row, once: tuple) -> None:
    """Raise CannotStart if metrics differ. Skip metrics with a prefix in `once`, which
    are measured with empty caches, and wall-clock times if a row has GPU times.
    """
    assert old is not None
    has_gpu_times = any(map(is_gpu_time, old.metrics))

    def is_compared(key: str) -> bool:
        of_host = key.endswith("_ms") and has_gpu_times and not is_gpu_time(key)
        return not key.startswith(once) and not of_host

    differing = [
        key
        for key in filter(is_compared, old.metrics)
        if not metrics_agree(key, old.metrics[key], new.metrics.get(key))
    ]
    if new.status != "ok" or differing:
        changes = ", ".join(
            f"{key} ({format_metric(old.metrics[key]):.60}, now "
            f"{format_metric(new.metrics.get(key)):.60})"
            for key in differing
        )
        where = f"{name} differs at {new.config} in {changes or new.reason}"
        raise CannotStart(f"{where}: measure it again")


def drop_times(item: dict[str, Any]) -> str:
    """Return an object as JSON without its times, so that objects can be sorted."""
    rest = {key: value for key, value in item.items() if not key.endswith("_ms")}
    return json.dumps(rest, sort_keys=True)


def verify_stem(name: str, results: Path) -> int:
    """Measure three rows (or alternating groups) of a stale record again. If all of
    their metrics agree, add today's source hash to the record's verified hashes.
    """
    stem = STEMS[name]
    device = machine.choose_device(stem.full)
    if device is None:
        raise CannotStart(f"{name} {why_no_gpu()}")
    path = record_path(results, device, name, "full")
    if not path.is_file():
        raise CannotStart(f"{path} does not exist: there is nothing to verify")
    with lock_record(path):
        module = import_module(stem.module)
        machine.check_torch(device)
        record = store.read(path)
        attention = attention_names(row.config for row in record.rows)
        present = source_hash(stem.module, attention)
        if record.edited:
            raise CannotStart(f"{path} was edited by hand: measure it again")
        if not is_tuning_current(record):
            raise CannotStart(
                f"other launch configurations are in use than when {path} was "
                f"measured: measure it again by --only {name} --force"
            )
        grid = module.configs()
        if unlike := grid_difference(record, grid):
            raise CannotStart(f"{path} {unlike}: measure it again by --only {name}")
        complete = [row.config for row in record.rows if row.status == "ok"]
        configs = [config for config in grid if asdict(config) in complete]
        if not configs:
            raise CannotStart(f"{path} has no row to measure again: use --force")
        groups = make_groups(module, configs)
        sample = [groups[i] for i in sorted({0, len(groups) // 2, len(groups) - 1})]
        report(event="start", total=sum(map(len, sample)), done=0)
        once = getattr(module, "ONCE", ())
        for group in sample:
            machine.free_memory()
            for new in measure_group(module, group):
                report_rows([new])
                require_agreement(name, record.row(new.config), new, once)
        if present not in (record.source_hash, *record.verified_hashes):
            record.verified_hashes.append(present)
            store.write(record, path)
    report(event="complete")
    return 0
    # --8<-- [end:verify]
