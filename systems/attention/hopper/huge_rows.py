"""Recompute rows with huge scores exactly, at the end of the forward kernel.

The forward kernel subtracts the rounded product scale · maximum from scale · score in
one multiply-add. For huge scores the rounding error can make the largest p infinite or
zero instead of 1. Here the maximum is subtracted before scaling.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from systems.attention.hopper.items import count_visible_keys, get_item
from systems.attention.hopper.matmuls import store_rows

LN2 = gl.constexpr(0.6931471805599453)
# Scaled scores from this magnitude on are huge; equal to `triton.primitives.HUGE`.
HUGE = gl.constexpr(2.0**28)


@gluon.jit
def load_rows(x, batch, head, rows, n, HEAD: gl.constexpr, LAYOUT: gl.constexpr):
    """Load rows of q, k or v as float32 [rows, D]; 0 from row n or column HEAD on."""
    D: gl.constexpr = LAYOUT.threads_per_warp[1] * LAYOUT.size_per_thread[1]
    columns = gl.arange(0, D, gl.SliceLayout(0, LAYOUT))
    ptr = x.ptr + batch.to(gl.int64) * x.stride_b + head.to(gl.int64) * x.stride_h
    ptrs = ptr + rows.to(gl.int64)[:, None] * x.stride_n + columns[None, :]
    inside = (rows < n)[:, None] & (columns < HEAD)[None, :]
    return gl.load(ptrs, mask=inside, other=0.0).to(gl.float32)


@gluon.jit
def recompute_huge_rows(
    memory, problem, schedule,
    GROUP: gl.constexpr, BQ: gl.constexpr, BK: gl.constexpr, HEAD: gl.constexpr,
    D: gl.constexpr, HEADS_PER_KV: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Recompute o and lse of 64-row tiles with a huge or non-finite lse, key by key."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    ROWS: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    q_rows, k_rows, v_rows, o_rows, lse_ptr = memory
    n_q, n_k, heads, scale_log2 = problem
    # The caller's reduction over all threads was a barrier, so lse is visible.
    for position in range(schedule.first, schedule.end):
        number = gl.load(schedule.items_ptr + position)
        item = get_item(number, problem, BQ, BK, CAUSAL)
        batch, head, kv_head = item.batch, item.head, item.head // HEADS_PER_KV
        q_start = item.q_start + 64 * GROUP
        rows = q_start + gl.arange(0, 64, ROWS)
        lse_ptrs = lse_ptr + (batch * heads + head).to(gl.int64) * n_q + rows
        lse = gl.load(lse_ptrs, mask=rows < n_q, other=0.0)
        # `finite` is also False for infinite and NaN lse.
        finite = gl.abs(lse) < HUGE * LN2
        if gl.max(gl.where(finite, 0, 1), 0) == 1:
            q = load_rows(q_rows, batch, head, rows, n_q, HEAD, LAYOUT)
            acc = gl.zeros([64, D], gl.float32, LAYOUT)
            l = gl.zeros([64], gl.float32, ROWS)
            m = l - 3.4028234663852886e38
            for key in range(count_visible_keys(q_start, 64, n_k, CAUSAL)):
                # Every row loads the same key.
                keys = rows * 0 + key
                k = load_rows(k_rows, batch, kv_head, keys, n_k, HEAD, LAYOUT)
                # [64]
                s = gl.sum(q * k, 1)
                if CAUSAL:
                    s = gl.where(key <= rows, s, -float("inf"))
                m_new = gl.maximum(m, s)
                p = gl.exp2((s - m_new) * scale_log2)
                rescale = gl.exp2((m - m_new) * scale_log2)
                l = l * rescale + p
                v = load_rows(v_rows, batch, kv_head, keys, n_k, HEAD, LAYOUT)
                acc = acc * rescale[:, None] + p[:, None] * v
                m = m_new
            lse = (m * scale_log2 + gl.log2(l)) * LN2
            gl.store(lse_ptrs, lse, mask=rows < n_q)
            x = acc / l[:, None]
            store_rows(x, o_rows, batch, head, q_start, n_q, 0, HEAD, True)
