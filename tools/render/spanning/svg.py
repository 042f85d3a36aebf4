"""Drawings as SVG that stands in the page itself: its text is the page's, its colours
follow the page's scheme (docs/assets/drawings.css), and it can be stepped through
(docs/assets/steps.js).

All are 360 units wide, the width of a telephone, so that a text of 10.5 units can be
read there. Lengths are in those units, from the top left.
"""

from collections.abc import Iterable
from html import escape
from math import hypot

from tools.render.drawing import figure

WIDTH = 360


def rect(x: float, y: float, w: float, h: float, kind: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" class="{kind}"/>'


def text(x: float, y: float, words: str, kind: str = "", at: str = "middle") -> str:
    """`at`: which point of the words (x, y) is: start, middle or end of the line."""
    class_ = f' class="{kind}"' if kind else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{at}"{class_}>{escape(words)}</text>'
    )


def box(x: float, y: float, w: float, h: float, words: str, kind: str) -> str:
    """A rectangle with words in its middle."""
    return rect(x, y, w, h, kind) + text(x + w / 2, y + h / 2 + 3.8, words)


def arrow(x: float, y: float, to_x: float, to_y: float, kind: str = "arrow") -> str:
    """A line with a head of 6 units at its end."""
    length = hypot(to_x - x, to_y - y)
    along_x, along_y = (to_x - x) / length, (to_y - y) / length
    base_x, base_y = to_x - 6 * along_x, to_y - 6 * along_y
    sides = [(base_x + side * along_y, base_y - side * along_x) for side in (2.6, -2.6)]
    head = " ".join(f"{px:.1f},{py:.1f}" for px, py in ((to_x, to_y), *sides))
    return (
        f'<path d="M{x:g} {y:g}L{base_x:.1f} {base_y:.1f}" class="{kind}"/>'
        f'<polygon points="{head}" class="{kind} head"/>'
    )


def svg(height: float, conclusion: str, *parts: str) -> str:
    """`conclusion` is what the drawing says to a reader who can't see it."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'aria-label="{escape(conclusion)}">\n' + "\n".join(parts) + "\n</svg>"
    )


def drawing(picture: str, finding: str, key: str = "") -> str:
    """The figure for a page: the caption's finding, then how to read the drawing."""
    return figure(picture, f"<strong>{finding}</strong> {key}", "drawing")


def steps(picture: str, says: Iterable[str], finding: str, key: str = "") -> str:
    """A drawing with a group of the class `frame` for each of the sentences in `says`.

    On paper and without JavaScript the last frame shows, above all sentences.
    """
    sentences = "\n".join(f"<li>{sentence}</li>" for sentence in says)
    shown = f"{picture}\n<ol>\n{sentences}\n</ol>"
    return figure(shown, f"<strong>{finding}</strong> {key}", "drawing steps")


def frame(*parts: str) -> str:
    return f'<g class="frame">{"".join(parts)}</g>'
