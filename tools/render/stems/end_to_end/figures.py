"""Figures of `end_to_end`: shares of the peak, a step by phase, speedup by bf16."""

from collections.abc import Callable
from math import log
from operator import itemgetter

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from systems.model.sizes import TABLE_1
from systems.records.record import Record
from tools.render import plots
from tools.render.fragments import Drawn
from tools.render.frame import Frame
from tools.render.markdown import percent
from tools.render.plots import ACCENT, DARK, PALE
from tools.render.rows import dropna, span
from tools.render.stems.end_to_end.rows import BATCH, has_gpu_time, passes, steps

Cell = Callable[[float], tuple[str, float]]
PHASES = {"forward": PALE, "backward": ACCENT, "optimizer": DARK}
DTYPES = ("fp32", "bf16")


def draw_heat_map(axes: Axes, found: Frame, name: str, cell: Cell) -> None:
    """Draw column `name` by size and context; `cell` gives a value's text and shade."""
    contexts = found.values("context")
    rows = {
        size: [cell(found.one(size=size, context=c)[name]) for c in contexts]
        for size in TABLE_1
    }
    plots.fill_heat_map(axes, rows, [f"{c:,}" for c in contexts])


def mfu_figure(record: Record) -> Drawn:
    """Draw forward passes' MFU by wall-clock time; return None if no peak is known."""
    found = passes(record).where(mode="forward", batch=BATCH, size=TABLE_1)
    if not dropna(found.column("share")):
        return None

    def format_cell(share: float) -> tuple[str, float]:
        return (percent(share), -share) if share else ("", 0)

    def draw(figure: Figure) -> None:
        for axes, precision in zip(plots.panels(figure, 2), DTYPES, strict=True):
            draw_heat_map(axes, found.where(precision=precision), "share", format_cell)
            axes.set_title(f"{precision}, by context")

    most = [
        f"{percent(x['share'])} ({p}, `{x['size']}`, context {x['context']:,})"
        for p in DTYPES
        for x in sorted(found.where(bool, precision=p), key=itemgetter("share"))[-1:]
    ]
    return (
        draw,
        f"Forward passes of Table 1 reach up to {' and '.join(most)} of the peak.",
        "Shares of the data sheet's peak use wall-clock time. At long "
        "contexts, mask and softmax take a larger share of the time.",
    )


def phases_figure(record: Record) -> Drawn:
    measured = itemgetter("step_kernels_ms")
    found = steps(record).where(measured, context=512, size=TABLE_1)
    if not found:
        return None
    clock = "'s GPU time" if has_gpu_time(record) else ""
    found.derive(share=lambda x: x["optimizer_kernels_ms"] / x["step_kernels_ms"])
    shares = {p: found.where(precision=p).column("share") for p in DTYPES}
    ranges = [f"{span(of, percent)} in {p}" for p, of in shares.items()]

    def draw(figure: Figure) -> None:
        plots.draw_legend(figure, PHASES)
        for axes, precision in zip(plots.panels(figure, 2), DTYPES, strict=True):
            sizes = found.where(precision=precision)
            whole, ends = sizes.column("step_kernels_ms"), [0.0] * len(sizes)
            for phase, color in PHASES.items():
                ms = sizes.column(f"{phase}_kernels_ms")
                widths = [100 * a / b for a, b in zip(ms, whole, strict=True)]
                look = {"left": ends, "color": color, "linewidth": 0}
                axes.barh(range(len(sizes)), widths, 0.8, **look)
                ends = [a + b for a, b in zip(ends, widths, strict=True)]
            plots.label_bars(axes, sizes.column("size"))
            for y, ms in enumerate(whole):
                plots.label_bar(axes, f"{ms:.0f} ms", 100, y)
            axes.set_xlim(0, 125)
            axes.set_xticks(range(0, 101, 25))
            axes.set_title(f"{precision}, % of a step{clock}")

    return (
        draw,
        f"Of a step{clock}, AdamW takes {' and '.join(ranges)}.",
        "Context 512, batch 4; the loss is too short to see.",
    )


def speedup_figure(record: Record) -> Drawn:
    found = steps(record).where(lambda x: x["gain"], precision="bf16")
    if not found:
        return None
    clocks = {"GPU time": "step_kernel_gain", "wall-clock time": "gain"}
    if not has_gpu_time(record):
        del clocks["GPU time"]
    gains = {clock: dropna(found.column(name)) for clock, name in clocks.items()}
    most = max(abs(log(gain)) for of in gains.values() for gain in of) or 1
    ranges = ", ".join(f"{span(of)} in {clock}" for clock, of in gains.items())

    def format_cell(gain: float) -> tuple[str, float]:
        return (f"{gain:.2f}", -log(gain) / most) if gain else ("", 0)

    def draw(figure: Figure) -> None:
        every = plots.panels(figure, len(clocks))
        for axes, (clock, name) in zip(every, clocks.items(), strict=True):
            draw_heat_map(axes, found, name, format_cell)
            axes.set_title(f"{clock}: fp32 / bf16, by context")

    return (
        draw,
        f"bf16 changes a step's speed by a factor of {ranges}.",
        "Steps include AdamW. Below 1, bf16 is slower (orange).",
    )
