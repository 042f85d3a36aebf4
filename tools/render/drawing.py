"""Drawings whose shapes follow from numbers, as SVG inside the page: its font and its
colours, light and dark alike. What never changes is drawn by hand, in docs/drawings.

A drawing is made twice, for a wide column and for a telephone, since one that shrinks
has text that nobody can read; a rule of the style sheet shows one of the two. One unit
is one pixel, so no text is smaller than `SMALL` pixels.

Colours tell things apart: blue first, then grey, then green. Orange is kept for what
costs. What a reader must tell apart without colour differs in form.
"""

import re
from collections.abc import Callable
from html import escape

from tools.render.markdown import in_words, plain

WIDE, NARROW = 720, 340
SMALL, TITLE = 11, 14


class Drawing:
    """Shapes and words at coordinates in pixels. Classes are those of drawings.css."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.wide = width > NARROW
        self.height = 0.0
        self.parts: list[str] = []

    def box(
        self, x: float, y: float, width: float, height: float, style: str = "ink"
    ) -> None:
        self.height = max(self.height, y + height + 2)
        self.parts.append(
            f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:.4g}"'
            f' height="{height:g}" rx="{min(3, width / 2):.2g}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """`y` is the line on which the letters stand."""
        self.height = max(self.height, y + 0.3 * size)
        weight = ' font-weight="650"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}"'
            f' text-anchor="{anchor}"{weight}>{escape(words)}</text>'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, style: str = "ink"
    ) -> None:
        self.height = max(self.height, y1 + 1, y2 + 1)
        self.parts.append(
            f'<line class="{style}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'
        )

    def svg(self, alt: str, shown: str) -> str:
        """One line for each part: Markdown leaves a block without empty lines alone."""
        said = plain(in_words(alt))
        head = (
            f'<svg class="drawing {shown}" role="img" aria-label="{said}"'
            f' viewBox="0 0 {self.width} {self.height:.0f}"'
            f' width="{self.width}" height="{self.height:.0f}">'
        )
        return "\n".join([head, *self.parts, "</svg>"])


Draw = Callable[[Drawing], None]


def drawn(draw: Draw, alt: str, finding: str, key: str, numbers: str) -> str:
    """The figure with both drawings; `numbers` is where to find what was measured."""
    pictures = []
    for width, shown in ((WIDE, "wide"), (NARROW, "narrow")):
        drawing = Drawing(width)
        draw(drawing)
        pictures.append(drawing.svg(alt, shown))
    return figure("\n".join(pictures), caption(finding, key, numbers), "drawn")


def caption(finding: str, key: str, numbers: str) -> str:
    """The finding first, then how to read the figure, then where its numbers are."""
    data = f'<a class="data" href="{numbers}">Data</a>'
    parts = (f"<strong>{told(finding)}</strong>", told(key), data)
    return " ".join(part for part in parts if part)


def told(text: str) -> str:
    """A caption, which is HTML, with `code` as code."""
    code = re.compile(r"`([^`]*)`")
    return code.sub(lambda c: f"<code>{escape(c[1])}</code>", in_words(text))


def figure(pictures: str, caption: str, kind: str, address: str = "") -> str:
    """A figure for a page. All of it is HTML, the caption too: Markdown would read
    words in a drawing as its own. tools/hooks/markup.py numbers it, and gives it an
    address where it has none.
    """
    named = f' id="{address}"' if address else ""
    caption = f"<figcaption>{caption}</figcaption>"
    return f'<figure class="{kind}"{named}>\n{pictures}\n{caption}\n</figure>\n'
