"""What a profile is, whoever made it: GPU kernels, each in the phase that launched it.

`torch_trace` reads a trace of torch.profiler, `nsys` an SQLite export of Nsight
Systems; both give kernels as they are defined here.

A kernel runs long after the CPU has launched it, so its phase is not what the CPU does
while it runs: it is what was marked at the moment of its launch. Both profilers number
each launch (the correlation id) and write that number beside the kernel. The launching
thread's marks count. Autograd launches the backward pass from a thread of its own,
which has none: then the marks of the thread that waits for it do.

Times inside are whole ns, of whatever clock the trace has; in rows they are ms. Imports
no torch.
"""

import sqlite3
import statistics
import zlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# What a file that is not what it says makes Python raise while it is taken apart.
MALFORMED = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, OSError, RecursionError),
    *(TypeError, ValueError, sqlite3.Error, zlib.error),
)
# How both profilers begin the names of copies and fills of memory.
COPY_PREFIXES = ("Memcpy", "Memset")


class TraceError(ValueError):
    """A trace that can't be read: the message names the file and says what to do."""


@contextmanager
def wrap_errors(problem: str, remedy: str) -> Iterator[None]:
    """Whatever a malformed file raises inside is one line: a TraceError."""
    try:
        yield
    except TraceError:
        raise
    except MALFORMED as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise TraceError(f"{problem} ({cause}): {remedy}") from error


def check_times(name: Any, start: Any, end: Any) -> tuple[str, int, int]:
    """A name and two times as a file gives them; times in whole ns. One of MALFORMED
    where they are anything else.
    """
    if not isinstance(name, str):
        raise TypeError(f"a name is {name!r}")
    start, end = round(start), round(end)
    if end < start:
        raise ValueError(f"{name} ends {start - end} ns before it starts")
    return name, start, end


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
    time: int


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
    def is_copy(self) -> bool:
        """Whether it copies or fills memory, which no kernel of a program does."""
        return self.name.startswith(COPY_PREFIXES)

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


def kernel_rows(
    kernels: Iterable[Kernel], origin: int | None = None
) -> list[KernelRow]:
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
        metrics = (
            sum(times),
            statistics.median(times),
            min(times),
            max(times),
            start_ms,
        )
        rows.append(KernelRow(name, path, len(times), *metrics))
    return sorted(rows, key=lambda row: (-row.total_ms, row.path, row.name))


def span_ms(kernels: Iterable[Kernel]) -> float:
    """From the start of the first kernel to the end of the last."""
    kernels = list(kernels)
    return (
        (max(k.end for k in kernels) - min(k.start for k in kernels)) / 1e6
        if kernels
        else 0.0
    )


def busy_ms(kernels: Iterable[Kernel]) -> float:
    """Sum of the durations; where kernels overlap, as a copy and a kernel may, the time
    counts once.
    """
    total = until = 0
    for kernel in sorted(kernels, key=lambda kernel: kernel.start):
        total += max(0, kernel.end - max(kernel.start, until))
        until = max(until, kernel.end)
    return total / 1e6


# --8<-- [start:attribute]
def find_open_spans(
    spans: Iterable[Span], launches: Iterable[Launch]
) -> dict[Launch, list[Span]]:
    """The spans, of any thread, that are open at each launch, outermost first. One
    sweep over both in time.
    """
    pending = sorted(spans, key=lambda span: (span.start, -span.end), reverse=True)
    open_by_launch: dict[Launch, list[Span]] = {}
    current: list[Span] = []
    for launch in sorted(set(launches), key=lambda launch: launch.time):
        while pending and pending[-1].start <= launch.time:
            current.append(pending.pop())
        current = [span for span in current if span.end >= launch.time]
        open_by_launch[launch] = list(current)
    return open_by_launch


def attribute_kernels(
    runs: Iterable[tuple[str, int, int, Launch | None]],
    phases: Iterable[Span],
    ops: Iterable[Span] = (),
) -> list[Kernel]:
    """Kernels (name, start, end, launch) with their phases, by start. Without a launch
    they belong to none.
    """
    runs = sorted(runs, key=lambda run: run[1:3])
    launches = [launch for *_, launch in runs if launch is not None]
    open_marks, open_ops = (
        find_open_spans(phases, launches),
        find_open_spans(ops, launches),
    )
    kernels = []
    for name, start, end, launch in runs:
        marks, op = [], None
        if launch is not None:
            same_thread = [
                span for span in open_marks[launch] if span.thread == launch.thread
            ]
            marks = same_thread or open_marks[launch]
            op = next(
                (
                    span.name
                    for span in open_ops[launch]
                    if span.thread == launch.thread
                ),
                None,
            )
        kernels.append(Kernel(name, start, end, tuple(marks), op))
    return kernels


# --8<-- [end:attribute]
