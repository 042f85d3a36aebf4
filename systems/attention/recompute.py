"""The assignment's backward pass: PyTorch under `torch.compile`. It recomputes P from
the saved lse, but stores full n_q x n_k matrices.
"""

import torch
from torch import Tensor

from systems.attention.first import FlashAttentionFirst
from systems.attention.inputs import refuse_batched_gradients, refuse_second_derivative
from systems.attention.torch_tiles import FlashAttentionPyTorch


# --8<-- [start:backward]
@torch.compile
def recompute_backward(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor,
    causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dq, dk, dv. q, o, do: (*, n_q, d); k, v: (*, n_k, d); lse: (*, n_q)."""
    # Don't round scores to 16 bits: the forward pass did not, and exp enlarges errors.
    s = q.to(lse.dtype) @ k.to(lse.dtype).mT * scale
    p = torch.exp(s - lse[..., None])
    if causal:
        p = p.tril()
    dv = p.to(do.dtype).mT @ do
    dp = do @ v.mT
    delta = (o.to(lse.dtype) * do).sum(-1, keepdim=True)
    ds = (p * (dp - delta) * scale).to(q.dtype)
    return ds @ k, ds.mT @ q, dv
    # --8<-- [end:backward]


# --8<-- [start:classes]
def differentiate(ctx, do: Tensor, causal: bool) -> tuple[Tensor | None, ...]:
    """Return dq, dk and dv, then None for each further argument of `apply`."""
    refuse_second_derivative()
    refuse_batched_gradients(do, "recompute_backward")
    q, k, v, o, lse = (x.detach() for x in ctx.saved_tensors)
    with torch.autocast(q.device.type, enabled=False):
        gradients = recompute_backward(q, k, v, o, lse, do, causal, ctx.scale)
    return *gradients, *(None for _ in ctx.needs_input_grad[3:])


class FlashAttentionPyTorchRecompute(FlashAttentionPyTorch):
    """`FlashAttentionPyTorch` with `recompute_backward` as its backward pass."""

    @staticmethod
    def backward(ctx, do: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        return differentiate(ctx, do, ctx.causal)


class FlashAttentionFirstRecompute(FlashAttentionFirst):
    """`FlashAttentionFirst` (in Triton) with `recompute_backward` as backward pass."""

    @staticmethod
    def backward(ctx, do: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        return differentiate(ctx, do, ctx.options["CAUSAL"])

    # --8<-- [end:classes]
