"""Run work under torch.profiler and read the kernels from the exported trace."""

import gc
import gzip
import json
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

from systems.benchmarking.timing import synchronize
from systems.profiling.trace import (
    Kernel,
    Launch,
    Span,
    TraceError,
    attribute_kernels,
    check_times,
    wrap_errors,
)

# Event categories in lower case; before PyTorch 1.12 they were capitalized and shorter.
GPU_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
LAUNCH_CATEGORIES = {"cuda_runtime", "cuda_driver", "runtime", "driver"}
CPU_CATEGORIES = {"user_annotation", "cpu_op", "operator"}
# PyTorch's matmul operations. Others, such as `einsum` or `linear`, call one of these.
MATMUL_OPS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::addbmm")

Result = TypeVar("Result")


def profile_kernels(
    work: Callable[[], Result],
    device: str,
    marks: Collection[str] = (),
    keep: Path | None = None,
) -> tuple[Result, list[Kernel]]:
    """Return the result of `work` and the kernels that it launched, sorted by start,
    each with the profiler ranges named in `marks` that were open at its launch.

    Save the trace as `keep` (`.json` or `.json.gz`), for ui.perfetto.dev. Raise
    `TraceError` if nothing ran on the GPU.
    """
    if device == "cuda":
        warm_up_profiler()
    result, profiler = run_profiled(work, device)
    with TemporaryDirectory() as folder:
        path = keep or Path(folder) / "trace.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
        return result, read_trace(path, marks)


@cache
def warm_up_profiler() -> None:
    """Once per process, profile a kernel: a first profile may miss kernels."""
    run_profiled(lambda: torch.zeros(1, device="cuda"), "cuda")


def run_profiled(work: Callable[[], Result], device: str) -> tuple[Result, profile]:
    # Record the CPU too, because marks, launches and operations are CPU events.
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with warnings.catch_warnings():
        # Hide a warning of PyTorch up to 2.11, whose remedy (acc_events=True) is slow.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events")
        with profile(activities=activities) as profiler:
            result = work()
            synchronize(device)
    return result, profiler


@contextmanager
def pause_gc() -> Iterator[None]:
    """Pause garbage collection, which would slowly traverse all events of a trace."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@pause_gc()
def read_trace(path: Path, marks: Collection[str] = ()) -> list[Kernel]:
    """Return the kernels of a trace file of torch.profiler (`.json`, `.json.gz`) as
    `profile_kernels` does. Raise `TraceError` for other files.
    """
    if not path.exists():
        raise TraceError(
            f"{path} does not exist: give a trace that torch.profiler exported"
        )
    open_file = gzip.open if path.suffix == ".gz" else open
    with wrap_errors(
        f"{path} is no whole trace", "profile again, and let the export finish"
    ):
        with open_file(path, "rt", encoding="utf-8", errors="replace") as file:
            # Parse leniently: kernel names may contain line breaks or invalid bytes.
            trace = json.load(file, strict=False)
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list):
        raise TraceError(
            f"{path} has no traceEvents: give what `export_chrome_trace` of "
            "torch.profiler writes"
        )
    with wrap_errors(
        f"{path} has an event that is none of torch.profiler's", "profile again"
    ):
        kernels = parse_events(events, marks)
    if not kernels:
        raise TraceError(
            f"{path} has no kernel of a GPU: profile with ProfilerActivity.CUDA and no "
            "other profiler, as one who may (a driver can keep profiling to "
            "administrators)"
        )
    return kernels


def parse_events(events: list[Any], marks: Collection[str]) -> list[Kernel]:
    """Return the kernels of `events` like `read_trace`, or raise one of MALFORMED."""
    calls: dict[Any, Launch] = {}
    by_op: dict[Any, Launch] = {}
    gpu_events, mark_spans, ops = [], [], []
    kinds = GPU_CATEGORIES | LAUNCH_CATEGORIES | CPU_CATEGORIES
    for event in (event for event in events if event.get("ph") == "X"):
        kind, args = str(event.get("cat", "")).lower(), event.get("args", {})
        if kind not in kinds:
            continue
        start, thread = round(event["ts"] * 1e3), (event.get("pid"), event.get("tid"))
        end = start + round(event.get("dur", 0) * 1e3)
        run = check_times(event["name"], start, end)
        if kind in GPU_CATEGORIES:
            gpu_events.append((run, args))
        if kind in LAUNCH_CATEGORIES and "correlation" in args:
            calls[args["correlation"]] = Launch(thread, start)
        if kind in CPU_CATEGORIES:
            span = Span(*run, thread)
            if span.name in marks:
                mark_spans.append(span)
            elif span.name in MATMUL_OPS:
                ops.append(span)
            if (number := external_id(args)) is not None:
                by_op[number] = Launch(thread, start)
    # If a launch was not recorded, use the start and thread of its operation.
    runs = [
        (*run, calls.get(args.get("correlation")) or by_op.get(external_id(args)))
        for run, args in gpu_events
    ]
    return attribute_kernels(runs, mark_spans, ops)


def external_id(args: dict[str, Any]) -> Any:
    """Return the id that links an operation to kernels; its key varies by version."""
    return args.get("External id", args.get("external id", args.get("External Id")))
