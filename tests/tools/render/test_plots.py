"""Figures are readable at both widths, state a finding and link their data."""

import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from systems import ROOT
from tests.factories import RESULTS, read_record
from tests.tools.render import svgs
from tools.render import everything, plots
from tools.render.load import load_records
from tools.render.plots import ACCENT, NARROW, WIDE, curve, label_point, plot

DOCS = ROOT / "docs"
GENERATED = DOCS / "generated"

PARSED = {
    path: svgs.parse_figures(path.read_text("utf-8"), "plotted")
    for path in sorted(GENERATED.glob("*.md"))
}
DRAWN = {path: found for path, found in PARSED.items() if found}


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_figure_texts_are_inside_and_readable(path: Path):
    for figure in DRAWN[path]:
        wide, narrow = figure.findall("svg")
        assert [float(wide.get("width")), float(narrow.get("width"))] == [WIDE, NARROW]
        for svg in (wide, narrow):
            assert svgs.find_cut_texts(svg) == svgs.find_crossed_texts(svg) == []
            assert svgs.find_overlaps(svg) == []
            assert svg.get("aria-label").endswith(".")


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_captions_begin_with_the_finding(path: Path):
    for figure in DRAWN[path]:
        assert figure.find("figcaption/strong").text_content().endswith(".")
        assert (links := figure.findall("figcaption/a[@class='data']"))
        for link in links:
            numbers = link.get("href")
            assert numbers.startswith("#") or (DOCS / numbers).is_file()
        # No line break separates a number from its unit.
        text = figure.find("figcaption").text_content()
        assert not re.search(r"\d (?:%|[KMGT]?i?B\b|[mµn]?s\b)", text), text


@pytest.mark.slow
@pytest.mark.usefixtures("one_width")
def test_no_curve_leaves_its_axes(monkeypatch):
    """Only curves have markers, so horizontal levels are not checked."""
    left: list[str] = []
    label_lines = plots.label_lines

    def check_limits(figure: Figure) -> None:
        for axes in figure.axes:
            (x0, x1), (y0, y1) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
            for dots in (one for one in axes.lines if one.get_marker() == "o"):
                points = zip(dots.get_xdata(), dots.get_ydata(), strict=True)
                if not all(x0 <= x <= x1 and y0 <= y <= y1 for x, y in points):
                    left.append(f"{axes.get_title('left')}: {dots.get_label()}")
        label_lines(figure)

    monkeypatch.setattr(plots, "label_lines", check_limits)
    everything.render(load_records(RESULTS))
    assert left == []


def test_figures_have_unique_ids_and_css_colours():
    text = "".join(path.read_text() for path in sorted(GENERATED.glob("*.md")))
    drawn = "".join(re.findall(r"<svg class=\"plot.*?</svg>", text, re.DOTALL))
    # A figure may be on two pages, so two figures may have equal ids.
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in drawn.split("</svg>")]
    assert drawn and "#1f2428" not in drawn
    for i, mine in enumerate(ids):
        assert all(mine == other or not mine & other for other in ids[:i])
    styles = (ROOT / "docs" / "assets").glob("*.css")
    defined = "".join(path.read_text() for path in styles)
    for name in set(re.findall(r"var\((--[\w-]+)\)", drawn)):
        assert f"  {name}: " in defined


def test_plot_labels_lines_and_points():
    def draw(figure):
        axes = figure.subplots()
        curve(axes, [1, 2], [3, 4], label="ours", color=ACCENT)
        curve(axes, [1, 2], [3, 4], label="<b>")
        label_point(axes, "a half", 1, 3)

    text = plot(read_record("warmup"), "x", draw, 'It is `x" b="<i>`.', "Key.")
    (figure,) = svgs.parse_figures(text, "plotted")
    assert "<b>" not in text and "<i>" not in text
    assert figure.get("id") == "warmup-x-nvidia-h200"
    for svg in figure.findall("svg"):
        assert svg.get("aria-label") == 'It is x" b="<i>.'
        heights = {w.text: float(w.get("y")) for w in svg.iter("text")}
        assert heights["<b>"] - heights["ours"] >= 13
        assert "a half" in heights and not svgs.find_cut_texts(svg)
        next(svg.iter("text")).set("x", "-40")
        assert len(svgs.find_cut_texts(svg)) == 1


def test_crossed_texts_finds_struck_words():
    text = plot(read_record("warmup"), "x", draw_crossing, "One is struck.")
    # The user's own matplotlibrc changes nothing.
    with plots.matplotlib.rc_context({"axes.xmargin": 0.4}):
        assert text == plot(read_record("warmup"), "x", draw_crossing, "One is struck.")
    (figure,) = svgs.parse_figures(text, "plotted")
    for svg in figure.findall("svg"):
        assert svgs.find_crossed_texts(svg) == ["struck"]
        assert svgs.find_overlaps(svg) == []
        assert {"beside", "1,000"} <= {word.text for word in svgs.parse_words(svg)}


def draw_crossing(figure: Figure) -> None:
    axes = figure.subplots()
    curve(axes, [0, 500], [0, 500], label="beside")
    curve(axes, [0, 1000], [1000, 0], label="above the last tick")
    axes.text(250, 750, "struck", ha="center", va="center")


@pytest.mark.parametrize(("width", "columns"), [(WIDE, 2), (NARROW, 1)])
def test_panels_fill_two_columns_or_one(width, columns):
    drawn = Figure(figsize=(width / 72, 3))
    made = plots.panels(drawn, 3, beside=2, sharey=True)
    assert len(made) == 3 and drawn.axes == made
    spec = made[-1].get_subplotspec()
    assert spec is not None and spec.get_gridspec().ncols == columns
