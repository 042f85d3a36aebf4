"""Figures of `peak_memory`: memory over time, and the peak against context, both
stacked by category.
"""

import math
from bisect import bisect
from collections.abc import Sequence
from operator import mul
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from systems.profiling.memory.snapshot import CATEGORIES
from systems.records.record import Record
from tools.render.markdown import gib
from tools.render.plots import (
    ACCENT,
    DARK,
    GREY,
    GROUND,
    INK,
    MUTED,
    OVER_LINES,
    PALE,
    TINT,
    key,
    note,
    panels,
    plot,
    stacked,
    value,
)
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

# What a pass saves for its backward pass is what grows; the rest is in greys.
COLORS: dict[str, str] = dict(
    zip(CATEGORIES, (DARK, PALE, TINT, GREY, ACCENT, INK), strict=True)
)
ON = {DARK: GROUND, ACCENT: GROUND}
TEMPORARIES = "temporaries"
SHORT = {"second_forward": "forward", "loss": "", "optimizer": "AdamW"}
DRAWN = {
    "forward": "a forward pass without a graph",
    "step": "a full training step with AdamW",
}
# What both timelines of a forward pass show.
FORWARD = (
    "In fp32 memory falls back to the weights after each block; under autocast it "
    "climbs from block to block, as copies of the weights add up."
)
# Moments that a timeline is drawn at.
DRAWN_EVENTS = 200


def timeline_figure(
    record: Record, mode: str, finding: str = "", more: str = ""
) -> str:
    """The timelines of one mode, fp32 before bf16; nothing where there are none."""
    tried = [at(record, LONGEST, mode, precision) for precision in PRECISIONS]
    found = [c for c in tried if c.get("timeline", None)]
    peaks = "; ".join(
        f"in {c.config['precision']} memory peaks at {gib(c.requested)} GiB {place(c)}"
        for c in found
    )
    if mode == "forward" and len(found) == len(PRECISIONS):
        finding = finding or FORWARD
    told = (
        f"Active memory over {DRAWN[mode]}: {SIZE}, context {LONGEST}, batch 4, "
        "in bytes as asked for, before the allocator rounds. The horizontal axis "
        "counts allocations and frees, as PyTorch's viewer does."
    )
    if any(len(c["phases"]) > 1 for c in found):
        told += " Vertical lines: where a phase begins."
    finding = finding or f"{peaks[:1].upper()}{peaks[1:]}."
    titles = [f"{c.config['precision']}, GiB" for c in found]
    name = f"{mode}-timeline"
    return timelines(record, name, found, titles, finding, more or told)


def of_edition(record: Record, mode: str) -> list[Tried]:
    """At the contexts that CS336 of 2026 asks for; a step at the longer one as it fits,
    with fused attention.
    """
    fits = at(record, 2048, mode, "fp32")
    if mode == "step":
        fits = at(record, 2048, mode, "bf16", SIZE, "flash")
    return [at(record, 128, mode, "fp32"), fits]


def edition_figure(record: Record, mode: str) -> str:
    """Both, where both have a timeline."""
    found = of_edition(record, mode)
    if not all(c.get("timeline", None) for c in found):
        return ""
    if mode == "step":
        short, long = map(place, found)
        finding = (
            f"In fp32 with plain attention, a step at context 128 peaks {short}; in "
            f"bf16 with flash, one at 2,048 peaks {long}."
        )
    else:
        low, high = (gib(c.requested) for c in found)
        finding = (
            f"At context 128 memory peaks at {low} GiB, at 2,048 at {high} GiB: after "
            "each block it falls back to the weights."
        )
    names = {"eager": "plain"}
    titles = [
        f"context {c.config['context']:,}, {c.config['precision']}, "
        f"{names.get(c.config['attention'], c.config['attention'])}: GiB"
        for c in found
    ]
    more = f"Active memory over {DRAWN[mode]}: {SIZE}, batch 4, read as above."
    return timelines(record, f"{mode}-edition", found, titles, finding, more)


def timelines(
    record: Record,
    name: str,
    found: list[Tried],
    titles: list[str],
    finding: str,
    more: str,
) -> str:
    """One beside the other; nothing where there are none."""

    most = max((c.requested / 2**30 for c in found), default=1.0)

    def draw(figure: Figure) -> None:
        each = zip(panels(figure, len(found)), found, titles, strict=True)
        slim: set[str] = set()
        for axes, c, title in each:
            slim |= draw_timeline(axes, c, 1.2 * most)
            axes.set_title(title, pad=20)
            axes.set_xlabel("allocations and frees, in order")
        if slim:
            key(figure, {name: COLORS[name] for name in CATEGORIES if name in slim})

    if not found:
        return ""
    return plot(record, name, draw, finding, more, height=270, narrow=230 * len(found))


# An area that is this much of the height somewhere has its name there.
NAMED = 0.08


def draw_timeline(axes: Axes, c: Tried, height: float) -> set[str]:
    """The areas, named where there is room. Returns the names of those too slim."""
    timeline: dict[str, list[int]] = c["timeline"]
    shown = highest(timeline, used([c]))
    events = [timeline["event"][i] for i in shown]
    bottom, slim, ground = [0.0] * len(shown), set(), GROUND
    for category in used([c]):
        sizes = [timeline[category][i] / 2**30 for i in shown]
        top = [low + size for low, size in zip(bottom, sizes, strict=True)]
        axes.fill_between(events, bottom, top, color=COLORS[category], linewidth=0)
        if category == TEMPORARIES:
            name_rim(axes, category, events, top)
        elif max(sizes) > NAMED * height:
            name_area(axes, category, events, bottom, top, ground)
        elif max(sizes):
            slim.add(category)
        if max(sizes):
            ground = COLORS[category]
        bottom = top
    peak = max(range(len(shown)), key=bottom.__getitem__)
    # Beside the line where the peak is also a phase's begin.
    side = "right" if events[peak] > 0.6 * events[-1] else "left"
    beside = (-4 if side == "right" else 4, 3)
    told = f"{bottom[peak]:.1f} GiB"
    note(axes, told, events[peak], bottom[peak], offset=beside, ha=side)
    for phase in c["phases"]:
        first = min(bisect(events, phase["first_event"]), len(events) - 1)
        # From the memory up: not through the names below.
        axes.plot(
            [phase["first_event"]] * 2,
            [bottom[first], height],
            color=MUTED,
            linewidth=0.8,
            label="_",
        )
        name = SHORT.get(str(phase["phase"]), str(phase["phase"]))
        middle = (phase["first_event"] + phase["last_event"]) / 2
        above = {"xycoords": ("data", "axes fraction"), "va": "bottom", "ha": "center"}
        axes.annotate(name, (middle, 1), color=MUTED, **above)
    axes.set_xlim(events[0], events[-1])
    axes.set_ylim(0, height)
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    return slim


def name_rim(
    axes: Axes, name: str, events: Sequence[float], top: Sequence[float]
) -> None:
    """Of what lies on top of all others: off the rim, where that does not rise."""
    half = len(events) // 2
    at = max(range(half, len(events) * 3 // 4), key=top.__getitem__)
    side = "right" if top[at] > 1.02 * max(top[: len(events) // 3]) else "left"
    look: dict[str, Any] = {"ha": side, "va": "center", "gid": OVER_LINES}
    look["arrowprops"] = {"arrowstyle": "-", "color": INK, "linewidth": 0.8}
    off = (14 if side == "left" else -14, 14)
    place = (events[at], top[at])
    axes.annotate(name, place, off, textcoords="offset points", **look)


def name_area(
    axes: Axes,
    name: str,
    events: Sequence[float],
    bottom: Sequence[float],
    top: Sequence[float],
    ground: str,
) -> None:
    """In its middle; of a slim one below where it is highest, on that ground."""
    sizes = [high - low for low, high in zip(bottom, top, strict=True)]
    slim = max(sizes) < 2 * NAMED * max(top)
    weights = [size**3 if slim else size for size in sizes]
    x = sum(map(mul, weights, events)) / sum(weights)
    i = bisect(events, x) - 1
    look: dict[str, Any] = {"color": ON.get(COLORS[name], INK), "ha": "center"}
    middle = (bottom[i] + top[i]) / 2
    if not slim:
        axes.text(x, middle, name, va="center", **look)
        return
    # It would reach into its neighbours: off it, below.
    look |= {"color": ON.get(ground, INK), "va": "top"}
    look["arrowprops"] = {
        "arrowstyle": "-",
        "color": look["color"],
        "linewidth": 0.8,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    axes.annotate(name, (x, middle), (x, bottom[i] - 0.04 * max(top)), **look)


def highest(timeline: dict[str, list[int]], categories: Sequence[str]) -> list[int]:
    """Of each stretch of events the one with the most memory, and the last of all."""
    count = len(timeline["event"])
    totals = [sum(timeline[name][i] for name in categories) for i in range(count)]
    stretch = -(-count // DRAWN_EVENTS)
    starts = range(0, count, stretch)
    found = [
        max(range(s, min(s + stretch, count)), key=totals.__getitem__) for s in starts
    ]
    return sorted({*found, count - 1})


# Peak against context -----------------------------------------------------------------


def contexts_figure(record: Record) -> str:
    """A bar for each mode and context, fp32 beside bf16."""
    found = [c for c in of_modes(record, *PRECISIONS) if c]
    if not found:
        return ""
    names = [(mode, context) for mode in MODES for context in CONTEXTS]
    # A gap before each mode, for its name.
    places = [i + 1.1 * (i // len(CONTEXTS)) for i in range(len(names))]

    def draw(figure: Figure) -> None:
        axes_of = dict(zip(PRECISIONS, panels(figure, 2, sharex=True), strict=True))
        for precision, axes in axes_of.items():
            row = [at(record, context, mode, precision) for mode, context in names]
            parts = {
                name: [(c.category(name) if c else 0) / 2**30 for c in row]
                for name in CATEGORIES
            }
            labels = [str(context) for _, context in names]
            stacked(axes, labels, parts, COLORS, at=places)
            for y, c in zip(places, row, strict=True):
                end = sum(c.category(n) for n in CATEGORIES) / 2**30 if c else 0
                told = f"{end:.1f}" if c else c.why.partition(",")[0]
                value(axes, told, end, y)
            for y, mode in zip(places[:: len(CONTEXTS)], MODES, strict=True):
                look: dict[str, Any] = {"va": "bottom", "color": MUTED}
                axes.text(0, y - 0.55, MODES[mode], gid=OVER_LINES, **look)
            axes.set_ylim(places[-1] + 0.6, -1.7)
            axes.set_xlim(right=80)
            axes.set_title(f"{precision}, GiB at the peak, by context")
        key(figure, {name: COLORS[name] for name in used(found)})

    off = max(abs(c.requested / predicted(c) - 1) for c in found)
    return plot(
        record,
        "contexts",
        draw,
        "A longer context adds saved activations and temporaries; once activations and "
        "copies of weights outweigh the gradients, the peak of a step is at the start "
        "of the backward pass, with few gradients.",
        f"From left to right, each bar adds up what {SIZE} holds at its peak, by "
        f"category. All are within {math.ceil(1000 * off) / 10:.1f} percent of their "
        "predictions.",
        height=470,
        narrow=880,
    )
