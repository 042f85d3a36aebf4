"""Measure errors of attention implementations in o, lse, dq, dk and dv against plain
attention in float64, and whether 200 calls of our kernels are bitwise equal.

    python -m systems.experiments.flash_accuracy --implementation triton --d 64 --n 4096
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from systems.attention.first import FlashAttentionFirst
from systems.attention.recompute import (
    FlashAttentionFirstRecompute,
    FlashAttentionPyTorchRecompute,
)
from systems.attention.reference import attention_reference
from systems.attention.torch_tiles import FlashAttentionPyTorch
from systems.benchmarking import timing
from systems.benchmarking.peers import (
    compare_calls,
    compute_results,
    load_peer,
    use_peer,
)
from systems.benchmarking.workload import random_inputs
from systems.precision.dtypes import DTYPES, relative_error
from systems.running.command import main, option

PROTOCOL = {
    "inputs": "standard normal, seed 0, 1 batch of 4 heads; 16 for Hopper's kernels",
    "error": "norm of the difference from float64 over the norm of float64",
    "repeats": "all results of 200 calls compared bit by bit with those of a first",
    "tf32": "off",
}
HEADS = 4
# Shapes for the Hopper kernels. Length 4096 runs the one-pass backward kernel; length
# 3000 under a causal mask runs the two-pass kernels.
MANY_HEADS, HOPPER_DIMS, HOPPER_LENGTHS = 16, (48, 64, 80, 96, 128), (3000, 4096)
# Classes with the methods of the assignment's.
CLASSES = {
    "torch": FlashAttentionPyTorch,
    "recompute": FlashAttentionPyTorchRecompute,
    "first": FlashAttentionFirst,
    "first_recompute": FlashAttentionFirstRecompute,
}
# Implementations measured at one shape.
FEW = ("recompute", "first", "first_recompute")
IMPLEMENTATIONS = (
    *("triton", "hopper", "plain"),
    *CLASSES,
    *("sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_math"),
)
# Backends of this project's kernels.
OURS = ("triton", "hopper")
RESULTS = ("o", "lse", "dq", "dk", "dv")
CALLS = 200


@dataclass(frozen=True)
class Config:
    implementation: str = option(
        "triton",
        "ours in Triton, for Hopper, in PyTorch, or the first in Triton (recompute: "
        "with a compiled backward pass), plain, or a backend of SDPA",
        IMPLEMENTATIONS,
    )
    dtype: str = option("bf16", "dtype of q, k, v and the gradient", DTYPES)
    d: int = option(64, "head dimension, 256 at most")
    n: int = option(1000, "sequence length in tokens")
    causal: bool = option(True, "causal mask")
    heads: int = option(HEADS, "heads")


def configs(quick: bool = False) -> list[Config]:
    """Return, for each dtype, 20 shapes of each implementation except "hopper" and FEW,
    and one shape of FEW; for fp16 and bf16 also 20 of "hopper", "triton" and "plain".
    """
    if quick:
        return [Config(name, "fp32", 32, 130) for name in ("torch", "plain")]
    small = [
        Config(name, dtype, d, n, causal)
        for dtype in DTYPES
        for d in (16, 32, 64, 128, 256)
        for n in (1000, 4096)
        for causal in (True, False)
        for name in IMPLEMENTATIONS
        if name not in ("hopper", *FEW)
    ]
    small += [Config(name, dtype, 64, 4096) for dtype in DTYPES for name in FEW]
    return small + [
        Config(name, dtype, d, n, causal, MANY_HEADS)
        for dtype in DTYPES
        if dtype != "fp32"
        for d in HOPPER_DIMS
        for n in HOPPER_LENGTHS
        for causal in (True, False)
        for name in ("hopper", "triton", "plain")
    ]


# --8<-- [start:run]
def run(config: Config) -> dict[str, Any]:
    """Return each result's relative and largest absolute error against float64; for
    OURS also how many calls were repeated, and how many of them differ bitwise.
    """
    device, causal = timing.default_device(), config.causal
    shape = (1, config.heads, config.n, config.d)
    inputs = random_inputs(shape, DTYPES[config.dtype], device)
    exact = partial(attention_reference, causal=causal)
    expected = compute_results(exact, *(x.double() for x in inputs))
    with use_peer(config.implementation):
        attend = attention_with_lse(config.implementation, causal, config.n, device)
        actual = compute_results(attend, *inputs)
        errors: dict[str, Any] = {}
        if config.implementation in OURS:
            calls = CALLS if device == "cuda" else 2
            varying = compare_calls(attend, inputs, actual, calls)
            errors = {"calls": calls, "differing_calls": sum(map(bool, varying))}
    for name, value in actual.items():
        errors[f"{name}_relative_error"] = relative_error(value, expected[name])
        largest = (value.double() - expected[name]).abs().max()
        errors[f"{name}_largest_error"] = largest.item()
    return errors
    # --8<-- [end:run]


def attention_with_lse(name: str, causal: bool, n: int, device: str) -> Callable:
    """Return function `name` for length n: (q, k, v) -> (o, lse), or -> o for SDPA."""
    if name == "plain":
        return partial(attention_reference, causal=causal)
    if name in CLASSES:
        return partial(apply_class, CLASSES[name], causal=causal)
    attend = load_peer(name, causal, n, device)
    return (lambda *qkv: output_and_lse(attend(*qkv))) if name in OURS else attend


def apply_class(cls: Any, *qkv: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Apply an autograd Function for (b, n, d) to (1, b, n, d); return (o, lse)."""
    o, lse = output_and_lse(cls.apply(*(x[0] for x in qkv), causal))
    return o[None], lse[None]


def output_and_lse(o: Tensor) -> tuple[Tensor, Tensor]:
    """Return o, and the lse (found by its shape) that o's autograd Function saved."""
    assert o.grad_fn is not None
    saved = o.grad_fn.saved_tensors  # pyright: ignore[reportAttributeAccessIssue]
    (lse,) = (x for x in saved if x.shape == o.shape[:-1])
    return o, lse


if __name__ == "__main__":
    main(Config, run)
