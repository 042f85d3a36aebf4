"""Draw SVG diagrams from numbers, with the page's font and its light or dark colours.
Diagrams without numbers are drawn by hand, in docs/drawings.

`draw_figure` draws a diagram twice, for a wide and a narrow screen, so that its text
keeps a readable size; the style sheet shows one drawing. Sizes are in pixels.
Colours come in the order blue, grey, green; orange marks costs.
"""

import re
from collections.abc import Callable
from html import escape

from tools.render.markdown import escape_alt, typeset

WIDE, NARROW = 720, 340
SMALL, TITLE = 11, 14
# MIME type of the HTML of a notebook's figure; notebook viewers ignore it.
PAGE = "application/vnd.page+html"


class Drawing:
    """A diagram; coordinates are pixels, styles are classes of drawings.css."""

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
        """Add a text whose baseline is at `y`."""
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
        """Return the SVG with alternative text `alt` and CSS class `shown`. It has no
        blank lines, which would end the HTML in Markdown.
        """
        label = escape_alt(typeset(alt))
        head = (
            f'<svg class="drawing {shown}" role="img" aria-label="{label}"'
            f' viewBox="0 0 {self.width} {self.height:.0f}"'
            f' width="{self.width}" height="{self.height:.0f}">'
        )
        return "\n".join([head, *self.parts, "</svg>"])


Draw = Callable[[Drawing], None]


def draw_figure(draw: Draw, alt: str, finding: str, key: str, numbers: str) -> str:
    """Return a figure: wide and narrow drawing, alternative text, `caption_html`."""
    pictures = []
    for width, shown in ((WIDE, "wide"), (NARROW, "narrow")):
        drawing = Drawing(width)
        draw(drawing)
        pictures.append(drawing.svg(alt, shown))
    return figure_html(
        "\n".join(pictures), caption_html(finding, key, numbers), "drawn"
    )


def caption_html(finding: str, key: str, numbers: str) -> str:
    """Return a caption: `finding` in bold, `key` to the symbols, and a link to the data
    at the address `numbers`.
    """
    data = f'<a class="data" href="{numbers}">Data</a>'
    parts = (f"<strong>{code_to_html(finding)}</strong>", code_to_html(key), data)
    return " ".join(part for part in parts if part)


def code_to_html(text: str) -> str:
    """Convert a caption to HTML, with text in backticks as code."""
    code = re.compile(r"`([^`]*)`")
    return code.sub(lambda c: f"<code>{escape(c[1])}</code>", typeset(text))


def figure_html(pictures: str, caption: str, kind: str, figure_id: str = "") -> str:
    """Return a <figure> of class `kind`. tools/hooks/markup.py adds the number, and an
    id if `figure_id` is empty.
    """
    id_attribute = f' id="{figure_id}"' if figure_id else ""
    caption = f"<figcaption>{caption}</figcaption>"
    return f'<figure class="{kind}"{id_attribute}>\n{pictures}\n{caption}\n</figure>\n'
