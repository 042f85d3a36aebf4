"""The picture of a page for those who post a link to it: its title and its first
figure, as PNG of the size that networks ask for.

resvg draws it, with the font that comes with matplotlib, so the same page gives the
same picture on every machine. It knows neither variables nor mixed colours of CSS: the
style sheets are read for their light values.
"""

from __future__ import annotations

import io
import re
from functools import cache
from html import escape
from pathlib import Path

import matplotlib
import resvg_py
from PIL import Image, ImageFont

WIDTH, HEIGHT, MARGIN = 1200, 630, 60
FAMILY = "DejaVu Sans"
FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
PLAIN, BOLD = FONTS / "DejaVuSans.ttf", FONTS / "DejaVuSans-Bold.ttf"
ASSETS = Path(__file__).resolve().parents[2] / "docs" / "assets"
# Figures as pages hold them: a drawing, its wide one first; or a file, the light one of
# two.
DRAWN = re.compile(
    r'<figure\b[^>]*class="(?P<kind>[^"]*)"[^>]*>\s*(?P<svg><svg\b.*?</svg>)'
    r'|<img [^>]*src="(?P<file>[^"]+\.svg)(?:#only-light)?"',
    re.DOTALL,
)
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


def card(site: str, title: str, text: str, figure: tuple[str, str] | None) -> bytes:
    """The picture of a page; `text` stands where it has no figure."""
    lines = broken(title, BOLD, 52)
    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<rect width="{WIDTH}" height="10" fill="{light("--accent")}"/>',
        words(site, 62, 26, light("--md-default-fg-color--light")),
    ]
    y = 62 + 22
    for line in lines:
        y += 60
        parts.append(words(line, y, 52, light("--md-default-fg-color"), "bold"))
    y += 36
    if figure:
        parts.append(placed(*figure, top=y))
    else:
        for line in broken(text, PLAIN, 34):
            y += 48
            parts.append(words(line, y, 34, light("--md-default-fg-color")))
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
    # A few colours and their mixtures at edges: a fifth of the bytes.
    few = Image.open(io.BytesIO(bytes(png))).convert("RGB").quantize(24)
    out = io.BytesIO()
    few.save(out, "PNG", optimize=True)
    return out.getvalue()


def first_figure(page_html: str, folder: Path) -> tuple[str, str] | None:
    """Kind and SVG of the first figure of a page, which stands in `folder`."""
    match = DRAWN.search(page_html)
    if match is None:
        return None
    if match["svg"]:
        # Of a drawing in steps, the last.
        svg = match["svg"]
        hidden = '<g display="none"'
        return match["kind"], svg.replace(FRAME, hidden, svg.count(FRAME) - 1)
    return "", (folder / match["file"]).read_text(encoding="utf-8")


def placed(kind: str, svg: str, top: float) -> str:
    """The figure, as large as the room below `top` lets it be."""
    size = SIZE.search(svg)
    opening = OPENING.search(svg)
    if size is None or opening is None:
        raise ValueError("a figure without a viewBox")
    width, height = float(size[1]), float(size[2])
    scale = min((WIDTH - 2 * MARGIN) / width, (HEIGHT - top - 36) / height)
    shape = re.search(r'class="([^"]*)"', opening[0])
    inside = svg[opening.end() : svg.rindex("</svg>")]
    left = (WIDTH - scale * width) / 2
    return (
        f'<g class="{kind} {shape[1] if shape else ""}"'
        f' transform="translate({left:.1f} {top:.1f}) scale({scale:.4f})">{inside}</g>'
    )


def words(text: str, y: float, size: int, color: str, weight: str = "normal") -> str:
    return (
        f'<text x="{MARGIN}" y="{y}" font-family="{FAMILY}" font-size="{size}"'
        f' font-weight="{weight}" fill="{color}">{escape(text)}</text>'
    )


def broken(text: str, font: Path, size: int) -> list[str]:
    """The text in lines that fit."""
    measure = ImageFont.truetype(str(font), size).getlength
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if measure(longer) <= WIDTH - 2 * MARGIN:
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
            one.replace("figure.", "g.")
            for one in alternatives(" ".join(selectors.split()))
            if re.match(r"(figure)?\.(drawing|plot|drawn|plotted)\b", one)
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
