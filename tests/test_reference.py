"""The quick reference: each call is in the code and on the page that it links. The reference of the code is whole."""

import re

import pytest

from systems.source_hash import ROOT

DOCS = ROOT / "docs"
ROWS = re.findall(
    r"^\| `([^`]+)` \| .+ \| \[[^\]]+\]\((\w+\.md)#[\w-]+\) \|$", (DOCS / "reference.md").read_text(), re.M
)
INCLUDE = re.compile(r'^\s*--8<-- "(systems/[\w/]+\.py):(\w+)"$', re.MULTILINE)


def page_text(name: str) -> str:
    """The page with the code that it shows."""
    text = (DOCS / name).read_text(encoding="utf-8")
    return INCLUDE.sub(lambda match: section(*match.groups()), text)


def section(path: str, name: str) -> str:
    source = (ROOT / path).read_text(encoding="utf-8")
    return source.split(f"[start:{name}]")[1].split(f"[end:{name}]")[0]


def test_every_row_is_read():
    lines = [line for line in (DOCS / "reference.md").read_text().splitlines() if line.startswith("| `")]
    assert len(ROWS) == len(lines) > 30
    assert len({call for call, _ in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("call", "page"), ROWS)
def test_a_call_is_in_the_code_and_on_its_page(call, page):
    name = re.sub(r"\(.*", "", call).split(".")[-1]
    word = re.compile(rf"\b{name}\b")
    assert any(word.search(path.read_text(encoding="utf-8")) for path in (ROOT / "systems").rglob("*.py")), call
    assert word.search(page_text(page)), f"{page} does not show {call}"


def test_the_reference_of_the_code_has_every_module_once():
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    listed = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    files = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "systems").rglob("*.py")]
    modules = {".".join(file.parts).removesuffix(".__init__") for file in files}
    # The page on experiments lists the modules of their package by itself.
    wanted = {name for name in modules if name != "systems" and not name.startswith("systems.experiments.")}
    assert len(listed) == len(set(listed))
    assert set(listed) == wanted, "each module of systems needs one line `::: name` on a page of docs/api"
