"""Figures of `peak_memory`: memory over time, and the peak against context, both
stacked by category.
"""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from systems.formulas.memory_costs import Pass
from systems.formulas.memory_peak import peak
from systems.profiling.memory.snapshot import CATEGORIES
from systems.records.record import Record, Row
from tools.render.figures import INK, SERIES, canvas, svg_pair
from tools.render.markdown import figure, gib
from tools.render.stems.peak_memory.rows import (
    CONTEXTS,
    LONGEST,
    MODES,
    PRECISIONS,
    SIZE,
    at_peak,
    cell,
    fits,
    place,
    predicted,
    requested,
    used,
)

# Told apart by hatch as well as by colour, and by their order, which is that of the
# legend.
LOOKS: dict[str, tuple[str, str]] = dict(
    zip(
        CATEGORIES,
        zip((*SERIES, INK), ("", "//", "++", "xx", "\\\\", ""), strict=True),
        strict=True,
    )
)
SHORT = {
    "forward": "forward",
    "second_forward": "forward",
    "loss": "",
    "backward": "backward",
    "optimizer": "AdamW",
}
DRAWN = {
    "forward": "a forward pass without a graph",
    "step": "a full training step with AdamW",
}


def drawn_rows(record: Record, mode: str) -> list[Row]:
    """The rows of this mode that kept their timeline, fp32 before bf16."""
    rows = [cell(record, LONGEST, mode, precision) for precision in PRECISIONS]
    return [
        row
        for row in rows
        if row is not None and fits(row) and "timeline" in row.metrics
    ]


def timeline_body(record: Record, mode: str) -> str:
    """The timelines of one mode; nothing where there are none."""
    rows = drawn_rows(record, mode)
    if not rows:
        return ""
    parts = [
        f"in {row.config['precision']} memory peaks at {gib(row.metrics['peak_requested_bytes'])} GiB {place(row)}"
        for row in rows
    ]
    caption = (
        f"Active memory over {DRAWN[mode]}: {SIZE}, context {LONGEST}, batch 4. Time runs by "
        "allocations and frees, as in PyTorch's viewer. Dashed: where a phase begins."
    )
    alt = "; ".join(parts)
    return figure(
        f"peak_memory-{mode}-{record.device.slug}",
        alt[0].upper() + alt[1:] + ".",
        caption,
    )


def timeline_figure(record: Record, mode: str) -> dict[str, str]:
    rows = drawn_rows(record, mode)
    if not rows:
        return {}
    with canvas(width=6.4, height=2.5 * len(rows) + 0.7) as fig:
        panels = fig.subplots(len(rows), 1, squeeze=False)[:, 0]
        for axes, row in zip(panels, rows, strict=True):
            draw_timeline(axes, row)
        panels[-1].set_xlabel("allocations and frees, in order")
        legend(fig, used(rows))
        return svg_pair(f"{mode}-{record.device.slug}", fig)


def draw_timeline(axes: Axes, row: Row) -> None:
    line: dict[str, list[int]] = row.metrics["timeline"]
    events, bottom = line["event"], [0.0] * len(line["event"])
    for category in used([row]):
        color, hatch = LOOKS[category]
        top = [
            low + value / 2**30
            for low, value in zip(bottom, line[category], strict=True)
        ]
        look: dict[str, Any] = {
            "facecolor": color,
            "hatch": hatch,
            "edgecolor": INK,
            "linewidth": 0,
        }
        axes.fill_between(events, bottom, top, step="post", **look)
        bottom = top
    for phase in row.metrics["phases"]:
        axes.axvline(phase["first_event"], color=INK, linestyle="--", linewidth=0.8)
        middle = (phase["first_event"] + phase["last_event"]) / 2
        axes.annotate(
            SHORT[phase["phase"]],
            (middle, 1),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
        )
    axes.set_xlim(events[0], events[-1])
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"GiB, {row.config['precision']}")


def legend(fig: Any, categories: list[str]) -> None:
    handles = [
        Patch(
            facecolor=LOOKS[c][0],
            hatch=LOOKS[c][1],
            edgecolor=INK,
            linewidth=0.4,
            label=c,
        )
        for c in categories
    ]
    fig.legend(
        handles=handles,
        loc="outside upper center",
        ncols=3,
        columnspacing=1.0,
        handlelength=1.6,
    )


# Peak against context -----------------------------------------------------------------


def bars(record: Record) -> list[tuple[int, str, str, Row | None]]:
    """(context, mode, precision, row) of each bar: for each mode its contexts, fp32
    before bf16.
    """
    return [
        (c, mode, p, cell(record, c, mode, p))
        for mode in MODES
        for p in PRECISIONS
        for c in CONTEXTS
    ]


def contexts_body(record: Record) -> str:
    rows = [row for *_, row in bars(record) if row is not None and fits(row)]
    if not rows:
        return ""
    off = max(abs((requested(row) or 0) / predicted(row) - 1) for row in rows)
    alt = f"The peak of every pass that fits is within {100 * off:.1f} percent of its prediction."
    caption = f"Peak of {SIZE} at contexts {', '.join(map(str, CONTEXTS))}, by category. Lines: the prediction."
    return figure(f"peak_memory-contexts-{record.device.slug}", alt, caption)


def contexts_figure(record: Record) -> dict[str, str]:
    found = bars(record)
    rows = [row for *_, row in found if row is not None and fits(row)]
    if not rows:
        return {}
    with canvas(width=6.4, height=7.6) as fig:
        axes = fig.subplots()
        places, labels = [], []
        for i, (context, mode, precision, row) in enumerate(found):
            # A gap after each precision, a wider one after each mode.
            place = -(i + i // 3 * 0.5 + i // 6 * 1.3)
            places.append(place)
            labels.append(f"{context} {precision}")
            left = 0.0
            for category in CATEGORIES if row is not None and fits(row) else ():
                assert row is not None
                color, hatch = LOOKS[category]
                width = at_peak(row, category) / 2**30
                axes.barh(
                    place,
                    width,
                    0.85,
                    left,
                    color=color,
                    hatch=hatch,
                    edgecolor=INK,
                    linewidth=0.4,
                )
                left += width
            need = sum(peak(Pass(SIZE, context, mode, precision)).values()) / 2**30
            axes.plot([need, need], [place - 0.5, place + 0.5], color=INK, linewidth=2)
            if row is not None and not fits(row):
                axes.annotate(
                    " " + row.status.replace("_", " "),
                    (0, place),
                    va="center",
                    fontsize=8,
                )
            if i % 6 == 0:
                axes.annotate(
                    MODES[mode],
                    (0, place + 0.62),
                    va="bottom",
                    fontsize=10,
                    weight="bold",
                )
        axes.set_yticks(places, labels, fontsize=8)
        axes.set_xlim(right=1.04 * axes.get_xlim()[1])
        axes.set_xlabel("GiB")
        axes.grid(False, axis="y")
        legend(fig, used(rows))
        return svg_pair(f"contexts-{record.device.slug}", fig)
