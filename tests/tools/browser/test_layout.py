"""What a reader meets on each page: the answer first, a picture early, little code at a
time, nothing too long, nothing too small, no sentence that a template left behind.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.browser.looking import OPEN_FOLDS, PHONE, TWO_FRAMES, Page
from tools.render.spanning.glossary import FILE

pytestmark = pytest.mark.browser

# Looked up, not read: as long as what they list, and they begin with it.
LOOKED_UP = re.compile(r"api/|(writeup|explorer|reference|errata|bibliography)\.html$")
# These tell how to do something, and have no finding to begin with.
HOW_TO = re.compile(r"(setup|hand_in|test_fails|cluster|calculator|exercises)\.html$")
# Every other page has a picture.
UNDRAWN = re.compile(
    r"api/|(setup|hand_in|test_fails|calculator|writeup|reference|bibliography)\.html$"
)
LAPTOP = {"width": 1280, "height": 800}
# Of a page that speaks of measurements as if there were none, or counts none.
RESIDUE = re.compile(
    r"\bnone of (?:\d|none)|\bwithin [-−+]?0\.0+\s?%|\bat most 0\.0+\s?%"
    r"|\bnot looked into|\bnot taken apart|\bnot measured yet|[-−]0\.00?\s?%",
    re.IGNORECASE,
)
TEXTS = """() => [...document.querySelectorAll("article :is(p, li, figcaption, dd)")]
    .filter((one) => !one.querySelector("p, li, table"))
    .filter((one) => !one.closest(".provenance, .status"))
    .map((one) => one.textContent)"""
# All that a page shows once its folds are open.
SHOWN = "() => document.querySelector('article').innerText"
LOOK = """() => {
    const all = (selector) => [...document.querySelectorAll(`article :is(${selector})`)]
        .filter((one) => one.checkVisibility())
    const top = (one) => one ? one.getBoundingClientRect().top + scrollY : Infinity
    const lines = (one) => one.textContent.split("\\n").filter((line) => line.trim())
    const isShort = (one) => one.matches("p") || one.textContent.startsWith("In short")
    const isWide = (one) => one.scrollWidth > one.clientWidth + 1
    const shaded = (one) => getComputedStyle(one).backgroundImage.includes("gradient")
    const says = (one) => [...one.childNodes]
        .some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim())
    // In a drawing a pixel is as large as the drawing makes it.
    const letters = (one) => parseFloat(getComputedStyle(one).fontSize)
        * (one.closest("svg")?.getScreenCTM().a ?? 1)
    const small = (one) => says(one) && !one.closest("math") && letters(one) < 9.95
    const listings = all("pre")
    const name = (one) => one.textContent.trim().slice(0, 40)
    const height = document.documentElement.scrollHeight
    return {
        height,
        answer: top(all("p.in-short, h2").find(isShort)),
        picture: top(all("figure, svg.drawing")[0]),
        drawn: all("figure, svg.drawing, .chart svg, #calculator .bars").length,
        drawings: all("figure:has(svg.drawing)").map((one) => one.textContent),
        long: listings.filter((one) => lines(one).length > 25).map(name),
        code: listings.reduce((sum, one) => sum + one.clientHeight, 0) / height,
        listings: listings.length,
        cut: listings.filter((one) => isWide(one.querySelector("code") ?? one)).length,
        small: all("*").filter(small).map(name),
        hidden: all(".arithmatex, pre > code, .table-frame")
            .filter((one) => isWide(one) && !shaded(one)).map(name),
    }
}"""


def on_a_laptop(name: str, seen: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a page at 1,280 x 800, its folds closed."""
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
    yield from (f"more than 25 lines of code: {listing}" for listing in seen["long"])


def in_words(shown: str, texts: list[str]) -> Iterator[str]:
    for found in RESIDUE.finditer(shown):
        yield f"left behind by a template: {found[0]}"
    for text in texts:
        for sentence in re.split(r"(?<=[.!?])\s+", text):
            if len(sentence.split()) > 45:
                yield f"more than 45 words: {sentence}"


def test_every_page_answers_first_and_is_no_longer_or_smaller_than_can_be_read(
    page: Page, pages: list[Path], site: Path
) -> None:
    found, drawings, listings, cut = [], set(), 0, 0
    for path in pages:
        name = path.relative_to(site).as_posix()
        page.set_viewport_size(LAPTOP)
        page.goto(path.as_uri())
        seen = page.evaluate(LOOK)
        problems = [*on_a_laptop(name, seen)]
        listings, cut = listings + seen["listings"], cut + seen["cut"]
        drawings |= set(seen["drawings"])
        for size in ("1280", "390"):
            problems += [f"small at {size} pixels: {one}" for one in seen["small"]]
            problems += [f"cut at {size} pixels: {one}" for one in seen["hidden"]]
            page.set_viewport_size(PHONE)
            page.evaluate(TWO_FRAMES)
            seen = page.evaluate(LOOK)
        page.evaluate(OPEN_FOLDS)
        problems += in_words(page.evaluate(SHOWN), page.evaluate(TEXTS))
        found += [f"{name}: {problem}" for problem in problems]
    assert found == []
    assert cut <= 0.05 * listings
    assert len(drawings) >= 14


# The first place in a page's prose of each word, if it is not explained there. What
# opens, names or links something else explains nothing.
UNEXPLAINED = """(words) => {
    const skipped = "h1, h2, h3, h4, code, pre, a, summary, details, figure, table,"
        + "button, label, svg, math, .provenance, .tag, .stale, .status,"
        + ".below, .all, .terms, #explorer, #calculator"
    const pattern = new RegExp(`\\\\b(?:${Object.keys(words).join("|")})\\\\b`, "g")
    const [seen, found] = [new Set(), []]
    const texts = document.createTreeWalker(
        document.querySelector("article"), NodeFilter.SHOW_TEXT)
    for (let text; (text = texts.nextNode()); ) {
        const within = text.parentElement
        if (!within.checkVisibility() || within.closest(skipped)) continue
        for (const [form] of text.data.matchAll(pattern)) {
            if (seen.has(words[form])) continue
            seen.add(words[form])
            if (!within.closest("abbr")) found.push(`${form} in: ${text.data.trim()}`)
        }
    }
    return found
}"""


def test_words_of_the_glossary_are_explained_where_a_page_first_uses_them(
    page: Page, pages: list[Path], site: Path
) -> None:
    groups = tomllib.loads(FILE.read_text(encoding="utf-8"))["group"]
    forms = {
        form: term["name"]
        for group in groups
        for term in group["term"]
        for name in (term["name"], *term.get("also", ()))
        for form in (name, name[0].upper() + name[1:])
    }
    longest_first = dict(sorted(forms.items(), key=lambda one: -len(one[0])))
    found = []
    for path in pages:
        name = path.relative_to(site).as_posix()
        # Notebooks are rendered without the glossary.
        if name.startswith(("api/", "notebooks/")):
            continue
        page.goto(path.as_uri())
        words = page.evaluate(UNEXPLAINED, longest_first)
        found += [f"{name}: {word[:90]}" for word in words]
    assert found == []
