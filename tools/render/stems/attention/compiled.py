"""Plain attention, eager and compiled: times, compile times, kernels and speedups."""

from math import log
from typing import Any

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.fragments import Drawn
from tools.render.frame import Line
from tools.render.rows import describe_range, dropna, fmt, span
from tools.render.stems.attention.columns import (
    EXECUTIONS,
    LONGEST,
    PASSES,
    PLAIN,
    WIDTH,
    fragments,
    lengths,
    passes,
    plain_row,
)

# The sequence length N at which facts count kernels.
KERNELS_AT = 4096
# In the figure, a speedup or a slowdown by this factor has the strongest colour.
LARGEST = 4.0


def compile_seconds(x: Line) -> float:
    """Return compile time in s: how much longer warm-up passes take than later ones."""
    return sum(x.warmup_seconds(f"warmup_{of}", of) for of in PASSES)


@fragments.add(
    "compiled.md",
    "Attention in fp32 without a mask, eager and compiled: wall-clock medians (means "
    "if reported). Speedups: ratios of medians; *both* sums each forward + backward.",
    reported=True,
)
def compiled_table(record: Record) -> str:
    reported = record.kind == "reported"
    found = passes(record).where(execution="compiled", **PLAIN)
    on_gpu = any("forward_gpu_ms" in x.metrics for x in found)
    times: list[tuple[Any, ...]] = []
    for of in PASSES:
        own = f"{of}_mean_ms" if reported else f"{of}_ms"
        wall = (f"{of}, speedup", lambda x, own=own: x[f"eager.{own}"] / x[own])
        gpu = (f"{of}, speedup, GPU", f"{of}_gain")
        times += [
            (f"{of}, eager, ms", f"eager.{own}", "{:.3f}"),
            (f"{of}, compiled, ms", own, "{:.3f}"),
            (*(gpu if on_gpu else wall), "{:.2f}"),
        ]
    if on_gpu:
        times += [("both, speedup, wall", "wall_gain", "{:.2f}")]
        times += [("both, speedup, GPU", "gain", "{:.2f}")]
    if not reported:
        times += [("compiling, s", compile_seconds, "{:.1f}")]
    return found.table("d", ("N", "n"), *times, shown_first=lambda x: x["d"] == WIDTH)


@fragments.figure("speedups.md", "speedup", height=200, narrow=420)
def speedup_figure(record: Record) -> Drawn:
    found = passes(record).where(execution="compiled")
    if not found:
        return None
    ns, dtypes = lengths(found), found.values("dtype")

    def format_cell(ratio: float) -> tuple[str, float]:
        return (f"{ratio:.2f}", -log(ratio) / log(LARGEST)) if ratio else ("", 0)

    def draw(figure: Figure) -> None:
        every = plots.panels(figure, len(dtypes))
        for axes, dtype in zip(every, dtypes, strict=True):
            part = found.where(dtype=dtype)
            rows = {
                f"d = {d}{', mask' if causal else ''}": [
                    format_cell(part.one(causal=causal, d=d, n=n).get("gain"))
                    for n in ns
                ]
                for causal, d in sorted({(x["causal"], x["d"]) for x in found})
            }
            plots.fill_heat_map(axes, rows, [f"{n:,}" for n in ns])
            axes.set_title(f"{dtype}, by N")

    gains = describe_range(found.column("gain"))
    return (
        draw,
        f"The speedup of compiled forward + backward {gains}.",
        "By GPU time (on a CPU, by wall-clock time). Blue: faster, the more so the "
        "stronger the colour. Orange: slower.",
    )


def facts(record: Record | None) -> dict[str, str]:
    every = passes(record)
    found = every.where(bool, execution="compiled", **PLAIN)
    longest = plain_row(every, e="compiled")
    short, long = found.where(n=(256, 1024)), found.where(n=(4096, 8192, LONGEST))
    return {
        "speedups_long": span(long.column("gain"), "{:.5f}"),
        "speedups_short": span(short.column("gain"), "{:.5f}"),
        "wall_speedups_short": span(short.column("wall_gain"), "{:.5f}"),
        **{f"speedup_{of}": fmt(longest[f"{of}_gain"], "{:.5f}") for of in PASSES},
        **{
            f"{of}_kernels_{e}": fmt(
                plain_row(every, KERNELS_AT, e=e).get(f"{of}_kernels")
            )
            for e in EXECUTIONS
            for of in PASSES
        },
    }


@claim(
    "torch_compile",
    "Compiled attention takes less GPU time than eager attention, forward and backward "
    "together, in every configuration.",
)
def compiled_attention_is_faster(record: Record) -> Judgement:
    cases = passes(record).where(bool, execution="compiled")
    found, wall = dropna(cases.column("gain")), dropna(cases.column("wall_gain"))
    numbers = f"Speedups in {len(found)} cases: in GPU time {span(found)}, "
    return found and (min(found) > 1, f"{numbers}in wall-clock time {span(wall)}.")
