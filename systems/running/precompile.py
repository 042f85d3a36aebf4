"""Run some rows of a stem once and throw their results away, so that what they compile
is found when they are measured.

`measure` starts several of these at once: compilers use one core each, and a row's
kernels are compiled one after the other. Each is told which rows are its own, and ends
by itself if its parent was killed.

    python -m systems.running.precompile flash_accuracy full 0 16 32
"""

import contextlib
import os
import subprocess
import sys
import time
from importlib import import_module
from typing import Any

import typer

from systems import ROOT
from systems.experiments import STEMS
from systems.records.outcome import turns_of

# Each holds a context and a row's tensors on the GPU.
MOST_PROCESSES = 16
# Fewer rows are compiled sooner than the processes have started.
LEAST_ROWS = 8


def cores() -> int:
    """How many this process may use, which on a cluster are fewer than there are."""
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )


def configs_of(stem: str, grid: str) -> list[Any]:
    """All rows of a stem."""
    return import_module(STEMS[stem].module).configs(quick=grid == "quick")


def rehearse(stem: str, grid: str, pending: list[Any], deadline: float) -> None:
    """Compile in parallel what pending rows of a stem will run, until `deadline`."""
    count = min(MOST_PROCESSES, cores())
    names = STEMS[stem].rehearsed
    wanted = [c for c in pending if getattr(c, "implementation", None) in names]
    if len(wanted) < LEAST_ROWS or count < 2:
        return
    rows = [i for i, config in enumerate(configs_of(stem, grid)) if config in wanted]
    command = [sys.executable, "-m", "systems.running.precompile", stem, grid]
    # There are processes enough without those of PyTorch's compiler.
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    options: Any = {
        "cwd": ROOT,
        "env": environment,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    shares = [
        [str(row) for row in rows[i::count]] for i in range(min(count, len(rows)))
    ]
    children = [subprocess.Popen([*command, *share], **options) for share in shares]
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=max(0.0, deadline - time.time()))
        child.kill()
        child.wait()


def main(stem: str, grid: str, rows: list[int]) -> None:
    """Run these rows of a stem, counted from 0."""
    # Before imports that take seconds, in which it may die.
    parent = os.getppid()
    module, configs = import_module(STEMS[stem].module), configs_of(stem, grid)
    for row in rows:
        # Without a parent nobody measures.
        if os.getppid() != parent:
            break
        # Whatever goes wrong goes wrong again where it is reported.
        with contextlib.suppress(Exception):
            # Where rows are measured in turns, all that is compiled is in the first.
            next(turns_of(configs[row], module.run))


if __name__ == "__main__":
    typer.run(main)
