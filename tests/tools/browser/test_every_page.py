"""Test that pages fit screens and paper, are accessible, and open with an answer."""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.browser import looking
from tools.render.spanning.glossary import FILE

pytestmark = pytest.mark.browser

# A4 at 96 pixels an inch, less its margins, printed at a scale of 0.8.
PAPER = {"width": 860, "height": 1200}
# Pages for looking things up, which may be long and need no opening answer.
LOOKED_UP = re.compile(r"api/|(writeup|explorer|reference|errata|bibliography)\.html$")
# How-to pages, which have no finding.
HOW_TO = re.compile(
    r"(index|setup|hand_in|test_fails|cluster|calculator|exercises)\.html$"
)
# Pages without a picture.
UNDRAWN = re.compile(
    r"api/|notebooks/exercises|"
    r"(setup|hand_in|test_fails|calculator|writeup|reference|bibliography)\.html$"
)
# Pages whose tables have headings instead of captions.
HEADED = re.compile(r"api/|(reference|bibliography)\.html$")
# Long tables that are shown completely, because they are the page's subject.
LONG = re.compile(r"\. (Every graded problem|The graded problems)")
# Phrases that templates produce from numbers that are missing or round to zero.
RESIDUE = re.compile(
    r"\bnone of (?:\d|none)|\bwithin [-−+]?0\.0+\s?%|\bat most 0\.0+\s?%"
    r"|\bnot looked into|\bnot taken apart|\bnot measured yet|[-−]0\.00?\s?%",
    re.IGNORECASE,
)
# Contrast alone takes most of axe's time.
CONTRAST = {"runOnly": ["color-contrast"]}
ALL_BUT_CONTRAST = {"rules": {"color-contrast": {"enabled": False}}}
# Rules that depend on the page's width.
SCROLLING = {"runOnly": ["scrollable-region-focusable"]}
# axe can't compute contrast over these shadows, and would skip it silently.
UNSHADED = ".table-frame, .arithmatex, pre > code { background-image: none !important }"


def glossary_terms() -> dict[str, str]:
    """Return the glossary's term for each form of a word, the longest forms first."""
    groups = tomllib.loads(FILE.read_text(encoding="utf-8"))["group"]
    forms = {
        form: term["name"]
        for group in groups
        for term in group["term"]
        for name in (term["name"], *term.get("also", ()))
        for form in (name, name[0].upper() + name[1:])
    }
    return dict(sorted(forms.items(), key=lambda one: -len(one[0])))


@pytest.mark.parametrize("quarter", range(4))
def test_every_page_fits_and_is_accessible(
    page: looking.Page, pages: list[Path], site: Path, quarter: int
) -> None:
    page.context.add_init_script(path=Path(__file__).with_name("look.js"))
    # Disable transitions, during which axe could read intermediate colours.
    page.emulate_media(reduced_motion="reduce")
    words = glossary_terms()
    found, seen = [], Counter[str]()
    for path in pages[quarter::4]:
        name = path.relative_to(site).as_posix()
        page.goto(path.as_uri())
        looking.expect(page.locator("article h1")).to_have_count(1)
        found += [f"{name}: {finding}" for finding in find_faults(page, name, words)]
        seen.update(page.evaluate("look.counts()"))
    assert found == []
    # Only the quarter with the page flash_forward must have drawings with steps.
    steps = seen.pop(".wide .frame")
    assert steps or all(path.stem != "flash_forward" for path in pages[quarter::4])
    assert min(seen.values()) > 0, seen


def find_faults(page: looking.Page, name: str, words: dict[str, str]) -> Iterator[str]:
    def run_checks(*functions: str) -> list[str]:
        return [one for f in functions for one in page.evaluate(f"look.{f}()")]

    def resize(size: Any) -> None:
        page.set_viewport_size(size)
        # Scrolling elements become focusable only after layout.
        page.evaluate(looking.TWO_FRAMES)

    yield from layout_faults(name, page.evaluate("look.layout()"))
    yield from check_at("1280", run_checks, "fits", "opening")
    if not HEADED.search(name):
        yield from run_checks("captions")
        for table, rows in page.evaluate("look.rowsOpen()"):
            if rows > 8 and not LONG.search(table):
                yield f"{table} opens with {rows} rows"
    # The code reference and notebooks have no glossary tooltips.
    if not name.startswith(("api/", "notebooks/")):
        yield from page.evaluate("words => look.unexplained(words)", words)
    page.evaluate(looking.AXE_SCRIPT)
    style = page.add_style_tag(content=UNSHADED)
    page.evaluate("look.markFirst()")
    yield from axe_violations(page, SCROLLING)
    yield from axe_violations(page, CONTRAST)
    page.emulate_media(color_scheme="dark")
    body = page.locator("body")
    looking.expect(body).to_have_attribute("data-md-color-scheme", "slate")
    yield from axe_violations(page, CONTRAST)
    # Check the navigation, common to all pages, once.
    yield from axe_violations(page, {}) if name == "index.html" else ()
    page.emulate_media(color_scheme="light")
    style.evaluate("style => style.remove()")
    resize(looking.PHONE)
    yield from check_at("390", run_checks, "fits", "commands")
    yield from axe_violations(page, ALL_BUT_CONTRAST)
    page.evaluate("look.openFolds()")
    page.evaluate(looking.TWO_FRAMES)
    yield from check_at("390, open", run_checks, "figures", "squeezed", "broken")
    resize(looking.DESK)
    yield from check_at("1280, open", run_checks, "figures", "cutNarrowly", "touching")
    yield from prose_faults(**page.evaluate("look.prose()"))
    page.emulate_media(media="print")
    resize(PAPER)
    yield from check_at("paper", run_checks, "touching")
    page.emulate_media(media="screen")
    page.set_viewport_size(looking.DESK)


def check_at(where: str, look: Callable[..., list[str]], *names: str) -> Iterator[str]:
    yield from (f"{finding} (at {where})" for finding in look(*names))


def layout_faults(name: str, seen: dict[str, Any]) -> Iterator[str]:
    """Yield faults of a page's layout on a wide screen, with folds closed."""
    if not LOOKED_UP.search(name):
        if seen["height"] > 10_000:
            yield f"{seen['height']} pixels long"
        if seen["code"] > 0.4:
            yield f"{seen['code']:.0%} of it is code"
        if not HOW_TO.search(name) and seen["answer"] > 1000:
            yield "the answer does not come first"
        if not UNDRAWN.search(name) and seen["picture"] > 1200:
            yield "no picture on the first screens"
    if not (UNDRAWN.search(name) or seen["drawn"]):
        yield "no picture"
    if seen["wide"] > max(1, 0.1 * seen["listings"]):
        yield f"{seen['wide']} of {seen['listings']} listings scroll sideways"
    yield from (f"more than 25 lines of code: {listing}" for listing in seen["long"])


def prose_faults(shown: str, texts: list[str]) -> Iterator[str]:
    for found in RESIDUE.finditer(shown):
        yield f"left behind by a template: {found[0]}"
    for text in texts:
        for sentence in re.split(r"(?<=[.!?])\s+", text):
            if len(sentence.split()) > 45:
                yield f"more than 45 words: {sentence}"


def axe_violations(page: looking.Page, options: dict) -> Iterator[str]:
    """Yield axe's findings of any severity, with the first element."""
    # Style sheets can't be read from file://, so don't preload them.
    options = {"resultTypes": ["violations"], "preload": False, **options}
    part = "[data-first]" if options.get("runOnly") == ["color-contrast"] else "html"
    answer = page.evaluate(
        "([part, options]) => axe.run({ include: [[part]] }, options)", [part, options]
    )
    for one in answer["violations"]:
        html = one["nodes"][0]["html"][:200]
        yield f"{one['id']} ({one['impact']}): {html}"
