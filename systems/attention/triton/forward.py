"""The forward kernel of FlashAttention-2 in Triton (Dao 2023, arXiv 2307.08691,
algorithm 1).

One program (thread block) per tile of queries loops over tiles of keys with online
softmax, and writes only o and lse. Tiles above the causal diagonal are skipped; only
tiles on the diagonal and an incomplete last tile are masked. Exponentials have base 2,
because GPUs compute exp2.

If there are too few tiles to fill the GPU, loops are split: each of SPLITS programs
runs every SPLITS-th step of a tile, and a second kernel combines the partial results.

Letters: s are unscaled scores q kᵀ, m is their running maximum, shift is about m ·
scale · log2 e (see `factor_and_shift`), p are probabilities, l is their running sum,
lse = log Σ exp(scale · s), and dq is the gradient of q. Tiles have BQ queries and BK
keys. D is the head dimension HEAD, padded to a power of two. GROUP query heads share a
KV head. If MASKED, scores are masked. If RAGGED, the last tile is incomplete. UNIT
divides strides. `primitives` explains LIMBS and PRECISION, `configs` RECOMPUTE.
"""

import triton
import triton.language as tl

from systems.attention.triton.primitives import (
    LOWEST,
    add_matmul,
    advance_rows,
    factor_and_shift,
    first_step,
    hint_factor,
    load_limbs,
    load_tile,
    locate_rows,
    matmul,
    offsets,
    program_tile,
    row_lse,
    store_tile,
    to_limbs,
    transpose_limbs,
)


# --8<-- [start:forward_steps]
@triton.jit
def update_softmax(
    acc, m, l, shift, q, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, rows,
    columns, first, last, n_k, scale_log2,
    BK: tl.constexpr, SPLITS: tl.constexpr, HEAD: tl.constexpr, CAUSAL: tl.constexpr,
    MASKED: tl.constexpr, LIMBS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Update acc, m, l and shift with every SPLITS-th tile of keys, from key `first` to
    key `last` - 1, and return them.
    """
    for start in range(first, last, BK * SPLITS):
        keys = start + tl.arange(0, BK)
        # [BK, D]
        k = load_limbs(
            advance_rows(k_ptr, start, stride_kn) + k_offsets,
            keys,
            columns,
            n_k,
            HEAD,
            MASKED,
            LIMBS,
        )
        # [BQ, BK]
        s = matmul(q, transpose_limbs(k), PRECISION)
        if MASKED:
            visible = (keys < n_k)[None, :]
            if CAUSAL:
                visible = visible & (rows[:, None] >= keys[None, :])
            s = tl.where(visible, s, -float("inf"))
        m = tl.maximum(m, tl.max(s, 1))
        factor, new_shift = factor_and_shift(m, scale_log2)
        # [BQ, BK]
        p = tl.exp2(tl.fma(s, factor[:, None], -new_shift[:, None]))
        rescale = tl.exp2(shift - new_shift)
        l = l * rescale + tl.sum(p, 1)
        # [BK, D]
        v = load_limbs(
            advance_rows(v_ptr, start, stride_vn) + v_offsets,
            keys,
            columns,
            n_k,
            HEAD,
            MASKED,
            LIMBS,
        )
        acc = add_matmul(
            to_limbs(p, v[0].dtype, LIMBS), v, acc * rescale[:, None], PRECISION
        )
        shift = new_shift
    return acc, m, l, shift
    # --8<-- [end:forward_steps]


# --8<-- [start:forward_kernel]
@triton.jit(do_not_specialize=["heads", "n_q", "n_k", "head_swizzle"])
def forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_on, stride_od,
    heads, n_q, n_k, head_swizzle, scale_log2,
    BQ: tl.constexpr, BK: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr,
    GROUP: tl.constexpr, SPLITS: tl.constexpr, CAUSAL: tl.constexpr,
    LIMBS: tl.constexpr, PRECISION: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Compute o and lse of one tile of queries. Grid: tiles x batch x heads x SPLITS.

    With SPLITS > 1, store what `combine_kernel` combines: acc (SPLITS, batch, heads,
    n_q, HEAD) in o_ptr, m and l (2, SPLITS, batch, heads, n_q) in lse_ptr.
    """
    stride_qb, stride_qh, stride_qn = hint_factor(stride_qb, stride_qh, stride_qn, UNIT)
    stride_kb, stride_kh, stride_kn = hint_factor(stride_kb, stride_kh, stride_kn, UNIT)
    stride_vb, stride_vh, stride_vn = hint_factor(stride_vb, stride_vh, stride_vn, UNIT)
    stride_ob, stride_oh, stride_on = hint_factor(stride_ob, stride_oh, stride_on, UNIT)
    tiles = tl.cdiv(n_q, BQ)
    # Under a causal mask, the last tile has the most keys, so it starts first.
    tile, batch_head, batch_heads, split = program_tile(tiles, head_swizzle, SPLITS)
    q_start = (tiles - 1 - tile) * BQ
    batch, head = batch_head // heads, batch_head % heads
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + head // GROUP * stride_kh
    v_ptr += batch * stride_vb + head // GROUP * stride_vh
    o_ptr += (split * (batch_heads // heads) + batch) * stride_ob + head * stride_oh

    rows, columns = q_start + tl.arange(0, BQ), tl.arange(0, D)
    k_offsets = offsets(tl.arange(0, BK), columns, stride_kn, stride_kd)
    v_offsets = offsets(tl.arange(0, BK), columns, stride_vn, stride_vd)
    # [BQ, D]
    q = load_limbs(
        q_ptr + offsets(rows, columns, stride_qn, stride_qd),
        rows,
        columns,
        n_q,
        HEAD,
        True,
        LIMBS,
    )
    acc = tl.zeros([BQ, D], tl.float32)
    m = tl.full([BQ], LOWEST, tl.float32)
    l, shift = tl.zeros([BQ], tl.float32), m

    # All rows see keys before seen_by_all; no row sees keys from seen_by_any on.
    seen_by_all, seen_by_any = n_k, n_k
    if CAUSAL:
        seen_by_all, seen_by_any = (
            tl.minimum(n_k, q_start + 1),
            tl.minimum(n_k, q_start + BQ),
        )
    unmasked_end = seen_by_all // BK * BK
    acc, m, l, shift = update_softmax(
        acc, m, l, shift, q, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn,
        rows, columns, split * BK, unmasked_end, n_k, scale_log2, BK, SPLITS, HEAD,
        CAUSAL, False, LIMBS, PRECISION,
    )  # fmt: skip
    acc, m, l, shift = update_softmax(
        acc, m, l, shift, q, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn,
        rows, columns, unmasked_end + first_step(split, unmasked_end // BK,
        SPLITS) * BK, seen_by_any, n_k, scale_log2, BK, SPLITS, HEAD, CAUSAL, True,
        LIMBS, PRECISION,
    )  # fmt: skip
    o_ptrs = o_ptr + offsets(rows, columns, stride_on, stride_od)
    lse_ptrs = lse_ptr + (split * batch_heads + batch_head) * n_q + rows
    if SPLITS == 1:
        store_tile(o_ptrs, acc / l[:, None], rows, columns, n_q, HEAD)
        tl.store(lse_ptrs, row_lse(m, l, shift, scale_log2), mask=rows < n_q)
    else:
        store_tile(o_ptrs, acc, rows, columns, n_q, HEAD)
        tl.store(lse_ptrs, m, mask=rows < n_q)
        tl.store(advance_rows(lse_ptrs, SPLITS * batch_heads, n_q), l, mask=rows < n_q)
    # --8<-- [end:forward_kernel]


# --8<-- [start:combine]
@triton.jit(do_not_specialize=["heads", "n_q"])
def combine_kernel(
    acc_ptr, m_l_ptr, o_ptr, lse_ptr, stride_ob, stride_oh, stride_on, stride_od,
    heads, n_q, scale_log2, SPLITS: tl.constexpr, ROWS: tl.constexpr,
    HEAD: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Combine the splits' partial results for ROWS rows of one head in o and lse."""
    program = tl.program_id(0)
    o_ptr, rows, columns, row_index = locate_rows(
        program, o_ptr, stride_ob, stride_oh, heads, n_q, ROWS, D
    )
    split_rows = tl.cast(tl.num_programs(0) // tl.cdiv(n_q, ROWS), tl.int64) * n_q
    l_ptr, inside = advance_rows(m_l_ptr, SPLITS, split_rows), rows < n_q
    # Compute the maximum first, in an unrolled loop, so that loads are independent.
    m = tl.full([ROWS], LOWEST, tl.float32)
    for split in tl.static_range(SPLITS):
        m = tl.maximum(
            m, tl.load(m_l_ptr + split * split_rows + row_index, mask=inside, other=0.0)
        )
    _, shift = factor_and_shift(m, scale_log2)
    acc = tl.zeros([ROWS, D], tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    for split in tl.static_range(SPLITS):
        split_index = split * split_rows + row_index
        m_split = tl.load(m_l_ptr + split_index, mask=inside, other=0.0)
        _, split_shift = factor_and_shift(m_split, scale_log2)
        weight = tl.exp2(split_shift - shift)
        l += weight * tl.load(l_ptr + split_index, mask=inside, other=1.0)
        acc_split = load_tile(
            acc_ptr + offsets(split_index, columns, HEAD, 1),
            rows,
            columns,
            n_q,
            HEAD,
            True,
        )
        acc += weight[:, None] * acc_split
    store_tile(
        o_ptr + offsets(rows, columns, stride_on, stride_od),
        acc / l[:, None],
        rows,
        columns,
        n_q,
        HEAD,
    )
    tl.store(lse_ptr + row_index, row_lse(m, l, shift, scale_log2), mask=inside)
    # --8<-- [end:combine]
