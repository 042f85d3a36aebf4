"""Summarize a profiled step for a record: GPU times of each phase, and a row for each
kernel of each phase. All times are in ms per pass.
"""

from collections import defaultdict
from typing import Any

from systems.benchmarking import phases
from systems.profiling.kernel_names import kernel_category
from systems.profiling.marks import LAYER, STEP
from systems.profiling.trace import Kernel, TraceError, span_ms


def phase_and_part(kernel: Kernel) -> tuple[str, ...]:
    """Return (phase, attention part if any), such as ("forward", "attention mask")."""
    return tuple(name for name in kernel.path if name not in (STEP, LAYER))


def gpu_metrics(kernels: list[Kernel], passes: int) -> dict[str, Any]:
    """Return times in ms, a sample per pass: by phase from first to last kernel
    (`forward_gpu_span_ms`) and summed (`forward_gpu_busy_ms`), and of matmuls; also
    `kernels`, a row for each kernel of each phase. Kernels outside of steps don't
    count. Raise TraceError if a pass is missing.
    """
    by_pass: dict[int, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if STEP in kernel.path:
            by_pass[kernel.marks[kernel.path.index(STEP)].start].append(kernel)
    if len(by_pass) != passes:
        raise TraceError(
            f"the trace has {len(by_pass)} steps with kernels, not {passes}: profile "
            "again"
        )
    ordered = [group for _, group in sorted(by_pass.items())]
    metrics: dict[str, Any] = {}
    for name in phases.PHASES:
        groups = [[k for k in g if phase_and_part(k)[:1] == (name,)] for g in ordered]
        if any(groups):
            metrics[f"{name}_gpu_span_ms"] = [*map(span_ms, groups)]
            metrics[f"{name}_gpu_busy_ms"] = [sum(k.ms for k in g) for g in groups]
    in_steps = [kernel for group in ordered for kernel in group]
    if any(kernel.op for kernel in in_steps):
        metrics["matmul_ops_ms"] = [sum(k.ms for k in g if k.op) for g in ordered]
    times: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for kernel in in_steps:
        parts = phase_and_part(kernel)
        category = kernel_category(kernel.name, parts)
        times["/".join(parts), kernel.name, category].append(kernel.ms)
    rows = [
        {
            "phase": phase,
            "name": name,
            "category": category,
            "calls": calls_per_pass(len(ms), passes),
            "total_ms": round(sum(ms) / passes, 6),
        }
        for (phase, name, category), ms in sorted(times.items())
    ]
    return metrics | {"kernels": sorted(rows, key=lambda row: -row["total_ms"])}


def calls_per_pass(calls: int, passes: int) -> int | float:
    """Return the number of calls per pass, as an int if it is a whole number."""
    return calls / passes if calls % passes else calls // passes
