"""Make SVG figures that need no style sheet, for README.md and notebooks."""

import re

from systems import ROOT
from tools.render.markdown import PAGE
from tools.render.plots import Draw, make_figure

ASSETS = ROOT / "docs" / "assets"
VALUE = re.compile(r"^ +(--[\w-]+): (#\w+);$", re.MULTILINE)
# The light and the dark value of each colour variable of the style sheets.
COLORS: dict[str, list[str]] = {}
for sheet in ("site.css", "drawings.css"):
    for name, value in VALUE.findall((ASSETS / sheet).read_text(encoding="utf-8")):
        COLORS.setdefault(name, []).append(value)
FIGURE = re.compile(r"<svg\b([^>]*)>(.*?)</svg>", re.DOTALL)
USED = re.compile(r"var\((--[\w-]+)\)")
GROUND = "--md-default-bg-color"


def standalone_svg(fragment: str) -> str:
    """Return the first SVG in some HTML as an SVG file, or an empty SVG file."""
    svg = FIGURE.search(fragment)
    if svg is None:
        return '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"></svg>\n'
    used = sorted({*USED.findall(svg[2]), GROUND})
    light, dark = (
        "".join(f"{name}: {value}; " for name, value in zip(used, values, strict=True))
        for values in zip(*(COLORS[name] for name in used), strict=True)
    )
    style = (
        f":root {{ {light}font-family: sans-serif; background: var({GROUND}) }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"
        f".over {{ paint-order: stroke; stroke: var({GROUND}); stroke-width: 3px }}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg"{svg[1]}>'
    return f"{head}<style>{style}</style>{svg[2]}</svg>\n"


class NotebookFigure:
    """A figure in a notebook, as SVG for notebook viewers and as HTML for the site."""

    def __init__(
        self, notebook: str, draw: Draw, finding: str, key: str = "", **sizes: float
    ) -> None:
        figure_id, numbers = f"notebook-{notebook}", f"{notebook}.ipynb"
        self.finding = finding
        self.page = make_figure(figure_id, draw, finding, key, numbers=numbers, **sizes)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {
            "image/svg+xml": standalone_svg(self.page),
            PAGE: self.page,
            "text/plain": self.finding,
        }
