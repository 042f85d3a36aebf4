"""What must never stand in the guide's sources: measured numbers typed by hand, facts
that no page uses, and snippet marks that show no code. `regen_tables.py --check` prints
the findings.

A measured number belongs in a fact or a fragment, which follow the records. One that
no record gives (a setting, a data sheet's figure) is written as inline code.
"""

import re
from collections.abc import Iterator
from pathlib import Path

# Between a number and its unit: spaces, emphasis, at most one line break.
GAP = r"(?:[^\S\n]|[*_]|&nbsp;|\n(?![^\S\n]*\n))*"
UNITS = (
    r"[mnµμu]?s|(?:milli|micro|nano)?seconds?|min|minutes?|hours?"
    r"|[kKMGTP]?FLOPS?/s|[KMGT]i?B(?:/s)?|k?W|[kMG]Hz|tokens?(?:/s|[ ]per[ ]second)"
    r"|percent|times[ ](?:faster|slower|as[ ](?:fast|slow|long|much|many))"
)
MEASURED = re.compile(
    rf"""
    # Not inside a name (A100-SXM4-40GB, fp32) or another number.
    (?<![\w.]) (?<![A-Za-z]-) (?<![A-Za-z]\d-)
    \d (?:[\d.,]*\d)?
    # With a unit, or a factor (2.1×), but no product (16×16).
    (?: {GAP} (?: % | (?:{UNITS}) (?![\w/]) ) | [ ]? × (?! \s* (?!faster|as\b)[\w\0] ) )
    """,
    re.MULTILINE | re.VERBOSE,
)
NOT_PROSE = re.compile(
    r"""
    # A code block, an include, a comment, inline code, maths, a fact.
    ^[ \t>]* (?P<fence>`{3,}|~{3,}) [^`\n]*\n .*?^[ \t>]* (?P=fence) [`~]* [ ]*$
    | ^[ ]* --8<--[ ] [^\n]*
    | <!--.*?-->
    | (?P<ticks>(?<!`)`+(?!`)) (?:(?!\n\s*\n).)+? (?<!`)(?P=ticks)(?!`)
    | \\\(.*?\\\) | \\\[.*?\\\]
    | \{\$.*?\$\}
    # Addresses: of a link, of a link's definition, of an element.
    | (?<=\]) \( [^()\n]* \)
    | ^[ ]* \[[^\]\n]+\]: [ ]* \S+
    | \b (?:src|href|width|height|style|class|id) ="[^"]*"
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
FACT = re.compile(r"\bfacts\.(\w+\.\w+)")
INCLUDE = re.compile(r'^ *--8<-- "([^":]+):([^"]+)"$', re.MULTILINE)
SECTION = re.compile(r"^ *# --8<-- \[(start|end):([\w-]+)\]$", re.MULTILINE)


def check_pages(root: Path) -> list[str]:
    """Return every finding in the pages and in the Python sources of this tree, as
    `path:line: finding`.
    """
    pages = {path: path.read_text(encoding="utf-8") for path in sources(root / "docs")}
    included = {found for text in pages.values() for found in INCLUDE.findall(text)}
    findings = []
    code = {*(root / "systems").rglob("*.py"), *(root / "tools").rglob("*.py")}
    code |= {root / file for file, _ in included if file.endswith(".py")}
    for path in sorted(path for path in code if path.is_file()):
        name = path.relative_to(root).as_posix()
        shown = {section for file, section in included if file == name}
        text = path.read_text(encoding="utf-8")
        findings += [
            f"{name}:{n}: {fault}" for n, fault in find_broken_sections(text, shown)
        ]
    for path, text in pages.items():
        place = path.relative_to(root).as_posix()
        findings += [f"{place}:{line}: {fault}" for line, fault in typed_numbers(text)]
    readme = root / "README.md"
    texts = [*pages.values(), *([readme.read_text("utf-8")] if readme.exists() else [])]
    return findings + unused_facts(root, set(FACT.findall("".join(texts))))


def sources(docs: Path) -> Iterator[Path]:
    """Yield every page."""
    for path in sorted(docs.rglob("*.md")):
        if docs / "generated" not in path.parents:
            yield path


def unused_facts(root: Path, used: set[str]) -> list[str]:
    path = root / "docs/generated/facts.yml"
    findings, stem = [], ""
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        name, _, text = line.strip().partition(":")
        if not text:
            stem = name
        elif f"{stem}.{name}" not in used:
            findings.append(
                f"no page uses the fact {stem}.{name}: delete it in tools/render"
            )
    return findings


def typed_numbers(page: str) -> Iterator[tuple[int, str]]:
    """Find measured numbers in the page's prose."""
    # What is no prose keeps its line breaks, for counting lines.
    prose = NOT_PROSE.sub(lambda found: "\0" + "\n" * found[0].count("\n"), page)
    for match in MEASURED.finditer(prose):
        number = " ".join(match[0].split())
        yield (
            prose.count("\n", 0, match.start()) + 1,
            f"the measured number {number!r} is typed by hand: write "
            "{$ facts.<stem>.<name> $} or include a fragment (a number that nobody "
            "measured, such as a setting, goes in `inline code`)",
        )


def find_broken_sections(text: str, shown: set[str]) -> Iterator[tuple[int, str]]:
    """Find sections of a Python file that start and do not end, that no page shows, or
    that a page shows and are not there: snippets pass over them.
    """
    lines: dict[tuple[str, str], int] = {}
    for mark in SECTION.finditer(text):
        line = text.count("\n", 0, mark.start()) + 1
        if lines.setdefault((mark[1], mark[2]), line) != line:
            yield line, f"section {mark[2]!r} has two marks of {mark[1]}"
    starts, ends = (
        {name: at for (kind, name), at in lines.items() if kind == wanted}
        for wanted in ("start", "end")
    )
    for name in starts.keys() | ends.keys() | shown:
        start, end = starts.get(name, 0), ends.get(name, 0)
        if name not in starts:
            yield end or 1, f"a page shows the section {name!r}, which does not start"
        elif end <= start + 1:
            yield start, f"section {name!r} never ends, or is empty"
        elif name not in shown:
            yield start, f"no page shows the section {name!r}: include it or delete it"
