"""Exercise 4: the loop of FlashAttention's forward pass.

                 keys: tile 0   tile 1   tile 2   (none: they come later)
    queries     +--------+--------+--------+
    of this     | s -> p | s -> p | s -> p |
    program     +--------+--------+--------+
                  m, l, a   m, l, a   m, l, a     ->  o = a / l,  lse = m + log l

Exercise 3 with two additions: m and l are one number for each of TILE queries, and a
sums p v as l sums p. The scores are computed tile by tile and never stored.

    pytest docs/exercises -k forward

Hint: `scores`, `matmul` and `offsets` are those of systems/attention/first.py. `scores`
returns scaled scores, -inf for later keys. A factor for each row of a tile is
`factor[:, None]`. `matmul` wants both sides in one dtype: `p.to(v.dtype)`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from systems.attention.first import matmul, offsets, scores


# --8<-- [start:kernel]
@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, n, scale,
    TILE: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Compute o and lse for one tile of queries."""
    i = tl.program_id(0) * TILE
    q = tl.load(q_ptr + offsets(i, TILE, D))
    m = tl.full([TILE], float("-inf"), tl.float32)
    l = tl.zeros([TILE], tl.float32)
    a = tl.zeros([TILE, D], tl.float32)
    for j in range(0, i + TILE if CAUSAL else n, TILE):
        # [TILE, D]
        k = tl.load(k_ptr + offsets(j, TILE, D))
        v = tl.load(v_ptr + offsets(j, TILE, D))
        # [TILE queries, TILE keys]: the scores, -inf where the key comes later
        s = ...
        # [TILE]: the largest score of each query so far
        m_new = ...
        # [TILE]: the factor that corrects what was summed so far
        shrink = ...
        # [TILE queries, TILE keys]
        p = ...
        # [TILE]: the sum so far
        l = ...
        # [TILE, D]: the output so far, not yet divided
        a = ...
        m = m_new
    tl.store(o_ptr + offsets(i, TILE, D), a / l[:, None])
    tl.store(lse_ptr + i + tl.arange(0, TILE), m + tl.log(l))


# --8<-- [end:kernel]


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Return o (n, d) and lse (n,) of q, k, v (n, d), all float32; 16 divides n."""
    n, d = q.shape
    o, lse = torch.empty_like(q), q.new_empty(n)
    forward_kernel[(n // 16,)](q, k, v, o, lse, n, d**-0.5, TILE=16, D=d, CAUSAL=causal)
    return o, lse
