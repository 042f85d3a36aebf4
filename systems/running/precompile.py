"""Compile the kernels of rows before they are measured, in parallel processes.

Each process gets its parent's ID and row numbers. For each row it calls the
experiment's `precompile`, or `run` up to its first `yield`, to fill compilers' caches.

    python -m systems.running.precompile flash_accuracy full PARENT 0 16 32
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from systems import ROOT
from systems.experiments import STEMS
from systems.records.files import write_atomically
from systems.records.outcome import measure_in_turns
from systems.running.reports import GRACE, end_with_parent, exit_when_terminated, report

# Maximum number of processes, because each needs GPU memory for a context and tensors.
MOST_PROCESSES = 16
# Minimum rows to compile ahead: fewer rows compile faster than processes start.
LEAST_ROWS = 8
# Maximum seconds of compiling ahead, because a compiler may hang.
MAX_SECONDS = 20 * 60
# Environment variable with the path of the folder of compiled code.
FOLDER_VARIABLE = "SYSTEMS_COMPILED_AHEAD"
# Name of the file, in the folder of compiled code, with the times of compiling steps.
SAMPLES_FILE = "cold.json"


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def grid_configs(stem: str, grid: str) -> list[Any]:
    return import_module(STEMS[stem].module).configs(quick=grid == "quick")


def implementation_or_execution(config: Any) -> str | None:
    """Return a configuration's field `implementation`, else `execution`, else None."""
    return getattr(config, "implementation", getattr(config, "execution", None))


@contextlib.contextmanager
def make_code_folder() -> Iterator[None]:
    """Create a temporary folder for compiled code; FOLDER_VARIABLE has its path."""
    with TemporaryDirectory(prefix="compiled-", ignore_cleanup_errors=True) as folder:
        os.environ[FOLDER_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[FOLDER_VARIABLE]


def compile_ahead(stem: str, grid: str, pending: list[Any], deadline: float) -> None:
    """Compile in parallel the `pending` configurations whose implementation or
    execution is in `Stem.precompiled`, if there are at least LEAST_ROWS, and enough
    cores. Stop after MAX_SECONDS or half of the time to `deadline` (s since 1970).
    """
    started, entry, configs = time.time(), STEMS[stem], grid_configs(stem, grid)
    ends = started + min(MAX_SECONDS, (deadline - started) / 2)
    count = min(MOST_PROCESSES, available_cores() // entry.cores_per_process)
    kind_of = [implementation_or_execution(config) for config in configs]
    rows = [
        row
        for row, config in enumerate(configs)
        if config in pending and kind_of[row] in entry.precompiled
    ]
    if len(rows) < LEAST_ROWS or count < 2 or ends <= started:
        return
    if bytes_of := getattr(import_module(entry.module), "precompile_bytes", None):
        import torch

        # Start the grid's last rows first, because they are large and take long.
        jobs = [(bytes_of(configs[row]), [row]) for row in reversed(rows)]
        room = torch.cuda.mem_get_info()[0]
    else:
        # Each process gets rows of all kinds, because their compile times differ.
        rows.sort(key=lambda row: entry.precompiled.index(kind_of[row] or ""))
        jobs, room = [(0, rows[i::count]) for i in range(min(count, len(rows)))], 0
    module = "systems.running.precompile"
    base = [sys.executable, "-m", module, stem, grid, str(os.getpid())]
    threads = {"TORCHINDUCTOR_COMPILE_THREADS": str(entry.cores_per_process)}
    silent: Any = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    options = silent | {"cwd": ROOT, "env": os.environ | threads}
    children: dict[subprocess.Popen[Any], int] = {}
    try:
        while (jobs or children) and time.time() < ends:
            for size, share in list(jobs):
                fits = size + sum(children.values()) <= room or not children
                if fits and len(children) < count:
                    command = [*base, *map(str, share)]
                    children[subprocess.Popen(command, **options)] = size
                    jobs.remove((size, share))
            time.sleep(0.1)
            children = {c: size for c, size in children.items() if c.poll() is None}
        if jobs or children:
            report(event="compiled_in_part", minutes=round((ends - started) / 60, 1))
    finally:
        terminate_children([*children])


def terminate_children(children: list[subprocess.Popen[Any]]) -> None:
    """Terminate all children; kill any child that doesn't end within GRACE seconds."""
    for child in children:
        child.terminate()
    last = time.time() + GRACE
    for child in children:
        try:
            child.wait(timeout=max(0.0, last - time.time()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def code_folder(*settings: Any) -> Path | None:
    """Return the folder for code of these settings, None outside `make_code_folder`."""
    folder, name = os.environ.get(FOLDER_VARIABLE), "-".join(map(str, settings))
    return Path(folder, name.replace(".", "_")) if folder else None


def store_samples(folder: Path, samples: dict[str, Any]) -> None:
    """Write the times of compiling steps (`warmup_...` in `samples`) into `folder`."""
    times = {name: ms for name, ms in samples.items() if name.startswith("warmup_")}
    write_atomically(folder / SAMPLES_FILE, json.dumps(times))


def read_samples(folder: Path | None) -> dict[str, Any]:
    """Return what `store_samples` stored, or {} if compiling did not finish."""
    if folder is None or not (folder / SAMPLES_FILE).is_file():
        return {}
    return json.loads((folder / SAMPLES_FILE).read_text())


def main(stem: str, grid: str, parent: int, rows: list[int]) -> None:
    """Compile kernels of `rows` (from 0), ignoring errors. Exit when `parent` ends."""
    # Watch the parent first, because it may end during the slow imports.
    end_with_parent(parent)
    module, configs = import_module(STEMS[stem].module), grid_configs(stem, grid)
    for row in rows:
        # Ignore errors, because measuring the row raises and reports them again.
        with contextlib.suppress(Exception):
            if hasattr(module, "precompile"):
                module.precompile(configs[row])
            else:
                # Run only one turn, because the first turn compiles all kernels.
                next(measure_in_turns(configs[row], module.run))


if __name__ == "__main__":
    exit_when_terminated()
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), [*map(int, sys.argv[4:])])
