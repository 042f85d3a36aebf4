"""Kernels of a profile, each with the phase that launched it. `torch_trace` and `nsys`
read the kernels from files.

A kernel can run long after its launch by the CPU, so its phase is the one that was
marked at the launch. Both profilers number each launch (the correlation id) and store
that number with the kernel. Autograd launches the backward pass from a thread without
marks; the marks of the thread that waits for it count instead.

Times are integers in ns on the trace's clock; rows have ms. This module needs no torch.
"""

import sqlite3
import zlib
from collections.abc import Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

# Exceptions that parsing a malformed file can raise.
MALFORMED = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, OSError, RecursionError),
    *(TypeError, ValueError, sqlite3.Error, zlib.error),
)
# Prefixes that both profilers give to copies and fills of memory.
COPY_PREFIXES = ("Memcpy", "Memset")


class TraceError(ValueError):
    """A trace can't be read or lacks kernels; the message says what to do."""


@contextmanager
def wrap_errors(problem: str, remedy: str) -> Iterator[None]:
    """Turn errors of malformed files into a `TraceError`, "problem (cause): remedy"."""
    try:
        yield
    except TraceError:
        raise
    except MALFORMED as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise TraceError(f"{problem} ({cause}): {remedy}") from error


def check_times(name: Any, start: Any, end: Any) -> tuple[str, int, int]:
    """Return a valid event's name, start and end in ns, or raise one of MALFORMED."""
    if not isinstance(name, str):
        raise TypeError(f"a name is {name!r}")
    start, end = round(start), round(end)
    if end < start:
        raise ValueError(f"{name} ends {start - end} ns before it starts")
    return name, start, end


@dataclass(frozen=True)
class Span:
    """A named interval on a CPU thread, in ns: a marked phase or an operation."""

    name: str
    start: int
    end: int
    thread: Hashable


@dataclass(frozen=True)
class Launch:
    """The thread that launched a kernel, and the time of the launch in ns."""

    thread: Hashable
    time: int


@dataclass(frozen=True)
class Kernel:
    """One run of a kernel on the GPU, in ns, with the profiler ranges around its launch
    (outermost first) and the PyTorch matmul that launched it, if known.
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
        """Return whether this is a memory copy or fill instead of a kernel."""
        return self.name.startswith(COPY_PREFIXES)

    @property
    def ms(self) -> float:
        return (self.end - self.start) / 1e6


def span_ms(kernels: Iterable[Kernel]) -> float:
    """Return the ms from the first kernel's start to the last one's end, 0 if none."""
    kernels = list(kernels)
    return (
        (max(k.end for k in kernels) - min(k.start for k in kernels)) / 1e6
        if kernels
        else 0.0
    )


def busy_ms(kernels: Iterable[Kernel]) -> float:
    """Return the time in ms during which at least one kernel runs."""
    total = until = 0
    for kernel in sorted(kernels, key=lambda kernel: kernel.start):
        total += max(0, kernel.end - max(kernel.start, until))
        until = max(until, kernel.end)
    return total / 1e6


# --8<-- [start:attribute]
def find_open_spans(
    spans: Iterable[Span], launches: Iterable[Launch]
) -> dict[Launch, list[Span]]:
    """Return the spans of all threads that are open at each launch, outermost first."""
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
    """Return kernels by start, each with the `phases` open at launch (of its thread, or
    else of all) and its thread's outermost op. `runs`: (name, start, end, launch).
    """
    runs = sorted(runs, key=lambda run: run[1:3])
    launches = [launch for *_, launch in runs if launch is not None]
    marks_at, ops_at = find_open_spans(phases, launches), find_open_spans(ops, launches)
    kernels = []
    for name, start, end, call in runs:
        marks, op = [], None
        if call is not None:
            same_thread = [s for s in marks_at[call] if s.thread == call.thread]
            marks = same_thread or marks_at[call]
            op = next((s.name for s in ops_at[call] if s.thread == call.thread), None)
        kernels.append(Kernel(name, start, end, tuple(marks), op))
    return kernels
    # --8<-- [end:attribute]


def select_process(
    kernels: Iterable[Kernel], processes: Collection[Any], process_of: Any, name: str
) -> list[Kernel]:
    """Return the kernels, without marks of processes other than the one in `processes`.
    `process_of` gives a thread's process. Raise TraceError for several processes.
    """
    if len(processes) > 1:
        raise TraceError(
            f"{name} mixes kernels of {len(processes)} processes: write a file in each "
            "rank, with `nsys profile -o report.%p` or torch.profiler"
        )
    known = {None, *processes}
    return [
        replace(k, marks=tuple(m for m in k.marks if process_of(m.thread) in known))
        for k in kernels
    ]
