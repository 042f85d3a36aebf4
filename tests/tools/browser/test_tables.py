"""Tables sort, scroll, print, and can be read on a phone."""

import re
from pathlib import Path

import pytest

from systems import ROOT
from systems.model.sizes import SIZES
from tests.tools.browser.looking import (
    DESK,
    OPEN_FOLDS,
    PHONE,
    TWO_FRAMES,
    Locator,
    Page,
    expect,
    open_first,
)

pytestmark = pytest.mark.browser

# A4 at 96 pixels an inch, less its margins, printed at a scale of 0.8.
PAPER = {"width": 860, "height": 1200}

SORTABLE = "table.data thead button:visible"


def column(page: Page, button: Locator) -> list[str]:
    """The texts of the column below a sort button."""
    script = """button => {
        const head = button.closest("th")
        const rows = [...head.closest("table").tBodies[0].rows]
        return rows.map(row => row.cells[head.cellIndex].textContent.trim())
    }"""
    texts: list[str] = button.evaluate(script)
    return texts


def test_a_table_sorts_by_mouse_and_keyboard(page: Page, pages: list[Path]) -> None:
    buttons = open_first(page, pages, SORTABLE)
    button = buttons.first
    head = (
        page.locator("th", has=page.locator("button"))
        .and_(page.locator("th:visible"))
        .first
    )
    before = column(page, button)
    button.click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert sorted(column(page, button)) == sorted(before)
    button.focus()
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "descending")
    page.keyboard.press("Enter")
    expect(head).not_to_have_attribute("aria-sort", re.compile("."))
    assert column(page, button) == before


@pytest.mark.parametrize(
    ("numbers", "others"),
    [
        (["9", "10.5", "1,234.5", "12,000"], ["out of memory"]),
        (["0.92 ± 0.01 ms", "12.4 ± 9.0 ms", "1.2 s"], ["—"]),
        (["512 KiB", "900 MiB", "1.2 GiB", "1.3 GB"], []),
        (["124 M", "770 M", "2.6 B"], []),
        (["−3", "-1e-3", "1.5", "~80 %"], []),
        (["2.13×", "3.0× (best)", "11x"], []),
        (["900 µs", "1.2 ms", "3.4 ms", "12.4 ± 9.0 ms"], []),
        (["2.6B", "10B"], ["large"]),
        # No numbers, but sorted as a reader expects.
        (["2024-12-31", "2025-01-02", "2025-11-21"], []),
        (["flash 2", "flash 10", "plain"], []),
    ],
)
def test_cells_sort_by_value_and_other_text_stands_last(
    page: Page, numbers: list[str], others: list[str]
) -> None:
    rows = "".join(
        f"<tr><td>{text}</td></tr>" for text in [*others, *numbers[1:], numbers[0]]
    )
    head = "<thead><tr><th>n</th></tr></thead>"
    page.set_content(f'<table class="data">{head}<tbody>{rows}</tbody></table>')
    page.add_script_tag(path=ROOT / "docs/assets/tablesort.js")
    button = page.locator("button")
    button.click()
    assert column(page, button) == numbers + others
    button.click()
    assert column(page, button) == numbers[::-1] + others


def test_a_wide_table_scrolls_by_keyboard_and_a_narrow_one_is_no_stop(
    page: Page,
) -> None:
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


# What a reader sees of each table of a page: how much of its width is hidden, how tall
# its lines and its head are, and what is narrow though it has many letters.
MEASURE_TABLES = """() => {
  const measured = (table) => {
    const frame = table.closest(".table-frame")
    if (!table.checkVisibility() || table.closest("#explorer")) return []
    const box = (element) => element.getBoundingClientRect()
    const lines = [...table.tBodies[0].rows]
    const cells = lines.flatMap((line) => [...line.cells])
    const long = cells.filter((cell) => cell.checkVisibility())
        .filter((cell) => cell.textContent.trim().length > 30)
    return [{
        name: frame.getAttribute("aria-label"),
        hidden: frame.scrollWidth - frame.clientWidth,
        line: Math.max(...lines.map((line) => box(line).height)),
        head: box(table.tHead).height,
        narrowest: Math.min(...long.map((cell) => box(cell).width), 1e9),
    }]
  }
  return [...document.querySelectorAll("table.data")].flatMap(measured)
}"""


def tables_of(page: Page, path: Path, size: dict) -> list[dict]:
    """All tables of a page, those in folds too."""
    page.set_viewport_size(size)
    page.goto(path.as_uri())
    page.evaluate(OPEN_FOLDS)
    page.evaluate(TWO_FRAMES)
    found: list[dict] = page.evaluate(MEASURE_TABLES)
    return found


def test_no_table_hides_a_part_of_its_last_column(
    page: Page, pages: list[Path]
) -> None:
    """A table is shown whole on a desk, or is so wide that it is seen to go on."""
    narrowly = [
        f"{path.name}: {table['name']} by {table['hidden']} pixels"
        for path in pages
        for table in tables_of(page, path, DESK)
        if 0 < table["hidden"] < 40
    ]
    assert narrowly == []


# How far apart the words of neighbours are at least, in each table.
GAPS = """() => {
    const ends = (cell) => {
        const words = document.createRange()
        words.selectNodeContents(cell)
        const boxes = [...words.getClientRects()].filter((box) => box.width > 1)
        const left = Math.min(...boxes.map((box) => box.left))
        return boxes.length && [left, Math.max(...boxes.map((box) => box.right))]
    }
    const close = (row) => {
        const found = [...row.cells].map(ends)
        const gap = (at, i) => at && found[i] && at[0] - found[i][1]
        const gaps = found.slice(1).map(gap)
        return Math.min(...gaps.map((gap) => gap || Infinity), Infinity)
    }
    return [...document.querySelectorAll("article table.data")]
        .filter((table) => table.checkVisibility())
        .map((table) => {
            const rows = [...table.rows].sort((a, b) => close(a) - close(b))
            const name = table.closest(".table-frame").getAttribute("aria-label")
            return [close(rows[0]), `${name}: ${rows[0].innerText}`]
        })
}"""


@pytest.mark.parametrize("media", ["screen", "print"])
def test_cells_beside_one_another_stand_apart(
    page: Page, pages: list[Path], media: str
) -> None:
    page.emulate_media(media=media)
    run_together = []
    for path in pages:
        page.set_viewport_size(DESK if media == "screen" else PAPER)
        page.goto(path.as_uri())
        page.evaluate(OPEN_FOLDS)
        found = page.evaluate(GAPS)
        run_together += [
            f"{path.name}: {gap:.1f}, {at}" for gap, at in found if gap < 10
        ]
    assert run_together == []


def test_a_phone_shows_tables_with_their_words(page: Page, pages: list[Path]) -> None:
    """No word stands by syllables, no line is taller than a third of the screen."""
    squeezed = [
        f"{path.name}: {table}"
        for path in pages
        for table in tables_of(page, path, PHONE)
        if table["line"] > 300 or table["head"] > 160 or table["narrowest"] < 100
    ]
    assert squeezed == []


def scrolled(page: Page, frame: Locator, **by: int) -> dict[str, float]:
    """Where the head and the first cell of the first line stand in the frame."""
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
    places: dict[str, float] = frame.evaluate(script, by)
    return places


def test_heads_and_names_of_lines_stay_in_sight(page: Page, pages: list[Path]) -> None:
    page.set_viewport_size(PHONE)
    long = ".table-frame:has(tbody tr:nth-child(60))"
    frame = open_first(page, pages, long).first
    before = scrolled(page, frame)
    after = scrolled(page, frame, scrollLeft=150, scrollTop=400)
    assert after["top"] == 400 and after["left"] > 50
    assert abs(after["head"]) < 3 and abs(after["first"]) < 1
    assert after["last"] < before["last"] - 50
    # It stops where the keyboard scrolls it.
    expect(frame).to_have_attribute("tabindex", "0")


def test_columns_that_stay_in_sight_cover_none_beside_them(
    page: Page, pages: list[Path]
) -> None:
    """Before it is scrolled, each column begins where the one before it ends."""
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


def test_sort_arrows_take_no_room_and_show_where_they_are_asked_for(
    page: Page, pages: list[Path]
) -> None:
    button = open_first(page, pages, SORTABLE).first
    heights = """() => [...document.querySelectorAll("thead")]
        .filter((head) => head.checkVisibility()).map((head) => head.clientHeight)"""
    before = page.evaluate(heights)
    page.add_style_tag(content="th button::after { display: none !important }")
    assert page.evaluate(heights) == before
    page.reload()
    shown = "button => getComputedStyle(button, '::after').opacity"
    assert button.evaluate(shown) == "0"
    button.hover()
    assert button.evaluate(shown) == "1"
    button.click()
    page.mouse.move(0, 0)
    assert button.evaluate(shown) == "1"


def test_numbers_end_where_their_head_ends(page: Page, pages: list[Path]) -> None:
    """And a size is sorted as a size, not by its letters."""
    head = page.locator("th:not(.r):visible", has_text=re.compile("^size$")).first
    for path in pages:
        page.goto(path.as_uri())
        if head.count():
            break
    script = """head => {
        const rows = [...head.closest("table").rows]
        const ends = (row) => [...row.cells].filter((c) => c.matches(".r")).map((c) => {
            const words = document.createRange()
            words.selectNodeContents(c.querySelector("button") ?? c)
            return words.getBoundingClientRect().right
        })
        const [heads, ...lines] = rows.map(ends)
        return lines.flatMap((line) => line.map((end, i) => Math.abs(end - heads[i])))
    }"""
    assert max(head.evaluate(script)) < 1
    sizes = list(SIZES)
    button = head.locator("button")
    button.click()
    found = [sizes.index(text) for text in column(page, button)]
    assert len(set(found)) > 2 and found == sorted(found)


def test_in_print_heads_are_text_and_tables_whole(
    page: Page, pages: list[Path]
) -> None:
    table = open_first(
        page, pages, "table.data:has(button):has(tr:nth-child(40))"
    ).first
    page.evaluate(OPEN_FOLDS)
    page.emulate_media(media="print")
    # Chromium does not draw a button again where it repeats the head of a table.
    display = "button => getComputedStyle(button).display"
    assert table.locator("button").first.evaluate(display) == "contents"
    frame = table.locator("..").evaluate("frame => frame.scrollHeight")
    assert frame == table.locator("..").evaluate("frame => frame.clientHeight")


# These tables are their pages' subject, or a sum whose parts must all be there.
LONG = {
    "Every graded problem",
    "The graded problems",
}
LOOKED_UP = {"reference.html", "bibliography.html"}


def test_tables_open_with_eight_rows_at_most(page: Page, pages: list[Path]) -> None:
    """And show the others when asked, and on paper."""
    rows = """() => [...document.querySelectorAll("article table.data")]
        .filter((table) => table.checkVisibility() && !table.closest("#explorer"))
        .map((table) => [
            [...table.tBodies[0].rows].filter((row) => row.checkVisibility()).length,
            table.closest(".table-frame").getAttribute("aria-label"),
        ])"""
    long, known = [], set()
    for path in pages:
        if path.name in LOOKED_UP or path.parent.name == "api":
            continue
        page.goto(path.as_uri())
        for count, name in page.evaluate(rows):
            excused = {told for told in LONG if f". {told}" in name}
            known |= excused if count > 8 else set()
            long += [f"{path.name}: {name}: {count}"] * (count > 8 and not excused)
    assert long == []
    assert known == LONG
    control = open_first(page, pages, ".all:visible input").first
    frame = page.locator(".table-frame:has(+ .all:visible)").first
    all_rows = frame.locator("tbody tr")
    visible = frame.locator("tbody tr:visible")
    assert 0 < visible.count() <= 8 < all_rows.count()
    control.check()
    expect(visible).to_have_count(all_rows.count())
    control.uncheck()
    page.emulate_media(media="print")
    expect(visible).to_have_count(all_rows.count())


# Words that are broken in two, where no name of the code is.
BROKEN = """() => {
    const found = []
    const texts = document.createTreeWalker(
        document.querySelector("article"), NodeFilter.SHOW_TEXT)
    for (let text; (text = texts.nextNode()); ) {
        const within = text.parentElement
        const skipped = "svg, math, pre, code, .provenance"
        if (!within.checkVisibility() || within.closest(skipped)) continue
        for (const word of text.data.matchAll(/[\\p{L}\\d_]{3,}/gu)) {
            const at = document.createRange()
            at.setStart(text, word.index)
            at.setEnd(text, word.index + word[0].length)
            const tops = [...at.getClientRects()].filter((box) => box.width > 0)
                .map((box) => Math.round(box.top))
            if (new Set(tops).size > 1) found.push(word[0])
        }
    }
    return found
}"""


def test_no_word_is_broken_on_a_phone(page: Page, pages: list[Path]) -> None:
    page.set_viewport_size(PHONE)
    broken = []
    for path in pages:
        page.goto(path.as_uri())
        page.evaluate(OPEN_FOLDS)
        broken += [f"{path.name}: {word}" for word in page.evaluate(BROKEN)]
    assert broken == []


TOLD_BY_HEADINGS = {"reference.html", "bibliography.html"}


def test_open_tables_have_numbers_and_say_what_they_show(
    page: Page, pages: list[Path]
) -> None:
    """In the reference, headings say it."""
    named = """() => [...document.querySelectorAll(".table-frame")]
        .filter((frame) => frame.checkVisibility())
        .filter((frame) => !frame.closest("#explorer, #calculator"))
        .map((frame) => frame.getAttribute("aria-label"))"""
    for path in pages:
        if path.parent.name == "api" or path.name in TOLD_BY_HEADINGS:
            continue
        page.goto(path.as_uri())
        labels = page.evaluate(named)
        wrong = [label for label in labels if not re.match(r"Table\s\d+\. \w", label)]
        assert wrong == [], path.name
        # In a fold that has the number, a caption has none.
        assert not page.locator("article > p.caption:not([id])").count(), path.name
        captions = "p.caption[id], summary[id^=table]"
        numbers = page.locator(captions).evaluate_all(
            "captions => captions.map(caption => caption.id)"
        )
        assert numbers == [f"table-{n}" for n in range(1, len(numbers) + 1)], path.name
