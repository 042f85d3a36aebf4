"""The words of glossary.toml: a list on docs/gpu.md, and the tooltips of every page."""

import tomllib
from html import escape
from pathlib import Path
from textwrap import indent

FILE = Path(__file__).with_name("glossary.toml")


def fragments() -> dict[str, str]:
    """`glossary-terms.md`, which a page includes, and `glossary-tooltips.md`, which
    mkdocs.yml appends to each.
    """
    groups = tomllib.loads(FILE.read_text(encoding="utf-8"))["group"]
    terms = [term for group in groups for term in group["term"]]
    tooltips = sorted(
        f"*[{form}]: {term['means']}"
        for term in terms
        for name in (term["name"], *term.get("also", ()))
        for form in {name, name[0].upper() + name[1:]}
    )
    return {
        "glossary-terms.md": "\n\n".join(map(listed, groups)) + "\n",
        # A block each: of one block, every rule of Markdown would search through all
        # that is left behind each term.
        "glossary-tooltips.md": "\n\n".join(tooltips) + "\n",
    }


def listed(group: dict) -> str:
    """One group as a fold with HTML, in which no tooltip repeats what stands there."""
    lines = [
        f'<dt id="{slug(term["name"])}">{escape(term["name"])}</dt>'
        f"<dd>{escape(term['means'])}</dd>"
        for term in group["term"]
    ]
    terms = "\n".join(['<dl class="terms">', *lines, "</dl>"])
    return f'??? abstract "{group["title"]}"\n{indent(terms, "    ")}'


def slug(name: str) -> str:
    return "term-" + name.lower().replace(" ", "-")
