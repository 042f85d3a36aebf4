"""Run some rows of a stem once and throw their results away, so that what they compile is found when they are measured.

`measure` starts several of these at once: compilers use one core each, and a row's kernels are compiled one after the
other. Each is given every n-th of the rows, and ends by itself if its parent was killed.

    python -m systems.experiments.rehearse flash_accuracy full 0 16
"""

import contextlib
import os
import subprocess
import sys
import time
from importlib import import_module
from typing import Any

import typer

from systems.experiments import STEMS
from systems.source_hash import ROOT

# Each holds a context and a row's tensors on the GPU.
MOST_PROCESSES = 16
# Fewer rows are compiled sooner than the processes have started.
LEAST_ROWS = 8


def rows_of(stem: str, configs: list[Any]) -> list[Any]:
    """Those whose implementation compiles kernels for a shape of its own."""
    return [c for c in configs if getattr(c, "implementation", None) in STEMS[stem].rehearsed]


def rehearse(stem: str, grid: str, pending: list[Any]) -> float:
    """Compile in parallel what the pending rows of a stem will run. Returns how many seconds that took."""
    count = min(MOST_PROCESSES, os.cpu_count() or 1)
    if len(rows_of(stem, pending)) < LEAST_ROWS or count < 2:
        return 0.0
    started = time.monotonic()
    command = [sys.executable, "-m", "systems.experiments.rehearse", stem, grid]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    children = [subprocess.Popen([*command, str(i), str(count)], cwd=ROOT, **quiet) for i in range(count)]
    for child in children:
        child.wait()
    return time.monotonic() - started


def main(stem: str, grid: str, first: int, step: int) -> None:
    """Run rows FIRST, FIRST + STEP, ... of those of STEM that are rehearsed."""
    module = import_module(STEMS[stem].module)
    for config in rows_of(stem, module.configs(quick=grid == "quick"))[first::step]:
        # Whatever goes wrong goes wrong again where it is reported.
        with contextlib.suppress(Exception):
            module.run(config)


if __name__ == "__main__":
    typer.run(main)
