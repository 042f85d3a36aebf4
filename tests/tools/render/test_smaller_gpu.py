"""Test that pages of a GPU with 40 GiB show rows that don't fit as out of memory."""

import re
from pathlib import Path

import pytest

from systems.records import store
from tests.factories import RECORDS, make_gpu, simulate_smaller_gpu
from tests.tools.render.svgs import sample_figures
from tools.render import everything, load, plots

RESIDUE = re.compile(r"not\s+measured|\bnan\b", re.IGNORECASE)
OUT_OF_MEMORY = re.compile("out of memory|OOM")


def render_smaller(results: Path, gib: int) -> tuple[dict[str, str], set[str]]:
    """Render everything for a GPU with this memory; return files and OOM stems."""
    name = f"NVIDIA A100-SXM4-80GB limited to {gib} GiB"
    gpu, lost = make_gpu(name, capability="8.0", memory_bytes=gib * 2**30), set()
    for path in RECORDS:
        record = store.read(path)
        if path.parent.name == "nvidia-h200":
            record = simulate_smaller_gpu(record, gpu)
            if any(row.status == "out_of_memory" for row in record.rows):
                lost.add(record.stem)
        store.write(record, results / record.device.slug / path.name)
    with pytest.MonkeyPatch.context() as patch:
        (results.parent / "mkdocs.yml").write_text(f"extra:\n  primary_gpu: {gpu.slug}")
        patch.setattr(load, "ROOT", results.parent)
        patch.setattr(plots, "draw_svg", sample_figures("", 8))
        files = everything.render_all(results)
    return files, lost


def find_increases(pattern: re.Pattern[str], old: dict[str, str], new: dict[str, str]):
    """Return the files in which a pattern occurs more often than before."""
    count = {name: len(pattern.findall(text)) for name, text in old.items()}
    return {name for name in new if len(pattern.findall(new[name])) > count[name]}


@pytest.mark.slow
def test_rows_that_do_not_fit_are_out_of_memory(tmp_path):
    """Some rows fit on no current GPU, so compare with a GPU of 1,000 GiB."""
    enough, always = render_smaller(tmp_path / "1000", 1000)
    small, lost = render_smaller(tmp_path / "40", 40)
    assert always == {"attention", "end_to_end", "model_attention", "peak_memory"}
    assert lost >= always | {"kernel_profile"}
    assert not find_increases(RESIDUE, enough, small)
    files = find_increases(OUT_OF_MEMORY, enough, small)
    stems = {name.partition("-")[0] for name in files}
    assert stems >= {"end_to_end", "attention", "peak_memory", "kernel_profile"}
