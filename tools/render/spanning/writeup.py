"""Render the write-up: the graded problems of problems.toml, their claims, and the
section "Answer" of each problem's page.
"""

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from textwrap import indent

import msgspec
from jinja2 import Environment, StrictUndefined, TemplateError

from systems import ROOT
from systems.experiments import STEMS
from systems.records.record import Record
from systems.records.store import RecordError
from tools.render.claims import Claim, list_claims, verdict
from tools.render.load import Found, primary_gpu
from tools.render.markdown import add_caption, items_table, make_tabs, snippet_sections
from tools.render.rows import measured_records

PROBLEMS_FILE = Path(__file__).with_name("problems.toml")
NOT_MEASURED_YET = "not measured yet"
DOCS = ROOT / "docs"
# Code blocks may hold lines that look like headings.
ANSWER = re.compile(
    r"^## Answer\n((?:^```.*?^```|.)*?)(?=^## |^\?\?\? prov|\Z)", re.DOTALL | re.M
)
LINK_IN_PAGE = re.compile(r"(?<=\])\(#")
# Delimiters of blocks, variables and comments, as for the macros plugin in mkdocs.yml.
MARKS = ("{@", "@}", "{$", "$}", "{~", "~}")
TEMPLATES = Environment(*MARKS, undefined=StrictUndefined)


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a problem, and the page that answers it from the records of `stems`."""

    page: str
    stems: tuple[str, ...]
    parts: str
    question: str


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    title: str
    # The answer in one line, for any GPU.
    short: str
    section: str
    points: int
    answers: tuple[Answer, ...] = msgspec.field(name="answer")
    # Section and points in CS336, by year.
    stanford: dict[str, str] = {}


def load_problems() -> list[Problem]:
    """Return the problems in order."""
    tables = dict[str, list[Problem]]
    return msgspec.toml.decode(PROBLEMS_FILE.read_bytes(), type=tables)["problem"]


def gpus_with_records(stems: tuple[str, ...], found: Found) -> set[str]:
    """Return the slugs of the GPUs that have a record of every stem."""
    of_stem = (
        {record.device.slug for record in measured_records(found.get(stem, []))}
        for stem in stems
    )
    return set.intersection(*of_stem)


def answered_pages(found: Found) -> dict[str, bool]:
    """Map each page to whether its answer needs no facts, or its records exist (of the
    primary GPU or "meta").
    """
    counts = {primary_gpu(), "meta"}
    return {
        a.page: bool(counts & gpus_with_records(a.stems, found))
        or ((DOCS / f"{a.page}.md").exists() and "{$" not in answer_section(a.page))
        for problem in load_problems()
        for a in problem.answers
    }


def fragments(found: Found) -> dict[str, str]:
    """Return `writeup.md`: overview, and the questions and claims of each problem."""
    problems = load_problems()
    known = answered_pages(found)
    parts = {"overview": overview_table(problems)}
    for problem in problems:
        for answer in problem.answers:
            parts[f"asked-{answer.page}"] = question_text(answer, known[answer.page])
        parts[f"claims-{problem.name}"] = claim_tabs(problem, found)
    return {"writeup.md": snippet_sections(parts)}


def overview_table(problems: list[Problem]) -> str:
    """Return a table of the problems: one-line answer, section, points."""
    numbers = {problem.name: n for n, problem in enumerate(problems, start=1)}
    listed = items_table(
        problems,
        ("problem", lambda p: f"[{numbers[p.name]}. {p.title}](#{p.name})"),
        ("answer", lambda p: p.short),
        ("NYU 2026", lambda p: f"{p.section} · {p.points}" if p.section else ""),
        ("CS336 2025", lambda p: p.stanford.get("2025", "")),
        ("CS336 2026", lambda p: p.stanford.get("2026", "")),
        left=2,
    )
    caption = "Every graded problem: one-line answer, section and points."
    return add_caption(caption, listed)


def question_text(answer: Answer, known: bool) -> str:
    """Return the question and a link to its page; if not `known`, NOT_MEASURED_YET."""
    parts = f" {answer.parts}" if answer.parts else ""
    text = f"**Asked{parts}.** {answer.question} [Code and tables]({answer.page}.md)"
    return text if known else f"{text}\n\n{NOT_MEASURED_YET}\n{{ .status }}"


def all_claims() -> list[Claim]:
    builders = (import_module(f"tools.render.stems.{stem}") for stem in STEMS)
    return [claim for builder in builders for claim in list_claims(builder)]


def claim_tabs(problem: Problem, found: Found) -> str:
    """Return a collapsed box with the outcomes of a problem's claims, a tab per GPU."""
    stems = [stem for answer in problem.answers for stem in answer.stems]
    claims = [claim for claim in all_claims() if claim.problem == problem.name]
    claims.sort(key=lambda claim: [*stems, claim.stem].index(claim.stem))
    measured = [
        r
        for stem in dict.fromkeys(c.stem for c in claims)
        for r in measured_records(found.get(stem, []))
    ]
    by_gpu: dict[str, dict[str, Record]] = {}
    for record in sorted(measured, key=lambda r: r.device.slug != primary_gpu()):
        if record.device.is_gpu:
            by_gpu.setdefault(record.device.slug, {})[record.stem] = record
    anywhere = {r.stem: r for r in measured if not r.device.is_gpu}
    if not (by_gpu or anywhere):
        return "No claim: nothing was measured yet.\n"
    tabs, held = [], []
    for own in (by_gpu or {"": anywhere}).values():
        gpu, records = next(iter(own.values())).device.name, anywhere | own
        verdicts = [verdict(c, records[c.stem]) for c in claims if c.stem in records]
        tabs.append((gpu, "\n".join(f"- {text}" for _, text in verdicts)))
        decided = [holds for holds, _ in verdicts if holds is not None]
        held.append(f"{gpu}: {sum(decided)} of {len(decided)}")
    title = f"Claims that hold in the record ({'; '.join(held)})"
    return f'??? abstract "{title}"\n{indent(make_tabs(tabs), "    ")}\n'


def answer_fragments(
    facts: Mapping[str, Mapping[str, str]], answered: Mapping[str, bool]
) -> dict[str, str]:
    """Return `answers.md`, a section per page. Raise RecordError if one is missing."""
    answers = {
        page: page_answer(page, facts) if known else ""
        for page, known in answered.items()
    }
    return {"answers.md": snippet_sections(answers)}


def answer_section(page: str, docs: Path = DOCS) -> str:
    """Return the section "Answer" of a page."""
    found = ANSWER.search((docs / f"{page}.md").read_text("utf-8", "replace"))
    if found is None:
        raise RecordError(f'docs/{page}.md has no section "## Answer" to copy')
    return found[1].strip()


def page_answer(
    page: str, facts: Mapping[str, Mapping[str, str]], docs: Path = DOCS
) -> str:
    """Return the answer of a page, with links that work from other pages."""
    text = LINK_IN_PAGE.sub(f"({page}.md#", answer_section(page, docs))
    try:
        return TEMPLATES.from_string(text).render(facts=facts)
    except TemplateError as error:
        raise RecordError(f"docs/{page}.md: {error}") from error
