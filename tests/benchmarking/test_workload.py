"""Test that modes of a workload run their phases and inputs are reproducible."""

from contextlib import contextmanager

import pytest
import torch

from systems.benchmarking.workload import MODES, Workload, random_inputs
from systems.model.sizes import SIZES, ModelSize

PHASES = {
    "forward": ["forward"],
    "forward_graph": ["forward"],
    "forward_two_graphs": ["forward", "second_forward"],
    "forward_backward": ["forward", "loss", "backward"],
    "step": ["forward", "loss", "backward", "optimizer"],
}


@pytest.fixture(autouse=True)
def tiny_size(monkeypatch, set_precision):
    monkeypatch.setitem(SIZES, "small", ModelSize(8, 16, 1, 2))


def make_workload(mode: str, **others) -> Workload:
    return Workload("cpu", "small", 6, mode, batch=2, vocab=50, **others)


@pytest.mark.parametrize("mode", MODES)
def test_workload_runs_the_phases_of_its_mode(mode):
    work, entered, graphs = make_workload(mode), [], []

    @contextmanager
    def record_phase(name):
        entered.append(name)
        yield

    def forward(token_ids):
        logits = work.model(token_ids)
        graphs.append(logits.requires_grad)
        return logits

    work.forward = forward
    before = [p.detach().clone() for p in work.model.parameters()]
    work.step(record_phase)
    assert entered == PHASES[mode]
    assert graphs == [mode != "forward"] * (2 if "two" in mode else 1)
    after = list(work.model.parameters())
    assert all((p.grad is not None) == (mode in ("forward_backward", "step"))
               for p in after)  # fmt: skip
    moved = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert any(moved) == (mode == "step")


def test_workloads_have_equal_weights_and_tokens():
    a, b = make_workload("step"), make_workload("forward")
    assert torch.equal(a.token_ids, b.token_ids) and a.token_ids.shape == (2, 6)
    assert not torch.equal(a.token_ids, a.targets)
    assert Workload("cpu", "small", 6).token_ids.shape == (4, 6)
    pairs = zip(a.model.parameters(), b.model.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_unknown_precision_is_rejected():
    with pytest.raises(ValueError, match="no precision is named 'fp8'"):
        make_workload("step", precision="fp8")


def test_random_inputs_are_reproducible():
    first, second = (random_inputs((1, 2, 3, 4), torch.bfloat16, "cpu") for _ in "ab")
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    assert [x.requires_grad for x in first] == [True, True, True, False]
    assert {(x.dtype, x.shape) for x in first} == {(torch.bfloat16, (1, 2, 3, 4))}
    assert not torch.equal(first[0], first[1])
