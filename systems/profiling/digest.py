"""What a record keeps of a profiled step: times of each phase on the GPU, and a row for
each kernel of each phase.

Everything is per pass, in ms. Kernels keep the names that the profiler gave them:
short ones are made when tables are.
"""

from collections import defaultdict
from dataclasses import asdict, replace
from typing import Any

from systems.benchmarking import phases
from systems.profiling.kernel_names import category_of
from systems.profiling.marks import LAYER, STEP
from systems.profiling.trace import Kernel, TraceError, rows_of, span_ms

SHOWN = ("median_ms", "min_ms", "max_ms", "start_ms")


def phase_of(kernel: Kernel) -> tuple[str, ...]:
    """Its phase within a step: ("forward", "attention softmax"), say. Empty where
    nobody had marked its launch.
    """
    return tuple(name for name in kernel.path if name not in (STEP, LAYER))


def on_the_gpu(kernels: list[Kernel], passes: int) -> dict[str, Any]:
    """Each phase's span and sum of kernel times in each pass, and per pass a row for
    each kernel of each phase.
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
    metrics: dict[str, Any] = {}
    for name in phases.PHASES:
        of_phase = [
            [k for k in group if phase_of(k)[:1] == (name,)]
            for _, group in sorted(by_pass.items())
        ]
        if any(of_phase):
            metrics[f"{name}_gpu_span_ms"] = [span_ms(group) for group in of_phase]
            metrics[f"{name}_gpu_busy_ms"] = [
                sum(k.ms for k in group) for group in of_phase
            ]
    if any(kernel.op for kernel in kernels):
        of_ops = [
            sum(k.ms for k in group if k.op) for _, group in sorted(by_pass.items())
        ]
        metrics["matmul_ops_ms"] = of_ops
    by_category: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        marks = tuple(mark for mark in kernel.marks if mark.name not in (STEP, LAYER))
        in_phase = replace(kernel, marks=marks)
        by_category[category_of(kernel.name, in_phase.path)].append(in_phase)
    origin = min(kernel.start for kernel in kernels)
    metrics["kernels"] = [
        {
            **{"phase": "/".join(row.path), "name": row.name, "category": category},
            **{
                "calls": per_pass(row.calls, passes),
                "total_ms": round(row.total_ms / passes, 6),
            },
            **{
                key: round(value, 6)
                for key, value in asdict(row).items()
                if key in SHOWN
            },
        }
        for category, group in by_category.items()
        for row in rows_of(group, origin)
    ]
    metrics["kernels"].sort(key=lambda row: -row["total_ms"])
    return metrics


def per_pass(calls: int, passes: int) -> int | float:
    """Whole where each pass makes as many calls as the others."""
    return calls / passes if calls % passes else calls // passes


def timeline(kernels: list[Kernel], mode: str) -> dict[str, list[dict[str, Any]]]:
    """Of a forward pass: each kernel of the second layer of the last pass, in ms from
    the first. The first layer may still wait for the CPU to get ahead.
    """
    layers = sorted(
        {mark for kernel in kernels for mark in kernel.marks if mark.name == LAYER},
        key=lambda m: m.start,
    )
    last = max((k.marks[0].start for k in kernels if STEP in k.path), default=0)
    of_last = [layer for layer in layers if layer.start >= last]
    if mode != "forward" or not of_last:
        return {}
    layer = of_last[min(1, len(of_last) - 1)]
    inside = [kernel for kernel in kernels if layer in kernel.marks]
    origin = inside[0].start
    return {
        "timeline": [
            {
                **{"phase": "/".join(phase_of(k)), "name": k.name},
                **{"category": category_of(k.name, phase_of(k))},
                **{"start_ms": (k.start - origin) / 1e6, "duration_ms": k.ms},
            }
            for k in inside
        ]
    }
