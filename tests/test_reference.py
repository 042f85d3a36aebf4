"""The quick reference: each call that it lists is in the code, and on the page that it links."""

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
