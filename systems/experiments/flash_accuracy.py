"""How far each attention is from float64: o, lse, dq, dk and dv, ours beside PyTorch's
own.

Errors come from one random normal input per configuration; the oracle is plain
attention in float64 on the same inputs.

    python -m systems.experiments.flash_accuracy --implementation triton --d 64 --n 4096
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from systems.attention.reference import attention_reference
from systems.attention.torch_tiles import FlashAttentionPyTorch
from systems.attention.triton.function import FlashAttentionTriton
from systems.benchmarking import timing
from systems.benchmarking.peers import BACKENDS, attention, only
from systems.benchmarking.workload import random_inputs
from systems.precision.dtypes import DTYPES, relative_error
from systems.running.command import main, option

PROTOCOL = {
    "inputs": "standard normal, seed 0, 1 batch of 4 heads",
    "error": "norm of the difference from float64 over the norm of float64",
    "tf32": "off",
}
HEADS = 4
IMPLEMENTATIONS = ("triton", "torch", "plain", *BACKENDS)
RESULTS = ("o", "lse", "dq", "dk", "dv")


@dataclass(frozen=True)
class Config:
    implementation: str = option(
        "triton",
        "ours in Triton or in PyTorch, plain, or a backend of SDPA",
        IMPLEMENTATIONS,
    )
    dtype: str = option("bf16", "dtype of q, k, v and the gradient", DTYPES)
    d: int = option(64, "head dimension, 256 at most")
    n: int = option(1000, "sequence length in tokens")
    causal: bool = option(True, "causal mask")


def configs(quick: bool = False) -> list[Config]:
    """Every implementation over dtypes, head dimensions, a ragged and a long sequence,
    with and without a mask.
    """
    if quick:
        return [Config(name, "fp32", 32, 130) for name in ("torch", "plain")]
    return [
        Config(name, dtype, d, n, causal)
        for dtype in DTYPES
        for d in (16, 32, 64, 128, 256)
        for n in (1000, 4096)
        for causal in (True, False)
        for name in IMPLEMENTATIONS
    ]


# --8<-- [start:run]
def run(config: Config) -> dict[str, float]:
    """Relative error of each result against float64, and the largest absolute one. SDPA
    returns no lse.
    """
    device, causal = timing.default_device(), config.causal
    shape = (1, HEADS, config.n, config.d)
    inputs = random_inputs(shape, DTYPES[config.dtype], device)
    expected = results(
        lambda q, k, v: attention_reference(q, k, v, causal),
        *(x.double() for x in inputs),
    )
    with only(config.implementation):
        tested = implementation(config.implementation, causal, config.n, device)
        found = results(tested, *inputs)
    errors = {}
    for name, value in found.items():
        errors[f"{name}_relative_error"] = relative_error(value, expected[name])
        largest = (value.double() - expected[name]).abs().max()
        errors[f"{name}_largest_error"] = largest.item()
    return errors


# --8<-- [end:run]


def results(
    attention: Callable, q: Tensor, k: Tensor, v: Tensor, do: Tensor
) -> dict[str, Tensor]:
    """o, lse where it can be had, and the gradients for the output gradient do."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    o, lse = attention(q, k, v)
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), do)
    found = {"o": o.detach(), "dq": dq, "dk": dk, "dv": dv}
    return found if lse is None else found | {"lse": lse.detach()}


def implementation(name: str, causal: bool, n: int, device: str) -> Callable:
    """(q, k, v) -> (o, lse or None)."""
    if name in ("triton", "torch"):
        function = FlashAttentionTriton if name == "triton" else FlashAttentionPyTorch
        return lambda q, k, v: with_saved_lse(function.apply(q, k, v, causal))
    if name == "plain":
        return lambda q, k, v: attention_reference(q, k, v, causal)
    fused = attention(name, causal, n, device)
    return lambda q, k, v: (fused(q, k, v), None)


def with_saved_lse(o: Tensor) -> tuple[Tensor, Tensor]:
    """The output and the lse that its Function saved: the one saved tensor with a
    dimension less.
    """
    assert o.grad_fn is not None
    saved = o.grad_fn.saved_tensors  # pyright: ignore[reportAttributeAccessIssue]
    (lse,) = (x for x in saved if x.shape == o.shape[:-1])
    return o, lse


if __name__ == "__main__":
    main(Config, run)
