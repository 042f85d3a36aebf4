"""What must never stand in the guide's sources: measured numbers typed by hand, and
snippet marks that show no code. `regen_tables.py --check` prints the findings.

A measured number belongs in a fact or a fragment, which follow the records. One that
no record gives (a setting, a data sheet's figure) is written as inline code.
"""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tools.render.spanning import pages

SOURCES = ("systems", "tools", "tests")

SPACE = r"[^\S\n]"
# Between a number and its unit: spaces, emphasis, a non-breaking space, and at most one
# line break.
GAP = rf"(?:{SPACE}|[*_]|&nbsp;|&thinsp;|\n(?!{SPACE}*\n))*"
UNITS = "|".join(
    (
        r"[mnµμu]?s|(?:milli|micro|nano)?seconds?|min|minutes?|hours?",
        r"[kKMGTP]?FLOPS?/s|[KMGT]i?B(?:/s)?|k?W|[kMG]Hz|tokens?(?:/s|[ ]per[ ]second)",
        r"percent|per[ ]cent",
        r"times[ ](?:faster|slower|as[ ](?:fast|slow|long|much|many))",
    )
)
MEASURED = re.compile(
    rf"""
    # Not inside a name (A100-SXM4-40GB, fp32) or another number.
    (?<![\w.]) (?<![A-Za-z]-) (?<![A-Za-z]\d-)
    \d (?:[\d.,]*\d)?
    (?: {GAP} (?: % | (?:{UNITS}) (?![\w/]) )
    # A factor (2.1×, 2.1 x faster), but no product (16×16, 4 x 512, 2 × width).
    | [×x] (?! {SPACE}* [\w\0] )
    | {SPACE}? [×x] (?= {SPACE}* (?:
        [.,;:!?)|] | $ | (?:as|faster|slower|more|less|the|of|over)\b
    ) ) )
    """,
    re.MULTILINE | re.VERBOSE,
)
FENCE = re.compile(r"[\s>]*(`{3,}(?=[^`]*$)|~{3,})")
NOT_PROSE = re.compile(
    r"""
    <!--.*?-->
    # Inline code, which ends in its paragraph.
    | (?P<ticks>(?<!`)`+(?!`)) (?:(?!\n\s*\n).)+? (?<!`)(?P=ticks)(?!`)
    # A fact.
    | \{\$.*?\$\}
    # Addresses: of a link, of a link's definition, by themselves, of an element.
    | (?<=\]) \( [^()\n]* (?:\([^()\n]*\)[^()\n]*)* \)
    | ^[ ]* \[[^\]\n]+\]: [ ]* \S+
    | \w+://[^\s<>)]+
    | \b (?:src|href|width|height|style|class|id) ="[^"]*"
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
MATHS = re.compile(r"\\\(.*?\\\)|\\\[.*?\\\]", re.DOTALL)
FACT = re.compile(r"\bfacts\.(\w+\.\w+)")
MARK = re.compile(r"-+8<-+")
INCLUDE = re.compile(r'\s*--8<-- "([^":]+)(?::([^"]*))?"$')
SECTION = re.compile(r"# --8<-- \[(start|end):([A-Za-z][-\w]*)\]$")

# The line of a fault, and what is wrong there.
Finding = tuple[int, str]


def check_pages(root: Path) -> list[str]:
    """Every finding in the pages and in the Python sources of this tree, as `path:line:
    finding`, in order of the files.
    """
    findings: list[str] = []
    # The line where each section of each source file starts, and the sections that some
    # page includes.
    sections: dict[str, dict[str, int]] = {}
    included: set[tuple[str, str]] = set()
    sources = (path for name in SOURCES for path in (root / name).rglob("*.py"))
    for path in sorted(sources):
        name = path.relative_to(root).as_posix()
        sections[name] = {}
        findings += [
            f"{name}:{line}: {text}"
            for line, text in _check_source(path, sections[name])
        ]
    for path in sorted((root / "docs").rglob("*.md")):
        if path.is_relative_to(root / "docs/generated"):
            continue
        page, name = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
        faults = [*_check_includes(page, root, sections, included), *_numbers(page)]
        findings += [f"{name}:{line}: {text}" for line, text in sorted(faults)]
    for name, starts in sections.items():
        findings += [
            f"{name}:{line}: no page shows the section {section!r}: "
            f'include it (--8<-- "{name}:{section}") or delete it'
            for section, line in starts.items()
            if (name, section) not in included
        ]
    return findings + _without_head_or_foot(root) + _unused_facts(root)


# What pages include by rule -----------------------------------------------------------


def _without_head_or_foot(root: Path) -> list[str]:
    """Pages that leave out what says how old their numbers are, or what ends a page."""
    rules = {
        "head": "under the title: it says which of its numbers are old",
        "foot": "at the end: it says how numbers were measured, and explains words",
    }
    findings = []
    for name, path in pages.sources(root / "docs"):
        page = path.read_text(encoding="utf-8")
        for part in rules if pages.shown_in(page) else ("foot",):
            line = pages.include(part, name)
            if line not in page.splitlines():
                place = path.relative_to(root).as_posix()
                findings.append(f"{place}:1: include {line} {rules[part]}")
    return findings


# Facts --------------------------------------------------------------------------------


def _unused_facts(root: Path) -> list[str]:
    """Facts that no sentence uses."""
    path = root / "docs/generated/facts.yml"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    texts = [root / "README.md", *(root / "docs").rglob("*.md")]
    used = {
        fact
        for page in texts
        if page.is_file() and not page.is_relative_to(path.parent)
        for fact in FACT.findall(page.read_text(encoding="utf-8"))
    }
    findings, stem = [], ""
    for number, line in enumerate(lines, 1):
        name, _, text = line.strip().partition(":")
        if not text:
            stem = name
        elif f"{stem}.{name}" not in used:
            findings.append(
                f"docs/generated/facts.yml:{number}: no page uses the fact "
                f"{stem}.{name}: use it, or delete it in tools/render"
            )
    return findings


# Numbers ------------------------------------------------------------------------------


def _numbers(page: str) -> Iterator[Finding]:
    """Measured numbers in the page's prose."""
    prose, unclosed = _without_code_blocks(page)
    if unclosed:
        yield unclosed, "this code block is never closed: end it with the same marks"
    prose = MATHS.sub(_units_of_maths, NOT_PROSE.sub(_blank, prose))
    for match in MEASURED.finditer(prose):
        number = " ".join(match[0].split())
        yield (
            prose.count("\n", 0, match.start()) + 1,
            f"the measured number {number!r} is typed by hand: write "
            "{$ facts.<stem>.<name> $} or include a fragment (a number that nobody "
            "measured, such as a setting, goes in `inline code`)",
        )


def _without_code_blocks(page: str) -> tuple[str, int]:
    """The page with code blocks and include lines emptied; and the line of a block that
    is never closed, or 0.
    """
    lines, fence, opened = page.splitlines(), "", 0
    for i, line in enumerate(lines):
        bare = line.strip(" \t>")
        if fence:
            lines[i] = "\0"
            if bare.startswith(fence) and not bare.strip(fence[0]):
                fence, opened = "", 0
        elif match := FENCE.match(line):
            lines[i], fence, opened = "\0", match[1], i + 1
        elif INCLUDE.match(line):
            lines[i] = "\0"
    return "\n".join(lines), opened


def _blank(match: re.Match[str]) -> str:
    """No number, no unit and no space. The line breaks stay, for counting lines."""
    return "\0" + "\n" * match[0].count("\n")


def _units_of_maths(match: re.Match[str]) -> str:
    """In maths a letter is a variable (2x, 4s): only \\text and \\mathrm hold units."""
    text = re.sub(r"\\[,;:! ]", " ", match[0]).replace("\\%", "%")
    parts = re.split(r"\\(?:text|mathrm)\{([^{}]*)\}", text)
    parts[::2] = [re.sub(r"[A-Za-z×]", "\0", part) for part in parts[::2]]
    return "".join(parts)


# Snippets -----------------------------------------------------------------------------


def _check_includes(
    page: str,
    root: Path,
    sections: dict[str, dict[str, int]],
    included: set[tuple[str, str]],
) -> Iterator[Finding]:
    """Findings about the page's include lines, also inside code blocks, which is how
    code is shown. Fills `included`.
    """
    prose = NOT_PROSE.sub(_blank, _without_code_blocks(page)[0]).split("\n")
    for number, line in enumerate(page.splitlines(), 1):
        # A mark after `;` is shown as text.
        if not MARK.search(line) or line.lstrip().startswith(";"):
            continue
        match = INCLUDE.match(line)
        if match is None:
            # In inline code or a comment it is no include either.
            if prose[number - 1] == "\0" or MARK.search(prose[number - 1]):
                yield (
                    number,
                    "badly formed include: the whole line must be "
                    '--8<-- "path:section", nothing after it',
                )
            continue
        target, section = match[1], match[2]
        places = (root / target, root / "docs" / target)
        file = next((path for path in places if path.is_file()), None)
        if file is None:
            rendered = target.startswith("generated/")
            remedy = "run tools/regen_tables.py --render" if rendered else "correct it"
            yield (
                number,
                f"includes {target!r}, which is neither in the repository nor in docs/:"
                f" {remedy}",
            )
        elif section is not None:
            name = file.relative_to(root).as_posix()
            included.add((name, section))
            there = sections.get(name) or re.findall(
                r"\[start:([\w-]+)\]", file.read_text(encoding="utf-8")
            )
            if section not in there:
                known = ", ".join(there) or "none"
                yield (
                    number,
                    f"includes the section {section!r} of {target}, which has: {known}",
                )


def _check_source(path: Path, starts: dict[str, int]) -> Iterator[Finding]:
    """Findings about the section markers of one Python file. Fills `starts` with the
    line of each section.
    """
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    try:
        marked = [
            token.start[0]
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.COMMENT and MARK.search(token.string)
        ]
    except (tokenize.TokenError, SyntaxError) as error:
        yield 1, f"can't be read as Python ({error}), so its markers are not checked"
        return
    opened: dict[str, int] = {}
    for number in marked:
        match = SECTION.match(lines[number - 1].strip())
        if match is None:
            yield (
                number,
                "badly formed marker: the whole line must be "
                "# --8<-- [start:name] or # --8<-- [end:name]",
            )
            continue
        kind, name = match.groups()
        if kind == "start":
            if name in starts:
                yield (
                    number,
                    f"section {name!r} starts twice (first on line {starts[name]}), "
                    "and pages show the first",
                )
            opened[name] = number
            starts.setdefault(name, number)
        elif (start := opened.pop(name, None)) is None:
            yield (
                number,
                f"section {name!r} ends but never started: "
                "add its start marker or delete this one",
            )
        elif not any(
            lines[i - 1].strip() for i in range(start + 1, number) if i not in marked
        ):
            yield (
                start,
                f"section {name!r} is empty, and a page would show an empty block",
            )
    for name, number in opened.items():
        yield (
            number,
            f"section {name!r} never ends, and a page would show the rest of the file: "
            "add its end marker",
        )
