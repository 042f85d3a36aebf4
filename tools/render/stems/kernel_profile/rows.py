"""What rows of `kernel_profile` say: times by phase and category, shares, kernels by
name. Times in ms, per pass.
"""

import re
from collections import defaultdict
from dataclasses import asdict
from statistics import fmean
from typing import Any, NamedTuple

from systems.formulas.costs import FP32_BYTES, attention_part_costs
from systems.model.sizes import SIZES
from systems.profiling.kernel_names import MATMUL, is_split_k_sum, short_name
from systems.records.record import Record
from tools.render.rows import PHASES, Cell, axis, cell, cells

# What (b) and (d) compare: a row's mode, and which of its phases.
PASSES = {
    "forward": ("forward", ("forward",)),
    "forward and backward": ("step", ("forward", "loss", "backward")),
    "full step": ("step", PHASES),
}
SOFTMAX = "attention softmax"
PRODUCTS = ("attention scores", "attention output")
PARTS = (PRODUCTS[0], "attention mask", SOFTMAX, PRODUCTS[1])


def at(
    record: Record | None, size: str, context: int, mode: str, precision: str = "fp32"
) -> Cell:
    named = {"size": size, "context": context, "mode": mode, "precision": precision}
    return cell(record, **named)


def inference(record: Record | None) -> list[Cell]:
    """Every forward pass; the precisions of a size and context stand together."""
    places = [axis(record, key) for key in ("size", "context")]
    return sorted(
        cells(record, mode="forward"),
        key=lambda c: [
            values.index(c.config[key])
            for key, values in zip(("size", "context"), places, strict=True)
        ],
    )


def of_passes(record: Record | None, c: Cell, passes: str) -> tuple[Cell, Any]:
    """The row of the same size, context and precision that these passes are read from,
    and their phases.
    """
    mode, phases = PASSES[passes]
    same = {k: c.config.get(k) for k in ("size", "context", "precision")}
    return cell(record, **same, mode=mode), phases


def kernels(c: Cell, phases: tuple[str, ...] = PHASES) -> list[dict[str, Any]]:
    """Rows of kernels launched in these phases or in parts of them."""
    found = c["kernels"] if c else []
    return [item for item in found if item["phase"].split("/")[0] in phases]


def total_ms(
    c: Cell, phases: tuple[str, ...] = PHASES, category: str | None = None
) -> float:
    """Sum of kernel times."""
    chosen = (k for k in kernels(c, phases) if category in (None, k["category"]))
    return sum(k["total_ms"] for k in chosen) if c else c.missing


def share(c: Cell, category: str, phases: tuple[str, ...] = PHASES) -> float:
    """Of the sum of kernel times of these phases."""
    whole = total_ms(c, phases)
    return total_ms(c, phases, category) / whole if whole else c.missing


def matmul_share(record: Record | None, c: Cell, passes: str) -> float:
    row, phases = of_passes(record, c, passes)
    return share(row, MATMUL, phases)


class Kernel(NamedTuple):
    """All launches of a kernel in one pass, by its whole name: what was compiled for
    other arguments is another kernel.
    """

    name: str
    category: str
    calls: float
    ms: float

    @property
    def short(self) -> str:
        """As it is called in a table. PyTorch compiles an element-wise operation for
        memory without gaps (vectorized), with casts (unrolled), and for any other.
        """
        if OF_ONE.search(self.name):
            return "mul by a number"
        found, short = WAY.search(self.name), short_name(self.name)
        return short.replace("elementwise", found[1], 1) if found else short


WAY = re.compile(r"\b(vectorized|unrolled)_elementwise_kernel\b")
# One of the two factors is a number that the kernel is given.
OF_ONE = re.compile(r"\b[AB]UnaryFunctor\b.*MulFunctor\b")


def by_name(c: Cell, phases: tuple[str, ...] = PHASES) -> list[Kernel]:
    """Each kernel, whatever its phase among these; the one that takes longest first."""
    found: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for item in kernels(c, phases):
        sums = found[item["name"], item["category"]]
        sums[0] += item["calls"]
        sums[1] += item["total_ms"]
    summed = [Kernel(*names, *sums) for names, sums in found.items()]
    return sorted(summed, key=lambda kernel: (-kernel.ms, kernel.name))


def product_calls(c: Cell, phases: tuple[str, ...] = PHASES) -> tuple[float, float]:
    """How many kernels multiply matrices, and how many add up the parts of products
    that were cut along their sum.
    """
    products = [k for k in kernels(c, phases) if k["category"] == MATMUL]
    sums = [is_split_k_sum(k["name"]) * k["calls"] for k in products]
    return sum(k["calls"] for k in products) - sum(sums), sum(sums)


def phases_ms(c: Cell, metric: str) -> float:
    """Median over passes of all phases together, of a metric such as "profiled_{}"."""
    names = [metric.format(phase) for phase in PHASES]
    return c.ms(*(name for name in names if c.get(f"{name}_ms", None)))


def timed(c: Cell) -> Cell:
    """The row whose wall time counts: that of `end_to_end` for the same cell, else this
    one's own. See `note_clocks` of `tools.render.clocks`.
    """
    clock = Cell(c.row.clock) if c and c.row else c
    return clock or c


def wall_ms(c: Cell) -> float:
    return phases_ms(timed(c), "{}")


def profiled_ms(c: Cell) -> float:
    """Wall time under the profiler."""
    return phases_ms(c, "profiled_{}")


def span_ms(c: Cell) -> float:
    """From a phase's first kernel to its last."""
    return phases_ms(c, "{}_gpu_span")


def busy_ms(c: Cell) -> float:
    """The sum of its kernels."""
    return phases_ms(c, "{}_gpu_busy")


def idle_share(c: Cell, *phases: str) -> float:
    """Of the wall time of these phases, or of all, without a profiler, what no kernel
    fills. Nothing where the kernels of this run took a little longer than all of the
    run that was timed.
    """
    wall, busy = wall_ms(c), busy_ms(c)
    if phases:
        wall = timed(c).ms(*phases)
        busy = c.ms(*(f"{phase}_gpu_busy" for phase in phases))
    idle = 1 - busy / wall
    return 0.0 if idle < 0 else idle


def unattributed(c: Cell) -> float:
    """The share of kernel time whose launch nobody had marked."""
    every = sum(item["total_ms"] for item in c["kernels"])
    return 1 - total_ms(c) / every if every else 0.0


def disagreement(c: Cell) -> float:
    """How far the time of kernels named as products is from that of kernels launched by
    products. Nsight Systems does not tell operations.
    """
    launched = c.get("matmul_ops_ms", None)
    return total_ms(c, category=MATMUL) / fmean(launched) - 1 if launched else c.missing


def part(c: Cell, name: str) -> tuple[float, float]:
    """(kernels launched, ms) of one part of attention in a forward pass, all layers
    together.
    """
    found = [k for k in kernels(c) if k["phase"] == f"forward/{name}"]
    if not found:
        return c.missing, c.missing
    return sum(k["calls"] for k in found), sum(k["total_ms"] for k in found)


def part_costs(c: Cell) -> dict[str, tuple[float, float]]:
    """(FLOPs, bytes) of each part of attention, in fp32."""
    if not c:
        return dict.fromkeys(PARTS, (c.missing, c.missing))
    shape = {key: c.config[key] for key in ("context", "batch")}
    size = asdict(SIZES[c.config["size"]])
    return dict(attention_part_costs(**shape, element_bytes=FP32_BYTES, **size))


def rates(c: Cell, *names: str) -> tuple[float, float]:
    """(FLOP/s, bytes/s) that these parts of attention reach together."""
    seconds = sum(part(c, name)[1] for name in names) / 1e3
    costs = part_costs(c)
    flops, moved = (sum(costs[name][i] for name in names) for i in (0, 1))
    return flops / seconds, moved / seconds


def over_softmax(c: Cell) -> tuple[float, float, float]:
    """The two products' FLOPs, bytes and time, over those of softmax."""
    costs = part_costs(c)
    flops, moved = (
        sum(costs[name][i] for name in PRODUCTS) / costs[SOFTMAX][i] for i in (0, 1)
    )
    return flops, moved, products_ms(c) / part(c, SOFTMAX)[1]


def products_ms(c: Cell) -> float:
    return sum(part(c, name)[1] for name in PRODUCTS)
