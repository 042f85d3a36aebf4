"""Figures of `peak_memory`: memory over time, and the peak against context, both
stacked by category.
"""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from systems.formulas.memory_costs import Pass
from systems.formulas.memory_peak import peak
from systems.profiling.memory.snapshot import CATEGORIES
from systems.records.record import Record
from tools.render.figures import INK, SERIES, canvas, legend_above, svg_pair
from tools.render.markdown import figure, gib
from tools.render.stems.peak_memory.rows import (
    CONTEXTS,
    LONGEST,
    MODES,
    PRECISIONS,
    SIZE,
    Tried,
    at,
    of_modes,
    place,
    predicted,
    used,
)

# Told apart by hatch as well as by colour, and by their order, which is that of the
# legend.
HATCHES = ("", "//", "++", "xx", "\\\\", "")
LOOKS: dict[str, dict[str, Any]] = {
    category: {"facecolor": color, "hatch": hatch, "edgecolor": INK}
    for category, color, hatch in zip(CATEGORIES, (*SERIES, INK), HATCHES, strict=True)
}
SHORT = {"second_forward": "forward", "loss": "", "optimizer": "AdamW"}
DRAWN = {
    "forward": "a forward pass without a graph",
    "step": "a full training step with AdamW",
}


def with_timeline(record: Record, mode: str) -> list[Tried]:
    """The rows of this mode that kept their timeline, fp32 before bf16."""
    found = [at(record, LONGEST, mode, precision) for precision in PRECISIONS]
    return [c for c in found if c.get("timeline", None)]


def timeline_body(record: Record, mode: str) -> str:
    """The timelines of one mode; nothing where there are none."""
    alt = "; ".join(
        f"in {c.config['precision']} memory peaks at {gib(c.requested)} GiB {place(c)}"
        for c in with_timeline(record, mode)
    )
    caption = (
        f"Active memory over {DRAWN[mode]}: {SIZE}, context {LONGEST}, batch 4. Time "
        "runs by allocations and frees, as in PyTorch's viewer. Dashed: where a phase "
        "begins."
    )
    name = f"peak_memory-{mode}-{record.device.slug}"
    return figure(name, f"{alt[0].upper()}{alt[1:]}.", caption) if alt else ""


def timeline_figure(record: Record, mode: str) -> dict[str, str]:
    found = with_timeline(record, mode)
    if not found:
        return {}
    with canvas(width=6.4, height=2.5 * len(found) + 0.7) as fig:
        panels = fig.subplots(len(found), 1, squeeze=False)[:, 0]
        for axes, c in zip(panels, found, strict=True):
            draw_timeline(axes, c)
        panels[-1].set_xlabel("allocations and frees, in order")
        legend(fig, used(found))
        return svg_pair(f"{mode}-{record.device.slug}", fig)


def draw_timeline(axes: Axes, c: Tried) -> None:
    timeline: dict[str, list[int]] = c["timeline"]
    events, bottom = timeline["event"], [0.0] * len(timeline["event"])
    for category in used([c]):
        sizes = zip(bottom, timeline[category], strict=True)
        top = [low + value / 2**30 for low, value in sizes]
        look = {**LOOKS[category], "step": "post", "linewidth": 0}
        axes.fill_between(events, bottom, top, **look)
        bottom = top
    for phase in c["phases"]:
        axes.axvline(phase["first_event"], color=INK, linestyle="--", linewidth=0.8)
        middle = (phase["first_event"] + phase["last_event"]) / 2
        name = str(phase["phase"])
        above: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "va": "bottom"}
        axes.annotate(SHORT.get(name, name), (middle, 1), ha="center", **above)
    axes.set_xlim(events[0], events[-1])
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"GiB, {c.config['precision']}")


def legend(fig: Figure, categories: list[str]) -> None:
    handles = [Patch(**LOOKS[name], linewidth=0.4, label=name) for name in categories]
    legend_above(fig, ncols=3, handles=handles)


# Peak against context -----------------------------------------------------------------


def contexts_body(record: Record) -> str:
    found = [c for c in of_modes(record, *PRECISIONS) if c]
    if not found:
        return ""
    off = max(abs(c.requested / predicted(c) - 1) for c in found)
    return figure(
        f"peak_memory-contexts-{record.device.slug}",
        f"The peak of every pass that fits is within {100 * off:.1f} percent of its "
        "prediction.",
        f"Peak of {SIZE} at contexts {', '.join(map(str, CONTEXTS))}, by category. "
        "Lines: the prediction.",
    )


def contexts_figure(record: Record) -> dict[str, str]:
    """A bar for each mode, precision and context: for each mode its contexts, fp32
    before bf16.
    """
    names = [(m, p, c) for m in MODES for p in PRECISIONS for c in CONTEXTS]
    bars = [at(record, context, mode, p) for mode, p, context in names]
    if not any(bars):
        return {}
    # A gap after each precision, a wider one after each mode.
    places = [-(i + i // 3 * 0.5 + i // 6 * 1.3) for i in range(len(bars))]
    with canvas(width=6.4, height=7.6) as fig:
        axes = fig.subplots()
        for i, (c, y, (mode, p, context)) in enumerate(
            zip(bars, places, names, strict=True)
        ):
            left = 0.0
            for category in CATEGORIES if c else ():
                width = c.category(category) / 2**30
                axes.barh(y, width, 0.85, left, **LOOKS[category], linewidth=0.4)
                left += width
            need = sum(peak(Pass(SIZE, context, mode, p)).values()) / 2**30
            axes.plot([need, need], [y - 0.5, y + 0.5], color=INK, linewidth=2)
            if c.row and not c:
                why = " " + c.row.status.replace("_", " ")
                axes.annotate(why, (0, y), va="center", fontsize=8)
            if i % 6 == 0:
                title: dict[str, Any] = {"fontsize": 10, "weight": "bold"}
                axes.annotate(MODES[mode], (0, y + 0.62), va="bottom", **title)
        axes.set_yticks(places, [f"{c} {p}" for _, p, c in names], fontsize=8)
        axes.set_xlim(right=1.04 * axes.get_xlim()[1])
        axes.set_xlabel("GiB")
        axes.grid(False, axis="y")
        legend(fig, used([c for c in bars if c]))
        return svg_pair(f"contexts-{record.device.slug}", fig)
