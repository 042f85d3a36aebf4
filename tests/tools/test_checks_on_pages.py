"""Python sessions on pages print the output shown; sessions on a page share state."""

import doctest
import re

import pytest

from systems import ROOT

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
