"""Tables, figure and facts of `compile`: training steps eager and compiled, and how
many steps pay for compiling.
"""

import math
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from systems.model.sizes import TABLE_1
from systems.records.record import PHASES, Record
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.frame import Frame, Line, frame, gpu_columns, texts
from tools.render.markdown import captioned, per_device
from tools.render.plots import ACCENT, DARK, GREY, PALE
from tools.render.rows import known, least, measured, most, ranges, say, span

PRECISIONS = ("fp32", "bf16")
# The sizes that sentences and the first rows of a table show.
TOLD = ("small", "2.7B")
# What the column "compiled" says of an execution with or without AdamW, which has eager
# rows of its own; and the phases that are compiled.
WAYS = {
    ("eager", False): ("nothing", ()),
    ("graph", False): ("nothing; CUDA graphs", ()),
    ("compiled", False): ("model", ("forward", "backward")),
    ("eager", True): ("nothing; beside the next", ()),
    ("compiled", True): ("model, AdamW", ("forward", "backward", "optimizer")),
}
NAMES = [name for name, _ in WAYS.values()]
NAME = ("size", "precision", "compiled")
CAPTIONS = {
    "table.md": (
        "A training step at context 512 by phase, eager and compiled: mean ± standard "
        "deviation."
    ),
    "price.md": "Compile time, and the number of steps after which it pays.",
}


# Columns ------------------------------------------------------------------------------


def steps(record: Record | None) -> Frame:
    """Training steps, each beside the eager one that it alternated with."""
    found = frame(record).join("eager", execution="eager")
    return found.derive(
        compiled=lambda x: way(x)[0],
        gain=gain,
        **{f"{p}_gain": lambda x, p=p: gain(x, p) for p in PHASES},
        gpu_gain=lambda x: x["eager"].get("step_gpu_ms") / x.get("step_gpu_ms"),
        saved_ms=lambda x: x["eager"]["step_ms"] - x["step_ms"],
        compile_s=lambda x: beyond_settled(x, "warmup"),
        again_s=lambda x: beyond_settled(x, "again"),
        pays=steps_to_pay,
    ).arrange(size=TABLE_1, precision=PRECISIONS, compiled=NAMES)


def way(x: Line) -> tuple[str, tuple[str, ...]]:
    return WAYS[x["execution"], x.get("optimizer", False)]


def gain(x: Line, *phases: str) -> float:
    """Eager time over the time of this row: the median over rounds of the ratio of
    their medians, since a round meets one state of the host.
    """
    both = zip(by_round(x["eager"], phases), by_round(x, phases), strict=False)
    ratios = [median(eager) / median(own) for eager, own in both if eager and own]
    return median(ratios) if ratios else x["eager"]["step_ms"] / x["step_ms"]


def by_round(x: Line, phases: tuple[str, ...]) -> list[list[float]]:
    samples, rounds = x.samples(*phases), x.get("rounds", 1)
    ends = [len(samples) * i // rounds for i in range(rounds + 1)]
    return [samples[a:b] for a, b in zip(ends, ends[1:], strict=False)]


def beyond_settled(x: Line, start: str, *phases: str) -> float:
    """Seconds that the first steps took beyond as many settled ones, in the compiled
    phases: what compiling takes.
    """
    if not x.get(f"{start}_forward_ms"):
        return x.missing
    return sum(x.beyond(f"{start}_{p}", p) for p in phases or way(x)[1])


def steps_to_pay(x: Line) -> Any:
    """Steps after which compiling has paid for itself, or "never"."""
    if x["saved_ms"] <= 0:
        return "never"
    return math.ceil(x["compile_s"] / (x["saved_ms"] / 1e3))


# Tables -------------------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    ours = measured(records)
    return {
        "table.md": per_device(records, times_table),
        "speedups.md": per_device(ours, speedup_figure),
        "speedup-table.md": per_device(ours, speedups_table),
        "price.md": per_device(ours, price_table),
    }


def times_table(record: Record) -> str:
    """The reported ones as they are reported: one number for each phase."""
    if record.kind == "reported":
        shown = [
            (f"{p.replace('_', ' ')}, ms", lambda x, p=p: x[f"{p}_mean_ms"], "{:.2f}")
            for p in ("forward", "backward_and_optimizer", "step")
        ]
        found = frame(record).derive(compiled=lambda x: way(x)[0])
        return found.table(*NAME, *shown)
    # The loss takes a fifth of a millisecond, and the table is wide.
    shown = [(f"{p}, ms", f"{p} ±") for p in (*PHASES, "step") if p != "loss"]
    telling = ("nothing", "model")
    return steps(record).table(
        *NAME,
        *shown,
        *gpu_columns("step"),
        telling=lambda x: x["size"] in TOLD and x["compiled"] in telling,
    )


def compiled(record: Record | None) -> Frame:
    return steps(record).where(bool, execution="compiled")


def speedups_table(record: Record) -> str:
    gains = {"forward": "forward_gain", "backward": "backward_gain"}
    gains |= {"AdamW": "optimizer_gain", "step": "gain", "step, GPU time": "gpu_gain"}
    shown = compiled(record).table(
        *NAME,
        *((head, name, "{:.2f}") for head, name in gains.items()),
        telling=lambda x: x["size"] in TOLD,
    )
    return captioned("Eager time over compiled time of each phase, context 512.", shown)


def price_table(record: Record) -> str:
    return (
        compiled(record)
        .where(size=TOLD)
        .table(
            *NAME,
            ("compiling, s", "compile_s", "{:.1f}"),
            ("at once", lambda x: x.get("compiled_at_once", 1)),
            ("from its cache, s", "again_s", "{:.1f}"),
            ("saved per step, ms", "saved_ms", "{:.1f}"),
            ("pays after steps", "pays", "{:,.0f}"),
        )
    )


# The dots of a line in the figure: the column of a step's time, and its colour.
DOTS = {"eager": GREY, "as CUDA graphs": DARK, "compiled": ACCENT}


def speedup_figure(record: Record) -> str:
    """Eager to CUDA graphs is launch overhead, graphs to compiled is memory traffic."""
    found = steps(record).join("graph", execution="graph").where(compiled="model")
    times = ("eager.step_ms", "graph.step_ms", "step_ms")

    def draw(figure: Figure) -> None:
        for axes, precision in zip(plots.panels(figure, 2), PRECISIONS, strict=True):
            for place, size in enumerate(TABLE_1):
                x = found.one(size=size, precision=precision)
                ends = [100 * x[name] / x["eager.step_ms"] for name in times]
                plots.line(
                    axes, known(ends), [place] * len(known(ends)), marker="", color=PALE
                )
                for end, color in zip(ends, DOTS.values(), strict=True):
                    plots.line(
                        axes, [end], [place], color=color, linestyle="", markersize=7
                    )
                if x["gain"]:
                    below = {"va": "top", "offset": (0, -6)}
                    plots.note(axes, f"{x['gain']:.1f} ×", ends[-1], place, **below)
            plots.bars(axes, list(TABLE_1))
            plots.across(axes)
            axes.set_xlim(0, 105)
            axes.set_title(f"{precision}: % of the eager step's time")
        plots.key(figure, DOTS)

    return plots.plot(
        record,
        "speedup",
        draw,
        f"The speedup of a whole compiled step {ranges(found.column('gain'))}.",
        "Context 512. Eager to CUDA graphs is launch overhead; from there to compiled, "
        "fusion saves memory traffic.",
        height=280,
        narrow=520,
    )


# Facts and claims ---------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    found = steps(record)
    model = found.where(compiled="model")
    small, large = (
        {p: model.one(size=size, precision=p) for p in PRECISIONS} for size in TOLD
    )
    graph = found.where(execution="graph", precision="bf16")
    return {
        **texts(
            "{:.2f}",
            {
                **{f"speedup_2_7B_{p}": x["gain"] for p, x in large.items()},
                "graph_small": graph.one(size="small")["gain"],
                "graph_2_7B": graph.one(size="2.7B")["gain"],
                "speedup_least": least(model.column("gain")),
                "speedup_most": most(model.column("gain")),
            },
        ),
        **texts("{:,.0f}", {f"steps_small_{p}": x["pays"] for p, x in small.items()}),
        "compile_small_fp32": say(small["fp32"]["compile_s"], "{:.0f} s"),
        "forward_gains": span(model.column("forward_gain")),
        "backward_gains": span(model.column("backward_gain")),
    }


@claim(
    "torch_compile",
    "Compiling the model makes the training step faster in every size and precision "
    "measured.",
)
def compiling_gains(record: Record) -> Judgement:
    model = steps(record).where(compiled="model")
    found, of_gpu = (known(model.column(name)) for name in ("gain", "gpu_gain"))
    numbers = f"Eager time over compiled time of a step: {span(found)}"
    both = f"{numbers}, in GPU time {span(of_gpu)}." if of_gpu else f"{numbers}."
    return found and (min(found) > 1, both)


@claim(
    "torch_compile",
    "For 2.7B, compiling gains more in bf16 than in fp32, where products take most of "
    "the time.",
)
def bf16_gains_more(record: Record) -> Judgement:
    found = steps(record).where(size="2.7B", compiled="model")
    # Of the GPU, unless the record is from before its time was measured.
    of_gpu = known(found.column("gpu_gain"))
    clock, name = ("GPU", "gpu_gain") if of_gpu else ("Wall-clock", "gain")
    fp32, bf16 = (found.one(precision=p)[name] for p in PRECISIONS)
    numbers = f"{clock} time: fp32 {fp32:.2f}, bf16 {bf16:.2f}."
    return fp32 / bf16 and (bf16 > fp32, numbers)
