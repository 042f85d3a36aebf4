"""The language has its entropy, and each precision is what it is called."""

import math
import re
from collections import defaultdict

import pytest
import torch

from systems.experiments import mixed_precision
from systems.experiments.mixed_precision import Config
from systems.model import synthetic_language
from systems.model.sizes import SIZES, ModelSize
from systems.records.outcome import measure_row


def test_no_model_can_beat_the_entropy_of_the_language():
    """Counts of half of the text predict the other half with ENTROPY nats."""
    text = synthetic_language.sample(vocab=32, sequences=600, length=120, seed=5)
    counts: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for sequence in text[:300].tolist():
        for a, b in zip(sequence, sequence[1:], strict=False):
            counts[a][b] += 1
    assert all(
        len(successors) == synthetic_language.SUCCESSORS
        for successors in counts.values()
    )
    losses = [
        -math.log(counts[a][b] / sum(counts[a].values()))
        for sequence in text[300:].tolist()
        for a, b in zip(sequence, sequence[1:], strict=False)
    ]
    assert sum(losses) / len(losses) == pytest.approx(
        synthetic_language.ENTROPY, rel=0.01
    )
    assert (
        synthetic_language.ENTROPY
        < math.log(synthetic_language.SUCCESSORS)
        < math.log(32)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_language_does_not_depend_on_defaults(dtype, device):
    expected = synthetic_language.sample(64, 20, 40, seed=1)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            found = synthetic_language.sample(64, 20, 40, seed=1)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)


def test_a_seed_changes_the_text_and_not_the_language():
    one, same, other = (
        synthetic_language.sample(64, 200, 40, seed) for seed in (1, 1, 2)
    )
    assert torch.equal(one, same) and not torch.equal(one, other)

    def pairs(text):
        return {
            (a, b)
            for sequence in text.tolist()
            for a, b in zip(sequence, sequence[1:], strict=False)
        }

    assert (
        len(pairs(one) | pairs(other)) <= 64 * synthetic_language.SUCCESSORS < 64 * 64
    )


@pytest.fixture
def tiny(monkeypatch, on_cpu):
    """Make `small` tiny and on the CPU; list the optimizers that are made."""
    monkeypatch.setitem(SIZES, "small", ModelSize(16, 32, 1, 2))
    made, optimizer = [], mixed_precision.AdamW
    monkeypatch.setattr(
        mixed_precision,
        "AdamW",
        lambda parameters: made.append(optimizer(parameters)) or made[-1],
    )
    return made


def config(precision: str, **changes) -> Config:
    return Config(
        precision, **({"context": 16, "batch": 8, "vocab": 32, "steps": 40} | changes)
    )


DTYPES = {
    # Of weights, gradients and optimizer state; of the products.
    "fp32": (torch.float32, torch.float32),
    "bf16": (torch.float32, torch.bfloat16),
    "bf16_pure": (torch.bfloat16, torch.bfloat16),
}


@pytest.mark.parametrize("precision", mixed_precision.PRECISIONS)
def test_a_precision_is_what_it_is_called(tiny, precision, monkeypatch):
    products, einsum = set(), torch.einsum

    def spy(equation, *operands):
        result = einsum(equation, *operands)
        products.add(result.dtype)
        return result

    monkeypatch.setattr(torch, "einsum", spy)
    metrics = mixed_precision.run(config(precision))
    (optimizer,) = tiny
    held, product = DTYPES[precision]
    assert products == {product}
    for parameter in optimizer.param_groups[0]["params"]:
        state = optimizer.state[parameter]
        assert {parameter.dtype, state["m"].dtype, state["v"].dtype} == {held}
    assert (
        len(metrics["loss"]) == len(metrics["step_ms"]) == 40
        and metrics["floor"] == synthetic_language.ENTROPY
    )
    assert optimizer.param_groups[0]["lr"] == mixed_precision.LEARNING_RATE


def test_training_that_diverges_is_a_result(tiny):
    row = measure_row(config("fp32", learning_rate=1e30), mixed_precision.run)
    assert row.status == "unsupported" and row.metrics == {}
    assert re.fullmatch(r"diverges: no finite loss in step \d+", row.reason or "")


def test_fp32_learns_and_twins_begin_alike(tiny):
    runs = {
        precision: mixed_precision.run(config(precision, steps=60))
        for precision in mixed_precision.PRECISIONS
    }
    first = [metrics["loss"][0] for metrics in runs.values()]
    assert max(first) - min(first) < 0.05
    assert sum(runs["fp32"]["loss"][-5:]) < sum(runs["fp32"]["loss"][:5]) - 0.5
    assert mixed_precision.run(config("fp32", steps=60))["loss"] == runs["fp32"]["loss"]
    assert (
        mixed_precision.run(config("fp32", steps=60, seed=2))["loss"]
        != runs["fp32"]["loss"]
    )


def test_in_pure_bf16_small_updates_of_large_weights_are_lost(tiny):
    shares = {p: mixed_precision.run(config(p)) for p in mixed_precision.PRECISIONS}
    assert [
        len(shares["fp32"][f"unchanged_{name}"]) for name in mixed_precision.WATCHED
    ] == [4, 4, 4]
    # A gain begins at 1, where an update of the learning rate is far below half the
    # spacing.
    assert shares["bf16_pure"]["unchanged_gain"] == [1.0] * 4
    assert (
        max(shares["fp32"]["unchanged_gain"] + shares["bf16"]["unchanged_gain"]) < 0.2
    )
    assert (
        min(shares["bf16_pure"]["unchanged_embedding"])
        > 0.5
        > max(shares["fp32"]["unchanged_embedding"])
    )
