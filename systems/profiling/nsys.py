"""Profile a command with Nsight Systems, export the report to SQLite, and read its
kernels. `nsys` starts the command, and records only between `cudaProfilerStart` and
`cudaProfilerStop`, so reports contain no warm-up. This module doesn't import torch.
"""

import re
import shutil
import sqlite3
import subprocess
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from systems.profiling import trace
from systems.profiling.trace import Kernel, TraceError, check_times

# The first version of nsys whose --capture-range-end lets the process finish.
MIN_VERSION = (2022, 1)
REPORT = ".nsys-rep"


class NsysError(ValueError):
    """Nsight Systems can't be used; the message states the reason and what to do."""

    def __init__(self, problem: str):
        super().__init__(f"{problem}, or give --profiler torch")


def is_installed() -> bool:
    """Return whether some version of `nsys` is on the PATH."""
    return shutil.which("nsys") is not None


def find_nsys() -> str:
    """Return the path of `nsys`. Raise `NsysError` if it is missing, broken or old."""
    program = shutil.which("nsys")
    if program is None:
        raise NsysError("no nsys on the PATH: install Nsight Systems (see nsys.md)")
    output = _run_command([program, "--version"], "nsys --version")
    version = re.search(r"version (\d{4})\.(\d+)", output)
    if version is None:
        raise NsysError(f"{program} does not tell its version: install nsys again")
    if (int(version[1]), int(version[2])) < MIN_VERSION:
        raise NsysError(
            f"{program} is version {version[1]}.{version[2]}, too old to be told what "
            f"to capture: install {MIN_VERSION[0]}.{MIN_VERSION[1]} or later"
        )
    return program


# --8<-- [start:command]
def command_line(program: str, report: Path, work: Sequence[str]) -> list[str]:
    """Return the nsys command that runs `work` and writes its profile to `report`."""
    return [
        *(program, "profile", "--trace", "cuda,nvtx"),
        # Don't sample the CPU, which needs privileges and disturbs the measurement.
        *("--sample", "none", "--cpuctxsw", "none"),
        *("--capture-range", "cudaProfilerApi", "--capture-range-end", "stop"),
        *("--force-overwrite", "true", "--output", str(report.with_suffix(""))),
        *work,
    ]
    # --8<-- [end:command]


def profile(work: Sequence[str], report: Path, cwd: Path) -> tuple[str, Path]:
    """Run the command `work` under nsys; write `report` (.nsys-rep) and, beside it, an
    SQLite export. Return the command's output and the export's path. Raise NsysError.
    """
    assert report.suffix == REPORT
    program = find_nsys()
    report.parent.mkdir(parents=True, exist_ok=True)
    # Delete the files of an earlier run, which could be mistaken for this run's files.
    export = report.with_suffix(".sqlite")
    for path in (report, export):
        path.unlink(missing_ok=True)
    output = _run_command(command_line(program, report, work), "nsys profile", cwd)
    if not report.exists():
        raise NsysError(
            f"nsys profile wrote no {report.name}: no CUDA work ran while it captured; "
            "run the command by itself"
        )
    options = ["--type", "sqlite", "--force-overwrite", "true", "--output", str(export)]
    _run_command([program, "export", *options, str(report)], "nsys export")
    return output, export


def _run_command(command: list[str], name: str, cwd: Path | None = None) -> str:
    """Return the standard output of a command. Raise `NsysError` if it fails."""
    try:
        process = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, errors="replace"
        )
    except OSError as error:
        raise NsysError(f"{name} can't be run ({error.strerror}): repair it") from error
    if process.returncode:
        output = process.stderr.strip() or process.stdout.strip() or "it said nothing"
        raise NsysError(
            f"{name} failed (exit code {process.returncode}): "
            f"{output.splitlines()[-1]}; repair that"
        )
    return process.stdout


# Reading an export --------------------------------------------------------------------

# Values of NVTX_EVENTS.eventType for push/pop ranges and for start/end ranges.
RANGES = (59, 60)
OUTER_END = 2**63 - 1
COPY_KINDS = {
    **{1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA"},
    **{6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"},
}
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES, FILLS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
NEEDED_TABLES = {
    KERNELS: "GPU kernels",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "CUDA calls",
    "NVTX_EVENTS": "NVTX ranges",
}
CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
# Without --cuda-graph-trace=node, a CUDA graph is one entry without kernels.
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
WHOLE_GRAPH = "a CUDA graph (--cuda-graph-trace=node shows its kernels)"
# The columns common to all kinds of GPU work.
GPU_COLUMNS = ("start", "end", "correlationId", "globalPid")
PROFILE_AGAIN = "profile again with --trace cuda,nvtx on a machine with a GPU"


def read_export(path: Path, marks: Collection[str] = ()) -> list[Kernel]:
    """Return the kernels of an SQLite export, sorted by start, each with the ranges
    named in `marks` that were open at its launch. Raise `TraceError` for any other
    file, and for an export with several processes.
    """
    if not path.is_file():
        raise TraceError(
            f"{path} does not exist: write it with `nsys export --type sqlite "
            "REPORT.nsys-rep`"
        )
    with (
        trace.wrap_errors(
            f"{path} is no whole SQLite export", "export the report again with nsys"
        ),
        closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db,
    ):
        # Names may be cut inside a character.
        db.text_factory = lambda text: text.decode(errors="replace")
        return query_kernels(db, marks, str(path))


def query_kernels(
    database: sqlite3.Connection, marks: Collection[str], name: str
) -> list[Kernel]:
    """Return kernels as `read_export` does; `name` is the file, for error messages."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    tables = {
        table: {x[1] for x in database.execute(f'PRAGMA table_info("{table}")')}
        for (table,) in database.execute(query)
    }
    if "StringIds" not in tables:
        raise TraceError(
            f"{name} has no table StringIds, so Nsight Systems did not write it: give "
            "its SQLite export"
        )
    for table, what in NEEDED_TABLES.items():
        if table not in tables and not (table == KERNELS and GRAPHS in tables):
            raise TraceError(f"{name} has no {what} (table {table}): {PROFILE_AGAIN}")

    def select(table: str, *columns: str) -> Iterable[tuple[Any, ...]]:
        """Yield these columns of a table; None for a column that the table lacks."""
        if not (existing := tables.get(table)):
            return []
        present = (column if column in existing else "NULL" for column in columns)
        return database.execute(f'SELECT {", ".join(present)} FROM "{table}"')

    strings = {number: value for number, value in select("StringIds", "id", "value")}
    launches: dict[Any, trace.Launch] = {}
    for table in CALLS:
        calls = select(table, "start", "correlationId", "globalTid")
        for start, number, thread in calls:
            launch = trace.Launch(thread, round(start))
            launches[number, process_id(thread)] = launches[number, None] = launch
    kernel_names = ("demangledName", "mangledName", "shortName")
    on_gpu = [
        (strings.get(long) or strings.get(mangled) or strings.get(short), *rest)
        for long, mangled, short, *rest in select(KERNELS, *kernel_names, *GPU_COLUMNS)
    ]
    on_gpu += [(WHOLE_GRAPH, *rest) for rest in select(GRAPHS, *GPU_COLUMNS)]
    if not on_gpu:
        raise TraceError(f"{name} has an empty table of GPU kernels: {PROFILE_AGAIN}")
    on_gpu += [
        (f"Memcpy {COPY_KINDS.get(kind, 'of another kind')}", *rest)
        for kind, *rest in select(COPIES, "copyKind", *GPU_COLUMNS)
    ]
    on_gpu += [("Memset", *rest) for rest in select(FILLS, *GPU_COLUMNS)]
    ranges = select(
        "NVTX_EVENTS", "start", "end", "eventType", "text", "textId", "globalTid"
    )
    spans = [
        # A range that is still open when the capture ends has no end time.
        trace.Span(*check_times(mark, start, OUTER_END if end is None else end), thread)
        for start, end, kind, text, number, thread in ranges
        if (mark := text or strings.get(number, "")) in marks
        and kind in (*RANGES, None)
    ]
    runs = [
        (
            *check_times(kernel or "a kernel without a name", start, end),
            launches.get((number, process_id(process))),
        )
        for kernel, start, end, number, process in on_gpu
    ]
    # Old versions store the processes of CUDA calls only.
    found = {process_id(process) for *_, process in on_gpu} - {None}
    found = found or {process_id(call.thread) for call in launches.values()} - {None}
    kernels = trace.attribute_kernels(runs, spans)
    return trace.select_process(kernels, found, process_id, name)


def process_id(identifier: Any) -> int | None:
    """Return the process ID in a global ID of nsys: drop its 24 low bits. Keep None."""
    return None if identifier is None else identifier >> 24
