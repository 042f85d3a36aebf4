"""Compare formulas of peak memory with recomputation with passes on fake tensors."""

import math
from dataclasses import replace

import pytest

from systems.experiments.gradient_checkpointing import apply_strategy
from systems.formulas import recomputation
from systems.formulas.memory_costs import Pass, block_saved_bytes, residual_bytes
from systems.formulas.memory_peak import peak_candidates
from systems.model.sizes import ModelSize
from tests.cpu_allocator import allocator, build_pass

pytestmark = pytest.mark.interpreted
SHAPE = ModelSize(256, 1024, 8, 4)
WAYS = [
    ("none", 1, "eager", "bf16", 8),
    ("attention", 1, "eager", "bf16", 8),
    ("runs", 3, "flash", "bf16", 8),
    ("by_hand", 1, "flash", "bf16", 8),
    ("half_blocks", 1, "flash", "fp32", 8),
    ("halving", 1, "flash", "bf16", 8),
    ("halving", 1, "flash", "bf16", 1),
    ("chain", 1, "flash", "fp32", 8),
    ("chain", 1, "flash", "bf16", 8),
]


def allocator_peaks(monkeypatch, p: Pass, strategy: str, run: int) -> list[int]:
    """Return two peaks of a pass in bytes: without and with existing gradients."""
    with allocator(monkeypatch) as memory:
        model, run_pass = build_pass(p)
        apply_strategy(model, strategy, run)
        found = []
        for fresh in (True, False):
            model.zero_grad(set_to_none=fresh)
            memory.reset_peak()
            run_pass()
            found.append(memory.peak)
        # Free the tensors before the allocator that counts them.
        del model, run_pass
    return found


@pytest.mark.parametrize("way", WAYS)
def test_both_peaks_equal_formulas(monkeypatch, way):
    strategy, run, attention, precision, layers = way
    if attention == "flash":
        pytest.importorskip("triton")
    small = {"batch": 2, "vocab": 500, "workspace_bytes": 0}
    shape = replace(SHAPE, num_layers=layers)
    p = Pass(shape, 512, "forward_backward", precision, attention, **small)
    found = allocator_peaks(monkeypatch, p, strategy, run)
    expected = recomputation.strategy_peaks(p, strategy, run)
    assert list(expected) == pytest.approx(found, rel=0.007)


def test_forward_pass_keeps_16_2_or_1_inputs_by_strategy():
    """The forward pass of eight blocks keeps 16, 2 or 1 inputs, by strategy."""
    p = Pass(SHAPE, 512, "forward_backward", "fp32", "flash")
    tied = replace(p, embeddings=1)
    of_blocks = peak_candidates(replace(p, checkpoint=1))["after the forward pass"]
    for strategy, inputs in (("half_blocks", 16), ("halving", 2), ("chain", 1)):
        kept, *_, block = recomputation.strategy_peak_candidates(p, strategy, 1)
        saved = kept["saved activations"] - of_blocks["saved activations"]
        assert saved == (inputs - 8) * residual_bytes(p)
        *_, tied_block = recomputation.strategy_peak_candidates(tied, strategy, 1)
        assert tied_block["temporaries"] == block["temporaries"]


def test_nested_runs_match_closed_forms():
    """For 2^k blocks, halving keeps one input, and one more per set bit of a block."""
    for log in range(1, 7):
        n = 2**log
        assert n * recomputation.count_forward_passes("halving", n) == n * (3 + log) / 2
        assert n * recomputation.count_forward_passes("chain", n) == n * (n + 3) / 2
        for block in range(n):
            kept = recomputation.count_kept_inputs("halving", n, block + 1)
            assert kept == 1 + block.bit_count()
    # Halving five blocks into two and three adds three block computations.
    assert 5 * recomputation.count_forward_passes("halving", 5) == 2 * 5 + 3
    # Three layers are halved into one and two.
    halves = recomputation.in_second_halves
    assert halves(3, 3) == [True, True] and halves(3, 1) == [False]


def test_recompute_block_keeps_one_more_gradient():
    """With existing gradients, the strategies have equal peaks, in the forward pass."""
    p = Pass("2.7B", 2048, "forward_backward", "bf16", "flash")
    made, kept = recomputation.strategy_peaks(p, "runs")
    by_hand, kept_by_hand = recomputation.strategy_peaks(p, "by_hand")
    assert kept_by_hand == kept and by_hand == made + residual_bytes(p)
    names, moments = peak_candidates(replace(p, checkpoint=1)), []
    for strategy in ("by_hand", "runs"):
        found = recomputation.strategy_peak_candidates(p, strategy, 1)
        moments.append([moment["temporaries"] for moment in found])
    held = {x for x, a, b in zip(names, *moments, strict=True) if a != b}
    assert held == {x for x in names if " of the " in x and x.startswith("backward")}


def test_best_run_lengths_are_square_roots():
    p = Pass("2.7B", 2048, "forward_backward", "bf16", "flash")
    root, weighed = recomputation.best_run_lengths(p)
    assert root == math.sqrt(32)
    assert 32 * residual_bytes(p) == pytest.approx(weighed**2 * block_saved_bytes(p))
