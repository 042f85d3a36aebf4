"""Hook of the site build: a notebook's page in the markup of every other page.

mkdocs-jupyter gives a notebook as JupyterLab shows it, with style sheets, buttons and
scripts, some of which fetch more. The cells are taken out of that, and the rest is left
behind. This runs before tools/hooks/pages.py, which then finds maths and tables as it
knows them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from lxml import html
from mkdocs.exceptions import PluginError

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page
    from mkdocs.structure.toc import AnchorLink

SVG_DATA = "data:image/svg+xml;base64,"
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
# Code is matched first, so that a dollar sign in it stays one.
MATHS = re.compile(
    r"<(code|pre)\b.*?</\1>|\$\$(?P<display>.+?)\$\$|\$(?P<inline>[^$]+?)\$", re.DOTALL
)
DISPLAY_PARAGRAPH = re.compile(r'<p>(<div class="arithmatex">.*?</div>)</p>', re.DOTALL)


def on_page_content(page_html: str, /, page: Page, **_: object) -> str:
    if not page.file.src_uri.endswith(".ipynb"):
        return page_html
    try:
        return site_markup(
            page_html, list(_ids(page.toc)), PurePosixPath(page.file.src_uri).name
        )
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error


def _ids(entries: Iterable[AnchorLink]) -> Iterator[str]:
    for entry in entries:
        yield entry.id
        yield from _ids(entry.children)


def site_markup(page_html: str, ids: list[str], source: str) -> str:
    """The cells as this site writes prose, code and figures. `ids` are those by which
    the table of contents links.
    """
    notebook = html.fragment_fromstring(page_html, create_parent=True)
    headings = list(notebook.iter(*HEADINGS))
    if len(headings) != len(ids):
        raise ValueError(
            f"{len(headings)} headings, but {len(ids)} in the table of contents"
        )
    for heading, name in zip(headings, ids, strict=True):
        _link(heading, name)
    if headings:
        link = f'<a href="{source}" download>Download this notebook</a>'
        download = html.fragment_fromstring(f'<p class="provenance">{link}</p>')
        headings[0].addnext(download)
    # Not even a line break before the title: the search would take it for a section.
    return "\n".join(
        part for element in notebook.iter("div") for part in _part(element)
    ).lstrip()


def _link(heading: html.HtmlElement, name: str) -> None:
    """A heading as the toc extension writes it."""
    for anchor in heading.find_class("anchor-link"):
        anchor.drop_tree()
    heading.set("id", name)
    link = html.Element(
        "a",
        {"class": "headerlink", "href": f"#{name}", "title": "Link to this section"},
    )
    link.text = "\N{PILCROW SIGN}"
    heading.append(link)


def _part(element: html.HtmlElement) -> Iterator[str]:
    classes = set(element.get("class", "").split())
    if "jp-RenderedMarkdown" in classes:
        yield _maths(_inside(element))
    elif "highlight-ipynb" in classes:
        (pre,) = element.iter("pre")
        code = f"<pre><code>{_inside(pre).rstrip()}</code></pre>"
        yield f'<div class="language-python highlight">{code}</div>'
    elif "jp-OutputArea-output" in classes:
        yield _output(element)


def _inside(element: html.HtmlElement) -> str:
    children = (str(html.tostring(child, encoding="unicode")) for child in element)
    return escape(element.text or "", quote=False) + "".join(children)


def _maths(prose: str) -> str:
    """Dollar signs, which every viewer of notebooks understands, become what
    pymdownx.arithmatex writes.
    """

    def mark(match: re.Match[str]) -> str:
        if match["display"]:
            return rf'<div class="arithmatex">\[{match["display"]}\]</div>'
        return (
            rf'<span class="arithmatex">\({match["inline"]}\)</span>'
            if match["inline"]
            else match[0]
        )

    return DISPLAY_PARAGRAPH.sub(r"\1", MATHS.sub(mark, prose))


def _output(element: html.HtmlElement) -> str:
    kind = element.get("data-mime-type", "")
    if kind == "text/plain":
        text = escape(element.text_content().strip("\n"), quote=False)
        return (
            f'<div class="notebook-output no-copy"><pre><code>{text}</code></pre></div>'
        )
    images = list(element.iter("img"))
    if kind == "image/svg+xml" and len(images) == 1:
        data = images[0].get("src", "")
        title = (
            ElementTree.fromstring(base64.b64decode(data.removeprefix(SVG_DATA)))
            .findtext("{*}title", "")
            .strip()
        )
        if not title:
            raise ValueError(
                "a drawing needs a <title> as its alternative text: "
                "savefig(..., metadata={'Title': ...})"
            )
        image = f'<img alt="{escape(title)}" src="{data}">'
        return f'<figure class="notebook-figure">{image}</figure>'
    raise ValueError(
        f"an output of type {kind or 'unknown'}; a page shows text and SVG: "
        "print it, or mend the cell"
    )
