"""What must never stand in the guide's sources: measured numbers typed by hand, and snippet marks that show no code.

    python tools/check_pages.py

`check_pages(root)` gives each finding as `path:line: finding`. A measured number belongs in a fact or a fragment, which
follow the records; one that no record gives (a setting, a datasheet's figure) is written as inline code.
"""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

SOURCES = ("systems", "tools", "tests")

UNITS = "|".join(
    (
        r"[mnµμu]?s|(?:milli|micro|nano)?seconds?|min|minutes?|hours?",
        r"[kKMGTP]?FLOPS?/s|[KMGT]i?B(?:/s)?|k?W|[kMG]Hz|tokens?(?:/s| per second)",
        r"percent|per cent|times (?:faster|slower|as (?:fast|slow|long|much|many))",
    )
)
# Between a number and its unit: spaces, at most one line break, emphasis, a non-breaking space.
GAP = r"(?:[^\S\n]|[*_]|&nbsp;|&thinsp;|\n(?![^\S\n]*\n))*"
MEASURED = re.compile(
    # Not inside a name (A100-SXM4-40GB, fp32) or another number.
    r"(?<![\w.])(?<![A-Za-z]-)(?<![A-Za-z]\d-)\d(?:[\d.,]*\d)?"
    rf"(?:{GAP}(?:%|(?:{UNITS})(?![\w/]))"
    # A factor, but not a product: 2.1× and 2.1 x faster, not 16×16, 4 x 512 or 2 × width.
    r"|[×x](?![^\S\n]*[\d\w\0])|[^\S\n]?[×x](?=[^\S\n]*(?:[.,;:!?)|]|$|(?:as|faster|slower|more|less|the|of|over)\b)))",
    re.MULTILINE,
)
FENCE = re.compile(r"[\s>]*(`{3,}(?=[^`]*$)|~{3,})")
NOT_PROSE = re.compile(
    r"<!--.*?-->"
    r"|(?P<ticks>(?<!`)`+(?!`))(?:(?!\n\s*\n).)+?(?<!`)(?P=ticks)(?!`)"
    r"|\{\$.*?\$\}"
    r"|(?<=\])\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)|^ *\[[^\]\n]+\]: *\S+|\w+://[^\s<>)]+"
    r"|\b(?:src|href|width|height|style|class|id)=\"[^\"]*\"",
    re.DOTALL | re.MULTILINE,
)
MATHS = re.compile(r"\\\(.*?\\\)|\\\[.*?\\\]", re.DOTALL)
MARK = re.compile(r"-+8<-+")
INCLUDE = re.compile(r'\s*--8<-- "([^":]+)(?::([^"]*))?"$')
SECTION = re.compile(r"# --8<-- \[(start|end):([A-Za-z][-\w]*)\]$")


def check_pages(root: Path) -> list[str]:
    """Every finding in the pages and in the Python sources of this tree, in order of the files."""
    findings: list[str] = []
    sections: dict[str, dict[str, int]] = {}
    for path in sorted(path for folder in SOURCES for path in (root / folder).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        sections[name] = {}
        findings += [f"{name}:{line}: {text}" for line, text in _check_source(path, sections[name])]
    included: set[tuple[str, str]] = set()
    for path in sorted((root / "docs").rglob("*.md")):
        if path.relative_to(root).parts[1] == "generated":
            continue
        text, name = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
        found = [*_includes(text, root, sections, included), *_typed_numbers(text)]
        findings += [f"{name}:{line}: {finding}" for line, finding in sorted(found)]
    for name, starts in sections.items():
        findings += [
            f'{name}:{line}: no page shows the section {section!r}: include it (--8<-- "{name}:{section}") or delete it'
            for section, line in starts.items()
            if (name, section) not in included
        ]
    return findings


def _typed_numbers(page: str) -> Iterator[tuple[int, str]]:
    prose, still_open = _without_code_blocks(page)
    if still_open:
        yield still_open, "this code block is never closed: end it with the same marks"
    prose = MATHS.sub(_units_of_maths, NOT_PROSE.sub(_blank, prose))
    for match in MEASURED.finditer(prose):
        number = " ".join(match[0].split())
        yield (
            prose.count("\n", 0, match.start()) + 1,
            f"the measured number {number!r} is typed by hand: write {{$ facts.<stem>.<name> $}} or include a fragment"
            " (a number that nobody measured, such as a setting, goes in `inline code`)",
        )


def _blank(match: re.Match[str]) -> str:
    """Something that is no number, no unit and no space, with the lines kept for counting."""
    return "\0" + "\n" * match[0].count("\n")


def _units_of_maths(match: re.Match[str]) -> str:
    """In maths a letter is a variable (2x, 4s), and only \\text and \\mathrm can hold a unit."""
    parts = re.split(r"\\(?:text|mathrm)\{([^{}]*)\}", re.sub(r"\\[,;:! ]", " ", match[0]))
    parts[::2] = [re.sub(r"[A-Za-z×]", "\0", part.replace("\\%", "%")) for part in parts[::2]]
    return "".join(parts)


def _without_code_blocks(page: str) -> tuple[str, int]:
    """The page with code blocks and include lines emptied; the line of a block that is never closed, or 0."""
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


def _includes(
    page: str, root: Path, sections: dict[str, dict[str, int]], included: set[tuple[str, str]]
) -> Iterator[tuple[int, str]]:
    """Findings about the page's include lines, inside code blocks too (that is how code is shown); fills `included`."""
    visible = NOT_PROSE.sub(_blank, _without_code_blocks(page)[0]).split("\n")
    for number, line in enumerate(page.splitlines(), 1):
        # `;` before a mark shows it as text; inline code and comments show or hide it.
        if not MARK.search(line) or line.lstrip().startswith(";"):
            continue
        match = INCLUDE.match(line)
        if match is None:
            if visible[number - 1] == "\0" or MARK.search(visible[number - 1]):
                yield number, 'badly formed include: the whole line must be --8<-- "path:section", nothing after it'
            continue
        target, section = match[1], match[2]
        file = next((base / target for base in (root, root / "docs") if (base / target).is_file()), None)
        if file is None:
            remedy = "run tools/regen_tables.py --render" if target.startswith("generated/") else "correct the path"
            yield number, f"includes {target!r}, which is neither in the repository nor in docs/: {remedy}"
        elif section is not None:
            key = (file.relative_to(root).as_posix(), section)
            included.add(key)
            there = sections.get(key[0]) or re.findall(r"\[start:([\w-]+)\]", file.read_text(encoding="utf-8"))
            if section not in there:
                yield number, f"includes the section {section!r} of {target}, which has: {', '.join(there) or 'none'}"


def _check_source(path: Path, starts: dict[str, int]) -> Iterator[tuple[int, str]]:
    """Findings about the section markers of one Python file; fills `starts` with the line of each section."""
    lines = path.read_text(encoding="utf-8").splitlines()
    markers = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
            if token.type == tokenize.COMMENT and MARK.search(token.string):
                markers[token.start[0]] = SECTION.match(lines[token.start[0] - 1].strip())
    except (tokenize.TokenError, SyntaxError) as error:
        yield 1, f"can't be read as Python ({error}), so its markers are not checked"
        return
    opened: dict[str, int] = {}
    for number, match in markers.items():
        if match is None:
            yield number, "badly formed marker: the whole line must be # --8<-- [start:name] or # --8<-- [end:name]"
        elif match[1] == "start":
            name = match[2]
            if name in starts:
                yield number, f"section {name!r} starts twice (first on line {starts[name]}), and pages show the first"
            opened[name] = number
            starts.setdefault(name, number)
        elif (start := opened.pop(match[2], None)) is None:
            yield number, f"section {match[2]!r} ends but never started: add its start marker or delete this one"
        elif not any(lines[i - 1].strip() for i in range(start + 1, number) if i not in markers):
            yield start, f"section {match[2]!r} is empty, and a page would show an empty block"
    for name, number in opened.items():
        yield number, f"section {name!r} never ends, and a page would show the rest of the file: add its end marker"


if __name__ == "__main__":
    found = check_pages(Path(__file__).resolve().parent.parent)
    print("\n".join(found) or "no findings")
    sys.exit(1 if found else 0)
