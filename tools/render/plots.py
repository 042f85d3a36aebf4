"""Plot measurements with matplotlib, and convert plots to SVG inside a page.

A caller passes `plot` a function that draws and a sentence with the finding. Colours
follow the light or dark scheme. A figure is drawn twice: for wide screens, and for
narrow ones with its panels stacked. Sizes are in pixels.

Lines are labelled at their ends. One colour marks the subject of the figure, and orange
marks what is worse (slower, or a larger error); the rest is grey or pale blue.
"""

import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from zlib import crc32

import matplotlib
import numpy as np
from matplotlib import rc_params_from_file
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, ScalarFormatter

from systems.records.record import Record
from tools.render.markdown import record_address, typeset
from tools.render.rows import Missing

# The widths of the two drawings of a figure, and the size of small text.
WIDE, NARROW = 720, 340
SMALL = 11
# Width in pixels of a digit, and of the gap between two tick labels.
DIGIT, GAP = 0.64 * SMALL, 8
# Colours of a plot; in the page, the CSS variables in COLORS replace them.
INK, MUTED, FAINT, GROUND = "#1f2428", "#57606a", "#d5d9dc", "#ffffff"
ACCENT, TINT, WARN = "#0b5cad", "#a9c8e6", "#b35900"
DARK, GREY, PALE = "#59626b", "#8a939c", "#c3c9cf"
COLORS = {
    INK: "--md-default-fg-color",
    MUTED: "--md-default-fg-color--light",
    FAINT: "--rule",
    GROUND: "--md-default-bg-color",
    ACCENT: "--accent",
    TINT: "--tint",
    WARN: "--warn",
    DARK: "--dark",
    GREY: "--grey",
    PALE: "--pale",
}
STYLE = rc_params_from_file(Path(__file__).with_suffix(".mplstyle"))
Draw = Callable[[Figure], None]
# CSS class of texts over lines, which outlines them in the background colour.
OVER_LINES = "over"
# Options of a text that stands some pixels away from its point.
OFFSET: dict[str, Any] = {"textcoords": "offset points", "gid": OVER_LINES}


def plot(
    record: Record, name: str, draw: Draw, finding: str, key: str = "", **sizes: float
) -> str:
    """Return the HTML of a record's figure by `make_figure`; its id contains `name`."""
    figure_id = f"{record.stem}-{name}-{record.device.slug}"
    numbers = record_address(record)
    return make_figure(figure_id, draw, finding, key, numbers=numbers, **sizes)


def make_figure(
    figure_id: str,
    draw: Draw,
    finding: str,
    key: str = "",
    *,
    numbers: str,
    height: float = 300,
    narrow: float | None = None,
) -> str:
    """Return the HTML of a figure with this id, drawn by `draw`. Its caption is the
    sentence `finding`, the `key` to its colours, and a link to the data at the address
    `numbers`. The wide drawing is `height` pixels high, the narrow one `narrow`.
    """
    sizes = (("wide", WIDE, height), ("narrow", NARROW, narrow or height))
    pictures = "\n".join(draw_svg(draw, figure_id, finding, *size) for size in sizes)
    data = f'<a class="data" href="{numbers}">Data</a>'
    parts = (f"<strong>{code_to_html(finding)}</strong>", code_to_html(key), data)
    # tools/hooks/markup.py adds the number.
    return (
        f'<figure class="plotted" id="{figure_id}">\n{pictures}\n'
        f"<figcaption>{' '.join(filter(None, parts))}</figcaption>\n</figure>\n"
    )


def code_to_html(text: str) -> str:
    """Convert a caption to HTML, with text in backticks as code."""
    code = re.compile(r"`([^`]*)`")
    return code.sub(lambda c: f"<code>{escape(c[1])}</code>", typeset(text))


def draw_svg(
    draw: Draw, figure_id: str, alt: str, shown: str, width: int, height: float
) -> str:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        draw(figure)
        for ground in (figure.patch, *(axes.patch for axes in figure.axes)):
            ground.set_visible(False)
        for axis in [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]:
            if type(axis.get_major_formatter()) is ScalarFormatter:
                axis.set_major_formatter("{x:,g}")
        label_lines(figure)
        buffer = io.StringIO()
        # This is faster than `savefig`, which would compute the layout again.
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    label = escape(typeset(alt.replace("`", "")))
    head = (
        f'<svg class="plot {shown}" role="img" aria-label="{label}"'
        f' viewBox="0 0 {width} {height:g}" width="{width}" height="{height:g}">'
    )
    return f"{head}\n{inline_svg(buffer.getvalue(), f'{figure_id}-{shown}')}\n</svg>"


# Helpers for functions that draw a figure ---------------------------------------


def is_narrow(figure: Figure) -> bool:
    return figure.get_figwidth() * 72 <= NARROW


def panels(figure: Figure, count: int, beside: int = 0, **more: Any) -> list[Axes]:
    """Return `count` axes, `beside` per row (0: all); if narrow, one per row."""
    columns = 1 if is_narrow(figure) else beside or count
    rows = -(-count // columns)
    axes = list(figure.subplots(rows, columns, squeeze=False, **more).flat)
    for spare in axes[count:]:
        spare.remove()
    return axes[:count]


def curve(axes: Axes, xs: Iterable[float], ys: Iterable[float], **style: Any) -> None:
    """Draw a curve through the points that have no Missing coordinate."""
    points = [
        (x, y)
        for x, y in zip(xs, ys, strict=True)
        if not isinstance(x, Missing) and not isinstance(y, Missing)
    ]
    if points:
        look: dict[str, Any] = {"marker": "o", "color": GREY} | style
        axes.plot(*zip(*points, strict=True), **look)


def label_point(axes: Axes, text: str, x: float, y: float, **more: Any) -> None:
    """Write a bold text above a point, or at `offset` (x, y) in pixels from it."""
    offset = more.pop("offset", (0, 8))
    style: dict[str, Any] = {"ha": "center", "color": ACCENT, "weight": "bold"} | more
    axes.annotate(text, (x, y), xytext=offset, **OFFSET, **style)


def label_bars(axes: Axes, names: Sequence[str]) -> None:
    """Label horizontal bars at y = 0, 1, 2, ... by names, from top to bottom."""
    axes.set_yticks(range(len(names)), list(names))
    axes.set_ylim(max(0, len(names) - 1) + 0.6, -0.6)
    # Show the grid of the horizontal axis only, and no axis line.
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="x", length=0)


def label_bar(axes: Axes, text: str, x: float, y: float) -> None:
    """Write a text beside the end of a bar."""
    axes.annotate(text, (x, y), xytext=(6, 0), va="center", **OFFSET)


def fill_heat_map(
    axes: Axes, rows: dict[str, list[tuple[str, float]]], heads: Sequence[str]
) -> None:
    """Draw a heat map of (text, shade) cells by row name, with column names `heads`.
    A shade is from -1 (strongest blue) to 1 (strongest orange).
    """
    for y, cells in enumerate(rows.values()):
        for x, (text, shade) in enumerate(cells):
            look: dict[str, Any] = {"facecolor": WARN if shade > 0 else ACCENT}
            look["edgecolor"] = "none"
            alpha = 0.5 * min(1.0, abs(shade)) if text else 0
            axes.add_patch(Rectangle((x, y), 0.96, 0.94, alpha=alpha, **look))
            axes.text(x + 0.48, y + 0.48, text, ha="center", va="center")
    axes.set(xlim=(0, len(heads) or 1), ylim=(len(rows) or 1, 0))
    axes.set_xticks([x + 0.48 for x in range(len(heads))], list(heads))
    axes.set_yticks([y + 0.48 for y in range(len(rows))], list(rows))
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)


def draw_legend(figure: Figure, colors: dict[str, str]) -> None:
    """Draw a legend {name: colour} of areas or bars above the panels."""
    figure.legend(
        handles=[Patch(color=color, label=name) for name, color in colors.items()],
        loc="outside upper left",
        ncols=2 if is_narrow(figure) else 6,
        handlelength=0.9,
        handleheight=0.9,
        handletextpad=0.5,
        columnspacing=1.2,
        borderpad=0,
    )


def format_number(value: float) -> str:
    """Format a number for an axis: 0.25, 10, 16,384."""
    return f"{value:,g}" if abs(value) < 1e4 else f"{value:,.0f}"


def set_log_scale(axis: Axis, subs: tuple[int, ...] = (1, 2, 5)) -> None:
    """Make an axis logarithmic, labelled at `subs` times each power of ten: 1, 2, 5."""
    along_x = axis is axis.axes.xaxis
    (axis.axes.set_xscale if along_x else axis.axes.set_yscale)("log")
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_number(value)))
    axis.set_minor_formatter(NullFormatter())


def set_log2_axis(axis: Axis, ticks: Sequence[int], label: str) -> None:
    """Make an x axis logarithmic (base 2), and number those `ticks` that have room."""
    axes = axis.axes
    axes.set_xscale("log", base=2)
    octaves = math.log2(ticks[-1] / ticks[0]) if ticks else 0.0
    octave_width = axes.bbox.width / max(1.0, octaves)
    limit, labels = math.inf, []
    for tick in reversed(ticks):
        text = format_number(tick)
        at, half = math.log2(tick) * octave_width, DIGIT * len(text) / 2
        fits = at + half + GAP <= limit
        labels.append(text if fits else "")
        limit = at - half if fits else limit
    axis.set_ticks(ticks, labels[::-1])
    axis.set_label_text(label)


def label_lines(figure: Figure) -> None:
    """Write the label of each line beside its last point, without overlaps."""
    layout = figure.get_layout_engine()
    assert layout is not None
    layout.execute(figure)
    lines = [x for axes in figure.axes for x in axes.get_lines()]
    labelled = [x for x in lines if not str(x.get_label()).startswith("_")]
    for axes in figure.axes:
        ends = [(x, np.asarray(x.get_xydata())[-1]) for x in labelled if x.axes is axes]
        at = {x: float(axes.transData.transform(end)[1]) for x, end in ends}
        ends.sort(key=lambda one: -at[one[0]])
        heights = spread_heights([at[x] for x, _ in ends], SMALL + 3)
        for (x, end), height in zip(ends, heights, strict=True):
            color = x.get_color()
            axes.annotate(
                str(x.get_label()),
                (float(end[0]), float(end[1])),
                xytext=(9, height - at[x]),
                **OFFSET,
                va="center",
                color=INK if color in (GREY, PALE) else color,
                weight="bold" if color == ACCENT else "normal",
            )
    if labelled:
        # Lay out again, because the labels need space.
        layout.execute(figure)
    # Freeze the layout: computing it again would move lines away from their labels.
    figure.set_layout_engine("none")


def spread_heights(heights: Sequence[float], gap: float) -> list[float]:
    """Move descending heights apart, so that neighbours differ by at least `gap`."""
    moved = list(heights)
    for _ in range(100):
        close = [i for i, (a, b) in enumerate(pairwise(moved)) if a - b < gap - 1e-6]
        if not close:
            break
        for i in close:
            missing = (gap - moved[i] + moved[i + 1]) / 2
            moved[i] += missing
            moved[i + 1] -= missing
    return moved


XLINK = "{http://www.w3.org/1999/xlink}href"
COORDINATES = ("d", "x", "y", "width", "height")
FINE = re.compile(r"(\.\d)\d+")
FAMILY = re.compile(r"font-family: [^;]*; ")
COLOR = re.compile("|".join(COLORS))


def inline_svg(drawing: str, figure_id: str) -> str:
    """Convert matplotlib's SVG for HTML: unique ids, short numbers, CSS colours."""
    prefix = f"p{crc32(figure_id.encode()):08x}"
    root = ElementTree.fromstring(drawing)
    parts = "\n".join(map(serialize, clean_elements(root, prefix)))
    return COLOR.sub(lambda color: f"var({COLORS[color[0]]})", parts)


def clean_elements(element: Element, prefix: str) -> Iterator[Element]:
    """Yield an SVG element's children without metadata, styles and empty groups. Prefix
    their ids, to make them unique in the page.
    """
    for child in element:
        child.tag = child.tag.rpartition("}")[2]
        if child.tag in ("metadata", "style"):
            continue
        if child.tag == "g" and child.attrib.pop("id", None) == OVER_LINES:
            for text in child:
                text.set("class", OVER_LINES)
        for name, value in child.attrib.items():
            if name in COORDINATES:
                value = FINE.sub(r"\1", " ".join(value.split()))
            value = value.replace("url(#", f"url(#{prefix}-")
            child.set(name, f"{prefix}-{value}" if name == "id" else value)
        if target := child.attrib.pop(XLINK, None):
            child.set("href", f"#{prefix}-{target[1:]}")
        if "rotate(-0 " in child.get("transform", ""):
            del child.attrib["transform"]
        inside = list(clean_elements(child, prefix))
        if child.tag == "g" and not child.attrib:
            yield from inside
        elif inside or child.tag not in ("g", "defs"):
            child[:] = inside
            yield child


def serialize(element: Element) -> str:
    """Return an element on one line, because a blank line would end the HTML block."""
    text = " ".join(ElementTree.tostring(element, "unicode").split())
    return FAMILY.sub("", text).replace("> <", "><")
