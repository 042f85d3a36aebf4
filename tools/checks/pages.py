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

from tools.render.spanning.pages import sources

SPACE = r"[^\S\n]"
# Between a number and its unit: spaces, emphasis, a non-breaking space, and at most one
# line break.
GAP = rf"(?:{SPACE}|[*_]|&nbsp;|&thinsp;|\n(?!{SPACE}*\n))*"
UNITS = (
    r"[mnµμu]?s|(?:milli|micro|nano)?seconds?|min|minutes?|hours?"
    r"|[kKMGTP]?FLOPS?/s|[KMGT]i?B(?:/s)?|k?W|[kMG]Hz|tokens?(?:/s|[ ]per[ ]second)"
    r"|percent|per[ ]cent|times[ ](?:faster|slower|as[ ](?:fast|slow|long|much|many))"
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
NOT_PROSE = re.compile(
    r"""
    # A code block.
    ^[ \t>]* (?P<fence>`{3,}|~{3,}) [^`\n]*\n .*?^[ \t>]* (?P=fence) [`~]* [ ]*$
    | ^[ ]* --8<--[ ] [^\n]*
    | <!--.*?-->
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
INCLUDE = re.compile(r"""^ *--8<-- ["']([^":]+):([^"']+)["']$""", re.MULTILINE)
MARK = re.compile(r"-+8<-+")
SECTION = re.compile(r"# --8<-- \[(start|end):([A-Za-z][-\w]*)\]$")


def check_pages(root: Path) -> list[str]:
    """Return every finding in the pages and in the Python sources of this tree, as
    `path:line: finding`.
    """
    docs = dict(sources(root / "docs"))
    texts = {name: path.read_text(encoding="utf-8") for name, path in docs.items()}
    included = {found for text in texts.values() for found in INCLUDE.findall(text)}
    findings = []
    for path in sorted(
        p for f in ("systems", "tools", "tests") for p in (root / f).rglob("*.py")
    ):
        name = path.relative_to(root).as_posix()
        starts: dict[str, int] = {}
        faults = [*check_markers(path, starts)]
        faults += [
            (line, f"no page shows the section {section!r}: include it or delete it")
            for section, line in starts.items()
            if (name, section) not in included
        ]
        faults += [
            (1, f"a page shows the section {section!r}, which is not here")
            for file, section in sorted(included)
            if file == name and section not in starts
        ]
        findings += [f"{name}:{line}: {fault}" for line, fault in faults]
    for name, text in texts.items():
        place = docs[name].relative_to(root).as_posix()
        findings += [f"{place}:{line}: {fault}" for line, fault in typed_numbers(text)]
    readme = root / "README.md"
    shown = "".join(texts.values()) + (
        readme.read_text("utf-8") if readme.is_file() else ""
    )
    return findings + unused_facts(root, set(FACT.findall(shown)))


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
    prose = MATHS.sub(units_of_maths, NOT_PROSE.sub(blank, page))
    for match in MEASURED.finditer(prose):
        number = " ".join(match[0].split())
        yield (
            prose.count("\n", 0, match.start()) + 1,
            f"the measured number {number!r} is typed by hand: write "
            "{$ facts.<stem>.<name> $} or include a fragment (a number that nobody "
            "measured, such as a setting, goes in `inline code`)",
        )


def blank(match: re.Match[str]) -> str:
    """No number, no unit and no space. The line breaks stay, for counting lines."""
    return "\0" + "\n" * match[0].count("\n")


def units_of_maths(match: re.Match[str]) -> str:
    """In maths a letter is a variable (2x, 4s): only \\text and \\mathrm hold units."""
    text = re.sub(r"\\[,;:! ]", " ", match[0]).replace("\\%", "%")
    parts = re.split(r"\\(?:text|mathrm)\{([^{}]*)\}", text)
    parts[::2] = [re.sub(r"[A-Za-z×]", "\0", part) for part in parts[::2]]
    return "".join(parts)


def check_markers(path: Path, starts: dict[str, int]) -> Iterator[tuple[int, str]]:
    """Find faults of the section markers of one Python file that snippets pass over.
    Fills `starts` with the line of each section.
    """
    text = path.read_text(encoding="utf-8")
    lines, opened = text.splitlines(), dict[str, int]()
    marked = (
        [
            token.start[0]
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.COMMENT and MARK.search(token.string)
        ]
        if MARK.search(text)
        else []
    )
    for number in marked:
        match = SECTION.match(lines[number - 1].strip())
        if match is None:
            yield (
                number,
                "badly formed marker: write # --8<-- [start:name] or [end:name]",
            )
        elif match[1] == "start":
            if match[2] in starts:
                yield (
                    number,
                    f"section {match[2]!r} starts twice, and pages show the first",
                )
            opened[match[2]] = number
            starts.setdefault(match[2], number)
        elif (start := opened.pop(match[2], None)) is None:
            yield number, f"section {match[2]!r} ends but never started"
        elif not any(
            lines[i - 1].strip() for i in range(start + 1, number) if i not in marked
        ):
            yield start, f"section {match[2]!r} is empty"
    for name, number in opened.items():
        yield (
            number,
            f"section {name!r} never ends: a page would show the rest of the file",
        )
