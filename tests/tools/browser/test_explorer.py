"""The explorer filters, sorts, draws and downloads; the search finds pages."""

import csv
import io
import json
import re
from html import unescape
from pathlib import Path

import pytest

from tests.tools.browser.looking import Page, expect

pytestmark = pytest.mark.browser


def test_the_explorer_filters_sorts_and_downloads(page: Page, site: Path) -> None:
    page.goto((site / "explorer.html").as_uri() + "#all")
    status = page.locator("#explorer [role=status]")
    rows = page.locator("#explorer tbody tr")
    counts = re.compile(r"^([\d,]+) of \1 lines match; 100 are shown")
    expect(status).to_contain_text(counts)
    page.locator("#explorer .more").click()
    expect(rows).to_have_count(200)
    size = page.locator("#explorer select[name=size]")
    size.select_option(label="2.7B (2026: xl)")
    expect(size).to_have_value("2.7B")
    size.select_option("")
    page.locator("#explorer select[name=stem]").select_option("end_to_end")
    page.locator("#explorer select[name=metric]").select_option("forward")
    page.locator("#explorer input[name=words]").fill("mode step, -batch 64")
    expect(rows.first).to_contain_text("mode step")
    expect(page.locator("#explorer .more")).to_be_hidden()
    # A list offers only values of rows that match the other filters.
    assert "d_model" not in page.locator("#explorer select[name=metric]").inner_text()
    for direction in (1, -1):
        page.locator("#explorer th button", has_text="value").press("Enter")
        exact = page.locator("#explorer td[data-value]")
        values = exact.evaluate_all("all => all.map((one) => +one.dataset.value)")
        assert values == sorted(values, reverse=direction < 0) and len(values) > 40
    texts = {}
    for kind in ("csv", "json"):
        with page.expect_download() as waited:
            page.locator(f"#explorer [data-download={kind}]").click()
        assert waited.value.suggested_filename == f"results.{kind}"
        texts[kind] = Path(waited.value.path()).read_text(encoding="utf-8")
    lines = list(csv.DictReader(io.StringIO(texts["csv"])))
    for written in (lines, objects := json.loads(texts["json"])):
        assert [float(line["value"]) for line in written] == values
    assert objects[0]["metric"] == "forward"
    assert "mode step" in lines[0]["configuration"]
    assert not any("batch 64" in line["configuration"] for line in lines)
    page.locator("#explorer button[type=reset]").click()
    expect(status).to_contain_text(counts)
    page.locator("#explorer input[name=words]").fill("no such words")
    expect(rows).to_have_count(0)
    # Any GPU can be selected; if none of its rows match, the other filters are cleared.
    page.locator("[name=GPU]").select_option("NVIDIA A100-SXM4-40GB, reported")
    expect(rows).not_to_have_count(0)


@pytest.mark.parametrize("width", [1280, 390])
def test_explorer_state_is_in_its_address(page, site, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.add_init_script(path=Path(__file__).with_name("look.js"))
    page.goto((site / "explorer.html").as_uri())
    chart, address = page.locator("#explorer .chart"), "location.hash"
    # The explorer opens with its first preset: a line for each size.
    expect(chart.locator("polyline")).to_have_count(5)
    assert "stem=end_to_end" in page.evaluate(address)
    # Filtered and empty columns are hidden, and the value is inside the screen.
    heads = page.locator("#explorer th:visible")
    assert heads.all_inner_texts()[:4] == ["size", "value", "unit", "context"]
    value = page.locator("#explorer td[data-value]").first.bounding_box()
    assert value and value["x"] + value["width"] < width
    names = chart.locator("text").all_text_contents()
    assert {"whole step, ms", "small", "xl", "2.7B"} <= set(names)
    page.locator("#explorer .presets a", has_text="by shape").click()
    expect(chart.locator("rect")).not_to_have_count(0)
    bars = chart.locator("rect").count()
    assert chart.locator("rect + text").count() == bars
    times = page.locator("#explorer td[data-value]").all_inner_texts()
    assert len(times) == bars and max(len(time) for time in times) <= 5
    # The address restores the view.
    sent, _ = page.url, page.goto("about:blank")
    page.goto(sent)
    expect(chart.locator("rect")).to_have_count(bars)
    assert page.locator("#explorer select[name=stem]").input_value() == "flash_peers"
    # A GPU that no line has is left out and named.
    page.goto((site / "explorer.html").as_uri() + "#GPU=None&words=mode")
    assert page.locator("#explorer select[name=GPU]").input_value() == ""
    expect(chart).to_contain_text("choose one to see it drawn")
    expect(page.locator("#explorer [role=status]")).to_contain_text("No line has GPU")
    assert page.evaluate(address) == "#words=mode"
    # Labels and long names of bars and curves stay inside the chart, and apart.
    for view in (
        "GPU=NVIDIA+H200&size=xl&metric=whole step",
        "GPU=NVIDIA+H200&stem=end_to_end&size=2.7B&metric=loss",
        "stem=flash_peers&precision=fp32&metric=error of o",
        "stem=nsys&precision=fp32&metric=optimizer, GPU time by nsys",
    ):
        page.evaluate(f"{address} = '#{view}'")
        expect(chart.locator(".title")).to_contain_text(view.rpartition("=")[2])
        assert page.evaluate("[...look.fits(), ...look.covering()]") == []
    page.locator("#explorer button[type=reset]").click()
    assert page.evaluate(address) == "#all"
    assert page.evaluate("document.documentElement.scrollWidth") <= width


# Queries, and the pages that answer them.
SOUGHT = """
log-sum-exp: flash_forward online_softmax; out of memory: peak_memory calculator;
tf32: end_to_end mixed_precision; why bf16 faster: mixed_precision; warmup: warmup;
causal mask: flash_forward; roofline: kernel_profile; bank conflict: flash_hopper;
gradient checkpointing: peak_memory; pinned: gpu; speedup: compile mixed_precision;
gqa: flash_hopper; determinism: flash_peers; mfu: gpu; cuda graph: flash_peers;
a100: hand_in; rtx 4090: calculator; llama: calculator; occupancy: flash_ablation;
triton autotune: flash_any_shape; flop count: model_sizes; synchronize: end_to_end;
tokens per second: end_to_end; memory snapshot: peak_memory; gradient scaler: autocast;
"out of memory": peak_memory calculator; nan?: test_fails; memory:: peak_memory
"""

LOOKED_UP = re.compile(r"/api/|/(writeup|explorer|reference|errata)\.html")


def test_search_index_omits_axis_labels(site: Path, pages: list[Path]) -> None:
    """A page has each figure in two widths; the index omits their axis labels."""
    texts: dict[str, str] = {}
    index = json.loads((site / "search/search_index.json").read_text("utf-8"))
    for entry in index["docs"]:
        words = " ".join(unescape(re.sub("<[^>]+>", " ", entry["text"])).split())
        page = entry["location"].partition("#")[0] or "index.html"
        texts[page] = f"{texts.get(page, '')} {words}"
    looked_at = 0
    for path in pages:
        page = path.read_text("utf-8")
        for svg in re.findall(r'(?s)<svg class="(?:plot|drawing) .*?</svg>', page):
            few = re.findall(r"<text[^>]*>([^<]+)</text>", svg)[:4]
            looked_at += len(few) == 4
            assert len(few) < 4 or " ".join(map(unescape, few)) not in texts.get(
                path.relative_to(site).as_posix(), ""
            )
    assert looked_at > 50


def test_search_finds_explaining_pages(page: Page, site: Path) -> None:
    # Where cookies are blocked, reading localStorage raises.
    denied = "{ configurable: true, get() { throw Error('denied') } }"
    page.add_init_script(f"Object.defineProperty(window, 'localStorage', {denied})")
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__input").click()
    links = page.locator(".md-search-result__item > .md-search-result__link")
    for words, _, explaining in (one.partition(": ") for one in SOUGHT.split(";")):
        words = words.strip()
        page.locator(".md-search__input").fill("")
        page.locator(".md-search__input").press_sequentially(words)
        # Results change during typing; the first link's `h=` shows the current query.
        last = re.compile(rf"h=.*{words.split()[-1].split('-')[-1][:5]}")
        expect(links.first).to_have_attribute("href", last)
        paths = links.evaluate_all("all => all.slice(0, 2).map((one) => one.pathname)")
        assert {Path(p).stem for p in paths} & {*explaining.split()}, (words, paths)
        # The pages in LOOKED_UP rank low, because they contain all words.
        assert not any(LOOKED_UP.search(path) for path in paths), (words, paths)
        # The excerpt describes the page, not its provenance.
        assert "driver" not in links.first.inner_text()
