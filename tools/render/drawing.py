"""Explaining drawings as SVG inside the page: its font and its colours, light and dark
alike.

A drawing is made twice, for a wide column and for a telephone, since one that shrinks
has text that nobody can read; a rule of the style sheet shows one of the two. One unit
is one pixel, so no text is smaller than `SMALL` pixels.
"""

from collections.abc import Callable, Iterable
from html import escape

WIDE, NARROW = 720, 340
SMALL, TEXT, TITLE = 11, 12.5, 14


class Drawing:
    """Shapes and words at coordinates in pixels. Classes are those of site.css: `ink`,
    `faint`, `blue`, `orange`, `green`, each with `fill-` for areas.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.wide = width > NARROW
        # Of names beside shapes.
        self.size = TEXT if self.wide else SMALL
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
        """Straight along one of the axes."""
        self.line(x1, y1, x2, y2, "ink thick")
        self.head(x2, y2, x2 - x1, y2 - y1)
        if both:
            self.head(x1, y1, x1 - x2, y1 - y2)

    def head(self, x: float, y: float, dx: float, dy: float) -> None:
        along, across = (1 if dx > 0 else -1 if dx < 0 else 0), (dy > 0) - (dy < 0)
        back = [
            (x - 8 * along + 4 * across * s, y - 8 * across + 4 * along * s)
            for s in (1, -1)
        ]
        points = " ".join(f"{a:g},{b:g}" for a, b in [(x, y), *back])
        self.parts.append(f'<polygon class="fill-ink" points="{points}"/>')

    def svg(self, alt: str, shown: str) -> str:
        """One line for each part: Markdown leaves a block without empty lines alone."""
        head = (
            f'<svg class="drawing {shown}" role="img" aria-label="{escape(alt)}"'
            f' viewBox="0 0 {self.width} {self.height:.0f}"'
            f' width="{self.width}" height="{self.height:.0f}">'
        )
        return "\n".join([head, *self.parts, "</svg>"])


def drawn(draw: Callable[[Drawing], None], alt: str, caption: str) -> str:
    """The figure with both drawings, its conclusion as their alternative text."""
    pictures = []
    for width, shown in ((WIDE, "wide"), (NARROW, "narrow")):
        drawing = Drawing(width)
        draw(drawing)
        pictures.append(drawing.svg(alt, shown))
    return figure("\n".join(pictures), caption, "drawn")


def figure(pictures: str, caption: str, kind: str, address: str = "") -> str:
    """A figure for a page. All of it is HTML, the caption too: Markdown would read
    words in a drawing as its own. tools/hooks/markup.py numbers it, and gives it an
    address where it has none.
    """
    named = f' id="{address}"' if address else ""
    caption = f"<figcaption>{caption}</figcaption>"
    return f'<figure class="{kind}"{named}>\n{pictures}\n{caption}\n</figure>\n'
