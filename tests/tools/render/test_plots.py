"""Figures of measurements: every one that is generated can be read at both widths,
names its finding, and links to its numbers.
"""

import re
from pathlib import Path

import pytest
from lxml import html
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from systems import ROOT
from tests.factories import committed
from tools.hooks.markup import number_figures
from tools.render import everything, plots
from tools.render.drawing import NARROW, WIDE
from tools.render.plots import ACCENT, line, note, plot, spread

GENERATED = ROOT / "docs" / "generated"


def width(text: str, size: float, weight: int) -> float:
    """In DejaVu Sans: fonts of the page are narrower, and none is much wider."""
    font = FontProperties(family="DejaVu Sans", weight=weight)
    return TextPath((0, 0), text, size=size, prop=font).get_extents().width


def figures(text: str) -> list[html.HtmlElement]:
    found = re.findall(r"<figure class=\"plotted\".*?</figure>", text, re.DOTALL)
    return [html.fragment_fromstring(figure) for figure in found]


def outside(svg: html.HtmlElement) -> list[str]:
    """The words that leave the drawing, or are too small."""
    _, _, right, bottom = map(float, svg.get("viewbox").split())
    found = []
    for word in svg.iter("text"):
        style = dict(part.split(": ") for part in word.get("style").split("; "))
        size = float(style["font-size"].removesuffix("px"))
        long = width(word.text or " ", size, int(style.get("font-weight", "400")))
        x, y = float(word.get("x")), float(word.get("y"))
        before = {"start": 0, "middle": long / 2, "end": long}
        left = x - before[style.get("text-anchor", "start")]
        if "rotate" in word.get("transform", ""):
            left, long = x, 0
        fits = left > -1 and left + long < right + 1 and size <= y < bottom
        if not fits or size < 10.5:
            found.append(word.text)
    return found


@pytest.mark.parametrize(
    "path",
    [p for p in sorted(GENERATED.glob("*.md")) if 'class="plot ' in p.read_text()],
    ids=lambda path: path.stem,
)
def test_nothing_leaves_a_figure_and_all_of_it_can_be_read(path: Path):
    for figure in figures(path.read_text(encoding="utf-8")):
        wide, narrow = figure.findall("svg")
        assert [float(wide.get("width")), float(narrow.get("width"))] == [WIDE, NARROW]
        assert outside(wide) == outside(narrow) == []
        finding = figure.find("figcaption/strong").text_content()
        assert finding.rstrip().endswith(".")
        numbers = figure.find("figcaption/a[@class='data']").get("href")
        assert numbers.startswith("#") or (ROOT / "docs" / numbers).is_file()


@pytest.mark.slow
def test_rendering_again_gives_the_same_bytes_and_no_curve_leaves_its_axes(monkeypatch):
    """The same as another process gave, whatever ran in this one before. The points of
    a curve are marked; a level across a figure is not.
    """
    left: list[str] = []
    name_lines = plots.name_lines

    def look(figure: Figure) -> None:
        for axes in figure.axes:
            (x0, x1), (y0, y1) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
            for curve in (one for one in axes.lines if one.get_marker() == "o"):
                points = zip(curve.get_xdata(), curve.get_ydata(), strict=True)
                if not all(x0 <= x <= x1 and y0 <= y <= y1 for x, y in points):
                    left.append(f"{axes.get_title('left')}: {curve.get_label()}")
        name_lines(figure)

    monkeypatch.setattr(plots, "name_lines", look)
    files = everything.render_all(ROOT / "docs" / "results")
    assert left == []
    committed = {path.name: path.read_text("utf-8") for path in GENERATED.iterdir()}
    differ = {
        name
        for name in files.keys() | committed.keys()
        if files.get(name) != committed.get(name)
    }
    assert not differ, "regen_tables.py --render rewrites them"


def test_ids_are_unique_and_colours_those_of_the_page():
    text = "".join(path.read_text() for path in sorted(GENERATED.glob("*.md")))
    drawn = "".join(re.findall(r"<svg class=\"plot.*?</svg>", text, re.DOTALL))
    # One figure may stand on two pages.
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in drawn.split("</svg>")]
    assert drawn and "#1f2428" not in drawn
    for i, mine in enumerate(ids):
        assert all(mine == other or not mine & other for other in ids[:i])
    styles = (ROOT / "docs" / "assets").glob("*.css")
    defined = "".join(path.read_text() for path in styles)
    for name in set(re.findall(r"var\((--[\w-]+)\)", drawn)):
        assert f"  {name}: " in defined


def test_a_figure_says_what_is_seen_where_it_is_seen():
    def draw(figure):
        axes = figure.subplots()
        line(axes, [1, 2], [3, 4], label="ours", color=ACCENT)
        line(axes, [1, 2], [3, 4], label="<b> {{ x }}")
        note(axes, "a half", 1, 3)

    text = plot(committed("warmup"), "x", draw, 'It is `x" b="` & <i>.', "Key.")
    (figure,) = figures(text)
    assert "{{" not in text and "<b>" not in text and "<i>" not in text
    assert figure.get("id") == "warmup-x-nvidia-h200"
    for svg in figure.findall("svg"):
        assert svg.get("aria-label") == 'It is x" b=" & <i>.'
        heights = {w.text: float(w.get("y")) for w in svg.iter("text")}
        assert heights["<b> {{ x }}"] - heights["ours"] >= 13
        assert "a half" in heights and not outside(svg)
        next(svg.iter("text")).set("x", "-40")
        assert len(outside(svg)) == 1


@pytest.mark.parametrize(("width", "columns"), [(WIDE, 2), (NARROW, 1)])
def test_an_odd_number_of_panels_leaves_none_empty(width, columns):
    drawn = Figure(figsize=(width / 72, 3))
    made = plots.panels(drawn, 3, beside=2, sharey=True)
    assert len(made) == 3 and drawn.axes == made
    spec = made[-1].get_subplotspec()
    assert spec is not None and spec.get_gridspec().ncols == columns


def test_labels_keep_their_order_and_their_distance():
    assert spread([50, 30, 10], 10) == [50, 30, 10]
    close = spread([21, 20, 20, 0], 10)
    gaps = [a - b for a, b in zip(close, close[1:], strict=False)]
    assert min(gaps) > 9.9 and sum(close) == pytest.approx(61)


def test_figures_are_numbered_and_have_addresses():
    page = (
        '<figure class="a" id="mine"><svg></svg><figcaption>A</figcaption></figure>'
        "<figure><img></figure>"
        '<figure class="b">\n<figcaption markdown>B</figcaption></figure>'
    )
    built = number_figures(page)
    assert 'href="#mine">Figure\N{NO-BREAK SPACE}1.</a> A' in built
    assert '<figure id="figure-2" class="b">' in built
    assert 'href="#figure-2">Figure\N{NO-BREAK SPACE}2.</a> B' in built
    assert built.count("Figure") == 2
