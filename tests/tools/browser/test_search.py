"""The search finds pages for common queries."""

import json
import re
from html import unescape
from pathlib import Path

import pytest

from tests.tools.browser.looking import Page, expect

pytestmark = pytest.mark.browser

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
