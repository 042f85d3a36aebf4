"""Drawings whose shapes follow from numbers, as SVG inside the page: its font and its
colours, light and dark alike. What never changes is drawn by hand, in docs/drawings.

A drawing is made twice, for a wide column and for a telephone, since one that shrinks
has text that nobody can read; a rule of the style sheet shows one of the two. One unit
is one pixel, so no text is smaller than `SMALL` pixels.

Colours tell things apart: blue first, then grey, then green. Orange is kept for what
costs: work done twice, bytes that need not move, a step that loses. What a reader must
tell apart without colour differs in form: filled, framed, dashed.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from html import escape
from math import hypot

from tools.render.markdown import in_words, plain

WIDE, NARROW = 720, 340
SMALL, TEXT, TITLE = 11, 12.5, 14


class Drawing:
    """Shapes and words at coordinates in pixels. Classes are those of drawings.css:
    `ink`, `faint`, `dashed`, `thick`, `place`; `blue`, `grey`, `green` and `orange`,
    each with `fill-` for areas; of words `note`.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.wide = width > NARROW
        # Of names beside shapes.
        self.size = TEXT if self.wide else SMALL
        self.height = 0.0
        self.parts: list[str] = []

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        style: str = "ink",
        words: str = "",
        size: float = SMALL,
        corner: float = 3,
    ) -> None:
        """A rectangle, with words in its middle."""
        self.height = max(self.height, y + height + 2)
        self.parts.append(
            f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:.4g}"'
            f' height="{height:g}" rx="{min(corner, width / 2):.2g}"/>'
        )
        if words:
            self.text(
                x + width / 2, y + height / 2 + 0.36 * size, words, size, "middle"
            )

    def squares(
        self, x: float, y: float, size: float, columns: int, styles: Iterable[str]
    ) -> None:
        """One of each style, in rows of so many."""
        for i, style in enumerate(styles):
            row, column = divmod(i, columns)
            self.box(x + column * size, y + row * size, size - 2, size - 2, style)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = TEXT,
        anchor: str = "start",
        bold: bool = False,
        style: str = "",
    ) -> None:
        """`y` is the line on which the letters stand."""
        self.height = max(self.height, y + 0.3 * size)
        weight = ' font-weight="650"' if bold else ""
        named = f' class="{style}"' if style else ""
        self.parts.append(
            f'<text{named} x="{x:g}" y="{y:g}" font-size="{size:g}"'
            f' text-anchor="{anchor}"{weight}>{escape(words)}</text>'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, style: str = "ink"
    ) -> None:
        self.height = max(self.height, y1 + 1, y2 + 1)
        self.parts.append(
            f'<line class="{style}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'
        )

    def arrow(
        self, x1: float, y1: float, x2: float, y2: float, both: bool = False
    ) -> None:
        self.line(x1, y1, x2, y2, "ink thick")
        self.head(x2, y2, x2 - x1, y2 - y1)
        if both:
            self.head(x1, y1, x1 - x2, y1 - y2)

    def head(self, x: float, y: float, dx: float, dy: float) -> None:
        along, across = dx / hypot(dx, dy), dy / hypot(dx, dy)
        back = [
            (x - 8 * along + 4 * across * s, y - 8 * across - 4 * along * s)
            for s in (1, -1)
        ]
        points = " ".join(
            f"{round(a, 1):g},{round(b, 1):g}" for a, b in [(x, y), *back]
        )
        self.parts.append(f'<polygon class="fill-ink" points="{points}"/>')

    def cell(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        style: str = "faint",
        words: str = "",
        size: float = SMALL,
    ) -> None:
        """A box that touches others."""
        self.box(x, y, width, height, style, words, size, corner=0)

    @contextmanager
    def frame(self) -> Iterator[None]:
        """What is drawn inside is one of the steps that a reader goes through."""
        self.parts.append('<g class="frame">')
        yield
        self.parts.append("</g>")

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


def drawn(
    draw: Draw, alt: str, finding: str, key: str = "", *, numbers: str = ""
) -> str:
    """The figure with both drawings, its conclusion as their alternative text. The
    caption is as that of a plot; a drawing of measurements says where they are.
    """
    return figure(both(draw, alt), caption(finding, key, numbers), "drawn")


def stepped(
    draw: Draw,
    says: Iterable[str],
    alt: str,
    finding: str,
    key: str = "",
    *,
    opens: int = 0,
) -> str:
    """A drawing with a frame for each of these sentences, which are HTML. It opens at
    one of them, -1 is the last: a page's first figure where its finding is seen.

    On paper and without JavaScript the last frame shows, above all sentences.
    """
    sentences = "\n".join(f"<li>{sentence}</li>" for sentence in says)
    shown = f'{both(draw, alt)}\n<ol data-opens="{opens}">\n{sentences}\n</ol>'
    return figure(shown, caption(finding, key), "drawn steps")


def both(draw: Draw, alt: str) -> str:
    pictures = []
    for width, shown in ((WIDE, "wide"), (NARROW, "narrow")):
        drawing = Drawing(width)
        draw(drawing)
        pictures.append(drawing.svg(alt, shown))
    return "\n".join(pictures)


def caption(finding: str, key: str = "", numbers: str = "") -> str:
    """The finding first, then how to read the figure, then where its numbers are."""
    parts = [f"<strong>{told(finding)}</strong>", told(key)]
    if numbers:
        parts.append(f'<a class="data" href="{numbers}">Data</a>')
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
