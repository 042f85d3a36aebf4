"""FlashAttention-2 (Dao 2023, algorithms 1 and 2) in PyTorch, tile by tile.

For each query row, the forward pass updates the running maximum m of scores, the
running sum l of exp(score - m) and the unnormalized output. When a tile of keys raises
m, earlier sums are rescaled by exp(m_old - m_new). The backward pass recomputes P =
exp(S - lse) tile by tile. s are scores, p probabilities, delta = rowsum(o · do).
"""

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from systems.attention import inputs

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Rows of a tile of queries, and of a tile of keys.
Q_TILE, K_TILE = 64, 64


def accumulator_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of sums: float64 for a float64 tensor, else float32."""
    return torch.promote_types(x.dtype, torch.float32)


# --8<-- [start:forward]
def tiled_forward(
    q: Float[Tensor, "... q d"],
    k: Float[Tensor, "... k d"],
    v: Float[Tensor, "... k d"],
    causal: bool,
    scale: float,
) -> tuple[Float[Tensor, "... q d"], Float[Tensor, "... q"]]:
    """Return (o, lse) by online softmax (algorithm 1). o has the dtype of q; lse is
    float64 for float64, else float32.
    """
    n_q, n_k, wide = q.shape[-2], k.shape[-2], accumulator_dtype(q)
    o, lse = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=wide)
    for q_start in range(0, n_q, Q_TILE):
        rows = slice(q_start, min(q_start + Q_TILE, n_q))
        q_i = q[..., rows, :].to(wide) * scale
        m = q_i.new_full(q_i.shape[:-1], float("-inf"))
        l = torch.zeros_like(m)
        acc = torch.zeros_like(q_i)
        # Skip tiles of keys above the diagonal.
        for k_start in range(0, min(n_k, rows.stop) if causal else n_k, K_TILE):
            keys = slice(k_start, min(k_start + K_TILE, n_k))
            s = q_i @ k[..., keys, :].to(wide).mT
            if causal and keys.stop > rows.start + 1:
                s = s.masked_fill(causal_mask(rows, keys, s.device), float("-inf"))
            m_new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - m_new[..., None])
            rescale = torch.exp(m - m_new)
            l = l * rescale + p.sum(-1)
            acc = acc * rescale[..., None] + p @ v[..., keys, :].to(wide)
            m = m_new
        o[..., rows, :] = (acc / l[..., None]).to(o.dtype)
        lse[..., rows] = m + torch.log(l)
    return o, lse
    # --8<-- [end:forward]


def causal_mask(rows: slice, keys: slice, device: torch.device) -> Tensor:
    """Return a mask [rows, keys] that is True where the key comes after the query."""
    return torch.arange(rows.start, rows.stop, device=device)[:, None] < torch.arange(
        keys.start, keys.stop, device=device
    )


# --8<-- [start:backward]
def tiled_backward(
    q: Float[Tensor, "... q d"],
    k: Float[Tensor, "... k d"],
    v: Float[Tensor, "... k d"],
    o: Float[Tensor, "... q d"],
    lse: Float[Tensor, "... q"],
    do: Float[Tensor, "... q d"],
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (dq, dk, dv), looping over tiles of keys (algorithm 2)."""
    n_q, n_k, wide = q.shape[-2], k.shape[-2], accumulator_dtype(q)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    # Scale q once: S = (scale q) kᵀ, and dk = dSᵀ (scale q).
    q, do = q.to(wide) * scale, do.to(wide)
    dq = torch.zeros_like(q)
    delta = (o.to(wide) * do).sum(-1)
    step = compile_tile_vjp() if q.is_cuda else tile_vjp
    for k_start in range(0, min(n_k, n_q) if causal else n_k, K_TILE):
        keys = slice(k_start, min(k_start + K_TILE, n_k))
        # Queries before k_start see no key of this tile, so skip them.
        rows = slice(k_start if causal else 0, n_q)
        tile = (
            q[..., rows, :],
            k[..., keys, :],
            v[..., keys, :],
            lse[..., rows],
            delta[..., rows],
            do[..., rows, :],
        )
        # Make tiles contiguous, because torch.compile recompiles for new strides.
        dq_j, dk_j, dv_j = step(*(x.to(wide).contiguous() for x in tile), causal=causal)
        dq[..., rows, :] += dq_j
        dk[..., keys, :] = dk_j.to(dk.dtype)
        dv[..., keys, :] = dv_j.to(dv.dtype)
    return (dq * scale).to(o.dtype), dk, dv
    # --8<-- [end:backward]


# --8<-- [start:tile_vjp]
def tile_vjp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lse: Tensor,
    delta: Tensor,
    do: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a key tile's contribution to dq / scale, and its dk and dv. q is already
    scaled. If causal, the first query has the position of the first key.
    """
    p = torch.exp(q @ k.mT - lse[..., None])
    if causal:
        p = p.tril()
    dv = p.mT @ do
    dp = do @ v.mT
    ds = p * (dp - delta[..., None])
    return ds @ k, ds.mT @ q, dv
    # --8<-- [end:tile_vjp]


@cache
def compile_tile_vjp():
    """Return `tile_vjp`, compiled once for all lengths to fuse its operations."""
    return torch.compile(tile_vjp, dynamic=True)


# Custom operator for batched gradients, because vmap can't batch in-place writes.
backward_operator = torch.library.custom_op(
    "systems::tiles_backward",
    tiled_backward,
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor do, "
    "bool causal, float scale) -> (Tensor, Tensor, Tensor)",
)
inputs.register_vmap_loop(backward_operator)


class FlashAttentionPyTorch(torch.autograd.Function):
    """Autograd Function: `o = apply(q, k, v, is_causal, scale)`. q is (batch, n, d) or
    (batch, heads, n, d), of 16 to 64 bits per float; k and v have as many heads as q.
    Raises ValueError or TypeError for unsupported arguments; has no second derivative.
    """

    @staticmethod
    def forward(
        ctx,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        inputs.check_inputs(q, k, v, is_causal, scale, DTYPES)
        if k.shape[:-2] != q.shape[:-2]:
            raise ValueError(
                f"k must have the batch and heads of q, {tuple(q.shape[:-2])}, "
                f"got {tuple(k.shape[:-2])}"
            )
        ctx.causal, ctx.scale = is_causal, inputs.default_scale(scale, q.shape[-1])
        # Disable autocast, which would round the inputs of matmuls.
        with torch.autocast(q.device.type, enabled=False):
            o, lse = tiled_forward(q, k, v, ctx.causal, ctx.scale)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx, do: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        inputs.refuse_second_derivative()
        # Detach, or torch 2.11 warns about .grad of tensors passed to compiled code.
        q, k, v, o, lse = (x.detach() for x in ctx.saved_tensors)
        with torch.autocast(q.device.type, enabled=False):
            run = backward_operator if inputs.is_batched(do) else tiled_backward
            gradients = run(q, k, v, o, lse, do, ctx.causal, ctx.scale)
        # Autograd expects a gradient or None for each argument that `apply` received.
        return *gradients, *(None for _ in ctx.needs_input_grad[3:])


def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Return `flash_attention`'s result, computed tile by tile in PyTorch."""
    inputs.refuse_transforms()
    q, k, v = inputs.autocast_like_sdpa(q, k, v)
    inputs.check_inputs(q, k, v, causal, scale, DTYPES)
    if q.is_meta:
        raise ValueError("q must be on a device with memory, got meta")
    if q.ndim > 2 and k.shape[-3] != q.shape[-3]:
        group = q.shape[-3] // k.shape[-3]
        k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    return FlashAttentionPyTorch.apply(q, k, v, causal, scale)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention of q, k and v; all have shape (batch, heads, n, d)."""
    return attention(q, k, v, causal=True)
