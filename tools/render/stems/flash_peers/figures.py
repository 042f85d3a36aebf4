"""Figures of `flash_peers`: measuring in turns, ours over cuDNN by shape, and what a
fixed order costs.
"""

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render.drawing import SMALL, Drawing, drawn
from tools.render.plots import ACCENT, GREY, INK, bars, is_narrow, line, note, plot
from tools.render.rows import cells, known, say, span
from tools.render.stems.flash_peers.rows import (
    ORDERED,
    SHORT,
    long_cells,
    only,
    order_costs,
    ratio,
    ratios,
    shape_text,
    short_cell,
)


def turns() -> str:
    """Two orders of the same calls, under a clock that falls."""
    orders = {"one after the other": "AAAAAABBBBBB", "in turns": "ABABABABABAB"}

    def draw(d: Drawing) -> None:
        left, gap = 0.0, 26 if d.wide else 12
        each = (d.width - gap) / 2 / 12
        for order, names in orders.items():
            d.text(left, 12, order, SMALL, bold=True)
            for i, name in enumerate(names):
                # The clock falls under a long load.
                high = 62 - 34 * min(i, 8) / 8
                x = left + i * each
                style = "fill-blue" if name == "A" else "fill-grey"
                d.box(x, 90 - high, each - 3, high, style)
                d.text(x + each / 2 - 1.5, 104, name, SMALL, "middle")
            left += 12 * each + gap

    return drawn(
        draw,
        "One after the other, A meets the fast clock and B the slow one; in turns both "
        "meet both.",
        "Whoever is measured second may meet a lower clock.",
        "A sketch. Height: the clock, which can fall under a long load. In turns, A "
        "and B meet the same clocks.",
    )


def ratios_figure(record: Record) -> str:
    """Forward, and forward + backward, of each shape, the short one last."""
    shown = [
        *long_cells(record, "bf16"),
        *cells(record, n=SHORT, implementation="ours"),
    ]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        looks = {
            "forward": ("forward", "o", GREY, -0.2),
            "both": ("forward + backward", "s", ACCENT, 0.2),
        }
        for of, (named, marker, color, shift) in looks.items():
            values = [ratio(record, c, of) for c in shown]
            places = [i + shift for i in range(len(shown))]
            for value, y in zip(values, places, strict=True):
                if known([value]):
                    axes.plot([1, value], [y, y], color=color, lw=1.5)
            line(axes, values, places, marker=marker, color=color, ms=7, ls="none")
            if known(values[:1]):
                # The first row names both, on the side that is free.
                left = values[0] > 1
                place = {"ha": "right" if left else "left", "va": "center"}
                place |= {"offset": (-8 if left else 8, 0), "weight": "normal"}
                ink = INK if color == GREY else color
                note(axes, named, 1, places[0], color=ink, **place)
        # In pieces, since a name may stand between two rows.
        for y in range(len(shown)):
            axes.plot([1, 1], [y - 0.3, y + 0.3], color=INK, lw=1)
        bars(axes, [shape_text(c) for c in shown])
        more = "" if is_narrow(figure) else "; left of the line ours is faster"
        axes.set_title(f"our time over cuDNN's{more}")

    both = ratios(record, long_cells(record, "bf16"), "both")
    short = ratio(record, short_cell(record), "both")
    return plot(
        record,
        "ratios",
        draw,
        f"Ours takes {span(both)} of cuDNN's time for forward + backward, and "
        f"{say(short, '{:.2f}')} at 128 tokens.",
        "bf16; tokens, head dimension, mask, and batch × heads. At 128 tokens the CPU "
        "decides, which issues a call of ours from Python.",
        height=70 + 32 * len(shown),
        narrow=70 + 46 * len(shown),
    )


def order_figure(record: Record) -> str:
    """What each library's fixed order costs, and ours, whose order is always fixed,
    beside the fastest without one.
    """
    found = long_cells(record, "bf16")
    series = {name: [order_costs(record, c, name) for c in found] for name in ORDERED}
    series["ours"] = [only(ratios(record, [c], "both", "fa4")) for c in found]
    if not any(map(known, series.values())):
        return ""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        looks = {
            "fa4_ordered": ("o", INK),
            "sdpa_flash_ordered": ("^", GREY),
            "ours": ("s", ACCENT),
        }
        for name, (marker, color) in looks.items():
            look = {"marker": marker, "color": color, "ms": 7, "ls": "none"}
            line(axes, series[name], range(len(found)), **look)
        for y in range(len(found)):
            axes.plot([1, 1], [y - 0.3, y + 0.3], color=INK, lw=1)
        bars(axes, [shape_text(c) for c in found])
        axes.set_title("forward + backward, over the same without a fixed order")
        axes.set_xlabel("● FlashAttention-4   ▲ FlashAttention-2   ■ ours over FA4")
        if is_narrow(figure):
            axes.set_title("time over that without a fixed order")
            axes.set_xlabel("● FA4   ▲ FA2   ■ ours over FA4")

    costs = span(series["fa4_ordered"])
    return plot(
        record,
        "order",
        draw,
        f"With a fixed order FlashAttention-4 takes {costs} times as long.",
        "bf16. Ours has a fixed order throughout, so its squares stand over "
        "FlashAttention-4 without one. Left out: times that the host decides, and "
        "those of a wrong gradient.",
        height=90 + 30 * len(found),
        narrow=90 + 46 * len(found),
    )
