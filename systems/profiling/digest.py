"""Summarize a profiled step for a record: GPU times of each phase, and a row for each
kernel of each phase. All times are in ms per pass.
"""

from collections import defaultdict
from dataclasses import replace
from typing import Any

from systems.benchmarking import phases
from systems.profiling.kernel_names import kernel_category
from systems.profiling.marks import LAYER, STEP
from systems.profiling.trace import Kernel, TraceError, kernel_rows, span_ms


def phase_and_part(kernel: Kernel) -> tuple[str, ...]:
    """Return a kernel's phase, and part of attention: ("forward", "attention mask")."""
    return tuple(name for name in kernel.path if name not in (STEP, LAYER))


def gpu_metrics(kernels: list[Kernel], passes: int) -> dict[str, Any]:
    """Return, in ms for each pass and phase, the time from first to last kernel and the
    sum of kernel times; then a row per kernel. Raise TraceError if a pass is missing.
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
    if any(kernel.op for kernel in kernels):
        metrics["matmul_ops_ms"] = [sum(k.ms for k in g if k.op) for g in ordered]
    by_category: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        marks = tuple(mark for mark in kernel.marks if mark.name not in (STEP, LAYER))
        in_phase = replace(kernel, marks=marks)
        by_category[kernel_category(kernel.name, in_phase.path)].append(in_phase)
    rows = [
        {
            "phase": "/".join(row.path),
            "name": row.name,
            "category": category,
            "calls": calls_per_pass(row.calls, passes),
            "total_ms": round(row.total_ms / passes, 6),
        }
        for category, group in by_category.items()
        for row in kernel_rows(group)
    ]
    return metrics | {"kernels": sorted(rows, key=lambda row: -row["total_ms"])}


def calls_per_pass(calls: int, passes: int) -> int | float:
    """Return the number of calls per pass, as an int if it is a whole number."""
    return calls / passes if calls % passes else calls // passes
