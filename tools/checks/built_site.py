"""Check the built pages for what a strict mkdocs build lets pass.

    python tools/checks/built_site.py [site]

Every finding is printed as `page: finding`. Exit status: 0 no finding, 1 findings, 2
there is nothing to check.

mkdocs checks Markdown links. It does not look at raw HTML, at marks that some extension
left as text, at ids, headings or alternative texts, nor at what a page would fetch from
the network. This reads what a browser would read.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lxml import html

Element = html.HtmlElement

# Attributes by which a page makes the browser fetch something, and those by which it
# points the reader somewhere.
FETCHING = {"src", "srcset", "data", "poster", "xlink:href"}
FETCHING_LINKS = set(
    "stylesheet icon preload prefetch preconnect dns-prefetch modulepreload"
    " manifest".split()
)
CSS_URL = re.compile(r"""(?:url\(\s*|@import\s+(?!url\())["']?([^"')\s;]+)""")
SCRIPT_URL = re.compile(r"""(?:https?:)?//[\w-]+(?:\.[\w-]+)+[^\s"'`)]*""")
COMMENT = re.compile(r"/\*.*?\*/|^\s*//.*?$", re.DOTALL | re.MULTILINE)
# Names of XML vocabularies look like addresses, and nobody fetches them.
NAMESPACE = re.compile(r"(?:https?:)?//www\.w3\.org/")
# The theme's own scripts name a CDN for two things that these pages don't have;
# `mermaid` below is looked for.
THEME_SCRIPTS = "assets/javascripts/"

# What is searched in the text of a page. Each pattern is also what an author reads, so
# it says what it found.
ANYWHERE = {
    "snippet marker left as text": re.compile(r"-+8<-+"),
    "template variable left as text": re.compile(r"\{\$\s*[\w.]+\s*\$\}"),
}
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
        self.pages = {path: _parse(path) for path in sorted(self.root.rglob("*.html"))}
        self.anchors = {
            path: set(page.xpath("//@id | //a/@name"))
            for path, page in self.pages.items()
        }

    def name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def _parse(path: Path) -> Element:
    return html.document_fromstring(
        path.read_text(encoding="utf-8").strip() or "<html><body></body></html>"
    )


def check(site: Site) -> list[str]:
    """Every finding of the whole site, in order of the files."""
    findings: list[str] = []
    for path in site.pages:
        findings += [
            f"{site.name(path)}: {finding}" for finding in check_page(site, path)
        ]
    for path in sorted(site.root.rglob("*")):
        if path.suffix in {".css", ".js", ".svg"} and not site.name(path).startswith(
            THEME_SCRIPTS
        ):
            findings += [
                f"{site.name(path)}: {finding}" for finding in check_asset(site, path)
            ]
    return findings


def check_page(site: Site, path: Path) -> Iterator[str]:
    page = site.pages[path]
    main = next(iter(page.xpath("//article | //main") or page.xpath("//body")), page)
    yield from check_text(main)
    yield from check_structure(page, main, is_page=site.name(path) != "404.html")
    yield from check_maths(main)
    yield from check_links(site, path)
    yield from check_scripts(page)


def check_text(main: Element) -> Iterator[str]:
    """Marks that an extension should have replaced; a reader would see them."""
    for patterns, text in (
        (ANYWHERE, main.text_content()),
        (OUTSIDE_CODE, "".join(_prose(main))),
    ):
        for what, pattern in patterns.items():
            for match in pattern.finditer(text):
                yield f"{what}: {_around(text, match)}"


def _prose(element: Element) -> Iterator[str]:
    """The text of an element, one block a line, with a placeholder for code and other
    text that is shown as it is.
    """
    if not isinstance(element.tag, str):
        # A comment.
        return
    if element.tag in NOT_PROSE:
        yield "\N{OBJECT REPLACEMENT CHARACTER}"
        return
    edge = "" if element.tag in INLINE else "\n"
    yield edge + (element.text or "")
    for child in element:
        yield from _prose(child)
        yield child.tail or ""
    yield edge


def _around(text: str, match: re.Match[str]) -> str:
    return repr(" ".join(text[max(0, match.start() - 20) : match.end() + 20].split()))


def check_structure(page: Element, main: Element, is_page: bool) -> Iterator[str]:
    """Ids, headings, images, tables, code blocks and tabs."""
    ids: list[str] = page.xpath("//@id")
    for name, count in Counter(ids).items():
        if count > 1:
            yield f"id {name!r} occurs {count} times"
    level = 0
    for heading in main.iter("h1", "h2", "h3", "h4", "h5", "h6") if is_page else ():
        depth = int(str(heading.tag)[1])
        if depth > level + 1:
            yield f"heading jumps from level {level} to {depth}: {_words(heading)}"
        level = depth
    if is_page and (count := len(list(main.iter("h1")))) != 1:
        yield f"{count} headings of level 1 instead of one"
    for image in page.iter("img"):
        decorative = (
            image.get("aria-hidden") == "true" or image.get("role") == "presentation"
        )
        if not (image.get("alt") or "").strip() and not decorative:
            yield f"image without alternative text: {image.get('src')}"
    for table in main.iter("table"):
        if "highlighttable" not in table.get("class", "") and not list(
            table.iter("th")
        ):
            yield f"table without header cells: {_words(table)}"
    for pre in main.iter("pre"):
        if not pre.text_content().strip():
            yield "empty code block"
    for tabs in main.find_class("tabbed-labels"):
        labels = [label.text_content().strip() for label in tabs.iter("label")]
        if len(set(labels)) < len(labels):
            names = ", ".join(labels)
            yield f"tabs that ran together, for no text stands between them: {names}"


def _words(element: Element) -> str:
    return repr(" ".join(element.text_content().split())[:60])


def check_maths(main: Element) -> Iterator[str]:
    """What a converter prints when it does not understand a formula."""
    for formula in main.iter("math"):
        if next(formula.iter("merror"), None) is not None:
            yield f"error inside a formula: {_words(formula)}"
        if stray := re.search(r"[\\&]", formula.text_content()):
            yield f"stray {stray[0]!r} inside a formula: {_words(formula)}"


def check_links(site: Site, path: Path) -> Iterator[str]:
    """Every address in the page: a local one must exist, and a remote one must not be
    fetched.
    """
    exempt = site.name(path) == "404.html"
    for element in site.pages[path].iter():
        if not isinstance(element.tag, str):
            continue
        for attribute, value in element.items():
            if attribute == "style":
                for url in CSS_URL.findall(value):
                    yield from check_address(site, path, url, fetched=True)
            elif attribute in FETCHING or attribute == "href":
                # The theme writes root-absolute paths into 404.html, because a server
                # shows it at any address.
                if exempt and value.startswith("/") and not value.startswith("//"):
                    continue
                for url in _urls(attribute, value):
                    yield from check_address(
                        site, path, url, _is_fetched(element, attribute)
                    )


def _urls(attribute: str, value: str) -> list[str]:
    if attribute == "srcset":
        return [
            candidate.split()[0] for candidate in value.split(",") if candidate.strip()
        ]
    return [value.strip()]


def _is_fetched(element: Element, attribute: str) -> bool:
    if element.tag == "link":
        return bool(FETCHING_LINKS & set(element.get("rel", "").lower().split()))
    return attribute != "href" or element.tag not in {"a", "area", "base"}


def check_address(site: Site, path: Path, url: str, fetched: bool) -> Iterator[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        yield f"malformed address: {url}"
        return
    if parts.scheme in {"http", "https"} or parts.netloc:
        if fetched:
            yield f"fetched from another host: {url}"
        return
    if parts.scheme:
        # mailto:, data: and the like stay inside the page.
        if parts.scheme == "file":
            yield f"address of one machine: {url}"
        return
    if parts.path.startswith("/"):
        yield f"absolute path, dead when read from a file: {url}"
        return
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_relative_to(site.root):
        yield f"points out of the site: {url}"
    elif not target.is_file():
        remedy = " (a folder; name its index.html)" if target.is_dir() else ""
        yield f"dead link: {url}{remedy}"
    elif (
        parts.fragment
        # What a page is to show (the explorer, the calculator), and no place in it.
        and "=" not in parts.fragment
        and target.suffix == ".html"
        and unquote(parts.fragment) not in site.anchors[target]
    ):
        yield f"dead anchor: {url}"


def check_scripts(page: Element) -> Iterator[str]:
    """Inline scripts and styles, and the class for which the theme's script fetches a
    library.
    """
    for script in page.iter("script"):
        for url in remote_addresses(script.text or ""):
            yield f"script names another host: {url}"
    for style in page.iter("style"):
        for url in CSS_URL.findall(style.text or ""):
            if re.match(r"(?:https?:)?//", url):
                yield f"fetched from another host: {url}"
    if page.find_class("mermaid"):
        yield "class 'mermaid' makes the theme fetch a library from another host"


def remote_addresses(script: str) -> list[str]:
    return [
        url
        for url in SCRIPT_URL.findall(COMMENT.sub("", script))
        if not NAMESPACE.match(url)
    ]


def check_asset(site: Site, path: Path) -> Iterator[str]:
    """Style sheets, scripts and drawings are read by the browser too."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        for url in remote_addresses(text):
            yield f"script names another host: {url}"
        return
    for url in CSS_URL.findall(
        COMMENT.sub("", text) if path.suffix == ".css" else text
    ):
        # A drawing refers to its own parts as url(#name).
        if not url.startswith("#"):
            yield from check_address(site, path, url, fetched=True)
    if path.suffix == ".svg":
        for url in re.findall(
            r"""<(?!a\b)\w[^>]*?\s(?:xlink:)?href=["']([^"'#][^"']*)""", text
        ):
            yield from check_address(site, path, url, fetched=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the pages of the built site.")
    parser.add_argument(
        "site",
        nargs="?",
        type=Path,
        default=Path(__file__).resolve().parents[2] / "site",
        help="the built folder (default: the repository's site)",
    )
    folder = parser.parse_args(arguments).site
    site = Site(folder)
    if not site.pages:
        remedy = "build them first with `mkdocs build --strict`"
        print(f"{folder}: no pages to check; {remedy}", file=sys.stderr)
        return 2
    findings = check(site)
    for finding in dict.fromkeys(findings):
        print(finding)
    if findings:
        print(
            f"{len(set(findings))} findings in {len(site.pages)} pages", file=sys.stderr
        )
        return 1
    print(f"{len(site.pages)} pages checked, no findings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
