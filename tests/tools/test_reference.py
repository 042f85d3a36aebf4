"""Test both references, and on pages provenance folds and Python sessions."""

import doctest
import re

import pytest
from markdown.extensions.toc import slugify

from systems import ROOT

DOCS = ROOT / "docs"
TEXT = (DOCS / "reference.md").read_text(encoding="utf-8")
ROW = r"^\| \[?`([^`]+)`(?:\]\[\S+\])? \| .+ \| \[[^\]]+\]\((\w+\.md)#([\w-]+)\) \|$"
ROWS = re.findall(ROW, TEXT, re.MULTILINE)
INCLUDE = re.compile(r'^\s*--8<-- "(systems/[\w/]+\.py):(\w+)"$', re.MULTILINE)

FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# A heading may name its anchor: `## Title { #anchor }`.
HEADING = re.compile(r"^(#+) (.+?)(?: \{ #([\w-]+) \})?$", re.MULTILINE)


def text_under_heading(page: str, anchor: str) -> str:
    """Return the text below the heading with this anchor, including snippets."""
    text = (DOCS / page).read_text(encoding="utf-8")
    # Lines that begin with # in code are no headings.
    without_code = FENCED.sub(lambda match: "." * len(match[0]), text)
    headings = list(HEADING.finditer(without_code))
    anchors = [heading[3] or slugify(heading[2], "-") for heading in headings]
    first, *later = headings[anchors.index(anchor) :]
    ends = (other.start() for other in later if len(other[1]) <= len(first[1]))
    return INCLUDE.sub(
        lambda match: read_snippet(*match.groups()),
        text[first.end() : next(ends, len(text))],
    )


def read_snippet(path: str, name: str) -> str:
    source = (ROOT / path).read_text(encoding="utf-8")
    return source.split(f"[start:{name}]")[1].split(f"[end:{name}]")[0]


def test_all_reference_rows_are_parsed():
    assert len(ROWS) == len(re.findall(r"^\| \[?`.*", TEXT, re.MULTILINE)) > 30
    assert len({call for call, *_ in ROWS}) == len(ROWS)


SOURCES = "".join(path.read_text("utf-8") for path in (ROOT / "systems").rglob("*.py"))


@pytest.mark.parametrize(("call", "page", "anchor"), ROWS)
def test_reference_calls_exist_in_code_and_section(call, page, anchor):
    name = re.sub(r"\(.*", "", call)
    # Sections name tl functions in full, because formulas use max, and torch functions
    # by their last part.
    shown = name if name.startswith("tl.") else name.split(".")[-1]
    word = re.compile(rf"\b{re.escape(shown)}\b")
    assert word.search(SOURCES) and word.search(text_under_heading(page, anchor))


def test_code_reference_has_every_module_once():
    pages = "".join(page.read_text("utf-8") for page in (DOCS / "api").glob("*.md"))
    listed = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    # A package with only a docstring has no entry.
    files = [
        path.relative_to(ROOT).with_suffix("")
        for path in (ROOT / "systems").rglob("*.py")
        if len(path.read_text(encoding="utf-8").splitlines()) > 1
    ]
    modules = {".".join(file.parts).removesuffix(".__init__") for file in files}
    assert sorted(listed) == sorted(modules - {"systems"}), "a line `::: name` for each"


@pytest.mark.parametrize("path", sorted((DOCS / "api").glob("*.md")))
def test_linked_names_are_in_the_top_table(path):
    top, below = path.read_text(encoding="utf-8").split("\n## Module by module\n")
    listed = re.findall(r"^\| \[`(\w+)`\]\[(systems\.[\w.]+)\] \| \S", top, re.M)
    assert len(listed) == len(re.findall(r"^\| \[", top, re.MULTILINE)) > 5
    modules = set(re.findall(r"^::: (\S+)$", below, re.MULTILINE))
    # Linked names open expanded, so the top table must list them.
    linked = {
        name
        for page in DOCS.rglob("*.md")
        for name in re.findall(r"\]\[(systems\.[\w.]+)\]", page.read_text())
        if name in modules or name.rpartition(".")[0] in modules
    }
    assert {name for _, name in listed} == linked
    assert all(name.endswith(f".{label}") for label, name in listed)


SESSION = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {
    path.name: "\n".join(found)
    for path in sorted((ROOT / "docs").glob("*.md"))
    if (found := SESSION.findall(path.read_text(encoding="utf-8")))
}


@pytest.mark.parametrize("page", PAGES)
def test_page_sessions_print_the_shown_output(page):
    test = doctest.DocTestParser().get_doctest(PAGES[page], {}, page, page, 0)
    lines: list[str] = []
    assert test.examples
    doctest.DocTestRunner(verbose=False).run(test, out=lines.append)
    assert not lines, "".join(lines)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_page_describes_the_records_of_its_facts(page):
    # The ladder's facts come from `flash_ablation`.
    text = page.read_text("utf-8").replace("facts.ladder.", "facts.flash_ablation.")
    known = re.findall(r"start:(\w+)", (DOCS / "generated/conditions.md").read_text())
    used = {*known} & {*re.findall(r"\bfacts\.(\w+)\.", text)}
    assert used <= {*re.findall(r"conditions\.md:(\w+)", text)}
