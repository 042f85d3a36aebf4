"""A hook of the site build that makes notebooks look like the other pages.

mkdocs-jupyter adds JupyterLab's styles, which lack a dark scheme, and scripts, one of
which loads Mermaid from a CDN. The hook keeps only the cells. It converts maths to
MathML, points links at HTML pages, folds code tagged "folded", and inserts the figures
that `tools.render.standalone.NotebookFigure` drew for the site.
"""

import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

from lxml import html
from mkdocs.plugins import event_priority
from mkdocs.structure.pages import Page

from tools.hooks.markup import finish_page
from tools.render.markdown import PAGE

PARTS = "jp-MarkdownOutput", "highlight-ipynb", "jp-OutputArea-output"
SELECTOR = " or ".join(f"contains(@class, '{name}')" for name in PARTS)
HEADERLINK = 'class="headerlink" title="Link to this section"'
LINK = re.compile(r'(href="[^":]*)\.md(?=["#])')
MATHS = re.compile(
    r"<(?:code|pre)\b.*?</(?:code|pre)>"
    r"|(?:<p>)?\$\$(?P<display>.+?)\$\$(?:</p>)?|\$(?P<inline>[^$]+?)\$",
    re.DOTALL,
)


def is_notebook(page: Page) -> bool:
    return page.file.src_uri.endswith(".ipynb")


@event_priority(100)
def on_page_markdown(markdown: str, /, page: Page, **_: object) -> str:
    """Read a notebook's page metadata, and hide its source from the macros plugin."""
    if not is_notebook(page):
        return markdown
    page.meta |= json.loads(markdown)["metadata"]["page"]
    return ""


def on_page_content(content: str, /, page: Page, **_: object) -> str:
    if not is_notebook(page):
        return content
    path = Path(page.file.abs_src_path or "")
    notebook = json.loads(path.read_text(encoding="utf-8"))
    text = "\n".join(convert_cells(content, notebook))
    text = text.replace("<p><strong>In short.", '<p class="in-short"><strong>In short.')
    text = text.replace('class="anchor-link"', HEADERLINK)
    link = f'<p class="provenance"><a href="{path.name}" download>'
    text = text.replace("</h1>", f"</h1>{link}Download this notebook</a></p>", 1)
    return finish_page(MATHS.sub(mark_formula, LINK.sub(r"\1.html", text)))


def convert_cells(content: str, notebook: dict) -> Iterator[str]:
    """Yield HTML of texts, code cells and outputs, from mkdocs-jupyter's `content`."""
    outputs = [o for cell in notebook["cells"] for o in cell.get("outputs", ())]
    figures = (o["data"][PAGE] for o in outputs if PAGE in o.get("data", ()))
    for part in html.fromstring(content).xpath(f"//div[{SELECTOR}]"):
        if "jp-MarkdownOutput" in part.classes:
            yield inner_html(part)
        elif "jp-RenderedSVG" in part.classes:
            yield "".join(next(figures))
        elif "highlight-ipynb" in part.classes:
            code = f"<code>{inner_html(part.xpath('pre')[0])}</code>"
            listing = f'<div class="language-python highlight"><pre>{code}</pre></div>'
            if part.xpath("ancestor::div[contains(@class, 'celltag_folded')]"):
                title = part.text_content().partition("\n")[0].strip("# .")
                summary = f"<summary>{escape(title)}</summary>"
                listing = f'<details class="abstract">{summary}{listing}</details>'
            yield listing
        else:
            code = f"<code>{escape(part.text_content().strip(chr(10)))}</code>"
            yield f'<div class="notebook-output no-copy"><pre>{code}</pre></div>'


def inner_html(part: html.HtmlElement) -> str:
    children = (html.tostring(child, encoding="unicode") for child in part)
    return escape(part.text or "") + "".join(map(str, children))


def mark_formula(match: re.Match[str]) -> str:
    """Mark a formula as pymdownx.arithmatex does, so that it becomes MathML."""
    if match["display"]:
        return rf'<div class="arithmatex">\[{match["display"]}\]</div>'
    if match["inline"]:
        return rf'<span class="arithmatex">\({match["inline"]}\)</span>'
    return match[0]
