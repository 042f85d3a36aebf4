"""Captions of figures, and the HTML around them. Sizes are in pixels.

Each figure has two pictures, for a wide and a narrow screen, so that its text keeps a
readable size; the style sheet shows one of them.
"""

import re
from html import escape

from tools.render.markdown import typeset

WIDE, NARROW = 720, 340
SMALL = 11
# MIME type of the HTML of a notebook's figure; notebook viewers ignore it.
PAGE = "application/vnd.page+html"


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


def figure_html(pictures: str, caption: str, figure_id: str) -> str:
    """Return a <figure>; tools/hooks/markup.py adds the number."""
    caption = f"<figcaption>{caption}</figcaption>"
    head = f'<figure class="plotted" id="{figure_id}">'
    return f"{head}\n{pictures}\n{caption}\n</figure>\n"
