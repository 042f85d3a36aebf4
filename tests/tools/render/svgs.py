"""Parse figures for tests: texts, and lines that may cross them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from zlib import crc32

from lxml import html
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Bbox

from tools.render import plots

Segment = tuple[float, float, float, float]
GRID = "var(--rule)"
GROUND = "var(--md-default-bg-color)"
GIVEN = ("font-size", "font-weight", "text-anchor")
NUMBER = re.compile(r"-?[\d.]+")


@dataclass(frozen=True)
class Word:
    """A text with its bounding box in DejaVu Sans, a wide font."""

    text: str
    size: float
    left: float
    right: float
    top: float
    bottom: float
    # Whether an outline separates the text from the grid.
    rimmed: bool


@cache
def text_width(text: str, size: float, bold: bool) -> float:
    font = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")
    return TextPath((0, 0), text, size=size, prop=font).get_extents().width


def read_style(element: html.HtmlElement) -> dict[str, str]:
    parts = (element.get("style") or "").split("; ")
    return dict(part.split(": ", 1) for part in parts if ": " in part)


def parse_figures(text: str, kind: str) -> list[html.HtmlElement]:
    found = re.findall(rf'<figure class="{kind}[" ].*?</figure>', text, re.DOTALL)
    return [html.fragment_fromstring(figure) for figure in found]


def parse_words(svg: html.HtmlElement) -> Iterator[Word]:
    for word in svg.iter("text"):
        # Texts inherit attributes from groups; drawings.css sets the default size.
        around = [word, *word.iterancestors()][::-1]
        given = [(name, one.get(name)) for one in around for name in GIVEN]
        look = {"font-size": "11"} | {name: value for name, value in given if value}
        look |= read_style(word)
        size = float(look["font-size"].removesuffix("px"))
        text = word.text or ""
        bold = look.get("font-weight", "400") > "600"
        long = text_width(text, size, bold) if text.strip() else 0.0
        x, y = float(word.get("x")), float(word.get("y"))
        before = {"start": 0, "middle": long / 2, "end": long}
        left = x - before[look.get("text-anchor", "start")]
        rimmed = "over" in (word.get("class") or "")
        # The height of capitals is three quarters of the font size.
        yield Word(text, size, left, left + long, y - 0.75 * size, y, rimmed)


def find_cut_texts(svg: html.HtmlElement) -> list[str]:
    """Return the texts that are outside of the drawing or too small."""
    _, _, right, bottom = map(float, svg.get("viewbox").split())
    return [
        word.text
        for word in parse_words(svg)
        if not (word.left > -1 and word.right < right + 1 and word.bottom < bottom)
        or word.top < 0
        or word.size < 10.5
    ]


def find_overlaps(svg: html.HtmlElement) -> list[tuple[str, str]]:
    return [
        (one.text, other.text)
        for one, other in combinations(parse_words(svg), 2)
        if min(one.right, other.right) - max(one.left, other.left) > 1
        and min(one.bottom, other.bottom) - max(one.top, other.top) > 1
    ]


def line_segments(svg: html.HtmlElement) -> Iterator[tuple[str, Segment]]:
    for path in svg.iter("path"):
        look = read_style(path)
        if look.get("fill") == "none" and "stroke" in look:
            for a, b in pairwise(path_points(path)):
                yield look["stroke"], (*a, *b)


def filled_areas(svg: html.HtmlElement) -> Iterator[Path]:
    named = {path.get("id"): path for path in svg.iter("path")}
    for path in svg.iter("path", "use"):
        if read_style(path).get("fill", "none") == "none":
            continue
        shape = named[path.get("href")[1:]] if path.tag == "use" else path
        x, y = (float(path.get(name) or 0) for name in ("x", "y"))
        yield Path([(x + dx, y + dy) for dx, dy in path_points(shape)])


def path_points(path: html.HtmlElement) -> list[tuple[float, float]]:
    numbers = [float(one) for one in NUMBER.findall(path.get("d"))]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def find_crossed_texts(svg: html.HtmlElement) -> list[str]:
    """Return texts crossed by lines; grid lines may cross outlined or shaded text."""
    lines = [(c, s) for c, s in line_segments(svg) if c != GROUND]
    filled = list(filled_areas(svg))

    def is_legible(word: Word) -> bool:
        middle = ((word.left + word.right) / 2, (word.top + word.bottom) / 2)
        return word.rimmed or any(area.contains_point(middle) for area in filled)

    return [
        word.text
        for word in parse_words(svg)
        if any(
            crosses(word, segment) and not (color == GRID and is_legible(word))
            for color, segment in lines
        )
    ]


def crosses(word: Word, segment: Segment) -> bool:
    top, bottom = word.bottom - 0.68 * word.size, word.bottom - 0.04 * word.size
    box = Bbox.from_extents(word.left + 1, top, word.right - 1, bottom)
    x1, y1, x2, y2 = segment
    return Path([(x1, y1), (x2, y2)]).intersects_bbox(box, filled=False)


def sample_figures(lot: str, one_in: int = 1):
    """Return a `draw_svg` that draws one of `one_in` figures, at one width, to save
    time. Others stay blank. The text `lot` decides which figures are drawn.
    """
    svg = plots.draw_svg

    def draw_one(draw, address, alt, shown, width, height):
        drawn = crc32(f"{lot} {address}".encode()) % (2 * one_in)
        if drawn == {"wide": 0, "narrow": 1}.get(shown, 0):
            return svg(draw, address, alt, shown, width, height)
        if drawn > 1 and shown == "wide":
            with rc_context(plots.STYLE):
                draw(Figure(figsize=(width / 72, height / 72), layout="constrained"))
        return f'<svg class="plot {shown}"></svg>'

    return draw_one
