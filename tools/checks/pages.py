"""Find faults in the guide's sources for `regen_tables.py --check`, such as measured
numbers typed by hand, and marked sections of code that no page shows.

Pages include measured numbers as facts (numbers in sentences), tables or figures, which
are rendered from records. Other numbers, such as settings, are written as inline code.
"""

import re
from collections.abc import Iterator
from pathlib import Path

# Matches what may separate a number from its unit: spaces, * or _, one line break.
GAP = r"(?:[^\S\n]|[*_]|&nbsp;|\n(?![^\S\n]*\n))*"
UNITS = (
    r"[mnµμu]?s|(?:milli|micro|nano)?seconds?|min|minutes?|hours?"
    r"|[kKMGTP]?FLOPS?/s|[KMGT]i?B(?:/s)?|k?W|[kMG]Hz|tokens?(?:/s|[ ]per[ ]second)"
    r"|percent|times[ ](?:faster|slower|as[ ](?:fast|slow|long|much|many))"
)
MEASURED = re.compile(
    rf"""
    # Not part of a name (A100-SXM4-40GB, fp32) or of another number.
    (?<![\w.]) (?<![A-Za-z]-) (?<![A-Za-z]\d-)
    \d (?:[\d.,]*\d)?
    # Followed by a unit or a factor sign (2.1×), but not a size (16×16).
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
    # The address of a link, of a link definition; an attribute of an HTML element.
    | (?<=\]) \( [^()\n]* \)
    | ^[ ]* \[[^\]\n]+\]: [ ]* \S+
    | \b (?:src|href|width|height|style|class|id) ="[^"]*"
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
INCLUDE = re.compile(r'^ *--8<-- "([^":]+):([^"]+)"$', re.MULTILINE)
SECTION = re.compile(r"^ *# --8<-- \[(start|end):([\w-]+)\]$", re.MULTILINE)


def check_pages(root: Path) -> list[str]:
    """Return findings: `path:line: finding` for typed numbers, else `path: finding`."""
    generated = root / "docs/generated"
    pages = {
        path: path.read_text("utf-8", "replace")
        for path in sorted((root / "docs").rglob("*.md"))
        if generated not in path.parents
    }
    shown = {pair for text in pages.values() for pair in INCLUDE.findall(text)}
    findings = []
    code = {path for of in ("systems", "docs") for path in (root / of).rglob("*.py")}
    code |= {root / file for file, _ in shown if file.endswith(".py")}
    for path in sorted(filter(Path.is_file, code)):
        name = path.relative_to(root).as_posix()
        used = {section for file, section in shown if file == name}
        faults = find_broken_snippets(path.read_text(encoding="utf-8"), used)
        findings += [f"{name}: {fault}" for fault in faults]
    for path, text in pages.items():
        place = path.relative_to(root).as_posix()
        findings += [f"{place}:{n}: {fault}" for n, fault in find_typed_numbers(text)]
        findings += [f"{place}: has a merge conflict"] * ("\n>>>>>>> " in text)
        findings += [f"{place}: is not UTF-8"] * ("\N{REPLACEMENT CHARACTER}" in text)
    return findings


def find_broken_snippets(text: str, used: set[str]) -> Iterator[str]:
    """Yield a finding for each marked section of a Python file that lacks its start or
    end mark, or that no page shows (`used`: the names of the shown sections).
    """
    marks = SECTION.findall(text)
    for name in dict.fromkeys(name for _, name in marks):
        if [kind for kind, other in marks if other == name] != ["start", "end"]:
            yield f"section {name!r} needs one start and, below it, one end"
        elif name not in used:
            yield f"no page shows the section {name!r}: include it or delete it"


def find_typed_numbers(page: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, finding) for each measured number in a page's prose."""
    # Keep the line breaks of removed parts, so that line numbers stay correct.
    prose = NOT_PROSE.sub(lambda part: "\0" + "\n" * part[0].count("\n"), page)
    for match in MEASURED.finditer(prose):
        number = " ".join(match[0].split())
        yield (
            prose.count("\n", 0, match.start()) + 1,
            f"the measured number {number!r} is typed by hand: write "
            "{$ facts.<stem>.<name> $} or include a fragment (a number that nobody "
            "measured, such as a setting, goes in `inline code`)",
        )
