"""Hook of the site build: what only this builder of sites leaves undone, and no page
needs to be read.

The search shows a page's description first and reads no figures and numbers, and the
largest records are packed.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from html import escape
from lzma import compress
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.plugins import CombinedEvent, event_priority

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

SEARCH = "material/search"
# What the theme brings for search in other languages than English, and for debugging
# its own scripts: a fifth of the site.
UNUSED = re.compile(r"assets/javascripts/lunr/|.*\.map$")
# Records, and the links to them. A browser shows a JSON file of up to so many bytes; a
# larger one, full of the names of kernels, is a twentieth of that when it is packed.
RECORDS, READABLE_BYTES = "results", 1_000_000
LINKS = re.compile(rf'href="(\.\./)*(?P<record>{RECORDS}/[\w./-]+\.json)"')
# What a reader doesn't search for, and the search would read tag by tag: figures, where
# a table comes from, names of tabs, listings, tables of numbers.
UNSOUGHT = re.compile(
    r"<svg\b.*?</svg>"
    r'|<p class="(?:provenance|stale|below|all)">.*?</p>'
    r'|<div class="tabbed-labels".*?</div>'
    r'|<div class="language-python.*?</pre>\s*</div>'
    r'|<table class="data(?: dense)?">(?:(?!</table>).)*<td class="r\b.*?</table>',
    re.DOTALL,
)
# What pages hold while the search reads them without that, by address.
WHOLE: dict[str, str] = {}


def on_files(files: Files, /, **_: object) -> Files:
    for file in [file for file in files if UNUSED.match(file.dest_uri)]:
        files.remove(file)
    return files


@event_priority(100)
def with_what_is_sought(
    context: dict, /, page: Page, config: MkDocsConfig, **_: object
) -> dict:
    WHOLE[page.url] = page.content or ""
    page.content = UNSOUGHT.sub("", WHOLE[page.url])
    return context


@event_priority(-100)
def described(context: dict, /, page: Page, config: MkDocsConfig, **_: object) -> dict:
    """Let the description be what the search shows of a page. Tags are of the page, and
    not of each of its sections.
    """
    page.content = WHOLE.pop(page.url)
    search = config.plugins[SEARCH]
    entries = getattr(search, "search_index").entries  # noqa: B009 - not in its type
    # The search has just added this page, its title first.
    own = [one for one in entries if one["location"].split("#")[0] == page.url]
    for entry in own[:1]:
        said = escape(page.meta.get("description", ""), quote=False)
        entry["text"] = f"<p>{said}</p>{entry['text']}"
    for entry in own[1:]:
        entry.pop("tags", None)
    return context


on_page_context = CombinedEvent(with_what_is_sought, described)


def on_post_page(output: str, /, page: Page, config: MkDocsConfig) -> str:
    return with_packed_links(output, config)


# After the offline plugin, which writes it.
@event_priority(-101)
def on_post_build(*, config: MkDocsConfig) -> None:
    """The index of the search is there twice: a server is asked for the JSON, and pages
    that are read as files load the script. Records say the same without their blanks;
    broken ones stay as they are.
    """
    site = Path(config.site_dir)
    if config.site_url:
        (site / "search" / "search_index.js").unlink()
    for path in (site / RECORDS).rglob("*.json"):
        with suppress(ValueError, RecursionError):
            content = json.loads(path.read_bytes())
            text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
            path.write_bytes(text.encode())
        if packed(path.relative_to(site), config):
            path.with_name(path.name + ".xz").write_bytes(
                compress(path.read_bytes(), preset=1)
            )
            path.unlink()


def with_packed_links(page_html: str, config: MkDocsConfig) -> str:
    def link(found: re.Match[str]) -> str:
        is_packed = packed(Path(found["record"]), config)
        return f'{found[0][:-1]}.xz"' if is_packed else found[0]

    return LINKS.sub(link, page_html)


def packed(record: Path, config: MkDocsConfig) -> bool:
    """Whether a record is too large to be read in a browser anyway."""
    with suppress(OSError):
        return (Path(config.docs_dir) / record).stat().st_size > READABLE_BYTES
    return False
