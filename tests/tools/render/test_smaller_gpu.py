"""What the owner of an A100 with 40 GB sees: rows that do not fit are out of memory,
wherever their numbers would stand, and never "not measured".
"""

import re
from pathlib import Path

import pytest

from systems import ROOT
from systems.records import store
from tests.factories import RECORDS, make_gpu, on_smaller
from tests.tools.render.svgs import by_lot
from tools.render import everything, load, plots
from tools.render.spanning import pages

INCLUDE = re.compile(r'^( *)--8<-- "generated/([\w.-]+\.md)"$', re.MULTILINE)
RESIDUE = re.compile(r"not\s+measured|\bnan\b", re.IGNORECASE)
OUT_OF_MEMORY = re.compile("out of memory|OOM")


def render_pages(results: Path, gib: int) -> tuple[dict[str, str], set[str]]:
    """Return each page, with its fragments and facts, as a GPU with so much memory
    would give it; and the stems with rows that are out of memory there.
    """
    name = f"NVIDIA A100-SXM4-80GB limited to {gib} GiB"
    gpu, lost = make_gpu(name, capability="8.0", memory_bytes=gib * 2**30), set()
    for path in RECORDS:
        record = store.read(path)
        if path.parent.name == "nvidia-h200":
            record = on_smaller(record, gpu)
            if any(row.status == "out_of_memory" for row in record.rows):
                lost.add(record.stem)
        store.write(record, results / record.device.slug / path.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "_primary_gpu_in", lambda config: gpu.slug)
        patch.setattr(plots, "svg", by_lot("", 8))
        files = everything.render_all(results)
    assert not files.broken
    facts, texts = load.yaml.safe_load(files["facts.yml"])["facts"], {}
    for page, path in pages.sources(ROOT / "docs"):
        text = path.read_text(encoding="utf-8")
        while INCLUDE.search(text):
            text = INCLUDE.sub(lambda line: files[line[2]], text)
        texts[page] = pages.filled_in(page, text, facts)
    return texts, lost


def more(pattern: re.Pattern[str], before: dict[str, str], now: dict[str, str]):
    """Return the pages on which a pattern stands more often now."""
    count = {page: len(pattern.findall(text)) for page, text in before.items()}
    return {page for page in now if len(pattern.findall(now[page])) > count[page]}


@pytest.mark.slow
def test_what_does_not_fit_is_out_of_memory_on_every_page(tmp_path):
    """Some rows fit on no GPU of today."""
    enough, always = render_pages(tmp_path / "1000", 1000)
    small, lost = render_pages(tmp_path / "40", 40)
    assert always == {"attention", "end_to_end", "model_attention", "peak_memory"}
    assert lost >= always | {"kernel_profile"}
    assert not more(RESIDUE, enough, small)
    pages_of_lost = {"end_to_end", "attention", "peak_memory", "kernel_profile"}
    assert pages_of_lost <= more(OUT_OF_MEMORY, enough, small)
