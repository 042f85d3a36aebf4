"""What the owner of an A100 with 40 or 80 GB sees: rows that did not fit are out of
memory, wherever their numbers would stand, and never "not measured".
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

pytestmark = pytest.mark.slow

GIB = 2**30
NAME = "NVIDIA A100-SXM4-80GB"
INCLUDE = re.compile(r'^( *)--8<-- "generated/([\w.-]+\.md)"$', re.MULTILINE)
RESIDUE = re.compile(r"not\s+measured|\bnan\b", re.IGNORECASE)


def guide(results: Path, name: str, gib: int) -> tuple[dict[str, str], set[str]]:
    """The text of each page with the records of a GPU that has so much memory, and the
    stems with rows that don't fit there.
    """
    gpu = make_gpu(name, capability="8.0", memory_bytes=gib * GIB)
    lost = set()
    for path in RECORDS:
        record = store.read(path)
        if path.parent.name == "nvidia-h200":
            record = on_smaller(record, gpu)
            statuses = [row.status for row in record.rows]
            lost |= {record.stem} if "out_of_memory" in statuses else set()
        store.write(record, results / record.device.slug / path.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "_primary_gpu_in", lambda config: gpu.slug)
        patch.setattr(plots, "svg", by_lot("", 8))
        files = everything.render_all(results)
    assert not files.broken
    return dict(shown(files)), lost


@pytest.fixture(scope="module")
def enough(tmp_path_factory):
    """With memory for everything, as on the GPU that measured these records."""
    return guide(tmp_path_factory.mktemp("results"), NAME, 1000)


def shown(files):
    """Each page with its fragments and facts in their places."""
    facts = load.yaml.safe_load(files["facts.yml"])["facts"]
    for name, path in pages.sources(ROOT / "docs"):
        text = path.read_text(encoding="utf-8")
        while INCLUDE.search(text):
            text = INCLUDE.sub(lambda found: files[found[2]], text)
        yield name, pages.filled_in(name, text, facts)


def found(pattern: re.Pattern[str], of: dict[str, str]) -> dict[str, int]:
    return {name: len(pattern.findall(text)) for name, text in of.items()}


@pytest.mark.parametrize("gib", [40, 80])
def test_what_does_not_fit_is_out_of_memory_on_every_page(gib, enough, tmp_path):
    """Some records have rows that no GPU of today holds, whatever its memory is."""
    before, always = enough
    pages_of, lost = guide(tmp_path, f"{NAME} limited to {gib} GiB", gib)
    assert always == {"attention", "end_to_end", "model_attention", "peak_memory"}
    assert lost >= always | {"kernel_profile"}
    counts, now = found(RESIDUE, before), found(RESIDUE, pages_of)
    assert not {n: (counts[n], now[n]) for n in counts if now[n] > counts[n]}
    told = re.compile("out of memory|OOM")
    more, now = found(told, before), found(told, pages_of)
    assert {"end_to_end", "attention", "peak_memory", "kernel_profile"} <= {
        n for n in more if now[n] > more[n]
    }
