"""Render the write-up: the graded problems of problems.toml, their claims, and the
section "Answer" of each problem's page.
"""

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from textwrap import indent
from traceback import extract_tb

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

DOCS = ROOT / "docs"
# An answer ends at the page's own next heading, because it may have headings, too.
ANSWER = re.compile(r"^## Answer\n(.*?)^## (?:Try it$|Exercises? \{)", re.DOTALL | re.M)
# Matches a code block, or a heading, which has # marks or is underlined.
HEADING = re.compile(
    r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence) *$|^(?P<marks>#+) *"
    r"|(?:\A|(?<=\n\n))(?P<title>\S[^\n]*)\n[=-]+ *$",
    re.DOTALL | re.M,
)
# Marks an answer that the guide's authors wrote; NEEDY finds one that has facts.
SHIPPED = "<!--guide-->"
NEEDY = re.compile(rf"{SHIPPED}.*{{\$", re.DOTALL).search
# Matches the definition of a link by reference: its label and its target.
REFERENCE = re.compile(r"^ {0,3}\[([^]\n]+)\]:\s*(\S+)", re.M)
LINK_IN_PAGE = re.compile(r"(?<=\]\()#|(?<=\]: )#")
# Delimiters of blocks, variables and comments, as for the macros plugin in mkdocs.yml.
MARKS = ("{@", "@}", "{$", "$}", "{~#", "#~}")
TEMPLATES = Environment(*MARKS, undefined=StrictUndefined)


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a problem, the page that answers it, and the experiments it uses."""

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
    text = Path(__file__).with_name("problems.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, list[Problem]])["problem"]


def gpus_with_records(stems: tuple[str, ...], found: Found) -> set[str]:
    """Return the names of the GPUs that have records of all experiments in `stems`."""
    of_stem = (
        {record.device.slug for record in measured_records(found.get(stem, []))}
        for stem in stems
    )
    return set.intersection(*of_stem)


def answered_pages(found: Found) -> dict[str, bool]:
    """Return {page: whether its answer has the records it needs, or needs none}."""
    return {
        a.page: bool({primary_gpu(), "meta"} & gpus_with_records(a.stems, found))
        or ((DOCS / f"{a.page}.md").exists() and not NEEDY(answer_section(a.page)))
        for problem in load_problems()
        for a in problem.answers
    }


def fragments(found: Found) -> dict[str, str]:
    """Return `writeup.md`: overview, and the questions and claims of each problem."""
    problems = load_problems()
    known = answered_pages(found)
    parts = {"overview": overview_table(problems)}
    for problem in problems:
        for a in problem.answers:
            parts[f"asked-{a.page}"] = question_text(a, known[a.page], found)
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


def question_text(answer: Answer, known: bool, found: Found) -> str:
    """Return the question, a link to its page, and a note if rows are not measured."""
    parts = f" {answer.parts}" if answer.parts else ""
    text = f"**Asked{parts}.** {answer.question} [Code and tables]({answer.page}.md)"
    reduced = [s for s in answer.stems for r in found.get(s, []) if r.grid == "quick"]
    commands = ", ".join(f"`python -m systems.experiments.{s} --help`" for s in reduced)
    status = f"measured by `--quick`; any other row: {commands}" if reduced else ""
    status = status if known else "not measured yet"
    return f"{text}\n\n{status}\n{{ .status }}" if status else text


def all_claims() -> list[Claim]:
    builders = (import_module(f"tools.render.stems.{stem}") for stem in STEMS)
    return [claim for builder in builders for claim in list_claims(builder)]


def claim_tabs(problem: Problem, found: Found) -> str:
    """Return a collapsed box with the outcomes of a problem's claims, a tab per GPU."""
    stems = [stem for answer in problem.answers for stem in answer.stems]
    claims = [claim for claim in all_claims() if claim.problem == problem.name]
    claims.sort(key=lambda claim: [*stems, claim.stem].index(claim.stem))
    claimed = dict.fromkeys(claim.stem for claim in claims)
    measured = [r for s in claimed for r in measured_records(found.get(s, []))]
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
    return f'??? abstract claims "{title}"\n{indent(make_tabs(tabs), "    ")}\n'


def answer_fragments(
    facts: Mapping[str, Mapping[str, str]], answered: Mapping[str, bool]
) -> dict[str, str]:
    """Return {"answers.md": text}: a section per page, empty if not answered[page].
    Raise RecordError if two answers define one reference, such as [1], differently.
    """
    answers = {p: page_answer(p, facts) if answered[p] else "" for p in answered}
    seen: dict[str, tuple[str, str]] = {}
    for page, answer in answers.items():
        for label, target in REFERENCE.findall(hide_code(answer)):
            other, known = seen.setdefault(label.lower(), (page, target))
            if known != target:
                fault = f"define [{label}] differently in their answers: rename one"
                raise RecordError(f"docs/{other}.md and docs/{page}.md {fault}")
    return {"answers.md": snippet_sections(answers)}


def hide_code(text: str) -> str:
    """Overwrite code blocks, whose lines may look like headings or references."""
    return HEADING.sub(lambda x: re.sub(".", "`", x[0]) if x["fence"] else x[0], text)


def answer_section(page: str, docs: Path = DOCS) -> str:
    """Return a page's section "Answer", below one line break for each line above it.
    Raise RecordError if the section is missing or has no text.
    """
    text = (docs / f"{page}.md").read_text("utf-8", "replace")
    shown = hide_code(text)
    found = ANSWER.search(shown)
    faulty = shown.count("\n## Try it\n") > 1 or "\n>>>>>>> " in text
    if faulty or not (found and re.sub("(?s)<!--.*?-->", "", found[1]).strip()):
        line = f"\n{shown}".partition("\n## Answer\n")[0].count("\n") + 1
        raise RecordError(
            f'docs/{page}.md:{line}: write an answer between the headings "## Answer" '
            'and "## Try it" (or "## Exercise { ... }"): one of each, no merge conflict'
        )
    return "\n" * text.count("\n", 0, found.start(1)) + text[slice(*found.span(1))]


def lower_headings(text: str) -> str:
    """Shift the headings outside code blocks, so that the highest has level 3."""
    levels = [len(x["marks"] or "##") for x in HEADING.finditer(text) if not x["fence"]]
    shift = 3 - min(levels, default=3)

    def replace(x: re.Match[str]) -> str:
        marks = "#" * min(6, len(x["marks"] or "##") + shift)
        return x[0] if x["fence"] else f"{marks} {x['title'] or ''}"

    return HEADING.sub(replace, text)


def page_answer(
    page: str, facts: Mapping[str, Mapping[str, str]], docs: Path = DOCS
) -> str:
    """Return a page's answer with facts filled in, links and headings adapted."""
    try:
        text = TEMPLATES.from_string(answer_section(page, docs)).render(facts=facts)
    except (TemplateError, TypeError, ArithmeticError) as error:
        *_, line = (x.lineno for x in extract_tb(error.__traceback__) if "<" in x[0])
        raise RecordError(f"docs/{page}.md:{line}: {error}") from error
    text = lower_headings(text.replace(SHIPPED, "").strip())
    return LINK_IN_PAGE.sub(f"{page}.md#", text)
