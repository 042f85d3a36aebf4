"""Measure each row in a new process, if an experiment sets `FRESH_PROCESS`.

The process takes a configuration as JSON and prints its row as JSON.

    python -m systems.running.processes systems.experiments.warmup '{...}' PARENT
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from typing import Any

import msgspec

from systems import ROOT
from systems.records.outcome import measure_in_turns, measure_row, one_line
from systems.records.record import Row
from systems.running.reports import end_with_parent, report, reserve_stdout


def has_own_process(module: Any) -> bool:
    """Return whether each row of an experiment is measured in a new process."""
    return getattr(module, "FRESH_PROCESS", False)


def measure_config(module: Any, config: Any) -> Iterator[Row | None]:
    """Run a configuration; yield None after each turn, then its row."""
    if has_own_process(module):
        return iter([measure_in_process(module, config)])
    return measure_in_turns(config, module.run)


def measure_in_process(module: Any, config: Any) -> Row:
    """Measure a configuration in a new process, and return its row."""
    command = (sys.executable, "-m", "systems.running.processes", module.__name__)
    child = subprocess.run(
        [*command, json.dumps(asdict(config)), str(os.getpid())],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if child.stdout.endswith("\n"):
        return msgspec.json.decode(child.stdout.splitlines()[-1], type=Row)
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
    """Measure a configuration, given as JSON, and print the row."""
    reserve_stdout()
    end_with_parent(parent)
    experiment = import_module(module)
    row = measure_row(experiment.Config(**json.loads(config)), experiment.run)
    report(**msgspec.structs.asdict(row))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
