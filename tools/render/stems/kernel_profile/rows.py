"""Rows of `kernel_profile`: passes, their kernels, and parts of attention."""

import re
from collections import defaultdict
from typing import Any, NamedTuple

from systems.formulas.costs import FP32_BYTES, attention_part_costs
from systems.profiling.kernel_names import CATEGORIES, COPY, MATMUL, short_name
from systems.records.record import PHASES, Record
from tools.render.frame import Frame, Line, frame
from tools.render.markdown import record_link
from tools.render.rows import MISSING, Missing, peak_rates
from tools.render.stems.end_to_end.rows import PASSES, pass_shape

Phases = str | tuple[str, ...]
SOFTMAX_PART = "attention softmax"
MATMULS = ("attention scores", "attention output")
PARTS = (MATMULS[0], "attention mask", SOFTMAX_PART, MATMULS[1])
CELL = ("size", "context", "precision", "batch")
# Kernel categories, grouped as in tables and figures.
CAUSES = {
    "matmuls": (MATMUL,),
    "copies": (COPY,),
    "rest": tuple(c for c in CATEGORIES if c not in (MATMUL, COPY)),
}
VARIANT = re.compile(r"\b(vectorized|unrolled)_elementwise_kernel\b")
# Matches multiplications of a tensor by a scalar.
SCALAR_MUL = re.compile(r"\b[AB]UnaryFunctor\b.*MulFunctor\b")


def passes(record: Record | None) -> Frame:
    """Return steps with forward times (`wall_ms`: run alone, unprofiled) and shares of
    kernel time. Row `forward` is the step, or `alone` if only a forward pass fits.
    """
    clock, found = frame(record and record.clock), frame(record, mode="step")
    found.join("alone", frame(record), CELL, mode="forward")
    found.join("clock", clock, CELL, mode="forward", attention="eager")
    return found.derive(
        forward=lambda x: x["alone"] if x["alone"] and not x else x,
        wall_ms=lambda x: x["clock"].ms(),
        profiled_ms=lambda x: x["forward"].ms("profiled_forward"),
        span_ms=lambda x: x["forward"].ms("forward_gpu_span"),
        busy_ms=lambda x: x["forward"].ms("forward_gpu_busy"),
        idle_share=idle_share,
        kernels_ms=lambda x: total_ms(x["forward"], "forward"),
        **{
            f"{k}_forward": lambda x, k=k: category_share(x["forward"], k, "forward")
            for k in CATEGORIES
        },
        matmul_both=lambda x: category_share(x, MATMUL, PASSES),
        **{f"{k}_step": lambda x, k=k: category_share(x, k) for k in CATEGORIES},
        adamw=lambda x: total_ms(x, "optimizer") / total_ms(x),
        top_forward=lambda x: top_kernel(x["forward"], "forward"),
        top_both=lambda x: top_kernel(x, PASSES),
        same_top=lambda x: (
            x["top_forward"]["name"] == x["top_both"]["name"] if x else x.missing
        ),
    )


def wall_ms(x: Line, *phases: str) -> float:
    """Return wall-clock ms of phases (default: all) from `end_to_end`, or Missing."""
    clock = x.row.clock if x and x.row else None
    return Line.from_row(clock).ms(*phases) if clock else x.missing


def add_timing_link(record: Record, shown: str) -> str:
    """Return a table or figure (Markdown) and a link to its wall-clock times."""
    if not shown or record.clock is None:
        return shown
    link = record_link(record.clock)
    return f"{shown}\n\nWall-clock time: {link} of `end_to_end`\n{{ .provenance }}"


def idle_share(x: Line) -> float:
    """Return the GPU's idle share of forward wall time; 0 if kernels took longer."""
    idle = 1 - x["busy_ms"] / x["wall_ms"]
    return 0.0 if idle < 0 else idle


def steps(record: Record | None) -> Frame:
    """Return training steps with ms of forward + backward by kind of kernel (CAUSES),
    idle ms, and speedups over fp32: expected, in GPU time and in wall-clock time.
    """
    peak = peak_rates(record.device.slug if record else "")
    rates = peak.bf16 / peak.fp32
    found = frame(record, mode="step").derive(
        wall_ms=lambda x: wall_ms(x, *PASSES),
        **{
            cause: lambda x, names=names: sum(total_ms(x, PASSES, n) for n in names)
            for cause, names in CAUSES.items()
        },
        gpu_ms=lambda x: x["matmuls"] + x["copies"] + x["rest"],
        idle=lambda x: x["wall_ms"] - x["gpu_ms"],
        idle_share=lambda x: x["idle"] / x["wall_ms"],
        copies_share=lambda x: x["copies"] / x["gpu_ms"],
    )
    return found.join("fp32", precision="fp32").derive(
        # The speedup if only matmuls were faster, by the data sheet's ratio of rates.
        expected_gain=lambda x: (
            x["fp32.gpu_ms"] / (x["fp32.gpu_ms"] - x["fp32.matmuls"] * (1 - 1 / rates))
        ),
        kernel_gain=lambda x: x["fp32.gpu_ms"] / x["gpu_ms"],
        gain=lambda x: x["fp32.wall_ms"] / x["wall_ms"],
    )


def select_kernels(x: Line, phases: Phases = PHASES, category: str = "") -> list[Any]:
    """Return the kernels launched in these phases, optionally of one category."""
    return [
        kernel
        for kernel in (x["kernels"] if x else ())
        if kernel["phase"].startswith(phases) and category in ("", kernel["category"])
    ]


def total_ms(x: Line, phases: Phases = PHASES, category: str = "") -> float:
    found = select_kernels(x, phases, category)
    return sum(kernel["total_ms"] for kernel in found) if x else x.missing


def count_calls(x: Line, phases: Phases = PHASES, category: str = "") -> float:
    found = select_kernels(x, phases, category)
    return sum(kernel["calls"] for kernel in found) if x else x.missing


def category_share(x: Line, category: str, phases: Phases = PHASES) -> float:
    """Return the share of a category in the kernel time of these phases."""
    whole = total_ms(x, phases)
    return total_ms(x, phases, category) / whole if whole else x.missing


class Kernel(NamedTuple):
    """The launches of a kernel in one pass: their number and total time in ms."""

    name: str
    category: str
    calls: float
    ms: float

    @property
    def table_name(self) -> str:
        """The short name, which tells vectorized from unrolled element-wise kernels."""
        if SCALAR_MUL.search(self.name):
            return "mul by a number"
        found, short = VARIANT.search(self.name), short_name(self.name)
        return short.replace("elementwise", found[1], 1) if found else short


def kernels_by_name(x: Line, phases: Phases = PHASES) -> list[Kernel]:
    """Return the kernels of these phases, summed by name, largest time first."""
    found: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for item in select_kernels(x, phases):
        sums = found[item["name"], item["category"]]
        sums[0] += item["calls"]
        sums[1] += item["total_ms"]
    summed = [Kernel(*names, *sums) for names, sums in found.items()]
    return sorted(summed, key=lambda kernel: (-kernel.ms, kernel.name))


def top_kernel(x: Line, phases: Phases) -> Line | Missing:
    """Return the kernel with the most ms and its share (`of_whole`), or Missing."""
    found = kernels_by_name(x, phases)
    if not found:
        return x.missing
    line = Line(found[0]._asdict(), kernel=found[0], code=f"`{found[0].table_name}`")
    return Line(line, of_whole=line["ms"] / total_ms(x, phases))


def unmarked_share(x: Line) -> float:
    """Return the share of kernel time in kernels launched outside of all PHASES."""
    every = sum(kernel["total_ms"] for kernel in x["kernels"])
    return 1 - total_ms(x) / every if every else 0.0


def attention_parts(record: Record | None, **wanted: Any) -> Frame:
    """For each fp32 forward pass with `wanted` settings, return a row per part of
    attention (PARTS): ms, FLOPs and bytes in all layers, rates and shares of peaks.
    """
    peak = peak_rates(record.device.slug if record else "")
    found = Frame()
    for step in passes(record).where(precision="fp32", **wanted):
        x = step["forward"]
        if not x:
            continue
        shape = pass_shape(x["size"], x["context"], x["batch"])
        costs = attention_part_costs(element_bytes=FP32_BYTES, **shape)
        matmuls_ms = sum(total_ms(x, f"forward/{part}", MATMUL) for part in MATMULS)
        for part in PARTS:
            phase, (flops, moved) = f"forward/{part}", costs[part]
            if select_kernels(x, phase):
                line = Line(x.config | {"part": part, "flops": flops, "moved": moved})
                line |= {"calls": count_calls(x, phase), "part_ms": total_ms(x, phase)}
                line["over_matmuls"] = line["part_ms"] / (matmuls_ms or MISSING)
                found.append(line)
    return found.derive(
        rate=lambda x: x["flops"] / (x["part_ms"] / 1e3),
        bandwidth=lambda x: x["moved"] / (x["part_ms"] / 1e3),
        of_fp32=lambda x: x["rate"] / peak.fp32,
        of_bandwidth=lambda x: x["bandwidth"] / peak.bandwidth,
    )
