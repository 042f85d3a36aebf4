"""Whatever is computed again, the gradients are the same; and it is computed as often
as the formulas say.
"""

import pytest
import torch

from systems.experiments.gradient_checkpointing import STRATEGIES, recompute
from systems.formulas.recomputation import forward_passes
from systems.model.train_step import precision_context, training_step
from systems.model.transformer import BasicsTransformerLM

LAYERS = 8


def trained(strategy: str, precision: str, run: int = 1):
    """The gradients of a pass, and how often each block was computed."""
    torch.manual_seed(0)
    model = BasicsTransformerLM(50, 16, 32, LAYERS, 4, 64)
    calls = [0] * LAYERS
    for i, block in enumerate(model.layers):

        def counting(module, inputs, i=i):
            calls[i] += 1

        block.get_submodule("attn.q_proj").register_forward_pre_hook(counting)
    recompute(model, strategy, run)
    token_ids, targets = torch.randint(50, (2, 2, 16))
    training_step(model, token_ids, targets, precision_context(precision, "cpu"))
    return {name: p.grad for name, p in model.named_parameters()}, calls


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_computed_again_gives_the_same_gradients(strategy, precision):
    plain, _ = trained("none", precision)
    found, _ = trained(strategy, precision, run=3)
    assert found.keys() == plain.keys()
    for name, gradient in plain.items():
        same = found[name]
        assert gradient is not None and same is not None
        assert torch.equal(same, gradient), name


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s != "attention"])
def test_blocks_are_computed_as_often_as_the_formula_says(strategy):
    _, calls = trained(strategy, "fp32", run=3)
    assert sum(calls) / LAYERS == forward_passes(strategy, LAYERS)


def test_the_first_block_of_a_chain_is_computed_most_often():
    _, calls = trained("chain", "fp32")
    assert calls == list(range(LAYERS + 1, 1, -1))
