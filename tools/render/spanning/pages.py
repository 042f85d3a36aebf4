"""Copy the section "Answer" of each problem's page for the write-up; fill in facts."""

import re
from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, StrictUndefined, TemplateError

from systems import ROOT
from systems.records.store import RecordError
from tools.render.markdown import snippet_sections

DOCS = ROOT / "docs"
ANSWER = re.compile(r"^## Answer\n(.*?)(?=^## |^\?\?\? prov|\Z)", re.DOTALL | re.M)
LINK_IN_PAGE = re.compile(r"(?<=\])\(#")
# Delimiters of blocks, variables and comments, as for the macros plugin in mkdocs.yml.
MARKS = ("{@", "@}", "{$", "$}", "{~", "~}")
TEMPLATES = Environment(*MARKS, undefined=StrictUndefined)


def fragments(
    facts: Mapping[str, Mapping[str, str]], answered: Mapping[str, bool]
) -> dict[str, str]:
    """Return `answers.md`. Raise RecordError if a page with records has no answer."""
    answers = {
        page: page_answer(page, facts) if known else ""
        for page, known in answered.items()
    }
    return {"answers.md": snippet_sections(answers)}


def page_answer(
    page: str, facts: Mapping[str, Mapping[str, str]], docs: Path = DOCS
) -> str:
    """Return the answer of a page, with links that work from other pages."""
    found = ANSWER.search((docs / f"{page}.md").read_text("utf-8", "replace"))
    if found is None:
        raise RecordError(f'docs/{page}.md has no section "## Answer" to copy')
    text = LINK_IN_PAGE.sub(f"({page}.md#", found[1].strip())
    try:
        return TEMPLATES.from_string(text).render(facts=facts)
    except TemplateError as error:
        raise RecordError(f"docs/{page}.md: {error}") from error
