"""Measure one experiment on this machine, row by row, and write its record.
`tools/regen_tables.py` runs this module in a child process.

The partial record `<stem>.partial.json` is written after every row, and renamed when it
is complete. Progress is reported on standard output, one JSON object per line. Exit
codes: 0 complete or out of time, 1 rows failed, 2 can't start or write.
"""

import gc
import json
import os
import sys
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import typer

from systems import find_missing, import_fault, run_cli
from systems.experiments import STEMS, Stem
from systems.records import store
from systems.records.device import Device, is_gpu_shared, why_no_gpu
from systems.records.store import RecordError
from systems.running import groups, machine, reports, resuming
from systems.running.precompile import compile_ahead, make_code_folder
from systems.running.reports import CannotStart, report


def measure_stem(
    name: str, results: Path, grid: str, deadline: float, seen: int | None = None
) -> int:
    """Measure rows of experiment `name` that are missing in `results` (`grid`: "full"
    or "quick") until `deadline` (s since 1970). If `seen` isn't None, do nothing unless
    it is the record's modification time in ns. Return 0 or 1, or raise CannotStart.
    """
    last_end, stem = time.monotonic(), STEMS[name]
    device = machine.choose_device(stem.quick if grid == "quick" else stem.full)
    if device is None:
        raise CannotStart(f"{name} {why_no_gpu()}; --quick runs what a CPU can")
    if text := find_missing(*stem.needs):
        raise CannotStart(text)
    path = resuming.record_path(results, device, name, grid)
    progress = resuming.partial_path(path)
    with resuming.lock_record(path), make_code_folder():
        if seen not in (None, resuming.modification_time_ns(path)):
            report(event="already")
            return 0
        module = import_experiment(stem, device)
        configs = module.configs(quick=grid == "quick")
        record = resuming.new_record(name, device, grid, configs, module.PROTOCOL)
        record = resuming.resume(progress, record, configs)
        failed = [row.config for row in record.rows if row.status == "failed"]
        finished = [row.config for row in record.rows if row.status != "failed"]
        # Measure all rows of an incomplete group, because they must alternate.
        missing = [
            group
            for group in groups.make_groups(module, configs)
            if any(asdict(config) not in finished for config in group)
        ]
        # Rows that failed come last, because they could stop this process again.
        missing.sort(key=lambda group: any(asdict(x) in failed for x in group))
        pending = [config for group in missing for config in group]
        report(event="start", total=len(configs), done=len(configs) - len(pending))
        if count := len(configs) - len(pending):
            commit = record.git.commit if record.git else "unknown"
            report(event="there", rows=count, since=record.started_utc, commit=commit)
        if device.is_gpu:
            report(event="compiling")
            compile_ahead(name, grid, pending, deadline)
        for group in missing:
            if time.time() >= deadline:
                report(event="out_of_time")
                return 0
            rows = groups.measure_rows(record, module, group, since=last_end)
            last_end = time.monotonic()
            # A new process imports today's code, which may not be the record's.
            alone = groups.has_own_process(module)
            if alone and not resuming.is_same_code(record, configs):
                raise CannotStart("its code has changed meanwhile: run again")
            # Until now the file kept the old rows, so that a failed one stays known.
            new = [row.config for row in rows]
            record.rows = [row for row in record.rows if row.config not in new] + rows
            store.write(record, progress)
            groups.report_rows(rows)
            if groups.is_gpu_broken(module, rows):
                break
        if not record.complete:
            count = sum(row.status == "failed" for row in record.rows)
            lacking = record.expected_rows - len(record.rows)
            report(event="failed", failed=count, missing=lacking)
            return 1
        order = {json.dumps(asdict(config)): i for i, config in enumerate(configs)}
        record.rows.sort(key=lambda row: order[json.dumps(row.config)])
        store.write(record, progress)
        # Rename, so that no partial record is left beside the complete one.
        os.replace(progress, path)
    report(event="complete")
    return 0


def import_experiment(stem: Stem, device: Device) -> Any:
    """Set Triton's cache folder; import and return the experiment's module, and import
    torch's lazy modules. Raise CannotStart if the experiment can't run.
    """
    if device.is_gpu:
        if fault := machine.why_unwritable(machine.triton_cache_folder()):
            raise CannotStart(fault)
        if is_gpu_shared():
            report(event="shared")
        # By default torch.compile uses another folder, without the precompiled kernels.
        os.environ["TRITON_CACHE_DIR"] = str(machine.triton_cache_folder())
    elif "torch" not in sys.modules:
        # Hide a GPU that NVML does not list, or a CPU's record would have its times.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    module = import_module(stem.module)
    if lacking := {"configs", "run", "PROTOCOL"} - vars(module).keys():
        raise CannotStart(f"{stem.module} has no {min(lacking)}: see README.md")
    machine.check_torch(device)
    if device.is_gpu:
        # Import Inductor now, or the first row that needs it would time its import.
        import_module("torch._inductor.compile_fx")
    # Exclude imported modules from the garbage collection before each row.
    gc.freeze()
    return module


def main(
    stem: str,
    results: Path,
    grid: str = "full",
    deadline: float = 1e18,
    seen: int | None = None,
    parent: int | None = None,
):
    """Measure the experiment named STEM, and write its record to the folder RESULTS."""
    if parent is not None:
        reports.end_with_parent(parent)
    try:
        for value, choices in ((stem, STEMS), (grid, ("full", "quick"))):
            if value not in choices:
                raise CannotStart(f"{value!r} is none of {', '.join(choices)}")
        raise typer.Exit(measure_stem(stem, results, grid, deadline, seen))
    except (CannotStart, RecordError) as error:
        exit_with_error(str(error))
    except Exception as error:
        if text := import_fault(error):
            exit_with_error(text)
        if not isinstance(error, OSError):
            raise
        exit_with_error(describe_error(error, results))


def describe_error(error: OSError, results: Path) -> str:
    """Return which file can't be written (`results` if none is named), and why."""
    if error.errno is None:
        return str(error)
    path = error.filename2 or error.filename or results
    remedy = "free space, remove what is in the way, or give another --results"
    return f"can't write {path}: {error.strerror}; {remedy}"


def exit_with_error(message: str) -> NoReturn:
    report(event="error", message=message)
    raise typer.Exit(2)


if __name__ == "__main__":
    reports.exit_when_terminated()
    reports.reserve_stdout()
    run_cli(main, __doc__)
