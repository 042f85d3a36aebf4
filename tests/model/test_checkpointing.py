"""Test that recomputation changes no gradient, and how often blocks are computed."""

import copy

import pytest
import torch
from torch import nn

from systems.experiments.gradient_checkpointing import STRATEGIES, apply_strategy
from systems.formulas.recomputation import count_forward_passes
from systems.model.train_step import precision_context, training_step
from systems.model.transformer import BasicsTransformerLM
from tests.model.test_transformer import save_and_load

LAYERS = 5


def tiny_model() -> BasicsTransformerLM:
    torch.manual_seed(0)
    return BasicsTransformerLM(50, 16, 32, LAYERS, 4, 64)


def checkpointed_model(strategy: str, run: int = 3) -> BasicsTransformerLM:
    model = tiny_model()
    apply_strategy(model, strategy, run)
    return model


def gradients(model) -> dict[str, torch.Tensor | None]:
    return {name: p.grad for name, p in model.named_parameters()}


def assert_equal_gradients(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (found[name] is None) == (gradient is None), name
        assert gradient is None or torch.equal(found[name], gradient), name


def run_pass(strategy: str, precision: str, run: int = 1):
    """Return the gradients of a pass, and how often each block was computed."""
    model = tiny_model()
    calls = [0] * LAYERS
    for i, block in enumerate(model.layers):

        def count_call(module, inputs, i=i):
            calls[i] += 1

        block.get_submodule("attn.q_proj").register_forward_pre_hook(count_call)
    apply_strategy(model, strategy, run)
    token_ids, targets = torch.randint(50, (2, 2, 16))
    training_step(model, token_ids, targets, precision_context(precision, "cpu"))
    return gradients(model), calls


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_recomputation_gives_equal_gradients(strategy, precision):
    plain, _ = run_pass("none", precision)
    found, _ = run_pass(strategy, precision, run=3)
    assert all(gradient is not None for gradient in plain.values())
    assert_equal_gradients(found, plain)


@pytest.mark.parametrize("layers", [1, LAYERS])
@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s != "attention"])
def test_forward_passes_equal_the_formula(strategy, layers, monkeypatch):
    monkeypatch.setitem(globals(), "LAYERS", layers)
    _, calls = run_pass(strategy, "fp32", run=3)
    assert sum(calls) / LAYERS == count_forward_passes(strategy, LAYERS)


@pytest.mark.parametrize("copied", [copy.deepcopy, save_and_load])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_copy_of_a_model_uses_its_own_weights(strategy, copied):
    original = checkpointed_model(strategy)
    expected, found = tiny_model(), copied(original)
    with torch.no_grad():
        for model in (expected, found):
            for parameter in model.parameters():
                parameter.mul_(0.5)
    ids = torch.randint(50, (2, 16))
    assert torch.equal(found(ids), expected(ids))
    found(ids).square().mean().backward()
    expected(ids).square().mean().backward()
    assert_equal_gradients(gradients(found), gradients(expected))
    assert all(gradient is None for gradient in gradients(original).values())
    # Checkpointing doesn't rename parameters.
    assert [*original.state_dict()] == [*expected.state_dict()]


@pytest.mark.parametrize("run", [0, -1])
def test_run_length_must_be_positive(run):
    with pytest.raises(ValueError, match=f"run must be 1 or more, not {run}"):
        checkpointed_model("runs", run)


def test_wrapped_model_is_rejected():
    """Setting an attribute on the wrapper would have no effect on the model."""
    with pytest.raises(AttributeError):
        apply_strategy(nn.DataParallel(tiny_model()), "runs", 1)  # pyright: ignore


EMBEDDING, BLOCKS = "token_embeddings", [f"layers.{i}" for i in range(LAYERS)]
FROZEN = {
    "embedding": [EMBEDDING],
    "embedding and a block": [EMBEDDING, BLOCKS[0]],
    "all but the last block": [EMBEDDING, *BLOCKS[:-1]],
    "a block in the middle": [BLOCKS[2]],
    "norms": [f"{block}.ln{j}" for block in BLOCKS for j in (1, 2)],
}


@pytest.mark.parametrize("frozen", FROZEN)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_of_partly_frozen_models_are_equal(strategy, frozen):
    expected, found = tiny_model(), checkpointed_model(strategy)
    ids = torch.randint(50, (2, 16))
    for model in (expected, found):
        for name in FROZEN[frozen]:
            model.get_submodule(name).requires_grad_(False)
        model(ids).square().mean().backward()
    assert_equal_gradients(gradients(found), gradients(expected))


def test_frozen_model_requires_no_gradient():
    model = checkpointed_model("by_hand").requires_grad_(False)
    assert not model(torch.randint(50, (2, 16))).requires_grad


WAYS = {
    "grad": lambda loss, weights: torch.autograd.grad(loss, weights),
    "inputs": lambda loss, weights: loss.backward(inputs=weights),
    "create_graph": lambda loss, weights: loss.backward(create_graph=True),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph")
def test_checkpoint_by_hand_requires_plain_backward(way):
    model = checkpointed_model("by_hand")
    loss = model(torch.randint(50, (2, 16))).square().mean()
    weights = list(model.parameters())
    with pytest.raises(ValueError, match=r"plain backward\(\)"):
        WAYS[way](loss, weights)
    assert all(weight.grad is None for weight in model.layers.parameters())
