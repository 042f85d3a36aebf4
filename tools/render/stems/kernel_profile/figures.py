"""Figures of `kernel_profile`: shares by category, one layer's kernels in time,
attention's parts on a roofline.
"""

from math import exp, log
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from systems.formulas.costs import Peak, find_peak
from systems.profiling.kernel_names import CATEGORIES, MATMUL
from systems.records.record import Record
from tools.render.markdown import per_device, percent
from tools.render.plots import (
    ACCENT,
    DARK,
    FAINT,
    GREY,
    GROUND,
    INK,
    PALE,
    TINT,
    WARN,
    across,
    key,
    note,
    panels,
    plain_log_scale,
    plot,
    stacked,
)
from tools.render.rows import least, most, ran, say
from tools.render.stems.kernel_profile.rows import (
    PARTS,
    SOFTMAX,
    at,
    matmul_share,
    part,
    part_costs,
    rates,
    share,
)

# Products are what a GPU is for; the rest is in greys.
COLORS: dict[str, str] = dict(
    zip(CATEGORIES, (ACCENT, TINT, GREY, DARK, PALE, WARN, WARN, FAINT), strict=True)
)
BARS_AT, LAYER_AT = 512, ("small", 512)
BARS = ("forward", "backward")


def fragments(measured: list[Record]) -> dict[str, str]:
    return {
        "shares.md": per_device(measured, shares_figure),
        "layer.md": per_device(measured, layer_figure),
        "roofline.md": per_device(measured, roofline_figure),
    }


def shares_figure(record: Record) -> str:
    found = ran(record, context=BARS_AT, mode="step", precision="fp32")
    if not found:
        return ""
    sizes = [c.config["size"] for c in found]

    def draw(figure: Figure) -> None:
        seen = {}
        for axes, phase in zip(panels(figure, 2), BARS, strict=True):
            parts = {
                name: [100 * (share(c, name, (phase,)) or 0.0) for c in found]
                for name in CATEGORIES
            }
            seen |= {name: COLORS[name] for name in CATEGORIES if any(parts[name])}
            stacked(axes, sizes, parts, COLORS)
            for y, products in enumerate(parts[MATMUL]):
                text: dict[str, Any] = {
                    "color": GROUND,
                    "weight": "bold",
                    "va": "center",
                }
                axes.text(2, y, f"{products:.0f} %", **text)
            axes.set_xlim(0, 100)
            axes.set_title(f"{phase} pass, % of its kernel time")
        key(figure, {name: seen[name] for name in CATEGORIES if name in seen})

    each = {phase: [share(c, MATMUL, (phase,)) for c in found] for phase in BARS} | {
        "step": [matmul_share(record, c, "full step") for c in found]
    }
    took = {
        name: f"{say(least(shares), percent)} to {say(most(shares), percent)}"
        for name, shares in each.items()
    }
    return plot(
        record,
        "shares",
        draw,
        f"Matrix products take {took['forward']} of a forward pass's kernel time and "
        f"{took['backward']} of a backward pass's.",
        f"Kernel time by category at context {BARS_AT} in fp32. AdamW, the step's "
        f"third part, has no products: of a full step's kernel time they take "
        f"{took['step']}.",
        height=240,
        narrow=430,
    )


def layer_figure(record: Record) -> str:
    """The kernels of one layer's forward pass."""
    timeline: list[dict[str, Any]] = at(record, *LAYER_AT, "forward").get(
        "timeline", []
    )
    if not timeline:
        return ""
    lanes = {f"forward/{name}": i for i, name in enumerate(PARTS, 1)}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for item in timeline:
            bar = (item["start_ms"], item["duration_ms"])
            lane = (lanes.get(item["phase"], 0) - 0.4, 0.8)
            color = ACCENT if item["category"] == MATMUL else GREY
            look = {"facecolor": color, "edgecolor": GROUND, "linewidth": 0.5}
            axes.broken_barh([bar], lane, **look)
        names = ["rest of the layer", *(n.removeprefix("attention ") for n in PARTS)]
        axes.set_yticks(range(len(names)), names)
        # Every lane whole, the first on top, whether a kernel ran in it or not.
        axes.set_ylim(len(PARTS) + 0.5, -0.5)
        axes.set_xlabel("ms since the layer's first kernel")
        across(axes)

    cleared = sum(item["name"] == "Memset" for item in timeline)
    work = f"{len(timeline) - cleared} kernels"
    if cleared:
        work += f" and {cleared} memset{'s' * (cleared > 1)}"
    busy = sum(item["duration_ms"] for item in timeline)
    span = max(item["start_ms"] + item["duration_ms"] for item in timeline)
    return plot(
        record,
        "layer",
        draw,
        f"{work} fill {percent(busy / span)} of the {span:.2f} ms of "
        "one layer's forward pass under the profiler, which slows launching.",
        "The model `small` at context 512 in fp32, by the part of the layer that "
        "launched them. Blue: matrix products; grey: everything else; where all lanes "
        "are empty, the GPU waits for the next launch.",
        height=220,
    )


# The roofline -------------------------------------------------------------------------


# Its colour, and on which side its name stands: the points of the products lie in one
# another.
POINTS: dict[str, tuple[str, str, str, tuple[int, int]]] = {
    "attention scores": (GREY, "center", "bottom", (0, 9)),
    "attention mask": (GREY, "left", "center", (12, 0)),
    SOFTMAX: (ACCENT, "left", "center", (12, 0)),
    "attention output": (DARK, "center", "top", (0, -9)),
}


def points_of(record: Record) -> list[tuple[str, float, float]]:
    """(part, FLOP per byte, FLOP/s) of each part in each fp32 forward pass."""
    points = []
    for c in ran(record, mode="forward", precision="fp32"):
        for name in PARTS:
            if part(c, name)[1]:
                flops, moved = part_costs(c)[name]
                points.append((name, flops / moved, rates(c, name)[0]))
    return points


def roofline_figure(record: Record) -> str:
    peak, points = find_peak(record.device.slug), points_of(record)
    if peak is None or not points:
        return ""
    softmax = [(x, rate) for name, x, rate in points if name == SOFTMAX]
    moved = most(rate / x / peak.bandwidth for x, rate in softmax)
    reached = say(moved, percent)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        draw_roofs(axes, peak, [x for _, x, _ in points])
        for name, (color, side, height, offset) in POINTS.items():
            mine = [(x, rate / 1e12) for label, x, rate in points if label == name]
            if mine:
                xs, rates = zip(*mine, strict=True)
                axes.plot(xs, rates, "o", color=color, alpha=0.7, markeredgewidth=0)
                share = f": {reached} of the bandwidth" if name == SOFTMAX else ""
                text = name.removeprefix("attention ") + share
                y = min(rates) if height == "top" else max(rates)
                place = {"offset": offset, "ha": side, "va": height}
                look = {"color": ACCENT if share else INK}
                note(axes, text, exp(fmean(map(log, xs))), y, **place, **look)

    return plot(
        record,
        "roofline",
        draw,
        f"Softmax moves at best {reached} of the data sheet's bytes per second; the "
        "products do more FLOPs per byte.",
        "Attention's parts in fp32 forward passes, a point for each size and context. "
        "Lines: what the data sheet allows. FLOPs per byte count what the operations "
        "must move; the cache can save some of it.",
        height=360,
    )


def draw_roofs(axes: Axes, peak: Peak, intensities: list[float]) -> None:
    """What memory allows, rising with the FLOPs per byte, and what arithmetic does."""
    ridge = peak.fp32 / peak.bandwidth
    left, right = 0.6 * min(intensities), 3 * max(ridge, *intensities)
    ends = [left, ridge, right]
    roof = [min(peak.fp32, x * peak.bandwidth) / 1e12 for x in ends]
    axes.plot(ends, roof, color=DARK, linewidth=1.5)
    plain_log_scale(axes.xaxis, subs=(1,))
    plain_log_scale(axes.yaxis, subs=(1,))
    axes.set_xlim(left, right)
    axes.set(xlabel="FLOP per byte moved", title="TFLOP/s")
    middle = (left * ridge) ** 0.5
    told = f"memory: {peak.bandwidth / 1e12:.1f} TB/s "
    look = {"ha": "right", "color": DARK, "offset": (0, 5)}
    note(axes, told, middle, middle * peak.bandwidth / 1e12, **look)
    note(axes, f"fp32: {peak.fp32 / 1e12:.0f} TFLOP/s", right, roof[-1], **look)
