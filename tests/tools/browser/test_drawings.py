"""Test figures and drawings in both colour schemes, step by step and in print."""

from pathlib import Path

import pytest

from tests.tools.browser.looking import DESK, PHONE, Page, expect, open_first

pytestmark = pytest.mark.browser


def test_colours_switch_except_in_print(page: Page, pages: list[Path]) -> None:
    ink = "element => getComputedStyle(element).fill"
    word = open_first(page, pages, "svg.plot.wide text").first
    body = page.locator("body")
    expect(body).to_have_attribute("data-md-color-scheme", "default")
    light = word.evaluate(ink)
    for scheme in ("slate", "default", "default", "slate"):
        page.locator("label[for^=__palette]:visible").click()
        expect(body).to_have_attribute("data-md-color-scheme", scheme)
        assert (word.evaluate(ink) != light) == (scheme == "slate")
    page.emulate_media(media="print")
    assert word.evaluate(ink) == light
    scheme = page.locator(":root").evaluate("x => getComputedStyle(x).colorScheme")
    assert scheme == "light", "margins would be dark"


def test_drawings_step_by_keys_and_print_end(page: Page, pages: list[Path]) -> None:
    # This figure opens at its first frame, others at their key frame.
    opens = 'figure.steps:has(ol[data-opens="0"])'
    figure = open_first(page, pages, opens).first
    frames, sentences = figure.locator(".wide .frame"), figure.locator("ol > li")
    expect(frames.first).to_be_visible()
    expect(frames.last).to_be_hidden()
    figure.get_by_role("button", name="Next").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(frames.nth(2)).to_be_visible()
    expect(sentences.nth(2)).to_be_visible()
    expect(frames.first).to_be_hidden()
    expect(sentences.first).to_be_hidden()
    page.keyboard.press("ArrowLeft")
    expect(frames.nth(1)).to_be_visible()
    # Go to the last frame, and from there back to the first.
    for _ in range(frames.count() - 2):
        page.keyboard.press("ArrowRight")
    expect(frames.last).to_be_visible()
    page.set_viewport_size(PHONE)
    expect(frames.last).to_be_hidden()
    expect(figure.locator(".narrow .frame").last).to_be_visible()
    page.set_viewport_size(DESK)
    figure.get_by_role("button", name="From the start").click()
    expect(frames.first).to_be_visible()
    page.emulate_media(media="print")
    expect(frames.last).to_be_visible()
    expect(frames.nth(1)).to_be_hidden()
    for sentence in sentences.all():
        expect(sentence).to_be_visible()
