"""Compare numbers in drawings with attention, formulas, records and kernels."""

import lzma
import math
import re
from xml.etree import ElementTree

import pytest
import torch
from lxml import html

from systems import ROOT
from systems.attention import attention_reference
from systems.formulas.costs import PEAKS, attention_peak_bytes, forward_flops
from systems.formulas.gpus import CHIPS
from systems.model.sizes import VOCAB_SIZE
from systems.profiling import nsys
from systems.profiling.marks import LAYER, STEP
from systems.records.record import PHASES
from tests.factories import read_record
from tests.tools.render.svgs import find_cut_texts, parse_figures
from tools.render import standalone
from tools.render.frame import frame
from tools.render.markdown import percent
from tools.render.spanning import envelope
from tools.render.stems.attention.columns import formula_inputs

DOCS = ROOT / "docs"
SCORES = "drawings/score-matrices-wide.svg"
PAGES = {path: path.read_text("utf-8") for path in DOCS.glob("*.md")}
# Names of hand-made drawings, without the suffix for the width.
BY_HAND = sorted(
    path.name.removesuffix("-wide.svg") for path in DOCS.glob("drawings/*-wide.svg")
)
INCLUDED = re.compile(r'^--8<-- "(drawings/[\w-]+\.svg)"$', re.MULTILINE)


def read_texts(name: str) -> list[str]:
    drawing = html.fragment_fromstring((DOCS / f"drawings/{name}-wide.svg").read_text())
    return [text.text for text in drawing.iter("text")]


def test_drawing_of_online_softmax_is_correct():
    """With q = log 2, scores in base 2 equal the keys. lse is a natural logarithm."""
    shown = [t for t in read_texts("forward-walk") if re.fullmatch(r"[\d.−]+", t)]
    v = torch.arange(1.0, 9.0, dtype=torch.float64)[:, None]
    assert [float(text) for text in shown[:8]] == v[:, 0].tolist()
    q = torch.tensor([[math.log(2)]], dtype=torch.float64)
    for s, ends in (("1 0 2 1 2 0 3 1", -12), ("3 2 1 3 0 2 2 1", -6)):
        k = torch.tensor([float(x) for x in s.split()], dtype=torch.float64)[:, None]
        o, lse = attention_reference(q, k, v, scale=1.0)
        end = [f"{round(x.item(), 3):g}" for x in (o, lse)]
        assert shown[ends:][4:6] == end


FIGURES = {
    f"{path.name}-{at}": INCLUDED.sub(lambda m: (DOCS / m[1]).read_text(), figure)
    for path, page in PAGES.items()
    for at, figure in enumerate(
        re.findall(r'<figure class="drawn.*?</figure>', page, re.DOTALL)
    )
}


@pytest.mark.parametrize("name", FIGURES)
def test_drawing_steps_have_sentences_and_fit(name):
    (drawn,) = parse_figures(FIGURES[name], "drawn")
    sentences, stepped = drawn.findall("ol/li"), "steps" in drawn.get("class")
    wide, narrow = drawn.findall("svg")
    assert drawn.find("figcaption/strong").text_content().endswith(".")
    assert [wide.get("width"), narrow.get("width")] == ["720", "340"]
    for svg in (wide, narrow):
        frames = svg.findall(".//g[@class='frame']")
        assert len(frames) == len(sentences) and (len(frames) > 1) == stepped
        _, _, width, height = map(float, svg.get("viewbox").split())
        assert list(svg.iter("rect", "path")) and find_cut_texts(svg) == []
        for box in svg.iter("rect"):
            x, y, w, h = (float(box.get(n)) for n in ("x", "y", "width", "height"))
            assert 0 <= x <= x + w <= width and 0 <= y <= y + h <= height


def test_drawn_score_matrices_equal_the_formula():
    alive = re.findall(r'y="334"[^>]*>(\d+)<', (DOCS / SCORES).read_text("utf-8"))
    counted = [
        name for name in attention_peak_bytes(**formula_inputs(16384)) if "n, n" in name
    ]
    assert max(map(int, alive)) == len(counted) == 6


def test_hand_made_drawings_are_valid_and_used():
    used = {name for page in PAGES.values() for name in INCLUDED.findall(page)}
    assert used == {
        f"drawings/{name}-{shown}.svg"
        for name in BY_HAND
        for shown in ("wide", "narrow")
    }
    for path in (DOCS / "drawings").iterdir():
        text = path.read_text("utf-8")
        ElementTree.fromstring(text)
        # The first line ends in a description, and no blank line ends the HTML block.
        assert re.match(r"<svg class=[^>]*\.\">\n  <!-- .+ -->\n", text), path.name
        assert "\n\n" not in text and len(text) < 12_000


def test_drawn_shares_of_a_block_equal_the_formulas():
    flops = forward_flops(vocab_size=VOCAB_SIZE, **envelope.pass_shape("2.7B", 512))
    kinds = [flops[part] for part in ("projections", "feed_forward", "attention")]
    weights, feed_forward, attention = (part / sum(kinds) for part in kinds)
    shares = [3 * weights / 4, attention / 2, attention / 2, weights / 4]
    shares += [2 * feed_forward / 3, feed_forward / 3]
    drawn = [text for text in read_texts("block") if text.endswith("%")]
    assert drawn == list(map(percent, shares))


def test_drawn_autocast_dtypes_equal_the_record():
    dtypes = frame(read_record("autocast")).one(part="transformer", dtype="bf16")
    parts = (
        *("parameters", "embedding", "rmsnorm", "q_projection", "rotary", "scores"),
        *("softmax_subtract", "softmax_exp", "weighted_values", "residual", "swiglu"),
        *("logits", "loss"),
    )
    shown = [text for text in read_texts("autocast") if text in ("fp32", "bf16")]
    assert shown == ["fp32", "bf16", *(dtypes[part] for part in parts)]


@pytest.mark.parametrize("page", ["flash_forward", "flash_backward"])
def test_code_quoted_next_to_equations_exists(page):
    source = (ROOT / "systems" / "attention" / "first.py").read_text()
    text = (ROOT / "docs" / f"{page}.md").read_text()
    quoted = re.findall(r"^\| \\\(.*\\\) \| `(.+)` \|$", text, re.MULTILINE)
    assert len(quoted) == 6
    assert [line for line in quoted if line not in source] == []


def test_drawn_layer_equals_the_recorded_trace(tmp_path):
    packed = (DOCS / "assets/step-small-512.sqlite.xz").read_bytes()
    (export := tmp_path / "step.sqlite").write_bytes(lzma.decompress(packed))
    kernels = nsys.read_export(export, (STEP, *PHASES, LAYER))
    layers = {span for k in kernels for span in k.marks if span.name == LAYER}
    layer = sorted(layers, key=lambda span: span.start)[1]
    times = [(k.start, k.end) for k in kernels if layer in k.marks]
    # In the row of kernels, the layer's range begins at x = 104 and kernels end at 712.
    drawing = (DOCS / "drawings/layer-wide.svg").read_text("utf-8")
    drawn = re.findall(r"M([\d.]+) 132H([\d.]+)v", drawing)
    by_ns = (712 - 104) / (max(end for _, end in times) - layer.start)
    expected = [[104 + by_ns * (at - layer.start) for at in time] for time in times]
    found = [list(map(float, ends)) for ends in drawn]
    for ends, computed in zip(sorted(found), sorted(expected), strict=True):
        assert ends == pytest.approx(computed, abs=0.4)


def test_drawn_gpu_equals_its_data_sheet():
    chip, peak = CHIPS["nvidia-h200"], PEAKS["nvidia-h200"]
    assert {
        f"{chip.sms} SMs, all alike",
        f"{peak.bandwidth / 1e12:.1f} TB/s",
        f"{chip.bf16_flops_per_clock:,} bf16 FLOPs a clock",
        f"{chip.fp32_flops_per_clock} FLOPs a clock",
        f"{chip.exponentials_per_clock} a clock",
    } <= set(read_texts("machine"))


def test_readme_picture_needs_no_style_sheet():
    """The picture defines all its colours, for light and dark schemes."""
    drawn = '<figure><svg viewBox="0 0 1 1"><path style="fill: var(--tint)"/></svg>'
    picture = standalone.standalone_svg(drawn)
    ElementTree.fromstring(picture)
    assert picture.count("--tint: #") == picture.count("--md-default-bg-color: #") == 2
    kept = (ROOT / "docs/generated/index-hook.svg").read_text(encoding="utf-8")
    used = set(standalone.USED.findall(kept))
    assert used and all(kept.count(f"{name}: #") == 2 for name in used)
    ElementTree.fromstring(standalone.standalone_svg("Not measured yet."))
