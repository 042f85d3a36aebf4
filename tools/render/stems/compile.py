"""Tables, figure, facts and claims of `compile`: eager and compiled steps."""

import math
from typing import Any

from matplotlib.figure import Figure

from systems.model.sizes import TABLE_1
from systems.records.record import Record
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.fragments import Drawn, Fragments
from tools.render.frame import Frame, Line, frame
from tools.render.markdown import format_ms
from tools.render.plots import ACCENT, DARK, GREY, PALE
from tools.render.rows import describe_range, dropna, fmt, span

PRECISIONS = ("fp32", "bf16")
# The sizes that sentences are about; their rows are visible without a click.
SHOWN_SIZES = ("small", "2.7B")
# What is compiled, by (execution, option `optimizer`): a text for tables, and phases.
# The row ("eager", True) alternates with ("compiled", True), as its baseline.
WAYS = {
    ("eager", False): ("nothing", ()),
    ("graph", False): ("nothing; CUDA graphs", ()),
    ("compiled", False): ("model", ("forward", "backward")),
    ("eager", True): ("nothing (the next row's baseline)", ()),
    ("compiled", True): ("model, AdamW", ("forward", "backward", "optimizer")),
}
NAMES = [name for name, _ in WAYS.values()]
NAME = ("size", "precision", "compiled")
# The columns of times in tables: all phases but the short loss, and their sum.
TIMES = ("forward", "backward", "optimizer", "step")
# The colours of the dots, one per kind of execution, in the figure of speedups.
DOTS = {"eager": GREY, "as CUDA graphs": DARK, "compiled": ACCENT}
fragments = Fragments()


def steps(record: Record | None) -> Frame:
    """Return training steps with their `eager` row, speedups over it in wall-clock
    (`step_gain`) and GPU time, and compile times in s: `compile_s`, cached `again_s`.
    """
    found = frame(record).join("eager", execution="eager")
    return found.derive(
        compiled=lambda x: compiled_parts(x)[0],
        step_gain=lambda x: x["eager.step_ms"] / x["step_ms"],
        **{f"{p}_gpu": lambda x, p=p: x.get(f"{p}_gpu_ms") for p in TIMES},
        **{
            f"{p}_gpu_gain": lambda x, p=f"{p}_gpu_ms": x["eager"].get(p) / x.get(p)
            for p in TIMES
        },
        saved_ms=lambda x: x["eager.step_ms"] - x["step_ms"],
        compile_s=lambda x: compile_seconds(x, "warmup"),
        again_s=lambda x: compile_seconds(x, "again"),
        pays=break_even_steps,
    ).arrange(size=TABLE_1, precision=PRECISIONS, compiled=NAMES)


def compiled_parts(x: Line) -> tuple[str, tuple[str, ...]]:
    return WAYS[x["execution"], x.get("optimizer", False)]


def compile_seconds(x: Line, start: str) -> float:
    """Return compile time in s; `start`: "warmup" (cold caches), "again" (cached)."""
    if not x.get(f"{start}_forward_ms"):
        return x.missing
    return sum(x.warmup_seconds(f"{start}_{p}", p) for p in compiled_parts(x)[1])


def break_even_steps(x: Line) -> Any:
    """Return after how many steps the saved time exceeds compile time, or "never"."""
    if x["saved_ms"] <= 0:
        return "never"
    return math.ceil(x["compile_s"] / (x["saved_ms"] / 1e3))


@fragments.add(
    "table.md",
    "A training step at context 512 by phase, eager and compiled: mean ± standard "
    "deviation of wall-clock time, median GPU time; speedups are ratios of medians. "
    "Compiled AdamW has its own eager row; eager rows differ because launch times "
    "vary.",
    reported=True,
)
def times_table(record: Record) -> str:
    if record.kind == "reported":
        shown = [
            (f"{p.replace('_', ' ')}, ms", lambda x, p=p: x[f"{p}_mean_ms"], "{:.2f}")
            for p in ("forward", "backward_and_optimizer", "step")
        ]
        found = frame(record).derive(compiled=lambda x: compiled_parts(x)[0])
        return found.table(*NAME, *shown)
    shown = ("nothing", "model")
    return steps(record).table(
        *NAME,
        *((f"wall, {p}, ms", f"{p} ±") for p in TIMES),
        ("wall, step, speedup", "step_gain", "{:.2f}"),
        *((f"GPU, {p}, ms", f"{p}_gpu", format_ms) for p in TIMES),
        shown_first=lambda x: x["size"] in SHOWN_SIZES and x["compiled"] in shown,
    )


@fragments.add(
    "price.md",
    "Compile time, and how many steps save as much wall-clock time. Each row's savings "
    "are relative to eager steps that alternate with it, so don't subtract the row "
    "without compiled AdamW from the row with it: their eager steps differ.",
)
def compile_cost_table(record: Record) -> str:
    found = steps(record).where(bool, execution="compiled", size=SHOWN_SIZES)
    return found.table(
        *NAME,
        ("compile time, s", "compile_s", "{:.1f}"),
        ("compile time, cached, s", "again_s", "{:.1f}"),
        ("saved per step, ms", "saved_ms", "{:.1f}"),
        ("steps until it pays", "pays", "{:,.0f}"),
    )


@fragments.figure("speedups.md", "speedup", height=280, narrow=520)
def speedup_figure(record: Record) -> Drawn:
    found = steps(record).join("graph", execution="graph").where(compiled="model")
    times = ("eager.step_ms", "graph.step_ms", "step_ms")

    def draw(figure: Figure) -> None:
        for axes, precision in zip(plots.panels(figure, 2), PRECISIONS, strict=True):
            for place, size in enumerate(TABLE_1):
                x = found.one(size=size, precision=precision)
                ends = [100 * x[name] / x["eager.step_ms"] for name in times]
                xs = dropna(ends)
                plots.curve(axes, xs, [place] * len(xs), marker="", color=PALE)
                for end, color in zip(ends, DOTS.values(), strict=True):
                    look = {"color": color, "linestyle": "", "markersize": 7}
                    plots.curve(axes, [end], [place], **look)
                if gain := x["step_gain"]:
                    below = {"va": "top", "offset": (0, -6)}
                    plots.label_point(axes, f"{gain:.2f} ×", ends[-1], place, **below)
            plots.label_bars(axes, list(TABLE_1))
            axes.set_xlim(0, 105)
            axes.set_title(f"{precision}: wall-clock time, % of eager")
        plots.draw_legend(figure, DOTS)

    return (
        draw,
        "In wall-clock time the speedup of a compiled step "
        f"{describe_range(found.column('step_gain'))}.",
        "Context 512, ratios of medians. CUDA graphs remove launch overhead, also in "
        "AdamW; compiling fuses kernels, but not AdamW. Larger fp32 models, hardly "
        "launch-bound, ran without graphs.",
    )


def count_kernels(x: Line, of: str = "") -> float:
    """Count kernels of forward, loss, backward; of="eager." counts the baseline's."""
    return sum(x.get(f"{of}{p}_kernels") for p in ("forward", "loss", "backward"))


def facts(record: Record | None) -> dict[str, str]:
    found = steps(record)
    model = found.where(compiled="model")
    small, large = (
        {p: model.one(size=s, precision=p) for p in PRECISIONS} for s in SHOWN_SIZES
    )
    graph = found.where(execution="graph", precision="bf16")
    gains = {p: model.where(precision=p).column("step_gain") for p in PRECISIONS}
    return {
        "graph_small": fmt(graph.one(size="small")["step_gain"], "{:.5f}"),
        "graph_2_7B": fmt(graph.one(size="2.7B")["step_gain"], "{:.5f}"),
        "wall_small_bf16": fmt(small["bf16"]["step_gain"], "{:.5f}"),
        "wall_2_7B_bf16": fmt(large["bf16"]["step_gain"], "{:.5f}"),
        "gpu_2_7B_fp32": fmt(large["fp32"]["step_gpu_gain"], "{:.5f}"),
        "gpu_2_7B_bf16": fmt(large["bf16"]["step_gpu_gain"], "{:.5f}"),
        **{f"wall_step_{p}": span(of, "{:.5f}") for p, of in gains.items()},
        "kernels_eager": fmt(count_kernels(small["fp32"], "eager."), "{:,.0f}"),
        "kernels_compiled": fmt(count_kernels(small["fp32"]), "{:,.0f}"),
        "wall_step": span(model.column("step_gain"), "{:.5f}"),
        "gpu_forward": span(model.column("forward_gpu_gain"), "{:.5f}"),
        "gpu_backward": span(model.column("backward_gpu_gain"), "{:.5f}"),
        "gpu_step": span(model.column("step_gpu_gain"), "{:.5f}"),
        "gpu_adamw": fmt(found.one(compiled=NAMES[-1])["optimizer_gpu_gain"], "{:.5f}"),
        **{f"steps_small_{p}": fmt(x["pays"], "{:,.0f}") for p, x in small.items()},
        "compile_small_fp32": fmt(small["fp32"]["compile_s"], "{:.0f} s"),
    }


@claim(
    "torch_compile",
    "Compiling the model makes the training step faster in every size and precision "
    "measured.",
)
def compiled_is_faster(record: Record) -> Judgement:
    model = steps(record).where(compiled="model")
    found, gpu = dropna(model.column("step_gain")), span(model.column("step_gpu_gain"))
    numbers = f"Speedups: in wall-clock time {span(found)}, in GPU time {gpu}."
    return found and (min(found) > 1, numbers)


@claim(
    "torch_compile",
    "For 2.7B, compiling gains more in bf16 than in fp32, where matmuls take most of "
    "the time.",
)
def bf16_gains_more(record: Record) -> Judgement:
    found = steps(record).where(size="2.7B", compiled="model")
    fp32, bf16 = (found.one(precision=p)["step_gpu_gain"] for p in PRECISIONS)
    numbers = f"Speedups in GPU time: fp32 {fp32:.2f}, bf16 {bf16:.2f}."
    return fp32 / bf16 and (bf16 > fp32, numbers)
