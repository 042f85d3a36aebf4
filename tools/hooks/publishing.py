"""Hook of the site build: what finds a page, from inside and from outside.

Front matter gives each page a `description`, `tags` and a weight in the search. This
puts the description first among what the search finds, leaves out what repeats on every
page and listings of code, and lists all pages for programs in llms.txt. A page that is
not there says where to go. Where the site has an address, each page has a picture for
links to it, which `theme/main.html` names.
"""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mkdocs.plugins import event_priority

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.nav import Navigation
    from mkdocs.structure.pages import Page

# What a reader doesn't search for: where a table comes from, what is stale, names of
# tabs, lines of a listing. Each page loads the words of all.
UNSOUGHT = re.compile(
    r'<(?:p class="(?:provenance|stale)"|div class="tabbed-labels"'
    r'|div class="language-python[^"]*")'
)
SEARCH = "material/search"
# What the theme says of a page that is not there.
NOT_FOUND = "<h1>404 - Not found</h1>"
PAGES: list[Page] = []


def on_nav(nav: Navigation, /, **_: object) -> None:
    """Keep the pages in their order: their titles and descriptions are read later."""
    PAGES[:] = nav.pages


@event_priority(-100)
def on_page_content(page_html: str, /, **_: object) -> str:
    """Keep out of the search what nobody looks for."""
    return UNSOUGHT.sub(r"\g<0> data-search-exclude", page_html)


@event_priority(-100)
def on_page_context(
    context: dict, /, page: Page, config: MkDocsConfig, **_: object
) -> dict:
    """Let the description be what the search shows of a page. Tags are of the page, and
    not of each of its sections.
    """
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


def on_post_page(output: str, /, page: Page, config: MkDocsConfig) -> str:
    """Draw the page's card beside it."""
    if config.site_url:
        # Only who publishes needs what draws.
        from tools.hooks.cards import card, first_figure

        folder = (Path(config.docs_dir) / page.file.src_uri).parent
        figure = first_figure(page.content or "", folder)
        said = page.meta.get("description", "")
        path = Path(config.site_dir, page.file.dest_uri).with_suffix(".png")
        path.parent.mkdir(parents=True, exist_ok=True)
        title = unescape(page.toc.items[0].title)
        path.write_bytes(card(config.site_name, title, said, figure))
    return output


def on_post_template(output: str, /, template_name: str, config: MkDocsConfig) -> str:
    """Say on the page for wrong addresses where to go. Its links start at the root of
    the server, or at that of `site_url`, since no one knows where it is shown.
    """
    if template_name != "404.html":
        return output
    top = f"{urlsplit(config.site_url or '').path.rstrip('/')}/"
    help_ = (
        "<h1>This page is not here</h1>\n"
        "<p>It may have another name now. Search for its "
        f'words above, or begin at the <a href="{top}index.html">overview</a>.</p>'
    )
    title = f"<title>{config.site_name}</title>"
    return output.replace(NOT_FOUND, help_).replace(
        title, f"<title>Not found - {config.site_name}</title>"
    )


def on_post_build(config: MkDocsConfig, **_: object) -> None:
    """Write llms.txt."""
    path = Path(config.site_dir) / "llms.txt"
    path.write_text(listed(PAGES, config), encoding="utf-8")


def listed(pages: list[Page], config: MkDocsConfig) -> str:
    """Each page with its title, address and description, as https://llmstxt.org
    says.
    """
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for page in pages:
        said = page.meta.get("description", "")
        lines.append(f"- [{page.title}]({page.canonical_url or page.url}): {said}")
    return "\n".join(lines) + "\n"
