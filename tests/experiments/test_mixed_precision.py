"""Test the synthetic language's entropy, and the dtypes of each precision."""

import math
import re
from collections import Counter
from itertools import pairwise

import pytest
import torch

from systems.experiments import mixed_precision
from systems.experiments.mixed_precision import Config
from systems.model import synthetic_language
from systems.model.sizes import SIZES, ModelSize
from systems.records.outcome import measure_row


def count_pairs(text: torch.Tensor) -> Counter[tuple[int, int]]:
    """Count how often each token follows each other token."""
    return Counter((a, b) for line in text.tolist() for a, b in pairwise(line))


def test_entropy_bounds_the_loss_of_the_language():
    """Counts from half of the text predict the rest with a loss of ENTROPY nats."""
    text = synthetic_language.sample(vocab=32, sequences=600, length=120, seed=5)
    counts, of_first = count_pairs(text[:300]), Counter()
    for (first, _), count in counts.items():
        of_first[first] += count
    assert len(counts) == 32 * synthetic_language.SUCCESSORS
    later = count_pairs(text[300:])
    nats = -sum(n * math.log(counts[p] / of_first[p[0]]) for p, n in later.items())
    entropy = synthetic_language.ENTROPY
    assert nats / later.total() == pytest.approx(entropy, rel=0.01)
    assert entropy < math.log(synthetic_language.SUCCESSORS) < math.log(32)


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


def test_seed_changes_only_the_text():
    seeds = 1, 1, 2
    one, same, other = (synthetic_language.sample(64, 200, 40, s) for s in seeds)
    assert torch.equal(one, same) and not torch.equal(one, other)
    most = 64 * synthetic_language.SUCCESSORS
    assert len(count_pairs(one) | count_pairs(other)) <= most < 64 * 64


@pytest.fixture
def optimizers(monkeypatch, use_cpu):
    """Make `small` tiny, on the CPU; return the list of its optimizers."""
    monkeypatch.setitem(SIZES, "small", ModelSize(16, 32, 1, 2))
    made, optimizer = [], mixed_precision.AdamW

    def make_optimizer(parameters):
        made.append(optimizer(parameters))
        return made[-1]

    monkeypatch.setattr(mixed_precision, "AdamW", make_optimizer)
    return made


def make_config(precision: str, **changes) -> Config:
    return Config(
        precision, **({"context": 16, "batch": 8, "vocab": 32, "steps": 40} | changes)
    )


DTYPES = {
    # (dtype of weights, gradients and optimizer state, dtype of matmuls)
    "fp32": (torch.float32, torch.float32),
    "bf16": (torch.float32, torch.bfloat16),
    "bf16_pure": (torch.bfloat16, torch.bfloat16),
}


@pytest.mark.parametrize("precision", mixed_precision.PRECISIONS)
def test_precision_has_the_dtypes_of_its_name(optimizers, precision, monkeypatch):
    products, einsum = set(), torch.einsum

    def record_einsum(equation, *operands):
        result = einsum(equation, *operands)
        products.add(result.dtype)
        return result

    monkeypatch.setattr(torch, "einsum", record_einsum)
    metrics = mixed_precision.run(make_config(precision))
    (optimizer,) = optimizers
    held, product = DTYPES[precision]
    assert products == {product}
    for parameter in optimizer.param_groups[0]["params"]:
        state = optimizer.state[parameter]
        assert {parameter.dtype, state["m"].dtype, state["v"].dtype} == {held}
    assert len(metrics["loss"]) == len(metrics["step_ms"]) == 40
    assert metrics["floor"] == synthetic_language.ENTROPY
    assert optimizer.param_groups[0]["lr"] == mixed_precision.LEARNING_RATE


def test_diverging_training_is_unsupported(optimizers):
    row = measure_row(make_config("fp32", learning_rate=1e30), mixed_precision.run)
    assert row.status == "unsupported" and row.metrics == {}
    assert re.fullmatch(r"diverges: no finite loss in step \d+", row.reason or "")


@pytest.mark.slow
def test_fp32_learns_and_runs_are_reproducible(optimizers):
    def train(precision="fp32", **changes):
        return mixed_precision.run(make_config(precision, steps=60, **changes))["loss"]

    runs = {precision: train(precision) for precision in mixed_precision.PRECISIONS}
    first, fp32 = [loss[0] for loss in runs.values()], runs["fp32"]
    assert max(first) - min(first) < 0.05
    assert sum(fp32[-5:]) < sum(fp32[:5]) - 0.5
    assert train() == fp32 != train(seed=2)


def test_pure_bf16_loses_small_updates(optimizers):
    runs = {p: mixed_precision.run(make_config(p)) for p in mixed_precision.PRECISIONS}
    names = [f"unchanged_{name}" for name in mixed_precision.WATCHED_WEIGHTS]
    assert [len(runs["fp32"][name]) for name in names] == [4, 4, 4]
    # Gains of norms start at 1, where an update is far below half of bf16's spacing.
    gain = {p: found["unchanged_gain"] for p, found in runs.items()}
    assert gain["bf16_pure"] == [1.0] * 4 and max(gain["fp32"] + gain["bf16"]) < 0.2
    embedding = {p: found["unchanged_embedding"] for p, found in runs.items()}
    assert min(embedding["bf16_pure"]) > 0.5 > max(embedding["fp32"])
