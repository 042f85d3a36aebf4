"""The drawings of the attention pages: their numbers are attention's, each step has its
sentence, and what the pages quote of the first kernel is in it.
"""

import math
import re
from xml.etree import ElementTree

import pytest
import torch
from msgspec.structs import replace

from systems import ROOT
from systems.attention import attention_reference
from tests.factories import committed
from tests.tools.render.svgs import figures
from tools.render import standalone
from tools.render.spanning import (
    attention_drawings,
    first_kernel,
    hopper_drawings,
    trace,
    weighted_sum_drawings,
)
from tools.render.spanning.attention_drawings import (
    KEYS,
    SCORES,
    VALUES,
    online_softmax,
    result,
)

DRAWINGS = (
    attention_drawings.fragments()
    | hopper_drawings.fragments()
    | weighted_sum_drawings.fragments()
)


@pytest.mark.parametrize("s", SCORES, ids=["rising", "falling"])
def test_the_walk_is_attention_over_the_keys_seen_so_far(s):
    seen = online_softmax(s, VALUES, KEYS)
    assert seen[0].m == -math.inf and len(seen) == 1 + len(s) // KEYS
    for t, state in enumerate(seen[1:], 1):
        keys = KEYS * t
        # One query, of head dimension one, which is log 2: its scores are the keys.
        q = torch.tensor([[math.log(2)]], dtype=torch.float64)
        k, v = (torch.tensor(x[:keys], dtype=q.dtype)[:, None] for x in (s, VALUES))
        o, lse = attention_reference(q, k, v, scale=1.0)
        ours = torch.tensor(result(state), dtype=q.dtype)
        torch.testing.assert_close(ours[0], o[0, 0])
        torch.testing.assert_close(ours[1] * math.log(2), lse[0])


def test_a_maximum_rises_and_another_does_not():
    """The page's sentences tell of both."""
    first, second = (online_softmax(s, VALUES, KEYS)[2:] for s in SCORES)
    assert min(state.shrink for state in first) < 1
    assert max(state.shrink for state in first) == 1
    assert all(state.shrink == 1 for state in second)


@pytest.mark.parametrize("name", DRAWINGS)
def test_each_step_has_its_sentence_and_no_shape_lies_outside(name):
    text = DRAWINGS[name]
    (drawn,) = figures(text, "drawn")
    sentences, stepped = drawn.findall("ol/li"), "steps" in drawn.get("class")
    for svg in drawn.findall("svg"):
        frames = svg.findall("g[@class='frame']")
        assert len(frames) == len(sentences) and (len(frames) > 1) == stepped
        _, _, width, height = map(float, svg.get("viewbox").split())
        shapes = list(svg.iter("rect"))
        assert shapes
        for shape in shapes:
            x, y, w, h = (float(shape.get(n)) for n in ("x", "y", "width", "height"))
            assert 0 <= x <= x + w <= width and 0 <= y <= y + h <= height


@pytest.mark.parametrize(
    ("page", "lines"), [("flash_forward", 6), ("flash_backward", 6)]
)
def test_the_lines_beside_the_equations_are_lines_of_the_kernel(page, lines):
    source = (ROOT / "systems" / "attention" / "first.py").read_text()
    text = (ROOT / "docs" / f"{page}.md").read_text()
    quoted = re.findall(r"^\| \\\(.*\\\) \| `(.+)` \|$", text, re.MULTILINE)
    assert len(quoted) == lines
    assert [line for line in quoted if line not in source] == []


def test_predictions_need_no_record_and_measurements_do():
    stems = ("flash_benchmarking", "flash_ablation")
    without, found = first_kernel.facts({}), {stem: [committed(stem)] for stem in stems}
    # 9 numbers of two bytes for each of 16384² scores, since what is timed calls
    # torch.softmax; 4.8 TB/s.
    assert without["plain_bytes"] == "4.8 GB" and without["plain_moved"] == "1.01 ms"
    assert without["plain"] == without["two_passes"] == "not measured"
    (ours,) = found["flash_ablation"]
    rest = [row for row in ours.rows if not row.config["step"].startswith("first_")]
    (row,) = (row for row in rest if row.config["step"] == "skip")
    timed = [
        replace(row, config=row.config | {"step": f"first_{of}"})
        for of in ("forward", "backward")
    ]
    (empty,) = first_kernel.fragments({}).values()
    assert "Not measured" in empty
    # A record may be from before the first kernel was timed.
    for rows, begins in ((rest, "design"), ([*rest, *timed], "other tiles")):
        found["flash_ablation"] = [replace(ours, rows=rows)]
        unknown = "not measured" in first_kernel.facts(found).values()
        assert unknown is (rows is rest)
        (drawn,) = first_kernel.fragments(found).values()
        assert begins in drawn and "not measured" not in drawn


def test_a_memset_in_a_trace_is_no_kernel():
    shown = trace.layer(*trace.step())
    memsets = sum(kernel.name == "Memset" for kernel in shown.kernels)
    assert memsets == 1
    assert shown.work == f"{len(shown.kernels) - memsets} kernels and 1 memset"


def test_the_picture_of_the_readme_stands_by_itself():
    """It has every colour that it uses, once for the light and once for the dark."""
    drawn = '<figure><svg viewBox="0 0 1 1"><path style="fill: var(--tint)"/></svg>'
    picture = standalone.by_itself(drawn)
    ElementTree.fromstring(picture)
    assert picture.count("--tint: #") == picture.count("--md-default-bg-color: #") == 2
    kept = (ROOT / "docs/generated/index-hook.svg").read_text(encoding="utf-8")
    used = set(standalone.USED.findall(kept))
    assert used and all(kept.count(f"{name}: #") == 2 for name in used)
    ElementTree.fromstring(standalone.by_itself("Not measured yet."))
