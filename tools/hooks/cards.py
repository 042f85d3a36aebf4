"""The picture of a page for those who post a link to it: its title, and its first
figure with what is found there, as PNG of the size that networks ask for. They show it
half as large, so the figure is the one for telephones, whose words can then be read.

resvg draws it, with the font that comes with matplotlib, so the same page gives the
same picture on every machine. It knows neither variables nor mixed colours of CSS: the
style sheets are read for their light values.
"""

from __future__ import annotations

import io
import re
from functools import cache
from html import escape, unescape
from pathlib import Path
from typing import NamedTuple

import matplotlib
import resvg_py
from PIL import Image, ImageFont

WIDTH, HEIGHT, MARGIN = 1200, 630, 60
FAMILY = "DejaVu Sans"
FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
PLAIN, BOLD = FONTS / "DejaVuSans.ttf", FONTS / "DejaVuSans-Bold.ttf"
ASSETS = Path(__file__).resolve().parents[2] / "docs" / "assets"
# Where words end and the figure begins.
COLUMN = 540
FIGURE = re.compile(r"<figure\b[^>]*>.*?</figure>", re.DOTALL)
PICTURE = re.compile(r'<svg class="(?P<kind>[^"]*)".*?</svg>', re.DOTALL)
FINDING = re.compile(r"<figcaption>.*?<strong>(.*?)</strong>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
# How far down the first of several panels reaches.
FIRST = re.compile(r'data-first="([\d.]+)"')
FRAME = '<g class="frame"'
OPENING = re.compile(r"<svg\b[^>]*>")
SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
MEDIA = re.compile(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}")
RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
VARIABLE = re.compile(r"(--[\w-]+):\s*([^;]+);")
USE = re.compile(r"var\((--[\w-]+)\)")
EITHER = re.compile(r"^(.*):is\(([^()]*)\)(.*)$")
MIX = re.compile(r"color-mix\(in srgb, #(\w{6}) (\d+)%, (?:#(\w{6})|transparent)\)")


class Figure(NamedTuple):
    """Its SVG, the classes of that, and what is found there."""

    kind: str
    svg: str
    finding: str


def card(site: str, title: str, text: str, figure: Figure | None) -> bytes:
    """The picture of a page; `text` stands where it has no figure."""
    ink, muted = light("--md-default-fg-color"), light("--md-default-fg-color--light")
    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<rect width="{WIDTH}" height="10" fill="{light("--accent")}"/>',
        words(site, 62, 24, muted),
    ]
    room = (COLUMN if figure else WIDTH) - 2 * MARGIN
    said = figure.finding if figure else text
    y, (size, small) = 84.0, (44, 28) if figure else (52, 34)
    # As large as fits.
    while height(title, said, room, size, small) > HEIGHT - y - 30:
        size, small = size - 2, small - 1
    for line in broken(title, BOLD, size, room):
        y += 1.2 * size
        parts.append(words(line, y, size, ink, "bold"))
    y += small
    for line in broken(said, PLAIN, small, room):
        y += 1.4 * small
        parts.append(words(line, y, small, ink))
    if figure:
        parts.append(placed(figure))
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"'
        f' xmlns:xlink="http://www.w3.org/1999/xlink">{"".join(parts)}</svg>'
    )
    png = resvg_py.svg_to_bytes(
        svg_string=resolved(svg),
        style_sheet=style(),
        skip_system_fonts=True,
        font_files=[str(PLAIN), str(BOLD)],
        font_family=FAMILY,
        sans_serif_family=FAMILY,
    )
    # Few colours and their mixtures at edges: a third of the bytes.
    few = Image.open(io.BytesIO(bytes(png))).convert("RGB").quantize(32)
    out = io.BytesIO()
    few.save(out, "PNG", optimize=True)
    return out.getvalue()


def height(title: str, text: str, room: float, size: int, small: int) -> float:
    """Of the words of a card."""
    lines = len(broken(title, BOLD, size, room)), len(broken(text, PLAIN, small, room))
    return 1.2 * size * lines[0] + small + 1.4 * small * lines[1]


def first_figure(page_html: str) -> Figure | None:
    """The first of a page, as it is for a telephone; of a drawing in steps the last."""
    found = FIGURE.search(page_html)
    pictures = list(PICTURE.finditer(found[0])) if found else []
    if found is None or not pictures:
        return None
    svg, finding = pictures[-1][0], FINDING.search(found[0])
    shown = svg.replace(FRAME, '<g display="none"', svg.count(FRAME) - 1)
    said = unescape(TAG.sub("", finding[1])) if finding else ""
    return Figure(pictures[-1]["kind"], shown, said)


def placed(figure: Figure) -> str:
    """As large as the room beside the words lets it be."""
    size = SIZE.search(figure.svg)
    opening = OPENING.search(figure.svg)
    if size is None or opening is None:
        raise ValueError("a figure without a viewBox")
    first = FIRST.search(opening[0])
    wide, high = float(size[1]), float(first[1] if first else size[2])
    scale = min((WIDTH - COLUMN - MARGIN / 2) / wide, (HEIGHT - 70) / high)
    inside = figure.svg[opening.end() : figure.svg.rindex("</svg>")]
    left = WIDTH - MARGIN / 2 - scale * wide
    top = 10 + (HEIGHT - 10 - scale * high) / 2
    return (
        f'<clipPath id="panel"><rect width="{wide:g}" height="{high:g}"/></clipPath>'
        f'<g class="{figure.kind}" clip-path="url(#panel)"'
        f' transform="translate({left:.1f} {top:.1f}) scale({scale:.4f})">{inside}</g>'
    )


def words(text: str, y: float, size: int, color: str, weight: str = "normal") -> str:
    return (
        f'<text x="{MARGIN}" y="{y:g}" font-family="{FAMILY}" font-size="{size}"'
        f' font-weight="{weight}" fill="{color}">{escape(text)}</text>'
    )


def broken(text: str, font: Path, size: int, room: float) -> list[str]:
    """The text in lines that fit."""
    measure = ImageFont.truetype(str(font), size).getlength
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if measure(longer) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


@cache
def sheets() -> str:
    texts = (ASSETS / name for name in ("site.css", "drawings.css"))
    return COMMENT.sub(
        "", "\n".join(path.read_text(encoding="utf-8") for path in texts)
    )


@cache
def variables() -> dict[str, str]:
    """The first value of each is the light one."""
    values: dict[str, str] = {}
    for name, value in VARIABLE.findall(sheets()):
        values.setdefault(name, value)
    return values


def light(name: str) -> str:
    return resolved(f"var({name})")


def resolved(text: str) -> str:
    """Without variables and mixed colours. What only the theme names is a font."""
    while USE.search(text):
        text = USE.sub(lambda use: variables().get(use[1], f"'{FAMILY}'"), text)
    return MIX.sub(mixed, text)


def mixed(match: re.Match[str]) -> str:
    share = int(match[2]) / 100
    first = [int(match[1][i : i + 2], 16) for i in (0, 2, 4)]
    if match[3] is None:
        return f"rgba({', '.join(map(str, first))}, {share})"
    second = [int(match[3][i : i + 2], 16) for i in (0, 2, 4)]
    both = (
        round(a * share + b * (1 - share)) for a, b in zip(first, second, strict=True)
    )
    return f"rgb({', '.join(map(str, both))})"


@cache
def style() -> str:
    """The rules of figures on a page, as resvg reads them."""
    rules = []
    for selectors, body in RULE.findall(MEDIA.sub("", sheets())):
        kept = [
            one
            for one in alternatives(" ".join(selectors.split()))
            if re.match(r"\.(drawing|plot)\b", one)
        ]
        if kept:
            rules.append(f"{', '.join(kept)} {{{resolved(body)}}}")
    return "\n".join(rules)


def alternatives(selectors: str) -> list[str]:
    """Each selector of a list, `:is(...)` written out."""
    found = EITHER.match(selectors)
    if found:
        before, inside, after = found.groups()
        return [
            one
            for name in inside.split(",")
            for one in alternatives(f"{before}{name.strip()}{after}")
        ]
    return [one.strip() for one in selectors.split(",")]
