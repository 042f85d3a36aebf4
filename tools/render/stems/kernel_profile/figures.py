"""Figures of `kernel_profile`: shares by category, one layer's kernels in time,
attention's parts on a roofline.
"""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from systems.formulas.costs import peak_of
from systems.profiling.kernel_names import CATEGORIES
from systems.records.record import Record
from tools.render import figures
from tools.render.figures import FAINT, INK, MARKERS, SERIES
from tools.render.markdown import figure, per_device, percent
from tools.render.rows import Cell, least, most, say
from tools.render.stems.kernel_profile.rows import (
    PARTS,
    SOFTMAX,
    at,
    matmul_share,
    part,
    part_costs,
    ran,
    rates,
    share,
)

# Told apart by hatch as well as by colour.
COLORS = (*SERIES, INK, SERIES[2], FAINT)
HATCHES = ("", "//", "++", "xx", "\\\\", "", "--", "")
LOOKS: dict[str, dict[str, Any]] = {
    category: {"facecolor": color, "hatch": hatch, "edgecolor": INK}
    for category, color, hatch in zip(CATEGORIES, COLORS, HATCHES, strict=True)
}
BARS_AT, LAYER_AT = 512, ("small", 512)
BARS = ("forward", "backward", "optimizer")


def fragments(measured: list[Record]) -> dict[str, str]:
    return {
        "shares.md": per_device(measured, shares_body),
        "layer.md": per_device(measured, layer_body),
        "roofline.md": per_device(measured, roofline_body),
        **figures.of_each(measured, shares_figure, layer_figure, roofline_figure),
    }


def steps(record: Record) -> list[Cell]:
    """Those whose phases are drawn, a size each."""
    return ran(record, context=BARS_AT, mode="step", precision="fp32")


def shares_body(record: Record) -> str:
    shares = [matmul_share(record, c, "full step") for c in steps(record)]
    if not shares:
        return ""
    return figure(
        f"kernel_profile-shares-{record.device.slug}",
        f"Matrix products take from {say(least(shares), percent)} to "
        f"{say(most(shares), percent)} of a full step's kernel time.",
        f"Share of kernel time by category at context {BARS_AT}, fp32, for the phases "
        "of a full step.",
    )


def shares_figure(record: Record) -> dict[str, str]:
    found = steps(record)
    if not found:
        return {}
    with figures.canvas(width=6.4, height=4.6) as fig:
        axes = fig.subplots()
        # A gap after the three phases of a size.
        places = [i + i // 3 * 0.6 for i in range(len(BARS) * len(found))]
        bars = [(c, phase) for c in found for phase in BARS]
        for place, (c, phase) in zip(places, bars, strict=True):
            bottom = 0.0
            for category, look in LOOKS.items():
                height = 100 * (share(c, category, (phase,)) or 0.0)
                axes.bar(place, height, 0.9, bottom, **look, linewidth=0.4)
                bottom += height
        names = [phase for _, phase in bars]
        axes.set_xticks(places, names, rotation=90, fontsize=9)
        for place, c in zip(places[1::3], found, strict=True):
            axes.text(place, 102, c.config["size"], ha="center", fontsize=9)
        axes.set_ylabel("share of kernel time, %")
        axes.set_ylim(0, 100)
        axes.grid(False, axis="x")
        seen = [n for n in CATEGORIES if any(share(c, n, (p,)) for c, p in bars)]
        legend(fig, seen)
        return figures.svg_pair(f"shares-{record.device.slug}", fig)


def legend(fig: Figure, categories: list[str]) -> None:
    handles = [Patch(**LOOKS[name], linewidth=0.4, label=name) for name in categories]
    narrow: dict[str, Any] = {"handlelength": 1.4, "columnspacing": 1.2}
    fig.legend(handles=handles, loc="outside lower center", ncols=4, **narrow)


def layer_of(record: Record) -> list[dict[str, Any]]:
    """The kernels of one layer's forward pass."""
    return at(record, *LAYER_AT, "forward").get("timeline", [])


def layer_body(record: Record) -> str:
    timeline = layer_of(record)
    if not timeline:
        return ""
    busy = sum(item["duration_ms"] for item in timeline)
    span = max(item["start_ms"] + item["duration_ms"] for item in timeline)
    return figure(
        f"kernel_profile-layer-{record.device.slug}",
        f"{len(timeline)} kernels fill {percent(busy / span)} of the {span:.2f} ms of "
        "one layer's forward pass.",
        "The kernels of one layer's forward pass, small at context 512, fp32, by the "
        "part of the layer that launched them.",
    )


def layer_figure(record: Record) -> dict[str, str]:
    timeline = layer_of(record)
    if not timeline:
        return {}
    lanes = {f"forward/{name}": i for i, name in enumerate(PARTS, 1)}
    with figures.canvas(width=6.4, height=3.6) as fig:
        axes = fig.subplots()
        for item in timeline:
            bar = [(item["start_ms"], item["duration_ms"])]
            lane = (lanes.get(item["phase"], 0) - 0.4, 0.8)
            axes.broken_barh(bar, lane, **LOOKS[item["category"]], linewidth=0.3)
        names = ["rest of the layer", *(n.removeprefix("attention ") for n in PARTS)]
        axes.set_yticks(range(len(names)), names)
        # Every lane whole, the first on top, whether a kernel ran in it or not.
        axes.set_ylim(len(PARTS) + 0.5, -0.5)
        axes.set_xlabel("ms since the layer's first kernel")
        seen = {item["category"] for item in timeline}
        legend(fig, [category for category in CATEGORIES if category in seen])
        return figures.svg_pair(f"layer-{record.device.slug}", fig)


def points_of(record: Record) -> list[tuple[str, float, float]]:
    """(part, FLOP per byte, FLOP/s) of each part in each fp32 forward pass."""
    points = []
    for c in ran(record, mode="forward", precision="fp32"):
        for name in PARTS:
            if part(c, name)[1]:
                flops, moved = part_costs(c)[name]
                points.append((name, flops / moved, rates(c, name)[0]))
    return points


def roofline_body(record: Record) -> str:
    peak, points = peak_of(record.device.slug), points_of(record)
    if peak is None or not points:
        return ""
    moved = most(
        rate / x / peak.bandwidth for name, x, rate in points if name == SOFTMAX
    )
    return figure(
        f"kernel_profile-roofline-{record.device.slug}",
        f"Softmax moves at best {say(moved, percent)} of the data sheet's bytes per "
        "second; the products do more FLOPs per byte.",
        "Attention's parts in fp32 forward passes, every size and context. Lines: what "
        "the data sheet allows. Intensity counts the bytes that the operations must "
        "move, which the cache can make fewer.",
    )


def roofline_figure(record: Record) -> dict[str, str]:
    peak, points = peak_of(record.device.slug), points_of(record)
    if peak is None or not points:
        return {}
    ridge, intensities = peak.fp32 / peak.bandwidth, [x for _, x, _ in points]
    ends = (0.8 * min(intensities), ridge, 1.5 * max(ridge, *intensities))
    roof = [min(peak.fp32, x * peak.bandwidth) / 1e12 for x in ends]
    with figures.canvas(height=4.4) as fig:
        axes = fig.subplots()
        axes.plot(ends, roof, color=INK, linewidth=1.2)
        for name, color, marker in zip(PARTS, SERIES, MARKERS, strict=False):
            mine = [(x, rate / 1e12) for label, x, rate in points if label == name]
            style = {"ls": "none", "marker": marker, "color": color}
            label = name.removeprefix("attention ")
            xs, ys = ([point[i] for point in mine] for i in (0, 1))
            figures.line(axes, xs, ys, label=label, **style)
        axes.set_xscale("log")
        figures.plain_log_scale(axes.yaxis)
        axes.set_xlabel("FLOP per byte moved")
        axes.set_ylabel("TFLOP/s")
        figures.legend_above(fig, ncols=4, handlelength=1.2, columnspacing=1.2)
        return figures.svg_pair(f"roofline-{record.device.slug}", fig)
