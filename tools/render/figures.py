"""Figures as SVG: drawn once in the light palette, the dark twin made by exchanging its
colours.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from systems.records.record import Record
from tools.render.rows import Missing

INK, FAINT = "#1f2428", "#d5d9dc"
# Told apart by marker and dash as well as by colour.
SERIES = ("#0b5cad", "#b35900", "#1a7f37", "#8250df", "#cf222e")
MARKERS = ("o", "s", "^", "D", "v")
DARK = dict(
    zip(
        (INK, FAINT, *SERIES),
        ("#dde2e7", "#343d46", "#8cc2ff", "#f2a65a", "#6fdd8b", "#c9a6ff", "#ff8a8f"),
        strict=True,
    )
)
# matplotlib writes millionths of a point; a hundredth is finer than any screen, and the
# files are a third smaller.
COORDINATES = re.compile(r'\s(?:d|x|y|transform)="[^"]*"')
FINE = re.compile(r"(\.\d\d)\d+")
# A curve of many points can do with tenths, and with one letter for all of its lines.
LONG, TENTH = 500, re.compile(r"(\.\d)\d+")
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "systems",
    # Text stays text: smaller files that can be searched and read aloud.
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    # Each text of a drawing repeats the list; the first is measured for the layout, a
    # reader without it has the next.
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
}


@contextmanager
def canvas(width: float = 5.6, height: float = 3.8) -> Iterator[Figure]:
    """A figure in the house style, sized in inches so that its text stays readable on a
    telephone.
    """
    with matplotlib.rc_context(STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def plain_log_scale(axis: Axis, subs: tuple[int, ...] = (1, 2, 5)) -> None:
    """Ticks at 1, 2 and 5 of each decade, or at what is given, written as plain
    numbers.
    """
    axis.axes.set_yscale("log")
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def power_of_two_axis(axis: Axis, ticks: Sequence[int], label: str) -> None:
    """A logarithmic axis of lengths, with these ticks."""
    axis.axes.set_xscale("log", base=2)
    axis.set_ticks(ticks, [str(tick) for tick in ticks])
    axis.set_label_text(label)


def line(axes: Axes, xs: Iterable[float], ys: Iterable[float], **style: Any) -> None:
    """A curve through the points that have numbers; nothing where none has."""
    points = [
        (x, y)
        for x, y in zip(xs, ys, strict=True)
        if not isinstance(x, Missing) and not isinstance(y, Missing)
    ]
    if points:
        axes.plot(*zip(*points, strict=True), **style)


def legend_above(figure: Figure, ncols: int, **more: Any) -> None:
    """The legend of all axes, over them; none where nothing is drawn."""
    style = {"columnspacing": 1.0, "handlelength": 1.6} | more
    if "handles" in more or any(
        axes.get_legend_handles_labels()[1] for axes in figure.axes
    ):
        figure.legend(loc="outside upper center", ncols=ncols, **style)


def of_each(
    records: Iterable[Record], *draw: Callable[[Record], dict[str, str]]
) -> dict[str, str]:
    """The files of these figures of each record."""
    drawn: dict[str, str] = {}
    for record in records:
        for figure in draw:
            drawn |= figure(record)
    return drawn


def shortened(coordinates: re.Match[str]) -> str:
    text = FINE.sub(r"\1", coordinates[0])
    return TENTH.sub(r"\1", text).replace("\nL ", " ") if len(text) > LONG else text


def texts_of(figure: Figure) -> Iterator[Text]:
    """Every text of a figure but the labels of ticks."""
    yield from figure.texts
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    for legend in filter(None, legends):
        yield from legend.get_texts()
    for axes in figure.axes:
        yield from (*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label)


def svg_pair(name: str, figure: Figure) -> dict[str, str]:
    """`<name>.svg` and `<name>-dark.svg`, the same bytes on every machine."""
    buffer = io.StringIO()
    for text in texts_of(figure):
        # A dollar sign is no formula.
        text.set_parse_math(False)
    with matplotlib.rc_context(STYLE):
        figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None},
        )
    drawing = COORDINATES.sub(shortened, buffer.getvalue())
    light = "\n".join(line.strip() for line in drawing.splitlines()) + "\n"
    dark = light
    for ours, theirs in DARK.items():
        dark = dark.replace(ours, theirs)
    return {f"{name}.svg": light, f"{name}-dark.svg": dark}
