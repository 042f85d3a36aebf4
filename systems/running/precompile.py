"""Run some rows of a stem once and throw their results away, so that what they compile
is found when they are measured. An experiment that has a `precompile` compiles by it.

`measure` starts several of these at once: compilers use one core each, and a row's
kernels are compiled one after the other. Each is told which rows are its own, and ends
by itself soon after its parent was killed.

    python -m systems.running.precompile flash_accuracy full 0 16 32
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import typer

from systems import ROOT
from systems.experiments import STEMS
from systems.records.files import open_plain, write_whole
from systems.running.limited import limit_memory, simulated_gib
from systems.running.processes import kept_processes, turns
from systems.running.reports import exit_when_terminated, report

# Each holds a context and a row's tensors on the GPU.
MOST_PROCESSES = 16
# In the environment: the folder for what is compiled ahead of this run, and how many
# processes do so at once.
AHEAD, AT_ONCE = "SYSTEMS_COMPILED_AHEAD", "SYSTEMS_COMPILED_AT_ONCE"
# And the process that measures.
PARENT = "SYSTEMS_COMPILED_FOR"
# The longest that all of it may take, in seconds: a compiler may hang.
LONGEST = 20 * 60
# How long a process that is told to end may take, in seconds.
GRACE = 5
# How the folder's name begins, by whom it belongs to (Windows has no such numbers); and
# for how many seconds it may be that nobody holds a new one.
USER = os.getuid() if hasattr(os, "getuid") else "own"
OWN, JUST_NOW = f"transformer-systems-{USER}-compiled-", 60
# Beside what was compiled: what the steps took that compiled it.
COLD = "cold.json"
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


@contextlib.contextmanager
def folder_for_compiled() -> Iterator[None]:
    """A folder that lives as long as rows are measured, named where both the processes
    that compile and the rows look for it. Those of runs that were killed are removed.
    """
    remove_abandoned()
    options: Any = {"prefix": OWN, "ignore_cleanup_errors": True}
    with TemporaryDirectory(**options) as folder, locked(Path(folder)):
        os.environ[AHEAD] = folder
        try:
            yield
        finally:
            del os.environ[AHEAD]


def remove_abandoned() -> None:
    """Remove the folders that nobody holds. One that was made just now may not be held
    yet.
    """
    for folder in Path(gettempdir()).glob(f"{OWN}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.lstat().st_mtime > JUST_NOW:
                with locked(folder):
                    shutil.rmtree(folder)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, until this process ends, however it does. BlockingIOError where
    another holds it.
    """
    # Windows has none, and imports the experiments all the same, to check the records.
    import fcntl

    with open_plain(folder / ".lock", os.O_RDWR | os.O_CREAT) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def rehearse(stem: str, grid: str, pending: list[Any], deadline: float) -> None:
    """Compile in parallel what pending rows of a stem will run, for half of the time
    that is left until `deadline`: what is not measured then compiles anew.
    """
    started, cores_of_each = time.time(), STEMS[stem].cores_of_each
    ends = started + min(LONGEST, (deadline - started) / 2)
    count = min(MOST_PROCESSES, cores() // cores_of_each)
    wanted = [c for c in pending if kind_of(c) in STEMS[stem].rehearsed]
    if len(wanted) < LEAST_ROWS or count < 2 or ends <= started:
        return
    configs = configs_of(stem, grid)
    rows = [i for i, config in enumerate(configs) if config in wanted]
    # Of each kind as many for each: where kinds take turns in a grid, every second
    # process would have all of those that compile long.
    rows.sort(key=lambda row: STEMS[stem].rehearsed.index(kind_of(configs[row])))
    shares = [rows[i::count] for i in range(min(count, len(rows)))]
    if needed := getattr(import_module(STEMS[stem].module), "bytes_ahead", None):
        shares = that_fit({row: needed(configs[row]) for row in rows}, count, free())
    command = [sys.executable, "-m", "systems.running.precompile", stem, grid]
    environment = os.environ | {
        # There are processes enough without more of PyTorch's compiler.
        "TORCHINDUCTOR_COMPILE_THREADS": str(cores_of_each),
        AT_ONCE: str(len(shares)),
        PARENT: str(os.getpid()),
    }
    options: Any = {
        "cwd": ROOT,
        "env": environment,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    children: list[subprocess.Popen[Any]] = []
    try:
        for share in shares:
            children.append(subprocess.Popen([*command, *map(str, share)], **options))
        for child in children:
            child.wait(timeout=max(0.0, ends - time.time()))
    except subprocess.TimeoutExpired:
        report(event="compiled_in_part", minutes=round((ends - started) / 60, 1))
    finally:
        end(children)


def end(children: list[subprocess.Popen[Any]]) -> None:
    """End them all, each after it removed its temporary files, unless a compiler keeps
    it from doing so.
    """
    for child in children:
        child.terminate()
    last = time.time() + GRACE
    try:
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=max(0.0, last - time.time()))
    finally:
        for child in children:
            child.kill()
            child.wait()


def that_fit(needs: dict[int, int], most: int, room: int) -> list[list[int]]:
    """Rows by what they need, shared out among as many processes as surely fit at once,
    1 at least. Those that need much come one after the other, in the same process, so
    that it is no more than one of them at any moment.
    """
    rows = sorted(needs, key=needs.__getitem__, reverse=True)
    for count in range(min(most, len(rows)), 0, -1):
        # What is left over goes to those that need least.
        ends = [len(rows) * i // count for i in range(count + 1)]
        shares = [rows[start:end] for start, end in pairwise(ends)]
        if count == 1 or sum(needs[share[0]] for share in shares) <= room:
            return shares
    return []


def free() -> int:
    """Bytes of the GPU's memory that nobody holds; of a smaller one, if simulated."""
    import torch

    gib = simulated_gib()
    left = torch.cuda.mem_get_info()[0]
    return left if gib is None else min(left, gib * 2**30)


def kind_of(config: Any) -> str | None:
    """What a stem names in `rehearsed`."""
    return getattr(config, "implementation", getattr(config, "execution", None))


# What an experiment's `precompile` keeps ----------------------------------------------


def ahead(name: str) -> Path | None:
    """The folder for what this cell compiles; None where nothing compiles ahead."""
    folder = os.environ.get(AHEAD)
    return Path(folder) / name if folder else None


def keep_samples(folder: Path, samples: dict[str, Any]) -> None:
    """What compiling steps took, by phase, and how many processes compiled at once: all
    of it or, where the process is ended or the disk is full, nothing.
    """
    times = {f"warmup_{n}": ms for n, ms in samples.items() if n.endswith("_ms")}
    kept = times | {"compiled_at_once": int(os.environ.get(AT_ONCE, "1"))}
    write_whole(folder / COLD, json.dumps(kept))


def cold_samples(folder: Path | None) -> dict[str, Any]:
    """What `keep_samples` kept; nothing where this cell was not compiled ahead, or not
    to the end.
    """
    if folder is None or not (folder / COLD).is_file():
        return {}
    return json.loads((folder / COLD).read_text())


def end_with(parent: int) -> None:
    """Let this process end soon after its parent, even if that is killed."""
    threading.Thread(target=end_after, args=(parent,), daemon=True).start()


def end_after(parent: int) -> None:
    """End this process, whatever it does, once its parent is gone: nobody measures."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


def main(stem: str, grid: str, rows: list[int]) -> None:
    """Run these rows of a stem, counted from 0."""
    # Before imports that take seconds, in which it may die.
    end_with(int(os.environ.get(PARENT, os.getppid())))
    limit_memory()
    module, configs = import_module(STEMS[stem].module), configs_of(stem, grid)
    with kept_processes():
        for row in rows:
            # Whatever goes wrong goes wrong again where it is reported.
            with contextlib.suppress(Exception):
                if hasattr(module, "precompile"):
                    module.precompile(configs[row])
                else:
                    # Of rows measured in turns, all that is compiled is in the first.
                    next(turns(module, configs[row]))


if __name__ == "__main__":
    exit_when_terminated()
    typer.run(main)
