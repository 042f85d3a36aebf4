"""A hook of the site build that makes the site smaller and its search better.

Search results begin with a page's description, and the index skips figures and tables
of numbers. Records are written without white space, and the largest are compressed.
"""

import re
from contextlib import suppress
from html import escape
from lzma import compress
from pathlib import Path

import msgspec
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import CombinedEvent, event_priority
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

SEARCH = "material/search"
# Files that the site omits, a fifth of its size: for debugging, and for search in
# languages other than English.
UNUSED = re.compile(r"assets/javascripts/lunr/|.*\.map$")
# Records of more than READABLE_BYTES, slow to show in a browser, are compressed.
RECORDS, READABLE_BYTES = "results", 500_000
LINKS = re.compile(rf'href="(\.\./)*(?P<record>{RECORDS}/[\w./-]+\.json)"')
# Opening tags of elements that the search index omits: figures, provenance, names of
# tabs, code listings, tables of numbers.
UNSEARCHED = re.compile(
    r'<svg class="(?:plot|drawing)[^"]*"|<p class="(?:provenance|below|all)"'
    r'|<div class="(?:tabbed-labels|language-python[^"]*)"'
    r'|<table class="data(?: dense)?"(?=>(?:(?!</table>).)*<td class="r\b)',
    re.DOTALL,
)
MARKED = re.compile(r"<(svg|table|p|div) [^>]*data-search-exclude.*?</\1>", re.DOTALL)
# Matches where a page's description goes: below the title, or in a notebook in place of
# the white space at the start, which search would take for a section.
TOP = re.compile(r"^\s+|(?<=</h1>)\s*")


def on_config(config: MkDocsConfig) -> None:
    """Raise PluginError unless mkdocs runs in the folder of mkdocs.yml: from another
    folder, it would take other code and texts.
    """
    if not Path(config.config_file_path).parent.samefile("."):
        raise PluginError("go to the folder of mkdocs.yml, and run mkdocs there")


def on_files(files: Files, /, **_: object) -> Files:
    for file in [file for file in files if UNUSED.match(file.dest_uri)]:
        files.remove(file)
    return files


# Run after the hook of notebooks, which makes the content of notebook pages.
@event_priority(-100)
def on_page_content(content: str, /, **_: object) -> str:
    """Mark the parts of a page that the theme's search must skip."""
    return UNSEARCHED.sub(r"\g<0> data-search-exclude", content)


# Run before the search plugin, which is slow even where it skips parts of a page.
@event_priority(100)
def shorten_content(context: dict, /, page: Page, config: MkDocsConfig, **_: object):
    """Remove what search skips from the page, and put its description below the title.
    Keep the whole page in `context`, for `restore_content`.
    """
    context["content"] = page.content
    text = MARKED.sub("", page.content or "")
    about = f"<p>{escape(page.meta.get('description', ''), quote=False)}</p>"
    page.content = TOP.sub(lambda _: about, text, 1)


# Run after the search plugin has indexed the shortened page.
@event_priority(-100)
def restore_content(context: dict, /, page: Page, config: MkDocsConfig, **_: object):
    """Restore the whole page, and remove tags from the search entries of sections."""
    page.content = context.pop("content")
    search = config.plugins[SEARCH]
    for entry in getattr(search, "search_index").entries:  # noqa: B009 - not in its type
        if "#" in entry["location"]:
            entry.pop("tags", None)


on_page_context = CombinedEvent(shorten_content, restore_content)


# Run after the offline plugin, which writes search_index.js.
@event_priority(-101)
def on_post_build(*, config: MkDocsConfig) -> None:
    """Remove white space from records, compress large ones. If the site has a URL,
    delete search_index.js, which only search in pages from file:// needs.
    """
    site = Path(config.site_dir)
    if config.site_url:
        (site / "search" / "search_index.js").unlink()
    for path in (site / RECORDS).rglob("*.json"):
        with suppress(msgspec.DecodeError, RecursionError):
            path.write_bytes(msgspec.json.format(path.read_bytes(), indent=-1))
        if exceeds_readable_size(path.relative_to(site), config):
            path.with_name(path.name + ".xz").write_bytes(
                compress(path.read_bytes(), preset=1)
            )
            path.unlink()


def on_post_page(output: str, /, config: MkDocsConfig, **_: object) -> str:
    """Change links to large records into links to their compressed files."""

    def link_to_compressed(link: re.Match[str]) -> str:
        compressed = exceeds_readable_size(Path(link["record"]), config)
        return f'{link[0][:-1]}.xz"' if compressed else link[0]

    return LINKS.sub(link_to_compressed, output)


def exceeds_readable_size(record: Path, config: MkDocsConfig) -> bool:
    """Return whether the site offers a record only in compressed form."""
    with suppress(OSError):
        return (Path(config.docs_dir) / record).stat().st_size > READABLE_BYTES
    return False
