"""Test tabs, copy buttons, folds and links of pages in the browser."""

import re
from pathlib import Path

import pytest

from tests.tools.browser.looking import OPEN_FOLDS, TWO_FRAMES, Page, expect, open_first
from tools.submission import PREPARE_PAGE

pytestmark = pytest.mark.browser


def test_selected_tab_is_kept_across_pages(page: Page, site: Path) -> None:
    # The last tab is of a GPU that others reported, on all of these pages.
    last = ".tabbed-labels label:last-child:visible"
    page.goto((site / "warmup.html").as_uri())
    name = page.locator(last).first.inner_text()
    block = page.locator(".tabbed-set", has=page.locator(last)).first
    block = block.locator(".tabbed-block").last
    expect(block).to_be_hidden()
    # Until the theme's script has added these, it would not store a choice.
    expect(page.locator(".tabbed-control").first).to_be_attached()
    page.locator(last).first.click()
    expect(block).to_be_visible()
    page.goto((site / "end_to_end.html").as_uri())
    # Check the same inside folds, after opening them.
    page.evaluate(OPEN_FOLDS)
    labels = page.locator(".tabbed-labels label", has_text=re.compile(f"^{name}$"))
    assert labels.count()
    for label in labels.all():
        expect(page.locator(f"#{label.get_attribute('for')}")).to_be_checked()
    page.goto((site / "writeup.html").as_uri())
    firsts = page.locator(".tabbed-set > input:first-of-type")
    checked = "all => all.map((one) => one.checked)"
    assert firsts.count() > 3 and all(firsts.evaluate_all(checked))
    # In the write-up, choosing another GPU's tab changes only this set of tabs.
    page.locator(last).first.click()
    page.evaluate(TWO_FRAMES)
    assert firsts.evaluate_all(checked).count(False) == 1


def test_copied_commands_contain_no_prompt(page: Page, pages: list[Path]) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    block = open_first(page, pages, ".language-console:visible").first
    button = block.locator(".md-code__button[data-md-type=copy]")
    expect(button).to_be_visible()
    assert block.locator("code").inner_text().startswith("$ ")
    button.click()
    expect(page.locator(".md-dialog")).to_contain_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied
    assert not re.search(r"^\s*\$", copied, re.MULTILINE), copied


def make_tabs(text: str, *labels: str) -> str:
    blocks = f"<div class=tabbed-block>{text}</div>" * len(labels)
    names = "".join(f"<label>{label}</label>" for label in labels)
    tabs = f"<div class=tabbed-labels>{names}</div><div class=tabbed-content>{blocks}"
    return f"<div class=tabbed-set>{tabs}</div></div>"


def test_printing_keeps_own_tabs_and_web_links_and_names_what_is_missing(page):
    table = "7<p class=provenance>source</p>"
    tabs = "".join(make_tabs(table, f"{gpu}, reported") for gpu in ("A100", "L4"))
    tabs += make_tabs("mine", "H200", "laptop")
    tabs += f"<details class=claims>{make_tabs('holds', 'H200', 'L4')}</details>"
    links = '<p><a href="warmup.html">y</a><a href="https://a.b">x</a></p>'
    page.set_content(
        f"<article><h1>T</h1>{links}<p class=status>not measured yet</p>{tabs}"
        '<img src="no.png"></article>'
    )
    found = page.evaluate(PREPARE_PAGE, ["H200", False, "T", "S"])
    assert found == [["warmup.html"], ["no.png"]]
    article = page.locator("article").inner_html()
    assert '<p>y<a href="https://a.b">x</a></p>' in article
    assert "reported" not in article and article.count("not measured") == 3
    assert (article.count("mine"), article.count("holds")) == (2, 1)


def test_wide_elements_align_and_folds_break_in_print(page, site):
    edges = """() => [...document.querySelectorAll(
            "article > :is(.highlight, .table-frame:has(.dense), details, figure)")]
        .filter((one) => one.checkVisibility())
        .map((one) => Math.round(one.getBoundingClientRect().right))"""
    for name in ("peak_memory", "end_to_end", "compile"):
        page.goto((site / f"{name}.html").as_uri())
        for width in (1280, 1920):
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate(TWO_FRAMES)
            assert len(set(page.evaluate(edges))) == 1, (name, width)
    page.emulate_media(media="print")
    inside = "all => [...new Set(all.map((one) => getComputedStyle(one).breakInside))]"
    # In print, a <details> may split across pages.
    assert page.locator("details:not(.name)").evaluate_all(inside) == ["auto"]


def test_code_reference_expands_linked_names(page, site):
    for path in sorted((site / "api").glob("*.html")):
        page.goto(path.as_uri())
        entries = page.locator(".md-sidebar--secondary .md-nav__link")
        assert 5 < entries.count() < 40, path.name
        names = page.locator("article table a:has(code)").evaluate_all(
            "links => links.map(link => link.hash.slice(1))"
        )
        headings = page.locator("article :is(h3, h4)[id]")
        shown = headings.evaluate_all(
            "all => all.filter(one => one.checkVisibility()).map(one => one.id)"
        )
        modules = page.locator("article h3[id]").evaluate_all("e => e.map(x => x.id)")
        assert set(shown) == {*modules, *names}, path.name
        for fold in page.locator("details.inside").all():
            inside = fold.locator("summary > code").all_inner_texts()
            assert fold.locator("h4").count() == len(inside) > 0
    page.goto((site / "api/attention.html").as_uri() + "#systems.attention.flash")
    # A link opens the fold that contains its target.
    page.goto(page.url.split("#")[0] + "#systems.attention.triton.configs.Config")
    config = page.locator(".doc-class", has=page.locator("h4[id$='configs.Config']"))
    expect(config.locator("code", has_text="warps: int").first).to_be_visible()
    page.goto((site / "api/measuring.html").as_uri())
    example = page.locator("pre", has_text="with Recorder(model, optimizer)")
    expect(example).to_contain_text("recorded = recorder.history()")
