"""Compile what rows run before they are measured, in several processes at once.

Each process runs its share of the rows once and discards the results, or calls the
experiment's `precompile`. Measuring then finds the kernels in the compilers' caches.

    python -m systems.running.precompile flash_accuracy full PARENT 0 16 32
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from systems import ROOT
from systems.experiments import STEMS
from systems.records.files import write_atomically
from systems.records.outcome import measure_in_turns
from systems.running.reports import GRACE, end_with_parent, exit_when_terminated, report

# Each process holds a context and a row's tensors on the GPU.
MOST_PROCESSES = 16
# Starting the processes takes longer than compiling fewer rows.
LEAST_ROWS = 8
# Maximum seconds of compiling ahead, because a compiler may hang.
LONGEST = 20 * 60
# Environment variables: the folder for compiled code, and the number of processes.
AHEAD, AT_ONCE = "SYSTEMS_COMPILED_AHEAD", "SYSTEMS_COMPILED_AT_ONCE"
# The file beside compiled code that holds how long the compiling steps took.
COLD = "cold.json"


def available_cores() -> int:
    """Return how many cores this process may use; on a cluster, its job's share."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def configs_of(stem: str, grid: str) -> list[Any]:
    """Return all configurations of a stem's grid."""
    return import_module(STEMS[stem].module).configs(quick=grid == "quick")


def implementation_or_execution(config: Any) -> str | None:
    """Return the implementation or execution, which a stem names in `rehearsed`."""
    return getattr(config, "implementation", getattr(config, "execution", None))


@contextlib.contextmanager
def folder_for_compiled(record: Path) -> Iterator[None]:
    """Make a temporary folder for code compiled ahead, and name it in the environment.
    Its name depends on the record, so that the next run removes a killed run's.
    """
    owner = f"{os.getuid()} {record.resolve()}"
    digest = hashlib.sha256(os.fsencode(owner)).hexdigest()[:16]
    folder = Path(gettempdir(), f"transformer-systems-compiled-{digest}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    os.environ[AHEAD] = str(folder)
    try:
        yield
    finally:
        del os.environ[AHEAD]
        shutil.rmtree(folder, ignore_errors=True)


def compile_ahead(stem: str, grid: str, pending: list[Any], deadline: float) -> None:
    """Compile in parallel what the pending rows of a stem will run, in at most half of
    the time until `deadline` (seconds since 1970). Rows compile the rest themselves.
    """
    started, kinds = time.time(), STEMS[stem].rehearsed
    ends = started + min(LONGEST, (deadline - started) / 2)
    count = min(MOST_PROCESSES, available_cores() // STEMS[stem].cores_of_each)
    wanted = [
        config for config in pending if implementation_or_execution(config) in kinds
    ]
    if len(wanted) < LEAST_ROWS or count < 2 or ends <= started:
        return
    configs = configs_of(stem, grid)
    rows = [i for i, config in enumerate(configs) if config in wanted]
    # Kinds compile for different times, so each process gets as many of each.
    rows.sort(
        key=lambda row: kinds.index(implementation_or_execution(configs[row]) or "")
    )
    shares = [rows[i::count] for i in range(min(count, len(rows)))]
    if needed := getattr(import_module(STEMS[stem].module), "bytes_ahead", None):
        needs = {row: needed(configs[row]) for row in rows}
        shares = shares_that_fit(needs, count, free_gpu_bytes())
    own = ("-m", "systems.running.precompile", stem, grid, str(os.getpid()))
    threads = {"TORCHINDUCTOR_COMPILE_THREADS": str(STEMS[stem].cores_of_each)}
    environment = os.environ | threads | {AT_ONCE: str(len(shares))}
    silent: Any = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    children: list[subprocess.Popen[Any]] = []
    try:
        for share in shares:
            command = [sys.executable, *own, *map(str, share)]
            child = subprocess.Popen(command, cwd=ROOT, env=environment, **silent)
            children.append(child)
        for child in children:
            child.wait(timeout=max(0.0, ends - time.time()))
    except subprocess.TimeoutExpired:
        report(event="compiled_in_part", minutes=round((ends - started) / 60, 1))
    finally:
        terminate_children(children)


def terminate_children(children: list[subprocess.Popen[Any]]) -> None:
    """Terminate all children; kill those that a compiler keeps from ending in time."""
    for child in children:
        child.terminate()
    last = time.time() + GRACE
    for child in children:
        try:
            child.wait(timeout=max(0.0, last - time.time()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def shares_that_fit(needs: dict[int, int], most: int, room: int) -> list[list[int]]:
    """Divide rows among as many processes as fit in `room` bytes at once, at least
    one. The largest rows share a process, so that only one of them runs at a time.
    """
    rows = sorted(needs, key=needs.__getitem__, reverse=True)
    for count in range(min(most, len(rows)), 0, -1):
        ends = [len(rows) * i // count for i in range(count + 1)]
        shares = [rows[start:end] for start, end in pairwise(ends)]
        if count == 1 or sum(needs[share[0]] for share in shares) <= room:
            return shares
    return []


def free_gpu_bytes() -> int:
    """Return the GPU memory that is free."""
    import torch

    return torch.cuda.mem_get_info()[0]


# What an experiment's `precompile` keeps ----------------------------------------------


def ahead(name: str) -> Path | None:
    """Return the folder for a cell's compiled code; None if nothing compiles ahead."""
    folder = os.environ.get(AHEAD)
    return Path(folder) / name if folder else None


def keep_samples(folder: Path, samples: dict[str, Any]) -> None:
    """Write the times of compiling steps in ms, and how many processes compiled."""
    times = {f"warmup_{n}": ms for n, ms in samples.items() if n.endswith("_ms")}
    kept = times | {"compiled_at_once": int(os.environ.get(AT_ONCE, "1"))}
    write_atomically(folder / COLD, json.dumps(kept))


def cold_samples(folder: Path | None) -> dict[str, Any]:
    """Return what `keep_samples` wrote; empty if a cell was not compiled to the end."""
    if folder is None or not (folder / COLD).is_file():
        return {}
    return json.loads((folder / COLD).read_text())


# One of the processes -----------------------------------------------------------------


def main(stem: str, grid: str, parent: int, rows: list[int]) -> None:
    """Run these rows of a stem, counted from 0."""
    # First, because the imports take seconds in which the parent may die.
    end_with_parent(parent)
    module, configs = import_module(STEMS[stem].module), configs_of(stem, grid)
    for row in rows:
        # An error is reported when the row is measured, which raises it again.
        with contextlib.suppress(Exception):
            if hasattr(module, "precompile"):
                module.precompile(configs[row])
            else:
                # The first turn of a row compiles all that it runs.
                next(measure_in_turns(configs[row], module.run))


if __name__ == "__main__":
    exit_when_terminated()
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), [*map(int, sys.argv[4:])])
