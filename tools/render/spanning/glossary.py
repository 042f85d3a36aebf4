"""Render glossary.toml to the list of terms on docs/gpu.md and to tooltips."""

import tomllib
from html import escape
from pathlib import Path
from textwrap import indent

FILE = Path(__file__).with_name("glossary.toml")


def fragments() -> dict[str, str]:
    """Return {file name: Markdown}: the terms, and tooltips for every page."""
    groups = tomllib.loads(FILE.read_text(encoding="utf-8"))["group"]
    terms = [term for group in groups for term in group["term"]]
    tooltips = sorted(
        f"*[{form}]: {term['means']}"
        for term in terms
        for name in (term["name"], *term.get("also", ()))
        for form in {name, name[0].upper() + name[1:]}
    )
    return {
        "glossary-terms.md": "\n\n".join(map(fold_terms, groups)) + "\n",
        # Put a blank line between terms, because Markdown parses long blocks slowly.
        "glossary-tooltips.md": "\n\n".join(tooltips) + "\n",
    }


def fold_terms(group: dict) -> str:
    """Return a collapsed Markdown block of terms; as HTML they get no tooltips."""
    lines = [
        f'<dt id="term-{term["name"].lower().replace(" ", "-")}">'
        f"{escape(term['name'])}</dt>"
        f"<dd>{escape(term['means'])}</dd>"
        for term in group["term"]
    ]
    terms = "\n".join(['<dl class="terms">', *lines, "</dl>"])
    return f'??? abstract "{group["title"]}"\n{indent(terms, "    ")}'
