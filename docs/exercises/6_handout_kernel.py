"""Exercise 6: the forward kernel with the arguments that the assignment gives it.

    grid: (tiles of queries, batch)        a tensor in memory
                                           batch b at  b · stride_b
      program (i, b) has queries           row r at    r · stride_n
      i · Q_TILE_SIZE ... of batch b       number c at c · stride_d

Exercise 4 assumed one head whose rows lie one after the other. Here q, k, v and o may
be transposed or slices of larger tensors, so only the strides say where a number lies.

    pytest docs/exercises -k handout

Hint: an offset is batch · stride_b + row · stride_n + column · stride_d, each with the
strides of that tensor. Tiles of queries and keys differ in size: under a causal mask
the last key that a tile of queries sees is its last query's own.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


# --8<-- [start:kernel]
@triton.jit
def flash_fwd_kernel(
    Q_ptr, K_ptr, V_ptr, O_ptr, L_ptr,
    stride_qb, stride_qq, stride_qd, stride_kb, stride_kk, stride_kd,
    stride_vb, stride_vk, stride_vd, stride_ob, stride_oq, stride_od,
    stride_lb, stride_lq, N_QUERIES, N_KEYS, scale, D: tl.constexpr,
    Q_TILE_SIZE: tl.constexpr, K_TILE_SIZE: tl.constexpr, is_causal: tl.constexpr,
):  # fmt: skip
    """Compute o and l = logsumexp for one tile of queries of one batch entry."""
    # The first query of this program's tile, and its batch entry
    first = ...
    batch = ...
    queries, columns = first + tl.arange(0, Q_TILE_SIZE), tl.arange(0, D)
    # [Q_TILE_SIZE, D]: the tile of queries
    q = ...
    m = tl.full([Q_TILE_SIZE], float("-inf"), tl.float32)
    l = tl.zeros([Q_TILE_SIZE], tl.float32)
    a = tl.zeros([Q_TILE_SIZE, D], tl.float32)
    # Keys from here on are hidden from all these queries
    end = N_KEYS
    if is_causal:
        end = ...
    for start in range(0, end, K_TILE_SIZE):
        keys = start + tl.arange(0, K_TILE_SIZE)
        # [K_TILE_SIZE, D]: the tiles of keys and values
        k = ...
        v = ...
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if is_causal:
            s = tl.where(queries[:, None] >= keys[None, :], s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        shrink, p = tl.exp(m - m_new), tl.exp(s - m_new[:, None])
        l = shrink * l + tl.sum(p, 1)
        a = tl.dot(p.to(v.dtype), v, acc=a * shrink[:, None], input_precision="ieee")
        m = m_new
    o = (a / l[:, None]).to(O_ptr.dtype.element_ty)
    offsets = queries[:, None] * stride_oq + columns[None, :] * stride_od
    tl.store(O_ptr + batch * stride_ob + offsets, o)
    tl.store(L_ptr + batch * stride_lb + queries * stride_lq, m + tl.log(l))


# --8<-- [end:kernel]


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Return o (batch, n_q, d) and l (batch, n_q) for q (batch, n_q, d), k and v
    (batch, n_k, d); 32 divides n_q, and 16 divides n_k.
    """
    batch, n_q, d = q.shape
    o, l = torch.empty_like(q), q.new_empty(batch, n_q)
    tile = 32 if n_q % 128 else 64
    flash_fwd_kernel[(n_q // tile, batch)](
        q, k, v, o, l,
        *q.stride(), *k.stride(), *v.stride(), *o.stride(), *l.stride(), n_q,
        k.shape[1], d**-0.5, D=d, Q_TILE_SIZE=tile, K_TILE_SIZE=16, is_causal=causal,
    )  # fmt: skip
    return o, l
