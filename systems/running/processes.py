"""Rows in processes of their own, where an experiment asks for them: each in a fresh
one (`FRESH_PROCESS`), or all that agree in the field `PROCESS_OF` in the same one.

Such a process reads a configuration as JSON from each line of its standard input and
writes its row as a line to its standard output. It ends where its input does, and soon
after the process that started it.

    python -m systems.running.processes systems.experiments.compile PARENT
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib import import_module
from typing import Any

import msgspec

from systems import ROOT
from systems.records.outcome import measure_row, turns_of
from systems.records.record import Row
from systems.running.machine import free_memory
from systems.running.memory import limit_host_memory
from systems.running.reports import end_with, keep_output_for_reports, report

# The processes that run, by experiment and by what their rows have in common.
RUNNING: dict[tuple[str, Any], "RowProcess"] = {}


def has_own_process(module: Any) -> bool:
    """Whether an experiment's rows are measured in other processes than this one."""
    return getattr(module, "FRESH_PROCESS", False) or hasattr(module, "PROCESS_OF")


def turns(module: Any, config: Any) -> Iterator[Row | None]:
    """Yield None after each turn of a configuration, then its row, measured in the
    process that it is to have.
    """
    if has_own_process(module):
        return row_of_process(module, config)
    return turns_of(config, module.run)


def row_of_process(module: Any, config: Any) -> Iterator[Row]:
    """Yield the row that another process measures. Start the process where there is
    none, or where the last one ended.
    """
    common = getattr(module, "PROCESS_OF", None)
    key = module.__name__, getattr(config, common) if common else None
    if key not in RUNNING:
        RUNNING[key] = RowProcess(module, config)
    process = RUNNING[key]
    line = process.measure(config)
    if line is None or common is None:
        del RUNNING[key]
        code, errors = process.end()
        if line is None:
            reason = f"exit code {code}: {error_in(errors)}"
            yield Row(asdict(config), "failed", reason=reason)
            return
    yield msgspec.json.decode(line, type=Row)


class RowProcess:
    """A process that runs `main` and measures rows as they are asked for."""

    def __init__(self, module: Any, config: Any):
        # In a file, because a pipe that nobody reads would stop it.
        self.errors = tempfile.TemporaryFile("w+")
        added = getattr(module, "environment", lambda config: {})(config)
        own = str(os.getpid())
        self.process = subprocess.Popen(
            [sys.executable, "-m", "systems.running.processes", module.__name__, own],
            cwd=ROOT,
            env=os.environ | added,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def measure(self, config: Any) -> str | None:
        """Return the row as JSON; None where the process has ended."""
        asked, answers = self.process.stdin, self.process.stdout
        assert asked is not None and answers is not None
        with suppress(BrokenPipeError):
            print(json.dumps(asdict(config)), file=asked, flush=True)
        return answers.readline() or None

    def end(self) -> tuple[int, str]:
        """Wait for the process to end; return its exit code and its errors."""
        with suppress(BrokenPipeError):
            self.process.communicate()
        self.errors.seek(0)
        with self.errors:
            return self.process.returncode, self.errors.read()


@contextmanager
def row_processes() -> Iterator[None]:
    """End the processes that were started inside; at once, where an error leaves it."""
    try:
        yield
    except BaseException:
        for running in RUNNING.values():
            running.process.terminate()
        raise
    finally:
        while RUNNING:
            RUNNING.popitem()[1].end()


def error_in(stderr: str) -> str:
    """Return the line that names an error: the first one behind a traceback, because
    PyTorch's messages end with advice; else the last.
    """
    lines = stderr.strip().splitlines() or ["no message"]
    _, traceback, behind = stderr.rpartition("Traceback (most recent call last):\n")
    named = [line for line in behind.splitlines() if line and not line[0].isspace()]
    return named[0] if traceback and named else lines[-1]


def main(module: str, parent: int) -> None:
    """Measure rows of this module as they are asked for."""
    keep_output_for_reports()
    end_with(parent)
    experiment = import_module(module)
    limit_host_memory()
    for line in sys.stdin:
        row = measure_row(experiment.Config(**json.loads(line)), experiment.run)
        report(**msgspec.structs.asdict(row))
        free_memory()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
