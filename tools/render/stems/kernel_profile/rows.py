"""What rows of `kernel_profile` say: times by phase and category, shares, kernels by
name. Times in ms, per pass.
"""

from collections import defaultdict
from dataclasses import asdict
from typing import Any

from systems.formulas.costs import FP32_BYTES, attention_part_costs
from systems.model.sizes import SIZES
from systems.profiling.kernel_names import MATMUL
from systems.records.record import Record, Row
from systems.records.summary import summarize

CONTEXTS = (128, 256, 512, 1024)
PHASES = ("forward", "loss", "backward", "optimizer")
PRECISIONS = ("fp32", "bf16")
# What (b) and (d) compare: a row's mode, and which of its phases.
PASSES = {
    "forward": ("forward", ("forward",)),
    "forward and backward": ("step", ("forward", "loss", "backward")),
    "full step": ("step", PHASES),
}
PARTS = ("attention scores", "attention mask", "attention softmax", "attention output")
PRODUCTS = ("attention scores", "attention output")


def cell(
    record: Record | None, size: str, context: int, mode: str, precision: str = "fp32"
) -> Row | None:
    """A row that ran, or None."""
    row = (
        record.find(size=size, context=context, mode=mode, precision=precision)
        if record
        else None
    )
    return row if row is not None and row.status == "ok" else None


def ran(record: Record | None) -> list[Row]:
    return [row for row in record.rows if row.status == "ok"] if record else []


def kernels(row: Row, phases: tuple[str, ...] = PHASES) -> list[dict[str, Any]]:
    """Rows of kernels launched in these phases or in parts of them."""
    return [
        item for item in row.metrics["kernels"] if item["phase"].split("/")[0] in phases
    ]


def total_ms(
    row: Row | None, phases: tuple[str, ...] = PHASES, category: str | None = None
) -> float | None:
    """Sum of kernel times."""
    if row is None:
        return None
    return sum(
        item["total_ms"]
        for item in kernels(row, phases)
        if category in (None, item["category"])
    )


def share(
    row: Row | None, category: str, phases: tuple[str, ...] = PHASES
) -> float | None:
    """Of the sum of kernel times of these phases."""
    whole, part = total_ms(row, phases), total_ms(row, phases, category)
    return part / whole if whole and part is not None else None


def matmul_share(
    record: Record | None, size: str, context: int, passes: str, precision: str = "fp32"
) -> float | None:
    mode, phases = PASSES[passes]
    return share(cell(record, size, context, mode, precision), MATMUL, phases)


def by_name(
    row: Row | None, phases: tuple[str, ...] = PHASES
) -> list[tuple[str, str, float, float]]:
    """(name, category, calls, ms) of each kernel, whatever its phase among these; the
    one that takes longest first.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for item in kernels(row, phases) if row is not None else []:
        sums = found[item["name"], item["category"]]
        sums[0] += item["calls"]
        sums[1] += item["total_ms"]
    rows = [
        (name, category, calls, ms) for (name, category), (calls, ms) in found.items()
    ]
    return sorted(rows, key=lambda item: (-item[3], item[0]))


def wall_ms(row: Row | None, prefix: str = "") -> float | None:
    """Median over passes of all phases together: `profiled_` under the profiler,
    without it by itself.
    """
    if row is None:
        return None
    names = [
        f"{prefix}{phase}_ms"
        for phase in PHASES
        if f"{prefix}{phase}_ms" in row.metrics
    ]
    return summarize(
        [sum(step) for step in zip(*(row.metrics[name] for name in names), strict=True)]
    ).median


def on_gpu_ms(row: Row | None, what: str) -> float | None:
    """Median over passes: `span`, from a phase's first kernel to its last, or `busy`,
    the sum of its kernels.
    """
    if row is None:
        return None
    names = [
        f"{phase}_gpu_{what}_ms"
        for phase in PHASES
        if f"{phase}_gpu_{what}_ms" in row.metrics
    ]
    return summarize(
        [sum(step) for step in zip(*(row.metrics[name] for name in names), strict=True)]
    ).median


def idle_share(row: Row | None) -> float | None:
    """Of the wall time, without a profiler, what no kernel fills."""
    wall, busy = wall_ms(row), on_gpu_ms(row, "busy")
    return 1 - busy / wall if wall and busy is not None else None


def slowdown(row: Row | None) -> float | None:
    """Wall time under the profiler over wall time without."""
    wall, profiled = wall_ms(row), wall_ms(row, "profiled_")
    return profiled / wall if wall and profiled else None


def unattributed(row: Row) -> float:
    """The share of kernel time whose launch nobody had marked."""
    every = sum(item["total_ms"] for item in row.metrics["kernels"])
    return 1 - (total_ms(row) or 0.0) / every if every else 0.0


def disagreement(row: Row) -> float | None:
    """How far the time of kernels named as products is from that of kernels launched by
    products. None under nsys.
    """
    if "matmul_ops_ms" not in row.metrics:
        return None
    launched = summarize(row.metrics["matmul_ops_ms"]).mean
    return (total_ms(row, category=MATMUL) or 0.0) / launched - 1


def part(row: Row | None, name: str) -> tuple[float, float] | None:
    """(kernels launched, ms) of one part of attention in a forward pass, all layers
    together.
    """
    items = (
        [item for item in row.metrics["kernels"] if item["phase"] == f"forward/{name}"]
        if row is not None
        else []
    )
    return (
        (sum(item["calls"] for item in items), sum(item["total_ms"] for item in items))
        if items
        else None
    )


def part_costs(row: Row) -> dict[str, tuple[int, int]]:
    """(FLOPs, bytes) of each part of attention, in fp32."""
    size = SIZES[row.config["size"]]
    return attention_part_costs(
        context=row.config["context"],
        batch=row.config["batch"],
        element_bytes=FP32_BYTES,
        **asdict(size),
    )


def rates(row: Row | None, *names: str) -> tuple[float, float] | None:
    """(FLOP/s, bytes/s) that these parts of attention reach together."""
    parts = [part(row, name) for name in names]
    if row is None or not all(parts):
        return None
    seconds = sum(found[1] for found in parts if found) / 1e3
    flops, moved = (sum(part_costs(row)[name][i] for name in names) for i in (0, 1))
    return flops / seconds, moved / seconds
