"""Test the search for the largest model, context or batch that fits a GPU."""

from dataclasses import replace
from functools import partial

import pytest
from torch.utils.flop_counter import FlopCounterMode

from systems.formulas.costs import forward_flops
from systems.formulas.fit import find_largest, floor_seconds, peak_bytes, step_flops
from systems.formulas.gpus import CONTEXT_BYTES, GPUS
from systems.formulas.memory_costs import Pass, weight_bytes
from systems.model.sizes import ModelSize
from tests.cpu_allocator import build_pass
from tests.needed import ROOT, run_python

XL = Pass("xl", 2048, "step", "bf16", "flash")
run_fit = partial(run_python, "-m", "systems.formulas.fit")


@pytest.mark.parametrize("field", ["batch", "context"])
@pytest.mark.parametrize("gpu", GPUS)
def test_find_largest_returns_the_last_that_fits(field, gpu):
    room = GPUS[gpu].free_bytes
    most = find_largest(XL, field, room)
    assert peak_bytes(replace(XL, **{field: most + 1})) > room
    assert not most or peak_bytes(replace(XL, **{field: most})) <= room


def test_impossible_passes_are_refused():
    eager, graph = replace(XL, attention="eager"), replace(XL, mode="forward_graph")
    fields = "precision size context batch kv_heads kv_heads checkpoint checkpoint"
    values = ("tf32", "XL", -1, 2.5, 0, 3, -1, 49)
    wrong = [(XL, *pair) for pair in zip(fields.split(), values, strict=True)]
    wrong += [(XL, "embeddings", 3), (graph, "checkpoint", 1)]
    without = (XL, replace(eager, checkpoint=1), replace(eager, mode="forward"))
    wrong += [(p, "recompute_attention", True) for p in without]
    for p, field, value in wrong:
        with pytest.raises(
            ValueError, match=f"^{field} is {value!r}, must (be|divide)"
        ):
            replace(p, **{field: value})
    for heads, rule in ((3, "divide d_model, 100"), (-1, "be a whole number of at")):
        with pytest.raises(ValueError, match=f"^num_heads is {heads}, must {rule}"):
            replace(XL, size=ModelSize(100, 400, 2, heads))


def test_hand_in_lists_the_longest_contexts_that_fit():
    page = (ROOT / "docs/hand_in.md").read_text(encoding="utf-8")
    gpu, rooms = GPUS["a100-80"], [GPUS[f"a100-{gb}"].free_bytes for gb in (80, 40)]
    step = Pass("large", 1, "step", "fp32", workspace_bytes=gpu.workspace_bytes)
    for size in ("large", "xl", "2.7B"):
        steps = [replace(step, size=size, mode=m) for m in ("forward_backward", "step")]
        fit = [find_largest(s, "context", room) for room in rooms for s in steps]
        assert " | ".join([f"| `{size}`", *(str(n or "none") for n in fit)]) in page


def test_memory_of_the_h200_equals_its_record():
    """`GPUS` has the driver's figure, of which the CUDA context takes CONTEXT_BYTES."""
    assert GPUS["h200"].memory_mib * 2**20 == pytest.approx(150_754_820_096, abs=2**20)
    assert 0.5 < CONTEXT_BYTES / 2**30 < 0.7


SHAPE = ModelSize(32, 64, 4, 2)
AGAIN = [{"checkpoint": run} for run in range(5)] + [{"recompute_attention": True}]


@pytest.mark.parametrize("again", AGAIN, ids=str)
def test_step_flops_equal_pytorch_s_counter(again):
    p = Pass(SHAPE, 16, "step", "fp32", vocab=50, **again)
    _, run_pass = build_pass(p)
    with FlopCounterMode(display=False) as counted:
        run_pass()
    assert counted.get_total_flops() == step_flops(p)


def test_flash_flops_count_half_of_the_scores():
    """Scores are 512 · 513 / 2 pairs, in two matmuls forward and five backward."""
    p = Pass("small", 512, "step", "fp32")
    parts = forward_flops(**vars(p.shape), vocab_size=10_000, context=512, batch=4)
    product = parts["attention"] // 2 * 513 // 1024
    others = sum(parts.values()) - parts["attention"]
    flash = replace(p, attention="flash")
    assert step_flops(flash) == 3 * others + 7 * product
    blocks, w2 = replace(flash, checkpoint=1), parts["feed_forward"] // 3
    again = others - parts["head"] - w2
    assert step_flops(blocks) == 3 * others + again + 9 * product


def test_step_bound_adds_matmuls_and_optimizer_traffic():
    p, a100 = Pass("small", 512, "step", "fp32"), GPUS["a100-80"]
    moved = 7 * weight_bytes(p)
    assert floor_seconds(p, a100) == step_flops(p) / 19.5e12 + moved / 2.039e12
    with pytest.raises(ValueError, match="^mode is 'forward', must be 'step'"):
        floor_seconds(replace(p, mode="forward"), a100)


def test_the_command_prints_what_fits():
    printed = run_fit("--size", "xl", "--context", "4096", "--gpu", "a100-80").stdout
    for text in ("does not fit", " 79.38 ", "saved activations", "TFLOP a step"):
        assert text in printed


@pytest.mark.parametrize("wrong", ["--size 7", "--batch 0", "--checkpoint 33"])
def test_wrong_option_gives_a_one_line_error(wrong):
    ended = run_fit("--size", "2.7B", *wrong.split())
    assert ended.stderr.startswith("error: ") and wrong.split()[0] in ended.stderr
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
