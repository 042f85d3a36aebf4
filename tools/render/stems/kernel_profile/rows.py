"""Columns of `kernel_profile`: wall-clock time, GPU span and GPU time of a pass, its
kernels by name, category and cause, and the parts of attention. Times are ms per pass.
"""

import re
from collections import defaultdict
from dataclasses import asdict
from typing import Any, NamedTuple

from systems.formulas.costs import FP32_BYTES, attention_part_costs
from systems.model.sizes import SIZES
from systems.profiling.kernel_names import (
    ATTENTION,
    COPY,
    ELEMENTWISE,
    MATMUL,
    OTHER,
    REDUCTION,
    SOFTMAX,
    short_name,
)
from systems.records.record import PHASES, Record
from tools.render.frame import Frame, Line, frame
from tools.render.rows import Missing, data_sheet
from tools.render.stems.end_to_end.rows import PASSES

SOFTMAX_PART = "attention softmax"
MATMULS = ("attention scores", "attention output")
PARTS = (MATMULS[0], "attention mask", SOFTMAX_PART, MATMULS[1])
# What the GPU does, by the categories of its kernels; AdamW's are none of these.
CAUSES = {
    "matmuls": (MATMUL,),
    "copies": (COPY,),
    "rest": (ELEMENTWISE, SOFTMAX, REDUCTION, ATTENTION, OTHER),
}


def passes(record: Record | None) -> Frame:
    """Every profiled pass, beside the training step of its configuration."""
    return (
        frame(record)
        .join("step", mode="step")
        .derive(
            wall_ms=wall_ms,
            profiled_ms=lambda x: all_phases(x, "profiled_{}"),
            span_ms=lambda x: all_phases(x, "{}_gpu_span"),
            busy_ms=lambda x: all_phases(x, "{}_gpu_busy"),
            idle_share=idle_share,
            matmul_forward=lambda x: share(x, MATMUL, "forward"),
            matmul_both=lambda x: share(x["step"], MATMUL, PASSES),
            matmul_step=lambda x: share(x["step"], MATMUL),
            adamw=lambda x: total_ms(x["step"], "optimizer") / total_ms(x["step"]),
            top_forward=lambda x: top(x, "forward"),
            top_both=lambda x: top(x["step"], PASSES),
        )
    )


def wall_ms(x: Line, *phases: str) -> float:
    """Wall-clock time of the same pass in `end_to_end`, where no profiler ran: of these
    phases, or of all.
    """
    clock = x.row.clock if x and x.row else None
    return Line.of(clock).ms(*phases) if clock else x.missing


def all_phases(x: Line, metric: str) -> float:
    """The median over passes of all phases together, of a metric like "profiled_{}"."""
    names = [metric.format(phase) for phase in PHASES]
    measured = [name for name in names if f"{name}_ms" in x.metrics]
    return x.ms(*measured) if measured else x.missing


def idle_share(x: Line) -> float:
    """The share of wall-clock time in which no kernel runs. The kernels are of another
    run, and may take a little longer than all of the run that was timed.
    """
    idle = 1 - x["busy_ms"] / x["wall_ms"]
    return 0.0 if idle < 0 else idle


def steps(record: Record | None) -> Frame:
    """Forward, loss and backward of each training step, by cause, beside fp32."""
    peak = data_sheet(record.device.slug if record else "")
    rates = peak.bf16 / peak.fp32
    return (
        frame(record, mode="step")
        .derive(
            wall_ms=lambda x: wall_ms(x, *PASSES),
            **{
                cause: lambda x, names=names: sum(
                    total_ms(x, PASSES, name) for name in names
                )
                for cause, names in CAUSES.items()
            },
            gpu_ms=lambda x: x["matmuls"] + x["copies"] + x["rest"],
            idle=lambda x: x["wall_ms"] - x["gpu_ms"],
        )
        .join("fp32", precision="fp32")
        .derive(
            # What bf16 would gain if matmuls alone got faster, by the data sheet.
            expected_gain=lambda x: (
                x["fp32.wall_ms"]
                / (x["fp32.wall_ms"] - x["fp32.matmuls"] * (1 - 1 / rates))
            ),
            gain=lambda x: x["fp32.wall_ms"] / x["wall_ms"],
        )
    )


# Kernels ------------------------------------------------------------------------------

Phases = str | tuple[str, ...]


def kernels(x: Line, phases: Phases = PHASES, category: str = "") -> list[Any]:
    """Kernels that were launched in these phases or in their parts."""
    return [
        kernel
        for kernel in (x["kernels"] if x else ())
        if kernel["phase"].startswith(phases) and category in ("", kernel["category"])
    ]


def total_ms(x: Line, phases: Phases = PHASES, category: str = "") -> float:
    found = kernels(x, phases, category)
    return sum(kernel["total_ms"] for kernel in found) if x else x.missing


def calls(x: Line, phases: Phases = PHASES, category: str = "") -> float:
    found = kernels(x, phases, category)
    return sum(kernel["calls"] for kernel in found) if x else x.missing


def share(x: Line, category: str, phases: Phases = PHASES) -> float:
    """The share of a category in the kernel time of these phases."""
    whole = total_ms(x, phases)
    return total_ms(x, phases, category) / whole if whole else x.missing


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


def by_name(x: Line, phases: Phases = PHASES) -> list[Kernel]:
    """Each kernel of these phases, the one that takes longest first."""
    found: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for item in kernels(x, phases):
        sums = found[item["name"], item["category"]]
        sums[0] += item["calls"]
        sums[1] += item["total_ms"]
    summed = [Kernel(*names, *sums) for names, sums in found.items()]
    return sorted(summed, key=lambda kernel: (-kernel.ms, kernel.name))


def top(x: Line, phases: Phases) -> Line | Missing:
    """The kernel that takes longest, with its share of the kernel time."""
    found = by_name(x, phases)
    if not found:
        return x.missing
    line = Line(found[0]._asdict(), kernel=found[0], code=f"`{found[0].short}`")
    return Line(line, of_whole=line["ms"] / total_ms(x, phases))


def unattributed(x: Line) -> float:
    """The share of kernel time whose launch nobody had marked."""
    every = sum(kernel["total_ms"] for kernel in x["kernels"])
    return 1 - total_ms(x) / every if every else 0.0


def disagreement(x: Line) -> float:
    """How far the time of kernels named as matmuls is from that of kernels launched by
    matmuls. Nsight Systems does not tell operations.
    """
    return total_ms(x, category=MATMUL) / x.get("matmul_ops_ms") - 1


# Attention ----------------------------------------------------------------------------


def attention(record: Record | None, **wanted: Any) -> Frame:
    """Each part of attention in each fp32 forward pass, all layers together."""
    peak = data_sheet(record.device.slug if record else "")
    found = Frame()
    for x in frame(record, mode="forward", precision="fp32", **wanted).where(bool):
        for part, (flops, moved) in part_costs(x).items():
            phase = f"forward/{part}"
            if part in PARTS and kernels(x, phase):
                line = Line(x.config | {"part": part, "flops": flops, "moved": moved})
                line |= {"calls": calls(x, phase), "part_ms": total_ms(x, phase)}
                found.append(line)
    return found.derive(
        rate=lambda x: x["flops"] / (x["part_ms"] / 1e3),
        bandwidth=lambda x: x["moved"] / (x["part_ms"] / 1e3),
        of_fp32=lambda x: x["rate"] / peak.fp32,
        of_bandwidth=lambda x: x["bandwidth"] / peak.bandwidth,
    )


def part_costs(x: Line) -> dict[str, tuple[float, float]]:
    """(FLOPs, bytes) of each part of attention, in fp32."""
    shape = {key: x.config[key] for key in ("context", "batch")}
    size = asdict(SIZES[x.config["size"]])
    costs = attention_part_costs(**shape, element_bytes=FP32_BYTES, **size)
    return {part: costs[part] for part in PARTS}
