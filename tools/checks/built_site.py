"""Check the HTML of the built site for faults that a strict mkdocs build ignores.

    python tools/checks/built_site.py [site]

prints each finding as `page: finding`. The exit code is 1 if there are findings,
2 if there are no pages, else 0.

mkdocs checks Markdown links only. This script checks links in raw HTML, unconverted
Markdown, ids, tables, code blocks, tabs, and elements that load from other hosts.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lxml import html

Element = html.HtmlElement

# HTML attributes with an address that the browser loads without a click.
FETCHING = {"src", "srcset", "data", "poster", "xlink:href"}
# Values of `rel` that make a browser load the address of a <link>.
FETCHING_LINKS = set(
    "stylesheet icon preload prefetch preconnect dns-prefetch modulepreload"
    " manifest".split()
)
# Patterns of faults, searched for in the whole text of a page.
ANYWHERE = {
    "snippet marker left as text": re.compile(r"-+8<-+"),
    "template variable left as text": re.compile(r"\{\$\s*[\w.]+\s*\$\}"),
}
# Patterns of faults, searched for in the text of a page outside of code.
OUTSIDE_CODE = {
    "template mark left as text": re.compile(r"\{\$|\$\}|\{\{|\}\}|\{%|%\}|\{@|@\}"),
    "maths delimiter left as text": re.compile(r"\\[()\[\]]|\$\$"),
    "tab or admonition mark left as text": re.compile(
        r"^\s*(?:===[!+]* \"|!!!\+? |\?\?\?\+? )", re.MULTILINE
    ),
    "undefined reference link": re.compile(
        r"(?<!\w)\[[^\[\]]{1,200}\](?:\[[^\[\]]{0,80}\])"
    ),
    "undefined footnote": re.compile(r"\[\^[\w-]+\]"),
    "Markdown link left as text": re.compile(r"\[[^\[\]]{0,200}\]\([^()\s]+\)"),
    "attribute list left as text": re.compile(r"\{:?\s*[.#][A-Za-z][^{}]*\}"),
}
INLINE = frozenset(
    "a abbr b bdi br cite code del em i img ins kbd mark math q s small span strong sub"
    " sup u".split()
)
NOT_PROSE = ("code", "pre", "script", "style", "math", "svg", "textarea")


class Site:
    """The folder of a built site, with every page parsed once."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.pages = {
            path: html.document_fromstring(path.read_text(encoding="utf-8"))
            for path in sorted(self.root.rglob("*.html"))
        }
        self.anchors = {
            path: set(page.xpath("//@id | //a/@name"))
            for path, page in self.pages.items()
        }

    def page_name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def check_site(site: Site) -> list[str]:
    """Return the distinct findings on all pages, in order of the pages."""
    findings = [
        f"{site.page_name(path)}: {one}"
        for path in site.pages
        for one in check_page(site, path)
    ]
    return list(dict.fromkeys(findings))


def check_page(site: Site, path: Path) -> Iterator[str]:
    page = site.pages[path]
    # Ignore absolute paths of the 404 page, which the theme makes.
    is_404 = site.page_name(path) == "404.html"
    main = next(iter(page.xpath("//article | //main") or page.xpath("//body")), page)
    yield from check_unconverted_markdown(main)
    yield from check_structure(page, main)
    for element in page.iter(html.etree.Element):
        for attribute, value in element.items():
            for url, fetched in find_addresses(element, attribute, value):
                if not (is_404 and re.match("/(?!/)", url)):
                    yield from check_address(site, path, url, fetched)


def check_unconverted_markdown(main: Element) -> Iterator[str]:
    """Yield a finding for each piece of Markdown that was not converted to HTML."""
    whole, prose = main.text_content(), "".join(prose_parts(main))
    for patterns, text in ((ANYWHERE, whole), (OUTSIDE_CODE, prose)):
        for what, pattern in patterns.items():
            for match in pattern.finditer(text):
                around = text[max(0, match.start() - 20) : match.end() + 20]
                yield f"{what}: {' '.join(around.split())!r}"


def prose_parts(element: Element) -> Iterator[str]:
    """Yield an element's text; a placeholder replaces code, formulas and pictures."""
    if element.tag in NOT_PROSE:
        yield "\N{OBJECT REPLACEMENT CHARACTER}"
    # Skip comments, whose tag is not a string.
    elif isinstance(element.tag, str):
        edge = "" if element.tag in INLINE else "\n"
        yield edge + (element.text or "")
        for child in element:
            yield from prose_parts(child)
            yield child.tail or ""
        yield edge


def check_structure(page: Element, main: Element) -> Iterator[str]:
    """Yield a finding for each repeated id, and faulty table, code block or tab set."""
    for name, count in Counter(page.xpath("//@id")).items():
        if count > 1:
            yield f"id {name!r} occurs {count} times"
    if page.find_class("mermaid"):
        yield "class 'mermaid' makes the theme fetch a library from another host"
    for table in main.iter("table"):
        if "highlighttable" not in table.classes and not table.xpath(".//th"):
            yield f"table without header cells: {excerpt(table)}"
    if any(not pre.text_content().strip() for pre in main.iter("pre")):
        yield "empty code block"
    for tabs in main.find_class("tabbed-labels"):
        labels = [label.text_content().strip() for label in tabs.iter("label")]
        if len(set(labels)) < len(labels):
            names = ", ".join(labels)
            yield f"two sets of tabs became one, without text between them: {names}"


def excerpt(element: Element) -> str:
    return repr(" ".join(element.text_content().split())[:60])


def find_addresses(
    element: Element, attribute: str, value: str
) -> Iterator[tuple[str, bool]]:
    """Yield each address in an attribute, and whether it is loaded without a click."""
    if attribute == "srcset":
        yield from ((one.split()[0], True) for one in value.split(",") if one.strip())
    elif attribute == "href" and element.tag == "link":
        yield value.strip(), bool(FETCHING_LINKS & set(element.get("rel", "").split()))
    elif attribute in FETCHING or attribute == "href":
        yield value.strip(), attribute != "href" or element.tag not in ("a", "area")


def check_address(site: Site, path: Path, url: str, fetched: bool) -> Iterator[str]:
    """Yield a finding if a page's `url` is bad: e.g. dead, or remote and `fetched`."""
    parts = urlsplit(url)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if parts.scheme in {"http", "https"} or parts.netloc:
        if fetched:
            yield f"fetched from another host: {url}"
    elif parts.scheme:
        # Addresses such as mailto: and data: load nothing.
        if parts.scheme == "file":
            yield f"address of one machine: {url}"
    elif parts.path.startswith("/"):
        yield f"absolute path, dead when read from a file: {url}"
    elif not target.is_relative_to(site.root):
        yield f"points out of the site: {url}"
    elif not target.is_file():
        remedy = " (a folder; name its index.html)" if target.is_dir() else ""
        yield f"dead link: {url}{remedy}"
    # A fragment with `=` is a state of the explorer or the calculator, not an anchor.
    elif parts.fragment and "=" not in parts.fragment and target in site.pages:
        if unquote(parts.fragment) not in site.anchors[target]:
            yield f"dead anchor: {url}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the pages of the built site.")
    folder = Path(__file__).resolve().parents[2] / "site"
    parser.add_argument("site", nargs="?", type=Path, default=folder)
    site = Site(parser.parse_args(arguments).site)
    if not site.pages:
        remedy = "build them first with `mkdocs build --strict`"
        print(f"{site.root}: no pages to check; {remedy}", file=sys.stderr)
        return 2
    findings = check_site(site)
    print(*findings, sep="\n", end="\n" if findings else "")
    print(f"{len(site.pages)} pages checked, {len(findings) or 'no'} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
