"""Hooks of the site build: what a page takes from others, and what the theme leaves
undone.

The write-up takes each answer from the page that gives it, so that none is written
twice. A page whose sentences hold numbers older than the code says so.

mkdocs calls the functions `on_...`; the others are pure, from text to text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

# What the theme brings for search in other languages than English, and for debugging
# its own scripts.
UNUSED = re.compile(r"assets/javascripts/lunr/|.*\.map$")

# What begins a line of a page's source, where it is not shown as it stands.
INDENTS = re.compile(r"<(pre|textarea|script)\b.*?</\1>|\n\s+", re.DOTALL)

# `<!-- answer: warmup -->`, alone on its line, stands for what docs/warmup.md says
# under its heading "Answer".
ANSWER_MARK = re.compile(r"^<!-- answer: (\w+) -->$", re.MULTILINE)
ANSWER = re.compile(r"^## Answer\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
LINK_IN_PAGE = re.compile(r"(?<=\])\(#")
TITLE = re.compile(r"^# .+\n", re.MULTILINE)
GLOSSARY = '--8<-- "generated/glossary-tooltips.md"'
# The stem that a fragment is rendered from is the first part of its name.
FRAGMENT = re.compile(r'--8<-- "generated/(\w+)-')
STEM_OF_FACT = re.compile(r"\{\$ facts\.(\w+)\.")


# Before the macros plugin, which then fills in the facts of the copied sentences.
def on_config(config: MkDocsConfig, /, **_: object) -> None:
    """Say what to do where nothing was rendered yet, before a page asks for a
    number.
    """
    if not (Path(config.docs_dir) / "generated" / "facts.yml").is_file():
        raise PluginError(
            "docs/generated is not there: run `python tools/regen_tables.py --render`"
        )


@event_priority(100)
def on_page_markdown(
    markdown: str, /, page: Page, config: MkDocsConfig, **_: object
) -> str:
    """Copy the answers of other pages to where this one marks them; under the title,
    say what is stale.
    """
    try:
        text = ANSWER_MARK.sub(
            lambda match: copied_answer(Path(config.docs_dir), match[1]), markdown
        )
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error
    text = with_conditions(with_doubts(text), Path(config.docs_dir))
    # Not by an extension: that would read the glossary anew for every docstring.
    return f"{text}\n\n{GLOSSARY}\n"


def with_conditions(markdown: str, docs: Path) -> str:
    """The page, and below it, folded, how the records were measured whose tables and
    figures it shows.
    """
    names = (f"generated/{stem}-conditions.md" for stem in FRAGMENT.findall(markdown))
    shown = "\n\n".join(
        f'    --8<-- "{name}"'
        for name in dict.fromkeys(names)
        if (docs / name).is_file()
    )
    if not shown:
        return markdown
    return f'{markdown}\n\n??? provenance "How these numbers were measured"\n{shown}\n'


def copied_answer(docs: Path, name: str) -> str:
    """The answer of one page, shown where the GPU of the sentences measured it; nothing
    while there is no such page.
    """
    path = docs / f"{name}.md"
    if not path.is_file():
        return ""
    answer = ANSWER.search(path.read_text(encoding="utf-8"))
    if answer is None:
        raise ValueError(f'{path.name} has no section "## Answer" to copy')
    text = LINK_IN_PAGE.sub(f"({path.name}#", answer[1].strip())
    return f'{{@ if facts.answers.{name} == "yes" @}}\n{text}\n{{@ endif @}}'


# What is said of the records in `facts.stale`, and of those in `facts.edited`.
DOUBTS = {
    "edited": "**Edited by hand:** below, not all numbers of "
    "{$ found $} are what was measured.",
    "stale": "**Stale:** below, numbers of {$ found $} were measured "
    "with an earlier version of the code.",
}


def with_doubts(markdown: str) -> str:
    """The page with a line below its title where a record that its sentences or tables
    take numbers from is older than the code, or was edited.

    Which those are the facts say when the macros plugin fills them in.
    """
    used = STEM_OF_FACT.findall(markdown) + FRAGMENT.findall(markdown)
    stems = dict.fromkeys(used)
    if not stems:
        return markdown
    lines = ""
    for doubt, text in DOUBTS.items():
        links = ", ".join(f'facts.{doubt}.get("{stem}", "")' for stem in stems)
        lines += (
            f'{{@ set found = ([{links}] | select | join(", ")).split(", ") @}}'
            '{@ set found = found | unique | join(", ") @}{@ if found @}\n'
            f"{text}\n{{ .stale }}\n{{@ endif @}}\n"
        )
    return TITLE.sub(lambda title: f"{title[0]}\n{lines}", markdown, count=1)


def on_post_page(output: str, /, **_: object) -> str:
    """Name the theme's search dialog for screen readers, which the theme leaves out.
    What indents the source of a page, a twelfth of it, is left out.
    """
    named = output.replace('role="dialog">', 'role="dialog" aria-label="Search">', 1)
    return INDENTS.sub(lambda found: found[0] if found[1] else "\n", named)


def on_files(files: Files, /, **_: object) -> Files:
    """Leave out what no page loads: a fifth of the site."""
    for file in [file for file in files if UNUSED.match(file.dest_uri)]:
        files.remove(file)
    return files
