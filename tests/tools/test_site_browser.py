"""The built site in a browser, read from file:// without any network.

What these tests look for they find in whichever page has it first, so that pages may be
added and renamed freely. They need Chromium; where there is none they are skipped,
except where the variable CI is set.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from PIL import Image

from systems import ROOT
from systems.formulas.fit import optimizer_moved_bytes, step_flops
from systems.formulas.memory_costs import HOPPER_WORKSPACE, WORKSPACE, Pass
from systems.formulas.memory_peak import moments
from systems.model.sizes import SIZES, ModelSize
from systems.profiling.memory.snapshot import CATEGORIES
from tools.render.spanning import calculator

try:
    from axe_playwright_python.base import AXE_SCRIPT
    from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
except ImportError:
    if os.environ.get("CI"):
        raise
    pytest.skip("playwright is not installed", allow_module_level=True)

pytestmark = pytest.mark.browser

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]
FLAGS += [
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
SORTABLE = "table.data thead button:visible"
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
# Contrast takes axe most of its time. Texts whose ancestors have the same tags and
# classes look alike: it reads one.
CONTRAST = {"runOnly": ["color-contrast"]}
MARK_FIRST = """() => {
    const seen = new Set()
    const own = (element) => `${element.localName}.${element.className}`
    const kind = (one) => one && `${own(one)} ${kind(one.parentElement)}`
    const isText = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim()
    for (const element of document.body.querySelectorAll("*")) {
        const hasText = [...element.childNodes].some(isText)
        if (!hasText || !element.checkVisibility() || seen.has(kind(element))) continue
        seen.add(kind(element))
        element.dataset.first = ""
    }
}"""
ALL_BUT_CONTRAST = {"rules": {"color-contrast": {"enabled": False}}}
# What a wider page hides or shows.
SCROLLING = {"runOnly": ["scrollable-region-focusable"]}
MISSHAPEN = """() => {
    const isWide = document.documentElement.scrollWidth > innerWidth
    const isEmpty = (formula) =>
        formula.checkVisibility() && formula.getBoundingClientRect().width < 2
    const empty = [...document.querySelectorAll("article math")].filter(isEmpty)
    const tex = (formula) => formula.getAttribute("alttext")
    const leaves = (word) => {
        const [own, drawing] = [word, word.ownerSVGElement]
            .map((element) => element.getBoundingClientRect())
        return own.width && (own.left < drawing.left - 1 || own.top < drawing.top - 1
            || own.right > drawing.right + 1 || own.bottom > drawing.bottom + 1)
    }
    const outside = [...document.querySelectorAll("article svg text")].filter(leaves)
    return [
        ...outside.map((word) => `leaves its drawing: ${word.textContent}`),
        ...(isWide ? ["wider than the screen"] : []),
        ...empty.map((formula) => `nothing to see of the formula ${tex(formula)}`),
    ]
}"""
TWO_FRAMES = """new Promise(
    (done) => requestAnimationFrame(() => requestAnimationFrame(done))
)"""


def build(folder: Path, **environment: str) -> float:
    """Build the site; the seconds that the processors worked, which other work on the
    machine changes little.
    """
    # Not --quiet: it silences the warnings before --strict can count them.
    mkdocs = [sys.executable, "-m", "mkdocs"]
    command = [*mkdocs, "build", "--strict", "--site-dir", str(folder)]
    # One day for all builds, also around midnight: the list of pages is dated.
    fixed = {"NO_MKDOCS_2_WARNING": "1", "SOURCE_DATE_EPOCH": "1750000000"}
    environment = os.environ | fixed | environment
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert built.returncode == 0, built.stdout + built.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build(folder)
    return folder


@pytest.fixture(scope="session")
def pages(site: Path) -> list[Path]:
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, args=FLAGS)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh browser profile, which must end without a remote request and without an
    error on the console.
    """
    context = browser.new_context(viewport=DESK, color_scheme="light", offline=True)
    remote: list[str] = []
    errors: list[str] = []
    context.on(
        "request",
        lambda request: remote.append(request.url) if _is_remote(request.url) else None,
    )
    context.on(
        "console",
        lambda message: (
            errors.append(message.text)
            if message.type in {"error", "warning"}
            else None
        ),
    )
    context.on("weberror", lambda error: errors.append(str(error.error)))
    yield context.new_page()
    context.close()
    assert remote == []
    assert errors == []


def _is_remote(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:", "about:"))


def open_first(page: Page, pages: list[Path], selector: str) -> Locator:
    """Open the first page that has the selector, and return what it selects."""
    for path in pages:
        page.goto(path.as_uri())
        if page.locator(selector).count():
            return page.locator(selector)
    return pytest.fail(f"no page has {selector}")


def slowness() -> float:
    """How many times as long as usual this machine takes now, at least 1: others may
    share its processors.

    Usual is 0.33 s for this loop, on the two cores for which the limit was set.
    """
    start, total = time.process_time(), 0
    for i in range(5_000_000):
        total += i
    return max(1.0, (time.process_time() - start) / 0.33)


def test_two_builds_give_the_same_bytes_and_take_less_than_15_seconds(
    site: Path, tmp_path: Path
) -> None:
    before = slowness()
    seconds = build(tmp_path, PYTHONHASHSEED="1") / max(before, slowness())
    first, second = (
        {p.relative_to(root): p.read_bytes() for p in root.rglob("*.*")}
        for root in (site, tmp_path)
    )
    assert first.keys() == second.keys()
    assert [path for path in first if first[path] != second[path]] == []
    assert seconds < 15


def test_the_site_is_small_enough_to_send(site: Path) -> None:
    assert sum(path.stat().st_size for path in site.rglob("*.*")) < 14e6


def test_the_first_page_is_light_and_opens_at_once(page: Page, site: Path) -> None:
    loaded: set[str] = set()
    page.context.on(
        "request",
        lambda request: (
            loaded.add(request.url) if request.resource_type != "image" else None
        ),
    )
    times = []
    # The best of a few: what else the machine does is not the page's fault.
    for _ in range(3):
        page.goto((site / "index.html").as_uri())
        times.append(
            page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        )
    assert 0 < min(times) < 1000
    files = [
        Path(url.removeprefix("file://")) for url in loaded if url.startswith("file://")
    ]
    assert {"index.html", "site.css", "tablesort.js", "search_index.js"} <= {
        path.name for path in files
    }
    # As a server sends them, compressed; the words of the search are three fifths of
    # it.
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) < 300_000


@pytest.mark.parametrize("quarter", range(4))
def test_every_page_fits_and_can_be_read(
    page: Page, pages: list[Path], quarter: int
) -> None:
    """On a desk and on a phone, in light and in dark: nothing is cut off, and axe finds
    nothing serious.
    """
    # Otherwise colours would change slowly, and axe would read them half-way.
    page.emulate_media(reduced_motion="reduce")
    found = []
    for path in pages[quarter::4]:
        page.goto(path.as_uri())
        expect(page.locator("article h1")).to_have_count(1)
        page.evaluate(AXE_SCRIPT)
        # Over the shadows at the edges of a table axe can't tell a contrast, and would
        # keep silent.
        page.add_style_tag(content=".table-frame { background: none !important }")
        page.evaluate(MARK_FIRST)
        problems = violations(page, SCROLLING)
        problems += violations(page, CONTRAST)
        page.emulate_media(color_scheme="dark")
        expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "slate")
        problems += violations(page, CONTRAST)
        # The frame of all pages, with its navigation, is looked through once.
        problems += violations(page, {}) if path.name == "index.html" else []
        page.emulate_media(color_scheme="light")
        problems += [f"{one} at 1280 pixels" for one in page.evaluate(MISSHAPEN)]
        page.set_viewport_size(PHONE)
        # What scrolls becomes a stop for the keyboard once it has been laid out.
        page.evaluate(TWO_FRAMES)
        problems += [f"{one} at 390 pixels" for one in page.evaluate(MISSHAPEN)]
        problems += violations(page, ALL_BUT_CONTRAST)
        page.set_viewport_size(DESK)
        found += [f"{path.name}: {problem}" for problem in problems]
    assert found == []


def violations(page: Page, options: dict) -> list[str]:
    """What axe calls serious or critical, with the first element that it names."""
    # A page from a file may not read its style sheets, which axe would try to.
    options = {"resultTypes": ["violations"], "preload": False, **options}
    part = "[data-first]" if options.get("runOnly") == ["color-contrast"] else "html"
    answer = page.evaluate(
        "([part, options]) => axe.run({ include: [[part]] }, options)", [part, options]
    )
    return [
        f"{one['id']} ({one['impact']}): {one['nodes'][0]['html'][:200]}"
        for one in answer["violations"]
        if one["impact"] in {"serious", "critical"}
    ]


def test_search_finds_a_page_by_its_title(page: Page, pages: list[Path]) -> None:
    target = pages[-1]
    page.goto(target.as_uri())
    title = page.locator("article h1").evaluate(
        "heading => heading.firstChild.textContent"
    )
    page.goto(pages[0].as_uri())
    page.locator(".md-search__input").click()
    # The theme listens for keys, so the word is typed; half of "write-up" would be an
    # operator without its word.
    page.locator(".md-search__input").press_sequentially(
        max(re.findall(r"\w+", title), key=len)
    )
    results = page.locator(".md-search-result__link")
    expect(results.first).to_be_visible()
    addresses = results.evaluate_all("links => links.map(link => link.href)")
    assert any(address.startswith(target.as_uri()) for address in addresses), addresses


def test_search_finds_a_phrase_of_the_text(page: Page, site: Path) -> None:
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").press_sequentially("online softmax")
    expect(
        page.locator('.md-search-result__link[href*="online_softmax.html"]').first
    ).to_be_visible()


def test_maths_is_drawn_without_a_script(page: Page, pages: list[Path]) -> None:
    formula = open_first(page, pages, "article math").first
    box = formula.bounding_box()
    assert box and box["width"] > 5 and box["height"] > 5
    assert formula.get_attribute("alttext")
    assert "\\(" not in page.locator("article").inner_text()


def test_a_chosen_tab_is_kept_across_pages(page: Page, pages: list[Path]) -> None:
    tabs = ".tabbed-labels label:nth-child(2):visible"
    label = open_first(page, pages, tabs).first
    name = label.inner_text()
    second = (
        page.locator(".tabbed-set", has=page.locator(tabs))
        .first.locator(".tabbed-block")
        .nth(1)
    )
    expect(second).to_be_hidden()
    label.click()
    expect(second).to_be_visible()
    # Any later page with a tab of this name; the same page again if it is the only one.
    same = page.locator(".tabbed-labels label").filter(
        has_text=re.compile(f"^{re.escape(name)}$")
    )
    first = page.url
    for path in [path for path in pages if path.as_uri() != first] + [
        Path(first.removeprefix("file://"))
    ]:
        page.goto(path.as_uri())
        if same.count():
            break
    chosen = same.first.evaluate(
        "label => document.getElementById(label.htmlFor).checked"
    )
    assert chosen, f"{page.url} forgot the tab {name}"


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


def test_the_toggle_changes_the_figure_and_print_is_light(
    page: Page, pages: list[Path]
) -> None:
    ink = "element => getComputedStyle(element).fill"
    word = open_first(page, pages, "svg.plot.wide text").first
    light = word.evaluate(ink)
    for _ in range(3):
        page.locator(
            ".md-header label.md-header__button[for^=__palette]:visible"
        ).click()
        if page.locator("body").get_attribute("data-md-color-scheme") == "slate":
            break
    assert word.evaluate(ink) != light
    page.emulate_media(media="print")
    assert word.evaluate(ink) == light


def test_a_drawing_is_stepped_through_by_keyboard_and_prints_its_last_step(
    page: Page, pages: list[Path]
) -> None:
    figure = open_first(page, pages, "figure.steps").first
    frames, sentences = figure.locator(".frame"), figure.locator("ol > li")
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
    page.emulate_media(media="print")
    expect(frames.last).to_be_visible()
    expect(frames.nth(1)).to_be_hidden()
    for sentence in sentences.all():
        expect(sentence).to_be_visible()


def drawn_at_random(number: int) -> tuple[Pass, dict]:
    """A step, and what the calculator calls it."""
    draw = random.Random(number)
    heads = draw.randint(1, 64)
    shape = ModelSize(
        2 * heads * draw.randint(1, 200),
        draw.randint(1, 50_000),
        draw.randint(1, 200),
        heads,
    )
    attention = draw.choice(calculator.ATTENTIONS)
    kinds = calculator.RECOMPUTED[: 3 if attention == "eager" else 2]
    recomputed = draw.choice(kinds)
    numbers = {
        "context": draw.randint(1, 10**6),
        "batch": draw.randint(1, 10**4),
        "vocab": draw.randint(1, 300_000),
        "optimizer_states": draw.randint(0, 2),
        "workspace_bytes": draw.choice((HOPPER_WORKSPACE, WORKSPACE)),
    }
    words = {"precision": draw.choice(calculator.PRECISIONS), "attention": attention}
    run = draw.randint(1, shape.num_layers)
    p = Pass(
        shape,
        mode="step",
        checkpoint=run if recomputed == "blocks" else 0,
        recompute_attention=recomputed == "attention",
        **words,
        **numbers,
    )
    asked = {**vars(shape), **numbers, **words, "recomputed": recomputed}
    return p, {**asked, "checkpoint": run}


def test_the_calculator_computes_what_the_formulas_do(page: Page, site: Path) -> None:
    page.goto((site / "calculator.html").as_uri())
    steps = [drawn_at_random(number) for number in range(500)]
    script = "asked => asked.map(window.CALCULATOR.evaluate)"
    answers = page.evaluate(script, [asked for _, asked in steps])
    for (p, asked), answer in zip(steps, answers, strict=True):
        got = json.loads(answer)
        assert int(got["flops"]) == step_flops(p), asked
        assert int(got["moved"]) == optimizer_moved_bytes(p), asked
        wanted = {
            when: [str(moment[category]) for category in CATEGORIES]
            for when, moment in moments(p).items()
        }
        assert got["moments"] == wanted, asked


def test_the_calculator_answers_a_key_at_once_and_says_what_is_wrong(
    page: Page, site: Path
) -> None:
    page.goto((site / "calculator.html").as_uri() + "#size=xl&context=2048")
    root = page.locator("#calculator")
    verdict, context = root.locator(".verdict"), root.locator("input[name=context]")
    expect(context).to_have_value("2048")
    expect(verdict).to_contain_text(re.compile("[Ff]it"))
    # The fastest of several: what else runs on the machine is not the page's.
    milliseconds = page.evaluate("""() => {
        const input = document.querySelector("#calculator input[name=context]")
        const press = (value) => {
            input.value = value
            const start = performance.now()
            input.dispatchEvent(new Event("input", {bubbles: true}))
            return performance.now() - start
        }
        return Math.min(...[512, 1024, 2048, 4096, 8192, 3000, 5000].map(press))
    }""")
    assert milliseconds < 50
    assert "context=5000" in page.url
    wrong = {
        "num_heads": {"0": "from 1 to", "7": "does not split into 7 heads"},
        "context": {"1e9": "whole number", "9" * 12: "from 1 to", "long": "“long”"},
        "batch": {"": "whole number", "-1": "whole number"},
        "memory": {"none": "number above 0"},
    }
    for name, entries in wrong.items():
        field = root.locator(f"input[name={name}]")
        before = field.input_value()
        for text, words in entries.items():
            field.fill(text)
            expect(verdict).to_contain_text(words)
            expect(field).to_have_attribute("aria-invalid", "")
        field.fill(before)
        expect(field).not_to_have_attribute("aria-invalid", "")
    # A link gives the page as it was.
    root.locator("select[name=gpu]").select_option("h200")
    root.locator("input[name=num_layers]").fill("30")
    expect(root.locator("select[name=size]")).to_have_value("")
    said = verdict.inner_text()
    page.reload()
    expect(verdict).to_have_text(said)
    expect(root.locator("input[name=num_layers]")).to_have_value("30")


def test_the_explorer_filters_sorts_and_downloads(page: Page, site: Path) -> None:
    page.goto((site / "explorer.html").as_uri() + "#all")
    status, rows = (
        page.locator("#explorer [role=status]"),
        page.locator("#explorer tbody tr"),
    )
    expect(status).to_contain_text(
        re.compile(r"^([\d,]+) of \1 lines match; 100 are shown")
    )
    page.locator("#explorer .more").click()
    expect(rows).to_have_count(200)
    page.locator("#explorer select[name=stem]").select_option("end_to_end")
    page.locator("#explorer select[name=metric]").select_option("forward")
    page.locator("#explorer input[name=words]").fill("mode step, -batch 64")
    expect(rows.first).to_contain_text("mode step")
    expect(page.locator("#explorer .more")).to_be_hidden()
    # A list offers only what the other filters leave.
    assert "d_model" not in page.locator("#explorer select[name=metric]").inner_text()
    button = page.locator("#explorer th button", has_text="value")
    for direction in (1, -1):
        button.press("Enter")
        exact = page.locator("#explorer td[data-value]")
        texts = exact.evaluate_all("all => all.map((one) => one.dataset.value)")
        values = [float(text) for text in texts]
        assert values == sorted(values, reverse=direction < 0) and len(values) > 40
    texts = {}
    for kind in ("csv", "json"):
        with page.expect_download() as waited:
            page.locator(f"#explorer [data-download={kind}]").click()
        assert waited.value.suggested_filename == f"results.{kind}"
        texts[kind] = Path(waited.value.path()).read_text(encoding="utf-8")
    lines, objects = (
        list(csv.DictReader(io.StringIO(texts["csv"]))),
        json.loads(texts["json"]),
    )
    assert len(lines) == len(objects) == len(values)
    assert [float(line["value"]) for line in lines] == [
        line["value"] for line in objects
    ]
    assert (
        objects[0]["metric"] == "forward" and "mode step" in lines[0]["configuration"]
    )
    assert not any("batch 64" in line["configuration"] for line in lines)
    page.locator("#explorer button[type=reset]").click()
    expect(status).to_contain_text(re.compile(r"^([\d,]+) of \1 lines match"))
    page.locator("#explorer input[name=words]").fill("no such words")
    expect(rows).to_have_count(0)


def test_the_reference_opens_what_readers_call_and_folds_the_rest(
    page: Page, site: Path
) -> None:
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
        modules = page.locator("article h3[id]").evaluate_all(
            "all => all.map(one => one.id)"
        )
        assert set(shown) == {*modules, *names}, path.name
        for fold in page.locator("details.inside").all():
            inside = fold.locator("summary > code").all_inner_texts()
            assert fold.locator("h4").count() == len(inside) > 0
    page.goto((site / "api/attention.html").as_uri() + "#systems.attention.flash")
    # A link opens the fold that it leads into.
    page.goto(page.url.split("#")[0] + "#systems.attention.triton.configs.Config")
    config = page.locator(".doc-class", has=page.locator("h4[id$='configs.Config']"))
    expect(config.locator("code", has_text="warps: int").first).to_be_visible()
    page.goto((site / "api/measuring.html").as_uri())
    example = page.locator("pre", has_text="with Recorder(model, optimizer)")
    expect(example).to_contain_text("recorded = recorder.history()")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_explorer_draws_what_its_address_says(
    page: Page, site: Path, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto((site / "explorer.html").as_uri())
    chart, address = page.locator("#explorer .chart"), "location.hash"
    # It opens on the first of the ready-made choices: a line for each size.
    expect(chart.locator("polyline")).to_have_count(5)
    assert "stem=end_to_end" in page.evaluate(address)
    names = chart.locator("text").all_text_contents()
    assert {"whole step, ms", "small", "xl", "2.7B"} <= set(names)
    page.locator("#explorer .presets a", has_text="cuDNN").click()
    expect(chart.locator("rect")).not_to_have_count(0)
    bars = chart.locator("rect").count()
    assert bars == page.locator("#explorer tbody tr").count()
    # Someone to whom the address is sent sees the same.
    sent = page.url
    page.goto("about:blank")
    page.goto(sent)
    expect(chart.locator("rect")).to_have_count(bars)
    assert page.locator("#explorer select[name=stem]").input_value() == "flash_peers"
    page.locator("#explorer button[type=reset]").click()
    expect(chart).to_contain_text("choose one to see it drawn")
    assert page.evaluate(address) == "#all"
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_explorer_moves_nothing_while_it_loads(page: Page, site: Path) -> None:
    page.goto((site / "explorer.html").as_uri())
    shifted = """new Promise((told) => {
        let sum = 0
        const add = (seen) => seen.getEntries().forEach((shift) => (sum += shift.value))
        const watch = { type: "layout-shift", buffered: true }
        new PerformanceObserver(add).observe(watch)
        setTimeout(() => told(sum), 500)
    })"""
    assert page.evaluate(shifted) < 0.01


class Published(SimpleHTTPRequestHandler):
    """A server that shows the site below /guide/, as GitHub Pages does."""

    def send_error(self, code: int, *_: object) -> None:
        body = Path(self.directory, "guide", "404.html").read_bytes()
        self.send_response(code)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of the site and its folder, built for a repository's pages."""
    root = tmp_path_factory.mktemp("published")
    handler = partial(Published, directory=str(root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        address = f"http://127.0.0.1:{server.server_port}/guide/"
        build(
            root / "guide",
            SITE_URL=address,
            REPO_URL="https://example.org/owner/guide",
        )
        Thread(target=server.serve_forever, daemon=True).start()
        yield address, root / "guide"
        server.shutdown()


def test_the_site_works_below_the_address_of_a_repository(
    browser: Browser, published: tuple[str, Path]
) -> None:
    address, _ = published
    context = browser.new_context(viewport=DESK)
    answers: dict[str, int] = {}
    failed: list[str] = []
    context.on("response", lambda one: answers.update({one.url: one.status}))
    # What a page asked for when it was left is aborted.
    context.on(
        "requestfailed",
        lambda one: one.failure == "net::ERR_ABORTED" or failed.append(one.url),
    )
    page = context.new_page()
    for name in ("index.html", "notebooks/online_softmax.html", "api/attention.html"):
        page.goto(address + name)
        expect(page.locator("article h1")).to_be_visible()
        link = page.locator(".md-header .md-source")
        expect(link).to_have_attribute("href", "https://example.org/owner/guide")
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").press_sequentially("online softmax")
    expect(
        page.locator('.md-search-result__link[href*="online_softmax.html"]').first
    ).to_be_visible()
    assert {url: code for url, code in answers.items() if code >= 400} == {}
    missing = f"{address}no/such/page.html"
    page.goto(missing)
    expect(page.locator("article h1")).to_have_text("This page is not here")
    # Its style sheets are found: the stopwatch is no wider than a finger.
    box = page.locator(".md-logo svg").first.bounding_box()
    assert box and box["width"] < 50
    page.locator("article a", has_text="overview").click()
    expect(page).to_have_url(f"{address}index.html")
    assert [url for url, code in answers.items() if code >= 400] == [missing]
    # Nobody else is asked, not even for the repository's stars.
    assert failed == []
    assert all(url.startswith((address, "data:", "blob:")) for url in answers)
    context.close()


def test_every_page_has_a_picture_for_links_to_it(
    site: Path, published: tuple[str, Path]
) -> None:
    address, folder = published
    pattern = r'<meta property="og:(\w+)" content="([^"]+)">'
    for path in folder.rglob("*.html"):
        found = dict(re.findall(pattern, path.read_text(encoding="utf-8")))
        if path.name == "404.html":
            assert not found
            continue
        assert found["title"] and found["description"]
        image = folder / found["image"].removeprefix(address)
        with Image.open(image) as picture:
            assert picture.size == (1200, 630), path.name
        assert image.stat().st_size < 50_000, path.name
    assert sum(path.stat().st_size for path in folder.rglob("*.*")) < 14e6
    # Without an address of the site a picture has none.
    assert "og:" not in (site / "index.html").read_text(encoding="utf-8")
    assert not list(site.glob("*.png"))
    assert "md-source" not in (site / "index.html").read_text(encoding="utf-8")


# What people type, and the pages that answer it.
SOUGHT = {
    "log-sum-exp": {"flash_forward", "online_softmax"},
    "out of memory": {"peak_memory", "calculator"},
    "tf32": {"end_to_end", "mixed_precision"},
    "why bf16 faster": {"mixed_precision"},
    "causal mask": {"flash_forward"},
    "warmup": {"warmup"},
    "roofline": {"kernel_profile"},
    "gradient checkpointing": {"peak_memory"},
    "bank conflict": {"flash_hopper"},
    "pinned": {"gpu"},
}
LOOKED_UP = re.compile(r"/api/|/(writeup|explorer|reference|errata)\.html")


@pytest.mark.parametrize("words", SOUGHT)
def test_the_search_answers_with_a_page_that_explains(
    page: Page, site: Path, words: str
) -> None:
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").press_sequentially(words)
    links = page.locator(".md-search-result__item > .md-search-result__link")
    # Answers come while one types; the marks in the first say how far the search is.
    last = re.compile(rf"h=.*{words.split()[-1].split('-')[-1][:5]}")
    expect(links.first).to_have_attribute("href", last)
    first_two = links.evaluate_all("all => all.slice(0, 2).map((one) => one.pathname)")
    assert SOUGHT[words] & {Path(path).stem for path in first_two}, first_two
    # They are weighed down: they name all that the guide explains.
    assert not any(LOOKED_UP.search(path) for path in first_two), first_two
    # What is shown of a page says what it is about, not where its numbers come from.
    assert "driver" not in links.first.inner_text()


def test_a_copied_command_can_be_pasted(page: Page, pages: list[Path]) -> None:
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


def test_every_page_has_a_title_and_a_description_of_its_own(
    site: Path, pages: list[Path]
) -> None:
    for pattern in (
        r"<title>(.*?)</title>",
        r'<meta name="description" content="(.*?)"',
    ):
        said: dict[str, str] = {}
        for path in pages:
            (text,) = re.findall(pattern, path.read_text(encoding="utf-8"), re.DOTALL)
            assert text not in said, f"{path.name} and {said[text]}: {text}"
            said[text] = path.name
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    assert not re.search(r": $", listed, re.MULTILINE), "a page without a description"
    assert len(re.findall(r"^- \[", listed, re.MULTILINE)) == len(pages)


# What a reader sees of each table of a page: how much of its width is hidden, how tall
# its lines and its head are, and what is narrow though it has many letters.
MEASURE_TABLES = """() => {
  const measured = (table) => {
    const frame = table.closest(".table-frame")
    if (!table.checkVisibility() || table.closest("#explorer")) return []
    const box = (element) => element.getBoundingClientRect()
    const lines = [...table.tBodies[0].rows]
    const cells = lines.flatMap((line) => [...line.cells])
    const long = cells.filter((cell) => cell.textContent.trim().length > 30)
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
OPEN_FOLDS = (
    "document.querySelectorAll('details').forEach((fold) => (fold.open = true))"
)


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


def test_in_print_heads_are_text_and_hundreds_of_lines_stay_folded(
    page: Page, pages: list[Path]
) -> None:
    fold = open_first(page, pages, "details:has(tbody tr:nth-child(100))").first
    page.evaluate(OPEN_FOLDS)
    short = page.locator("table.data:has(button):not(:has(tr:nth-child(60)))").first
    page.emulate_media(media="print")
    expect(fold.locator("summary").first).to_be_visible()
    expect(fold.locator("table").first).to_be_hidden()
    # Chromium does not draw a button again where it repeats the head of a table.
    display = "button => getComputedStyle(button).display"
    assert short.locator("button").first.evaluate(display) == "contents"
    frame = short.locator("..").evaluate("frame => frame.scrollHeight")
    assert frame == short.locator("..").evaluate("frame => frame.clientHeight")


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
        numbers = page.locator("p.caption, summary[id^=table]").evaluate_all(
            "captions => captions.map(caption => caption.id)"
        )
        assert numbers == [f"table-{n}" for n in range(1, len(numbers) + 1)], path.name
