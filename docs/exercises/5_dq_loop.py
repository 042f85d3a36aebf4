"""Exercise 5: the gradient of the queries, dQ, in FlashAttention's backward pass.

                 keys: tile 0      tile 1      tile 2
    queries     +-----------+-----------+-----------+
    of this     | p, dp, ds | p, dp, ds | p, dp, ds |
    program     +-----------+-----------+-----------+
                   ds k    +   ds k    +   ds k        ->  dq = scale · Σ ds k

The forward pass saved lse, the logarithm of each row's sum. So each p follows from its
own score, with neither a maximum nor a sum: p = exp(s - lse). From o = p v follows
dp = do vᵀ. Softmax's gradient is ds = p (dp - delta); delta = rowsum(do · o) is given.

    pytest docs/exercises -k dq

Hint: `tl.trans` transposes a tile. lse and delta have one number for each query,
so one for each row of a tile: `[:, None]`. Multiply by the scale once, at the end.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from systems.attention.first import matmul, offsets, scores


# --8<-- [start:kernel]
@triton.jit
def p_and_ds(
    q, k, v, do, lse, delta, i, j, scale, TILE: tl.constexpr, CAUSAL: tl.constexpr
):  # fmt: skip
    """Return p and the gradient of the scores, ds: [TILE queries, TILE keys]."""
    s = scores(q, k, i, j, scale, TILE, CAUSAL)
    # The probabilities, recomputed
    p = ...
    # The gradient of p
    dp = ...
    # p, and the gradient of the scores
    return p, ...


@triton.jit
def dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, n, scale,
    TILE: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Compute dq for one tile of queries."""
    i = tl.program_id(0) * TILE
    q = tl.load(q_ptr + offsets(i, TILE, D))
    do = tl.load(do_ptr + offsets(i, TILE, D))
    lse = tl.load(lse_ptr + i + tl.arange(0, TILE))
    delta = tl.load(delta_ptr + i + tl.arange(0, TILE))
    dq = tl.zeros([TILE, D], tl.float32)
    for j in range(0, i + TILE if CAUSAL else n, TILE):
        # [TILE, D]
        k = tl.load(k_ptr + offsets(j, TILE, D))
        v = tl.load(v_ptr + offsets(j, TILE, D))
        _, ds = p_and_ds(q, k, v, do, lse, delta, i, j, scale, TILE, CAUSAL)
        # [TILE, D]: what this tile of keys adds
        dq += ...
    tl.store(dq_ptr + offsets(i, TILE, D), dq * scale)


# --8<-- [end:kernel]


def gradient_of_q(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    lse: Tensor,
    delta: Tensor,
    causal: bool,
) -> Tensor:
    """Return dq (n, d) for q, k, v, do (n, d) and lse, delta (n,), all float32; 16 must
    divide n.
    """
    n, d = q.shape
    dq = torch.empty_like(q)
    dq_kernel[(n // 16,)](
        q, k, v, do, lse, delta, dq, n, d**-0.5, TILE=16, D=d, CAUSAL=causal
    )
    return dq
