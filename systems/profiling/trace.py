"""GPU kernels by phase, from either profiler: a trace of torch.profiler or an SQLite
export of Nsight Systems.

A kernel runs long after the CPU has launched it, so its phase is not what the CPU does
while it runs: it is what was marked at the moment of its launch. Both profilers number
each launch (the correlation id) and write that number beside the kernel. The launching
thread's marks count. Autograd launches the backward pass from a thread of its own,
which has none: then the marks of the thread that waits for it do.

Times inside are whole ns, of whatever clock the trace has; in rows they are ms. Imports
no torch.
"""

import gc
import gzip
import json
import sqlite3
import statistics
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUTERMOST_END = 2**63 - 1
# What launches a matrix product, by PyTorch's own name; `einsum`, `matmul` and `linear`
# end in one of them.
MATMUL_OPS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::addbmm")


class TraceError(ValueError):
    """A trace that can't be read: the message names the file and says what to do."""


@dataclass(frozen=True)
class Span:
    """Something with a name on a thread of the CPU, from start to end in ns: a marked
    phase, or an operation.
    """

    name: str
    start: int
    end: int
    thread: Hashable


@dataclass(frozen=True)
class Launch:
    """Which thread launched a kernel, and when (ns)."""

    thread: Hashable
    at: int


@dataclass(frozen=True)
class Kernel:
    """One run of a kernel on the GPU, in ns; the marks around its launch, outermost
    first; the operation, if known.
    """

    name: str
    start: int
    end: int
    marks: tuple[Span, ...] = ()
    op: str | None = None

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(span.name for span in self.marks)

    @property
    def ms(self) -> float:
        return (self.end - self.start) / 1e6


@dataclass(frozen=True)
class KernelRow:
    """All runs of one kernel in one phase. `start_ms` is the first run's."""

    name: str
    path: tuple[str, ...]
    calls: int
    total_ms: float
    median_ms: float
    min_ms: float
    max_ms: float
    start_ms: float


def rows_of(kernels: Iterable[Kernel], origin: int | None = None) -> list[KernelRow]:
    """A row for each kernel and phase, the one that takes longest first. `origin` (ns)
    is where starts count from.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.name, kernel.path].append(kernel)
    if origin is None:
        origin = min(
            (kernel.start for group in groups.values() for kernel in group), default=0
        )
    rows = []
    for (name, path), group in groups.items():
        times = [kernel.ms for kernel in group]
        start_ms = (min(kernel.start for kernel in group) - origin) / 1e6
        shown = (sum(times), statistics.median(times), min(times), max(times), start_ms)
        rows.append(KernelRow(name, path, len(times), *shown))
    return sorted(rows, key=lambda row: (-row.total_ms, row.path, row.name))


def span_ms(kernels: Iterable[Kernel]) -> float:
    """From the start of the first kernel to the end of the last."""
    kernels = list(kernels)
    return (
        (max(k.end for k in kernels) - min(k.start for k in kernels)) / 1e6
        if kernels
        else 0.0
    )


# --8<-- [start:attribute]
def open_at(
    spans: Iterable[Span], launches: Iterable[Launch]
) -> dict[Launch, list[Span]]:
    """The spans, of any thread, that are open at each launch, outermost first. One
    sweep over both in time.
    """
    coming = sorted(spans, key=lambda span: (span.start, -span.end), reverse=True)
    found: dict[Launch, list[Span]] = {}
    now: list[Span] = []
    for launch in sorted(set(launches), key=lambda launch: launch.at):
        while coming and coming[-1].start <= launch.at:
            now.append(coming.pop())
        now = [span for span in now if span.end >= launch.at]
        found[launch] = list(now)
    return found


def attribute(
    runs: Iterable[tuple[str, int, int, Launch | None]],
    phases: Iterable[Span],
    ops: Iterable[Span] = (),
) -> list[Kernel]:
    """Kernels (name, start, end, launch) with their phases, by start. Without a launch
    they belong to none.
    """
    runs = sorted(runs, key=lambda run: run[1:3])
    launches = [launch for *_, launch in runs if launch is not None]
    marked, working = open_at(phases, launches), open_at(ops, launches)
    kernels = []
    for name, start, end, launch in runs:
        marks, op = [], None
        if launch is not None:
            own = [span for span in marked[launch] if span.thread == launch.thread]
            marks = own or marked[launch]
            op = next(
                (span.name for span in working[launch] if span.thread == launch.thread),
                None,
            )
        kernels.append(Kernel(name, start, end, tuple(marks), op))
    return kernels


# --8<-- [end:attribute]


# torch.profiler -----------------------------------------------------------------------

# Categories of events, in lower case: before PyTorch 1.12 they began with a capital and
# had shorter names.
ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
CALLS = {"cuda_runtime", "cuda_driver", "runtime", "driver"}
ON_CPU = {"user_annotation", "cpu_op", "operator"}


@contextmanager
def no_garbage() -> Iterator[None]:
    """Nothing inside makes any: each collection would only look through all that was
    read so far.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@no_garbage()
def read_torch(path: Path, phases: Collection[str]) -> list[Kernel]:
    """Kernels of a Chrome trace that torch.profiler exported (`.json` or `.json.gz`),
    by start.
    """
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.suffix == ".gz"
            else open(path, encoding="utf-8") as file
        ):
            trace = json.load(file)
    except FileNotFoundError:
        raise TraceError(
            f"{path} does not exist: give a trace that torch.profiler exported"
        ) from None
    except (ValueError, EOFError, OSError) as error:
        raise TraceError(
            f"{path} is no whole trace ({error}): profile again, and let the export finish"
        ) from error
    return kernels_of(trace, phases, str(path))


def kernels_of(
    trace: Any, phases: Collection[str], name: str = "the trace"
) -> list[Kernel]:
    """Kernels of a trace that is read already, by start."""
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list):
        raise TraceError(
            f"{name} has no traceEvents: give what `export_chrome_trace` of torch.profiler writes"
        )
    launched: dict[Any, Launch] = {}
    operated: dict[Any, Launch] = {}
    on_gpu, marks, ops = [], [], []
    try:
        for event in (event for event in events if event.get("ph") == "X"):
            kind, known = str(event.get("cat", "")).lower(), event.get("args", {})
            start = round(event["ts"] * 1e3)
            end, thread = (
                start + round(event.get("dur", 0) * 1e3),
                (event.get("pid"), event.get("tid")),
            )
            if kind in ON_GPU:
                on_gpu.append((event["name"], start, end, known))
            if kind in CALLS and "correlation" in known:
                launched[known["correlation"]] = Launch(thread, start)
            if kind in ON_CPU:
                span = Span(event["name"], start, end, thread)
                if span.name in phases:
                    marks.append(span)
                elif span.name in MATMUL_OPS:
                    ops.append(span)
                if (number := external_id(known)) is not None:
                    operated[number] = Launch(thread, start)
    except (KeyError, TypeError, AttributeError) as error:
        raise TraceError(
            f"{name} has an event that is none of torch.profiler's ({error!r}): profile again"
        ) from error
    if not on_gpu:
        raise TraceError(
            f"{name} has no kernel of a GPU: profile with ProfilerActivity.CUDA and no other profiler, as one who may "
            "(a driver can keep profiling to administrators)"
        )
    # Where the call was not recorded, the operation that the kernel names was.
    runs = [
        (
            name,
            start,
            end,
            launched.get(known.get("correlation")) or operated.get(external_id(known)),
        )
        for name, start, end, known in on_gpu
    ]
    return attribute(runs, marks, ops)


def external_id(known: dict[str, Any]) -> Any:
    """The number by which operations and kernels name each other; its spelling differs
    between versions.
    """
    return known.get("External id", known.get("external id", known.get("External Id")))


# Nsight Systems -----------------------------------------------------------------------

# NVTX_EVENTS.eventType of a range pushed and popped, and of one started and ended.
RANGES = (59, 60)
COPY_KINDS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
AGAIN = "profile again with --trace cuda,nvtx on a machine with a GPU"


def read_nsys(path: Path, phases: Collection[str]) -> list[Kernel]:
    """Kernels of an SQLite file that `nsys export --type sqlite` wrote, by start.

    Versions differ: a text is a string or the number of one, and tables are absent
    where they would be empty.
    """
    if not path.is_file():
        raise TraceError(
            f"{path} does not exist: write it with `nsys export --type sqlite REPORT.nsys-rep`"
        )
    try:
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        ) as database:
            return _kernels_of_export(database, phases, str(path))
    except sqlite3.Error as error:
        raise TraceError(
            f"{path} is no whole SQLite export ({error}): export the report again with nsys"
        ) from error


def _kernels_of_export(
    database: sqlite3.Connection, phases: Collection[str], name: str
) -> list[Kernel]:
    tables = {
        table: {
            column
            for _, column, *_ in database.execute(f'PRAGMA table_info("{table}")')
        }
        for (table,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
        ).fetchall()
    }
    if "StringIds" not in tables:
        raise TraceError(
            f"{name} has no table StringIds, so Nsight Systems did not write it: give its SQLite export"
        )
    for table, what in (
        ("CUPTI_ACTIVITY_KIND_KERNEL", "GPU kernels"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUDA calls"),
        ("NVTX_EVENTS", "NVTX ranges"),
    ):
        if table not in tables:
            raise TraceError(f"{name} has no {what} (table {table}): {AGAIN}")

    def select(table: str, *columns: str) -> Iterable[tuple[Any, ...]]:
        """These columns of a table, None for one that this version lacks."""
        known = tables.get(table)
        present = [column if column in (known or ()) else "NULL" for column in columns]
        return (
            database.execute(f'SELECT {", ".join(present)} FROM "{table}"')
            if known
            else []
        )

    strings: dict[Any, str] = dict(select("StringIds", "id", "value"))  # pyright: ignore[reportArgumentType]
    launched: dict[Any, Launch] = {}
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
        for start, correlation, thread in select(
            table, "start", "correlationId", "globalTid"
        ):
            launched[correlation, process_of(thread)] = launched[correlation, None] = (
                Launch(thread, start)
            )
    on_gpu = [
        (
            strings.get(long)
            or strings.get(mangled)
            or strings.get(short)
            or "a kernel without a name",
            *rest,
        )
        for long, mangled, short, *rest in select(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            "demangledName",
            "mangledName",
            "shortName",
            *_RUN,
        )
    ]
    on_gpu += [
        (f"Memcpy {COPY_KINDS.get(kind, 'of another kind')}", *rest)
        for kind, *rest in select("CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind", *_RUN)
    ]
    on_gpu += [
        ("Memset", *rest) for rest in select("CUPTI_ACTIVITY_KIND_MEMSET", *_RUN)
    ]
    marks = [
        # A range that was still open when the capture ended has no end.
        Span(said, start, OUTERMOST_END if end is None else end, thread)
        for start, end, kind, text, number, thread in select(
            "NVTX_EVENTS", "start", "end", "eventType", "text", "textId", "globalTid"
        )
        if (said := text or strings.get(number, "")) in phases
        and kind in (*RANGES, None)
    ]
    if not on_gpu:
        raise TraceError(f"{name} has an empty table of GPU kernels: {AGAIN}")
    runs = [
        (said, start, end, launched.get((number, process_of(pid))))
        for said, start, end, number, pid in on_gpu
    ]
    return attribute(runs, marks)


_RUN = ("start", "end", "correlationId", "globalPid")


def process_of(identifier: int | None) -> int | None:
    """The part of a globalTid or globalPid that both have: all but the 24 bits of the
    thread.
    """
    return None if identifier is None else identifier >> 24
