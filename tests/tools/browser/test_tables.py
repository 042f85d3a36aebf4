"""Tables sort, scroll, print, and can be read on a phone."""

import re
from pathlib import Path

import pytest

from systems import ROOT
from tests.tools.browser.looking import PHONE, Locator, Page, expect, open_first

pytestmark = pytest.mark.browser


def column_texts(page: Page, button: Locator) -> list[str]:
    script = """button => {
        const head = button.closest("th")
        const rows = [...head.closest("table").tBodies[0].rows]
        return rows.map(row => row.cells[head.cellIndex].textContent.trim())
    }"""
    return button.evaluate(script)


def test_tables_sort_by_mouse_and_keyboard(page: Page, pages: list[Path]) -> None:
    button = open_first(page, pages, "table.data thead button:visible").first
    head = page.locator("th:visible", has=page.locator("button")).first
    before = column_texts(page, button)
    button.click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert sorted(column_texts(page, button)) == sorted(before)
    button.focus()
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "descending")
    page.keyboard.press("Enter")
    expect(head).not_to_have_attribute("aria-sort", re.compile("."))
    assert column_texts(page, button) == before


# (cells in sorted order, cells that are always last)
CELLS = [
    (["9", "10.5", "1,234.5", "12,000"], ["out of memory"]),
    (["0.92 ± 0.01 ms", "12.4 ± 9.0 ms", "1.2 s"], ["—"]),
    (["512 KiB", "900 MiB", "1.2 GiB", "1.3 GB"], []),
    (["124 M", "770 M", "2.6 B"], []),
    (["−3", "-1e-3", "1.5", "~80 %"], []),
    (["2.13×", "3.0× (best)", "11x"], []),
    (["900 µs", "1.2 ms", "3.4 ms", "12.4 ± 9.0 ms"], []),
    (["2.6B", "10B"], ["large"]),
    # Dates sort by time, and numbers inside text by value.
    (["2024-12-31", "2025-01-02", "2025-11-21"], []),
    (["flash 2", "flash 10", "plain"], []),
]


def test_cells_sort_by_value_with_other_text_last(page: Page) -> None:
    tables = []
    for numbers, others in CELLS:
        texts = [*others, *numbers[1:], numbers[0]]
        rows = "".join(f"<tr><td>{text}</td></tr>" for text in texts)
        head = "<thead><tr><th>n</th></tr></thead>"
        tables.append(f'<table class="data">{head}<tbody>{rows}</tbody></table>')
    page.set_content("".join(tables))
    page.add_script_tag(path=ROOT / "docs/assets/tablesort.js")
    buttons = page.locator("button").all()
    for button, (numbers, others) in zip(buttons, CELLS, strict=True):
        button.click()
        assert column_texts(page, button) == numbers + others
        button.click()
        assert column_texts(page, button) == numbers[::-1] + others


def test_only_wide_tables_take_keyboard_focus(page: Page) -> None:
    wide = "<tr>" + "<td>1234567890</td>" * 40 + "</tr>"
    frame = (
        '<div class="table-frame" tabindex="0" style="overflow: auto">'
        '<table class="data">{}</table></div>'
    )
    page.set_content(frame.format(wide) + frame.format("<tr><td>1</td></tr>"))
    page.add_script_tag(path=ROOT / "docs/assets/tablesort.js")
    frames = page.locator(".table-frame")
    expect(frames.nth(1)).not_to_have_attribute("tabindex", "0")
    page.keyboard.press("Tab")
    expect(frames.first).to_be_focused()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('.table-frame').scrollLeft > 0")


def scroll_frame(page: Page, frame: Locator, **by: int) -> dict[str, float]:
    script = """async (frame, by) => {
        frame.closest("details")?.setAttribute("open", "")
        await new Promise((done) => setTimeout(done, 100))
        Object.assign(frame, by)
        await new Promise((done) => setTimeout(done, 100))
        const at = frame.getBoundingClientRect()
        const head = frame.querySelector("thead th").getBoundingClientRect()
        const first = frame.querySelector("tbody td").getBoundingClientRect()
        const last = frame.querySelector("tbody td:last-child").getBoundingClientRect()
        return {
            head: head.top - at.top, first: first.left - at.left,
            last: last.left - at.left, top: frame.scrollTop, left: frame.scrollLeft,
        }
    }"""
    return frame.evaluate(script, by)


def test_headers_stay_visible_while_scrolling(page: Page, pages: list[Path]) -> None:
    page.set_viewport_size(PHONE)
    frame = open_first(page, pages, ".table-frame:has(tbody tr:nth-child(60))").first
    before = scroll_frame(page, frame)
    after = scroll_frame(page, frame, scrollLeft=150, scrollTop=400)
    assert after["top"] == 400 and after["left"] > 50
    assert abs(after["head"]) < 3 and abs(after["first"]) < 1
    assert after["last"] < before["last"] - 50
    # The keyboard can focus the frame.
    expect(frame).to_have_attribute("tabindex", "0")


def test_pinned_columns_cover_no_others(page: Page, pages: list[Path]) -> None:
    """Before scrolling, there is no gap or overlap between the first four columns."""
    page.set_viewport_size(PHONE)
    pinned = open_first(page, pages, "table:is(.pinned-2, .pinned-3):visible")
    gaps: list[float] = pinned.evaluate_all(
        """(tables) => tables.flatMap((table) => {
            const places = [...table.rows[0].cells].slice(0, 4)
                .map((head) => head.getBoundingClientRect())
            return places.slice(1).map((place, i) => place.left - places[i].right)
        })"""
    )
    assert gaps and max(map(abs, gaps)) < 1.5, gaps


def test_hidden_rows_show_on_click_and_in_print(page: Page, pages: list[Path]) -> None:
    sortable = ".table-frame:has(button)"
    control = open_first(page, pages, f"{sortable} + .all:visible input").first
    # In print the control is hidden, so give the frame an id to find it.
    control.evaluate("one => one.closest('.all').previousElementSibling.id = 'mine'")
    frame = page.locator("#mine")
    all_rows, visible = frame.locator("tbody tr"), frame.locator("tbody tr:visible")
    assert 0 < visible.count() <= 8 < all_rows.count()
    control.check()
    expect(visible).to_have_count(all_rows.count())
    control.uncheck()
    page.emulate_media(media="print")
    expect(visible).to_have_count(all_rows.count())
    # With another `display`, Chromium omits buttons from repeated table heads.
    display = "button => getComputedStyle(button).display"
    assert frame.locator("button").first.evaluate(display) == "contents"
    assert frame.evaluate("frame => frame.scrollHeight - frame.clientHeight") == 0
