"""What a page takes from elsewhere, as Markdown with its numbers filled in, so that
whichever builder of sites only includes it.

`answer-<page>.md` is what that page says under its heading "Answer", for the write-up:
none is written twice. `head-<page>.md` stands under a page's title and says which of
its numbers are older than the code. `foot-<page>.md` ends it: how its numbers were
measured, folded, and the words that are explained where they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template, TemplateError

from systems import ROOT
from systems.records.store import RecordError

DOCS = ROOT / "docs"
ANSWER = re.compile(r"^## Answer\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
LINK_IN_PAGE = re.compile(r"(?<=\])\(#")
COPIED = re.compile(r'--8<-- "generated/answer-(\w+)\.md"')
# What spans stems, by the name of its facts or fragments: the records that it is made
# from, and is as old as.
SPANNED = {
    "calculator": ("end_to_end", "peak_memory"),
    "causes": ("kernel_profile", "end_to_end"),
    "first_kernel": ("flash_ablation", "flash_benchmarking"),
    "index": ("peak_memory", "end_to_end", "flash_benchmarking", "flash_peers"),
    "ladder": ("flash_ablation", "flash_peers"),
}
GLOSSARY = '--8<-- "generated/glossary-tooltips.md"'
# The stem that a fragment is rendered from is the first part of its name.
FRAGMENT = re.compile(r'--8<-- "generated/(\w+)-')
FACT = re.compile(r"\{\$ facts\.(\w+)\.")
# As the macros plugin fills in facts: mkdocs.yml says why these marks.
MARKS = ("{@", "@}", "{$", "$}", "{~", "~}")
# What is said of records, by what is doubtful of them.
DOUBTS = {
    "edited": "**Edited by hand:** below, not all numbers of "
    "{links} are what was measured.",
    "stale": "**Stale:** below, numbers of {links} were measured "
    "with an earlier version of the code; measured again they may differ.",
}
# What is doubtful: for each name of facts or fragments, links to records.
Doubtful = Mapping[str, Mapping[str, list[str]]]


def fragments(
    facts: Mapping[str, Mapping[str, str]],
    answered: Mapping[str, str],
    doubtful: Doubtful,
    conditions: set[str],
    docs: Path = DOCS,
) -> dict[str, str]:
    """The head and foot of every page, and the answers of those in `answered`, shown
    where that says "yes". `conditions` are the names of the fragments that say how a
    record was measured.

    RecordError where a page has no answer, or its answer a fact that nothing gives.
    """
    pages = {name: path.read_text(encoding="utf-8") for name, path in sources(docs)}
    given = {name: answer_in(name, pages[name]) for name in answered if name in pages}
    files = {
        f"answer-{name}.md": filled_in(name, text, facts)
        if answered[name] == "yes"
        else "\n"
        for name, text in given.items()
    }
    for name, page in pages.items():
        # What is copied into a page is part of it.
        text = COPIED.sub(lambda mark: given.get(mark[1], ""), page)
        if shown_in(text):
            files[f"head-{name}.md"] = head(shown_in(text), doubtful)
        files[f"foot-{name}.md"] = foot(text, conditions)
    return files


def sources(docs: Path) -> Iterator[tuple[str, Path]]:
    """Every page with its name in fragments: `api-model` is docs/api/model.md."""
    for path in sorted(docs.rglob("*.md")):
        parts = path.relative_to(docs).with_suffix("").parts
        if parts[0] != "generated":
            yield "-".join(parts), path


def shown_in(page: str) -> list[str]:
    """The names of the facts and fragments of a page, in their order; of most, the
    stem.
    """
    names = dict.fromkeys(FACT.findall(page) + FRAGMENT.findall(page))
    return [name for name in names if name not in ("head", "foot", "glossary")]


def answer_in(name: str, page: str) -> str:
    """The answer of one page, whose links are then seen from others."""
    answer = ANSWER.search(page)
    if answer is None:
        raise RecordError(f'docs/{name}.md has no section "## Answer" to copy')
    # The foot of a page may follow its answer.
    text = answer[1].replace(include("foot", name), "").strip()
    return LINK_IN_PAGE.sub(f"({name}.md#", text)


def include(part: str, name: str) -> str:
    return f'--8<-- "generated/{part}-{name}.md"'


def filled_in(name: str, text: str, facts: Mapping[str, Mapping[str, str]]) -> str:
    try:
        return template(text).render(facts=facts) + "\n"
    except TemplateError as error:
        raise RecordError(f"docs/{name}.md: {error}") from error


@cache
def template(text: str) -> Template:
    return Environment(*MARKS, undefined=StrictUndefined).from_string(text)


def head(shown: list[str], doubtful: Doubtful) -> str:
    """Return a line for each doubt about a record that the page shows numbers of."""
    said = ""
    for doubt, text in DOUBTS.items():
        of_page = doubtful[doubt]
        found = [link for name in shown for link in of_page.get(name, [])]
        if found:
            links = ", ".join(dict.fromkeys(found))
            said += f"{text.format(links=links)}\n{{ .stale }}\n\n"
    return said or "\n"


def foot(page: str, conditions: set[str]) -> str:
    stems = [s for name in FRAGMENT.findall(page) for s in SPANNED.get(name, (name,))]
    names = dict.fromkeys(f"{stem}-conditions.md" for stem in stems)
    shown = "\n\n".join(
        f'    --8<-- "generated/{name}"' for name in names if name in conditions
    )
    fold = f'??? provenance "How these numbers were measured"\n{shown}\n\n'
    return f"{fold if shown else ''}{GLOSSARY}\n"
