"""Test the bytes of saved tensors: shared memory counts once, weights don't count."""

import inspect

import pytest

from systems.experiments.saved_tensors import Config, run
from systems.formulas.memory_costs import Pass, block_saved_bytes
from systems.model.sizes import SIZES, ModelSize
from systems.model.transformer import RMSNorm

SHAPE = ModelSize(64, 192, 2, 4)


@pytest.fixture(autouse=True)
def small_size(monkeypatch):
    monkeypatch.setitem(SIZES, "tested", SHAPE)


def run_part(part: str, compiled: bool = False, heads: int = 4) -> dict:
    return run(Config(part, 32, heads, compiled, "tested", 2))


def total_bytes(row: dict) -> int:
    return sum(tensor["bytes"] for tensor in row["tensors"])


def test_saved_bytes_of_a_block_follow_from_shapes():
    row = run_part("block")
    p = Pass(SHAPE, 32, "step", "fp32", batch=2)
    assert total_bytes(row) == block_saved_bytes(p) < row["bytes_if_counted_each_time"]
    assert row["parameter_gradient_bytes"] == 4 * (4 * 64**2 + 3 * 64 * 192 + 2 * 64)


def test_recomputing_pairs_of_blocks_saves_two_inputs():
    row = run_part("four_blocks_by_twos")
    # torch 2.11 saves an empty tensor too.
    assert [t["bytes"] for t in row["tensors"] if t["bytes"]] == 2 * [4 * 2 * 32 * 64]
    assert total_bytes(run_part("four_blocks")) == 4 * total_bytes(run_part("block"))


@pytest.mark.slow
def test_compiled_norm_saves_three_tensors_not_six(monkeypatch):
    # Remove the tests' shape checks, which compilers can't trace.
    monkeypatch.setattr(RMSNorm, "forward", inspect.unwrap(RMSNorm.forward))
    assert (run_part("norm")["saved"], run_part("norm", True)["saved"]) == (6, 3)


def test_saved_tensors_name_their_line_of_code():
    lines = {by for t in run_part("block")["tensors"] for by in t["by"]}
    assert any(line.startswith("softmax: exponentials = ") for line in lines)
    assert any(line.startswith("SwiGLU: return ") for line in lines)


@pytest.mark.parametrize("heads", [7, 64])
def test_heads_of_odd_or_broken_width_are_rejected(heads):
    with pytest.raises(ValueError, match="--heads"):
        run_part("norm", heads=heads)
