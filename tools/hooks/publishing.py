"""Hook of the site build: what finds a page, from inside and from outside.

Front matter gives each page a `description`, `tags` and a weight in the search. This puts
the description first among what the search finds, leaves out what repeats on every page,
and lists all pages for programs in llms.txt. A page that is not there says where to go.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from mkdocs.plugins import event_priority

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

# What a reader doesn't search for: where a table comes from, what is stale, names of
# tabs.
REPEATED = re.compile(r'<(?:p class="(?:provenance|stale)"|div class="tabbed-labels")')
SEARCH = "material/search"


@event_priority(-100)
def on_page_content(
    page_html: str, /, page: Page, config: MkDocsConfig, **_: object
) -> str:
    """Keep out of the search what repeats; give a notebook, which has no front matter,
    its description.
    """
    described = config.extra["notebooks"].get(page.file.src_uri)
    if described:
        page.meta.update(described)
    return REPEATED.sub(r"\g<0> data-search-exclude", page_html)


@event_priority(-100)
def on_page_context(
    context: dict, /, page: Page, config: MkDocsConfig, **_: object
) -> dict:
    """Let the description be what the search shows of a page. Tags are of the page, and
    not of each of its sections.
    """
    entries = config.plugins[SEARCH].search_index.entries
    # The search has just added this page, its title first.
    own = [one for one in entries if one["location"].split("#")[0] == page.url]
    for entry in own[:1]:
        said = escape(page.meta.get("description", ""), quote=False)
        entry["text"] = f"<p>{said}</p>{entry['text']}"
    for entry in own[1:]:
        entry.pop("tags", None)
    return context
