"""The formulas against what PyTorch counts."""

from dataclasses import asdict

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count

from systems import costs
from systems.experiments import model_sizes
from systems.model import build_model
from systems.sizes import SIZES, VOCAB_SIZE


@pytest.mark.parametrize("size", SIZES)
def test_formulas_equal_what_pytorch_counts(size):
    config = model_sizes.Config(size, context=256, batch=2)
    counted = model_sizes.run(config)
    shape = {"vocab_size": VOCAB_SIZE, **asdict(SIZES[size])}
    for part, parameters in costs.parameters_by_part(**shape).items():
        assert counted[f"{part}_parameters"] == parameters
    assert counted["forward_flops"] == sum(costs.forward_flops(**shape, context=256, batch=2).values())


def test_backward_costs_twice_the_forward():
    with torch.device("meta"):
        model = build_model("small", 64)
        ids = torch.zeros(2, 64, dtype=torch.int64)
    with FlopCounterMode(display=False) as forward:
        logits = model(ids)
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    assert backward.get_total_flops() == costs.BACKWARD_OVER_FORWARD * forward.get_total_flops()
    assert costs.pass_flops(10, "forward", "loss", "backward", "optimizer") == 30


def test_the_longest_slug_names_the_device():
    assert costs.peak_of("nvidia-a100-sxm4-40gb") is costs.PEAKS["nvidia-a100-sxm4-40gb"]
    assert costs.peak_of("nvidia-a100-sxm4-80gb") is costs.PEAKS["nvidia-a100-sxm4"]
    assert costs.peak_of("nvidia-h200-nvl") is costs.PEAKS["nvidia-h200-nvl"]
    assert costs.peak_of("cpu") is None


def test_attention_flops_are_those_of_pytorchs_counter():
    """Its formula for fused attention: two products forward, five backward."""
    q, k, v = (torch.randn(2, 3, 40, 16, device="meta", requires_grad=True) for _ in range(3))
    shape = {"batch": 2, "heads": 3, "n": 40, "d": 16}
    with FlopCounterMode(display=False) as forward:
        o = torch.softmax(q @ k.mT, -1) @ v
    assert forward.get_total_flops() == costs.attention_flops("forward", causal=False, **shape)
    assert o.shape == q.shape
    backward = sdpa_backward_flop_count(q.shape, q.shape, k.shape, v.shape)
    assert backward == costs.attention_flops("backward", causal=False, **shape)
    both = costs.attention_flops("both", causal=True, **shape)
    assert 2 * both == forward.get_total_flops() + backward
    # Ours does the same products but for scores and dP, which two of its kernels compute.
    assert sum(work.products for work in costs.KERNELS.values()) == costs.ATTENTION_PRODUCTS["both"] + 2
