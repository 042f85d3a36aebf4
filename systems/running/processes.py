"""Rows in processes of their own, where an experiment asks for them: each in a fresh
one (`FRESH_PROCESS`), or all that agree in the field `PROCESS_OF` in the same one.

Such a one is asked for rows one after the other: a configuration as JSON on each line
of its standard input, its row on a line of its standard output. It ends where its input
does, so it never outlives who asks.

    python -m systems.running.processes systems.experiments.triton_versions
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

from systems import ROOT, run_as_command
from systems.records.outcome import measure_row, turns_of
from systems.records.record import Row
from systems.running.command import options_of
from systems.running.host_memory import bound_memory
from systems.running.limited import limit_memory
from systems.running.machine import free_memory

# How a row begins, among whatever an experiment prints.
ROW = '{"config"'
# Those that go on, by experiment and what their rows have in common.
KEPT: dict[tuple[str, Any], "Kept"] = {}


def elsewhere(module: Any) -> bool:
    """Whether its rows are measured in other processes than this one."""
    return getattr(module, "FRESH_PROCESS", False) or hasattr(module, "PROCESS_OF")


def turns(module: Any, config: Any) -> Iterator[Row | None]:
    """The turns of a configuration, and then its row, in the process that it is to
    have.
    """
    if hasattr(module, "PROCESS_OF"):
        return in_a_kept_process(module, config)
    if elsewhere(module):
        return in_a_process(module, config)
    return turns_of(config, module.run)


def in_a_process(module: Any, config: Any) -> Iterator[Row]:
    """The row of a fresh process."""
    command = [sys.executable, "-m", module.__name__, *options_of(config), "--json"]
    environment = environment_of(module, config)
    child = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if child.returncode:
        yield failed(config, child.returncode, child.stderr)
    else:
        yield msgspec.json.decode(child.stdout.splitlines()[-1], type=Row)


def in_a_kept_process(module: Any, config: Any) -> Iterator[Row]:
    """The row of the process that measures all that agree with this one: started where
    there is none, or where the last one ended.
    """
    key = module.__name__, getattr(config, module.PROCESS_OF)
    if key not in KEPT:
        KEPT[key] = Kept(module, config)
    kept = KEPT[key]
    if (line := kept.ask(config)) is not None:
        yield msgspec.json.decode(line, type=Row)
    else:
        del KEPT[key]
        yield failed(config, *kept.end())


class Kept:
    """A process that measures rows as they are asked for, by `main`."""

    def __init__(self, module: Any, config: Any):
        # A pipe that nobody reads would stop it.
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "systems.running.processes", module.__name__],
            cwd=ROOT,
            env=environment_of(module, config),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def ask(self, config: Any) -> str | None:
        """Its row as JSON; None where the process has ended."""
        asked, answers = self.process.stdin, self.process.stdout
        assert asked is not None and answers is not None
        with suppress(BrokenPipeError):
            print(json.dumps(asdict(config)), file=asked, flush=True)
        return next((line for line in answers if line.startswith(ROW)), None)

    def end(self) -> tuple[int, str]:
        """Its exit code and what it said of errors, once it has come to its end."""
        with suppress(BrokenPipeError):
            self.process.communicate()
        self.errors.seek(0)
        with self.errors:
            return self.process.returncode, self.errors.read()


@contextmanager
def kept_processes() -> Iterator[None]:
    """Those that are started inside end with it; at once, where it was stopped."""
    try:
        yield
    except BaseException:
        for kept in KEPT.values():
            kept.process.terminate()
        raise
    finally:
        while KEPT:
            KEPT.popitem()[1].end()


def environment_of(module: Any, config: Any) -> dict[str, str]:
    """This process's, and what the experiment adds to it."""
    return os.environ | getattr(module, "environment", lambda config: {})(config)


def failed(config: Any, code: int, stderr: str) -> Row:
    reason = f"exit code {code}: {error_in(stderr)}"
    return Row(asdict(config), "failed", reason=reason)


def error_in(stderr: str) -> str:
    """The line that names an error: where there is a traceback the first behind it, for
    PyTorch's messages end with advice; else the last.
    """
    lines = stderr.strip().splitlines() or ["no message"]
    _, found, behind = stderr.rpartition("Traceback (most recent call last):\n")
    named = [line for line in behind.splitlines() if line and not line[0].isspace()]
    return named[0] if found and named else lines[-1]


def main(module: str) -> None:
    """Measure rows of this module, as they are asked for."""
    experiment = import_module(module)
    bound_memory()
    limit_memory()
    for line in sys.stdin:
        row = measure_row(experiment.Config(**json.loads(line)), experiment.run)
        print(json.dumps(row, default=msgspec.structs.asdict), flush=True)
        free_memory()


if __name__ == "__main__":
    run_as_command(main, __doc__)
