"""What a reader meets on each page: the answer first, a picture early, little code at a
time, nothing too long, nothing too small, no sentence that a template left behind.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.browser.looking import PHONE, TWO_FRAMES, Page

pytestmark = pytest.mark.browser

# Looked up, not read: as long as what they list, and they begin with it.
LOOKED_UP = re.compile(r"api/|(writeup|explorer|reference|errata|bibliography)\.html$")
# These tell how to do something. They have no finding to begin with; some draw none.
HOW_TO = re.compile(r"(setup|cluster|calculator|exercises)\.html$")
UNDRAWN = re.compile(r"(setup|calculator)\.html$")
LAPTOP = {"width": 1280, "height": 800}
# Of a page that speaks of measurements as if there were none, or counts none.
RESIDUE = re.compile(
    r"\bnone of (?:\d|none)|\bwithin [-−+]?0\.0+\s?%|\b[Aa]t most 0\.0+\s?%"
    r"|\bnot looked into|\bnot taken apart|\b[Nn]ot measured yet|[-−]0\.00?\s?%"
)
TEXTS = """() => [...document.querySelectorAll("article :is(p, li, figcaption, dd)")]
    .filter((one) => !one.querySelector("p, li, table"))
    .filter((one) => !one.closest(".provenance, .status"))
    .map((one) => one.textContent)"""
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
    yield from (f"more than 25 lines of code: {listing}" for listing in seen["long"])


def in_words(texts: list[str]) -> Iterator[str]:
    for text in texts:
        if found := RESIDUE.search(text):
            yield f"left behind by a template: {found[0]}"
        for sentence in re.split(r"(?<=[.!?:;])\s+", text):
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
        problems = [*on_a_laptop(name, seen), *in_words(page.evaluate(TEXTS))]
        listings, cut = listings + seen["listings"], cut + seen["cut"]
        drawings |= set(seen["drawings"])
        for size in ("1280", "390"):
            problems += [f"small at {size} pixels: {one}" for one in seen["small"]]
            problems += [f"cut at {size} pixels: {one}" for one in seen["hidden"]]
            page.set_viewport_size(PHONE)
            page.evaluate(TWO_FRAMES)
            seen = page.evaluate(LOOK)
        found += [f"{name}: {problem}" for problem in problems]
    assert found == []
    assert cut <= 0.05 * listings
    assert len(drawings) >= 14
