"""Measure rows. Those that differ only in the field that `IN_TURNS` names alternate. If
the experiment's module sets `FRESH_PROCESS`, each row is measured in a new process.

The process takes a configuration as JSON and its parent's ID, and prints a row as JSON.

    python -m systems.running.groups systems.experiments.warmup '{...}' PARENT
"""

import json
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from typing import Any

import msgspec

from systems import ROOT
from systems.formulas.gpus import CONTEXT_BYTES
from systems.records.device import others_memory_share, sm_clock_mhz
from systems.records.outcome import measure_in_turns, measure_row, one_line
from systems.records.record import Record, Row
from systems.running import machine
from systems.running.reports import end_with_parent, report, reserve_stdout

# A desktop and its browser use less than this share of a GPU of 8 GB.
OTHERS_SHARE = 0.25
# Matches an error after which every CUDA call of the process fails.
CUDA_ERROR = re.compile(
    r"CUDA (driver )?error(?!: out of memory)"
    r"|Triton Error \[CUDA\]: (an illegal|misaligned|unspecified)"
)


def make_groups(module: Any, configs: list[Any]) -> list[list[Any]]:
    """Group configurations that differ only in the field named by `IN_TURNS`."""
    varied, groups = getattr(module, "IN_TURNS", None), {}
    for config in configs:
        fixed = {k: v for k, v in asdict(config).items() if k != varied}
        key = config if varied is None else tuple(fixed.items())
        groups.setdefault(key, []).append(config)
    return list(groups.values())


def measure_rows(record: Record, module: Any, group: list, since: float) -> list[Row]:
    """Measure a group's rows, and update the record's range of SM clocks. The first row
    gets the seconds since `since` (by time.monotonic()), the others about 0.
    """
    machine.free_memory()
    rows = measure_group(module, group)
    machine.detach_cupti()
    if record.device.is_gpu:
        fail_if_others_filled_gpu(rows)
    for row in rows:
        row.seconds, since = round(time.monotonic() - since, 3), time.monotonic()
    if record.device.is_gpu and (clock := sm_clock_mhz()):
        clocks = [*record.device.sm_clocks_mhz, clock]
        record.device.sm_clocks_mhz = [min(clocks), max(clocks)]
    return rows


def fail_if_others_filled_gpu(rows: list[Row]) -> None:
    """Turn "out_of_memory" rows into failed ones if other processes hold more than
    OTHERS_SHARE of the GPU's memory, because the next run may find it free.
    """
    full = [row for row in rows if row.status == "out_of_memory"]
    torch, own = sys.modules.get("torch"), 0
    if torch is not None and torch.cuda.is_initialized():
        own = CONTEXT_BYTES + torch.cuda.memory_reserved()
    if full and others_memory_share(own) > OTHERS_SHARE:
        for row in full:
            row.status = "failed"
            row.reason = one_line(f"others use this GPU's memory: {row.reason}")


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
    """Run a turn. Return the row after its last turn or an error, otherwise None."""
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
    """Return whether a CUDA error in `rows` has made this process's GPU unusable."""
    return not has_own_process(module) and any(
        row.status == "failed" and CUDA_ERROR.search(row.reason or "") for row in rows
    )


def has_own_process(module: Any) -> bool:
    """Return whether each row of an experiment is measured in a new process."""
    return getattr(module, "FRESH_PROCESS", False)


def measure_config(module: Any, config: Any) -> Iterator[Row | None]:
    """Yield None after each turn, then the row; from a new process only the row."""
    if has_own_process(module):
        return iter([measure_in_process(module, config)])
    return measure_in_turns(config, module.run)


def measure_in_process(module: Any, config: Any) -> Row:
    """Return a row measured in a new process; its status is "failed" on a crash."""
    command = (sys.executable, "-m", "systems.running.groups", module.__name__)
    child = subprocess.run(
        [*command, json.dumps(asdict(config)), str(os.getpid())],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    # A process that crashed printed no row, or only a part of it.
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(child.stdout.strip().rpartition("\n")[2], type=Row)
    reason = one_line(f"exit code {child.returncode}: {extract_error(child.stderr)}")
    return Row(asdict(config), "failed", reason=reason)


def extract_error(stderr: str) -> str:
    """Return the error message in a process's output: the first line after a traceback
    (further lines are advice), or the last line if there is no traceback.
    """
    lines = stderr.strip().splitlines() or ["no message"]
    _, traceback, tail = stderr.rpartition("Traceback (most recent call last):\n")
    messages = [line for line in tail.splitlines() if line and not line[0].isspace()]
    return messages[0] if traceback and messages else lines[-1]


def main(module: str, config: str, parent: int) -> None:
    """Measure `config` (JSON) of `module`; print its row. Exit when `parent` ends."""
    reserve_stdout()
    end_with_parent(parent)
    experiment = import_module(module)
    machine.limit_host_memory()
    row = measure_row(experiment.Config(**json.loads(config)), experiment.run)
    report(**msgspec.structs.asdict(row))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
