"""The backward kernels of FlashAttention-2 in Triton (Dao 2023, arXiv 2307.08691,
algorithm 2). The module `forward` explains SPLITS and the letters.

The first kernel computes dq: one program per tile of queries loops over the keys that
it sees. It also computes delta = rowsum(o · do). The second kernel computes dk and dv:
one program per tile of keys loops over the queries that see it. Both kernels recompute
P = exp(S - lse). No output is written by two programs, so there are no atomics and
results are bitwise reproducible.

lse and delta of a query are adjacent in memory, so that one load reads both.
"""

import triton
import triton.language as tl

from systems.attention.triton.primitives import (
    LOG2E,
    add_matmul,
    add_matmul_from_memory,
    first_step,
    hint_factor,
    load_limbs,
    load_tile,
    locate_rows,
    mask_huge_lse,
    matmul,
    matmul_from_memory,
    offsets,
    program_tile,
    step_ptrs,
    store_tile,
    sum_limbs,
    to_limbs,
    transpose_limbs,
)


# --8<-- [start:dq]
@triton.jit
def accumulate_dq(
    dq, q, do, lse_log2, delta, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn,
    stride_kd, stride_vn, stride_vd, rows, columns, first, last, n_k, scale_log2,
    BK: tl.constexpr, SPLITS: tl.constexpr, HEAD: tl.constexpr, CAUSAL: tl.constexpr,
    MASKED: tl.constexpr, LIMBS: tl.constexpr, PRECISION: tl.constexpr,
    RECOMPUTE: tl.constexpr,
):  # fmt: skip
    """Add the contributions of every SPLITS-th tile of keys, from key `first` to key
    `last` - 1, to the unscaled dq, and return it.
    """
    for start in range(first, last, BK * SPLITS):
        keys = start + tl.arange(0, BK)
        # [BK, D]
        k_ptrs = step_ptrs(
            k_ptr, k_offsets, start, keys, columns, stride_kn, stride_kd, RECOMPUTE
        )
        if RECOMPUTE != "tiles":
            k = load_limbs(k_ptrs, keys, columns, n_k, HEAD, MASKED, LIMBS)
        v_ptrs = step_ptrs(
            v_ptr, v_offsets, start, keys, columns, stride_vn, stride_vd, RECOMPUTE
        )
        if RECOMPUTE != "tiles":
            v = load_limbs(v_ptrs, keys, columns, n_k, HEAD, MASKED, LIMBS)
        # [BQ, BK]
        if RECOMPUTE == "tiles":
            zero = tl.zeros([q[0].shape[0], BK], tl.float32)
            s = matmul_from_memory(
                q, k_ptrs, keys, columns, n_k, zero, HEAD, MASKED, True, "", PRECISION
            )
        else:
            s = matmul(q, transpose_limbs(k), PRECISION)
        if MASKED:
            visible = (keys < n_k)[None, :]
            if CAUSAL:
                visible = visible & (rows[:, None] >= keys[None, :])
            s = tl.where(visible, s, -float("inf"))
        p = tl.exp2(s * scale_log2 - lse_log2[:, None])
        # [BQ, BK]
        if RECOMPUTE == "tiles":
            zero = tl.zeros([q[0].shape[0], BK], tl.float32)
            dp = matmul_from_memory(
                do, v_ptrs, keys, columns, n_k, zero, HEAD, MASKED, True, "", PRECISION
            )
        else:
            dp = matmul(do, transpose_limbs(v), PRECISION)
        ds = p * (dp - delta[:, None])
        ds_limbs = to_limbs(ds, q[0].dtype, LIMBS)
        if RECOMPUTE == "tiles":
            dq = add_matmul_from_memory(
                ds_limbs, k_ptrs, keys, columns, n_k, dq, HEAD, MASKED, PRECISION
            )
        else:
            dq = add_matmul(ds_limbs, k, dq, PRECISION)
    return dq


@triton.jit(do_not_specialize=["heads", "n_q", "n_k", "head_swizzle"])
def dq_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, do_ptr, lse_ptr, statistics_ptr, dq_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_on, stride_od,
    stride_gb, stride_gh, stride_gn, stride_gd,
    stride_dqb, stride_dqh, stride_dqn, stride_dqd,
    heads, n_q, n_k, head_swizzle, scale_log2, scale,
    BQ: tl.constexpr, BK: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr,
    GROUP: tl.constexpr, SPLITS: tl.constexpr, CAUSAL: tl.constexpr,
    LIMBS: tl.constexpr, PRECISION: tl.constexpr, UNIT: tl.constexpr,
    RECOMPUTE: tl.constexpr,
):  # fmt: skip
    """Compute dq of one tile of queries of one head. Grid as in `forward_kernel`.

    For `dkdv_kernel`, statistics_ptr receives lse · log2(e) and delta (batch, heads,
    n_q, 2). With SPLITS > 1, dq_ptr receives (SPLITS, batch, heads, n_q, HEAD).
    """
    stride_qb, stride_qh, stride_qn = hint_factor(stride_qb, stride_qh, stride_qn, UNIT)
    stride_kb, stride_kh, stride_kn = hint_factor(stride_kb, stride_kh, stride_kn, UNIT)
    stride_vb, stride_vh, stride_vn = hint_factor(stride_vb, stride_vh, stride_vn, UNIT)
    stride_ob, stride_oh, stride_on = hint_factor(stride_ob, stride_oh, stride_on, UNIT)
    stride_gb, stride_gh, stride_gn = hint_factor(stride_gb, stride_gh, stride_gn, UNIT)
    stride_dqb, stride_dqh, stride_dqn = hint_factor(
        stride_dqb, stride_dqh, stride_dqn, UNIT
    )
    tiles = tl.cdiv(n_q, BQ)
    tile, batch_head, batch_heads, split = program_tile(tiles, head_swizzle, SPLITS)
    q_start = (tiles - 1 - tile) * BQ
    batch, head = batch_head // heads, batch_head % heads
    out_batch = split * (batch_heads // heads) + batch
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + head // GROUP * stride_kh
    v_ptr += batch * stride_vb + head // GROUP * stride_vh
    o_ptr += batch * stride_ob + head * stride_oh
    do_ptr += batch * stride_gb + head * stride_gh
    dq_ptr += out_batch * stride_dqb + head * stride_dqh

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
    do = load_limbs(
        do_ptr + offsets(rows, columns, stride_gn, stride_gd),
        rows,
        columns,
        n_q,
        HEAD,
        True,
        LIMBS,
    )
    o = load_tile(
        o_ptr + offsets(rows, columns, stride_on, stride_od),
        rows,
        columns,
        n_q,
        HEAD,
        True,
    )
    # [BQ]
    delta = tl.sum(o.to(tl.float32) * sum_limbs(do), 1)
    row_index, inside = batch_head * n_q + rows, rows < n_q
    lse = tl.load(lse_ptr + row_index, mask=inside, other=float("inf"))
    lse_log2 = mask_huge_lse(lse) * LOG2E
    # Only split 0 stores lse and delta. In the interpreter, `inside & (split == 0)`
    # would be an integer mask, which Triton 3.9 rejects.
    stored = rows < tl.where(split == 0, n_q, 0)
    tl.store(statistics_ptr + 2 * row_index, lse_log2, mask=stored)
    tl.store(statistics_ptr + 2 * row_index + 1, delta, mask=stored)
    dq = tl.zeros([BQ, D], tl.float32)

    seen_by_all, seen_by_any = n_k, n_k
    if CAUSAL:
        seen_by_all, seen_by_any = (
            tl.minimum(n_k, q_start + 1),
            tl.minimum(n_k, q_start + BQ),
        )
    unmasked_end = seen_by_all // BK * BK
    dq = accumulate_dq(
        dq, q, do, lse_log2, delta, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn,
        stride_kd, stride_vn, stride_vd, rows, columns, split * BK, unmasked_end, n_k,
        scale_log2, BK, SPLITS, HEAD, CAUSAL, False, LIMBS, PRECISION, RECOMPUTE,
    )  # fmt: skip
    dq = accumulate_dq(
        dq, q, do, lse_log2, delta, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn,
        stride_kd, stride_vn, stride_vd, rows, columns,
        unmasked_end + first_step(split, unmasked_end // BK, SPLITS) * BK, seen_by_any,
        n_k, scale_log2, BK, SPLITS, HEAD, CAUSAL, True, LIMBS, PRECISION, RECOMPUTE,
    )  # fmt: skip
    store_tile(
        dq_ptr + offsets(rows, columns, stride_dqn, stride_dqd),
        dq * scale,
        rows,
        columns,
        n_q,
        HEAD,
    )
    # --8<-- [end:dq]


# --8<-- [start:dkdv]
@triton.jit
def accumulate_dkdv(
    dk, dv, k, v, q_ptr, do_ptr, statistics_ptr, q_offsets, do_offsets, stride_qn,
    stride_qd, stride_gn, stride_gd, keys, columns, first, last, n_q, scale_log2,
    BQ: tl.constexpr, SPLITS: tl.constexpr, HEAD: tl.constexpr, MASKED: tl.constexpr,
    RAGGED: tl.constexpr, LIMBS: tl.constexpr, PRECISION: tl.constexpr,
    RECOMPUTE: tl.constexpr,
):  # fmt: skip
    """Return dk (unscaled) and dv after adding every SPLITS-th tile of queries from
    `first` to `last`. All scores are transposed: [keys, queries].
    """
    for start in range(first, last, BQ * SPLITS):
        rows = start + tl.arange(0, BQ)
        # [BQ, D]
        q_ptrs = step_ptrs(
            q_ptr, q_offsets, start, rows, columns, stride_qn, stride_qd, RECOMPUTE
        )
        if RECOMPUTE != "tiles":
            q = load_limbs(q_ptrs, rows, columns, n_q, HEAD, RAGGED, LIMBS)
        do_ptrs = step_ptrs(
            do_ptr, do_offsets, start, rows, columns, stride_gn, stride_gd, RECOMPUTE
        )
        if RECOMPUTE != "tiles":
            do = load_limbs(do_ptrs, rows, columns, n_q, HEAD, RAGGED, LIMBS)
        # [BQ]; beyond n_q, lse is infinite, so that p is zero.
        pairs = statistics_ptr + 2 * rows[:, None] + tl.arange(0, 2)[None, :]
        if RAGGED:
            lse_log2, delta = tl.split(
                tl.load(pairs, mask=(rows < n_q)[:, None], other=float("inf"))
            )
            delta = tl.where(rows < n_q, delta, 0.0)
        else:
            lse_log2, delta = tl.split(tl.load(pairs))
        # [BK, BQ]; dp precedes exp2, so that computing ds overlaps the matmul for dv.
        if RECOMPUTE == "tiles":
            zero = tl.zeros([k[0].shape[0], BQ], tl.float32)
            s = matmul_from_memory(
                k, q_ptrs, rows, columns, n_q, zero, HEAD, RAGGED, True, "", PRECISION
            )
            dp = matmul_from_memory(
                v, do_ptrs, rows, columns, n_q, zero, HEAD, RAGGED, True, "", PRECISION
            )
        else:
            s = matmul(k, transpose_limbs(q), PRECISION)
            dp = matmul(v, transpose_limbs(do), PRECISION)
        if MASKED:
            s = tl.where(rows[None, :] >= keys[:, None], s, -float("inf"))
        p = tl.exp2(s * scale_log2 - lse_log2[None, :])
        p_limbs = to_limbs(p, v[0].dtype, LIMBS)
        if RECOMPUTE == "tiles":
            dv = add_matmul_from_memory(
                p_limbs, do_ptrs, rows, columns, n_q, dv, HEAD, RAGGED, PRECISION
            )
        else:
            dv = add_matmul(p_limbs, do, dv, PRECISION)
        ds = p * (dp - delta[None, :])
        ds_limbs = to_limbs(ds, k[0].dtype, LIMBS)
        if RECOMPUTE == "tiles":
            dk = add_matmul_from_memory(
                ds_limbs, q_ptrs, rows, columns, n_q, dk, HEAD, RAGGED, PRECISION
            )
        else:
            dk = add_matmul(ds_limbs, q, dk, PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=["heads", "n_q", "n_k", "head_swizzle"])
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, statistics_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_gb, stride_gh, stride_gn, stride_gd,
    stride_dkb, stride_dkh, stride_dkn, stride_dkd,
    stride_dvb, stride_dvh, stride_dvn, stride_dvd,
    heads, n_q, n_k, head_swizzle, scale_log2, scale,
    BQ: tl.constexpr, BK: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr,
    GROUP: tl.constexpr, SPLITS: tl.constexpr, CAUSAL: tl.constexpr,
    RAGGED: tl.constexpr, LIMBS: tl.constexpr, PRECISION: tl.constexpr,
    UNIT: tl.constexpr, RECOMPUTE: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of one tile of keys of one KV head, summed over its GROUP query
    heads (GQA). Grid: tiles of keys x batch x KV heads x SPLITS. With SPLITS > 1,
    dk_ptr and dv_ptr receive (SPLITS, batch, KV heads, n_k, HEAD), for `sum_kernel`.
    """
    stride_qb, stride_qh, stride_qn = hint_factor(stride_qb, stride_qh, stride_qn, UNIT)
    stride_kb, stride_kh, stride_kn = hint_factor(stride_kb, stride_kh, stride_kn, UNIT)
    stride_vb, stride_vh, stride_vn = hint_factor(stride_vb, stride_vh, stride_vn, UNIT)
    stride_gb, stride_gh, stride_gn = hint_factor(stride_gb, stride_gh, stride_gn, UNIT)
    stride_dkb, stride_dkh, stride_dkn = hint_factor(
        stride_dkb, stride_dkh, stride_dkn, UNIT
    )
    stride_dvb, stride_dvh, stride_dvn = hint_factor(
        stride_dvb, stride_dvh, stride_dvn, UNIT
    )
    tiles = tl.cdiv(n_k, BK)
    # Under a causal mask, the first tile has the most queries, and it starts first.
    tile, batch_head, batch_heads, split = program_tile(tiles, head_swizzle, SPLITS)
    k_start = tile * BK
    kv_heads = heads // GROUP
    batch, kv_head = batch_head // kv_heads, batch_head % kv_heads
    out_batch = split * (batch_heads // kv_heads) + batch
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    dk_ptr += out_batch * stride_dkb + kv_head * stride_dkh
    dv_ptr += out_batch * stride_dvb + kv_head * stride_dvh

    keys, columns = k_start + tl.arange(0, BK), tl.arange(0, D)
    q_offsets = offsets(tl.arange(0, BQ), columns, stride_qn, stride_qd)
    do_offsets = offsets(tl.arange(0, BQ), columns, stride_gn, stride_gd)
    # [BK, D]; rows beyond n_k are zero, and their results are not stored.
    k = load_limbs(
        k_ptr + offsets(keys, columns, stride_kn, stride_kd),
        keys,
        columns,
        n_k,
        HEAD,
        True,
        LIMBS,
    )
    v = load_limbs(
        v_ptr + offsets(keys, columns, stride_vn, stride_vd),
        keys,
        columns,
        n_k,
        HEAD,
        True,
        LIMBS,
    )
    dk = tl.zeros([BK, D], tl.float32)
    dv = tl.zeros([BK, D], tl.float32)

    # Queries before `first` see no key of this tile. From `unmasked_start` on, they see
    # all keys of it.
    first, unmasked_start = 0, 0
    if CAUSAL:
        first = k_start // BQ * BQ
        unmasked_start = tl.minimum(tl.cdiv(k_start + BK - 1, BQ) * BQ, n_q)
    # Splits take steps in alternation. Steps are numbered across loops and heads.
    masked_steps, steps = tl.cdiv(unmasked_start - first, BQ), tl.cdiv(n_q - first, BQ)
    for member in range(GROUP):
        # `earlier_steps` is a product, because Triton 3.6 miscompiles a running sum.
        head, earlier_steps = kv_head * GROUP + member, member * steps
        statistics_head = statistics_ptr + 2 * (batch * heads + head) * n_q
        q_head, do_head = (
            q_ptr + batch * stride_qb + head * stride_qh,
            do_ptr + batch * stride_gb + head * stride_gh,
        )
        if CAUSAL:
            dk, dv = accumulate_dkdv(
                dk, dv, k, v, q_head, do_head, statistics_head, q_offsets, do_offsets,
                stride_qn, stride_qd, stride_gn, stride_gd, keys, columns,
                first + first_step(split, earlier_steps, SPLITS) * BQ, unmasked_start,
                n_q, scale_log2, BQ, SPLITS, HEAD, True, RAGGED, LIMBS, PRECISION,
                RECOMPUTE,
            )  # fmt: skip
        dk, dv = accumulate_dkdv(
            dk, dv, k, v, q_head, do_head, statistics_head, q_offsets, do_offsets,
            stride_qn, stride_qd, stride_gn, stride_gd, keys, columns,
            unmasked_start + first_step(split, earlier_steps + masked_steps,
            SPLITS) * BQ, n_q, n_q, scale_log2, BQ, SPLITS, HEAD, False, RAGGED, LIMBS,
            PRECISION, RECOMPUTE,
        )  # fmt: skip
    store_tile(
        dk_ptr + offsets(keys, columns, stride_dkn, stride_dkd),
        dk * scale,
        keys,
        columns,
        n_k,
        HEAD,
    )
    store_tile(
        dv_ptr + offsets(keys, columns, stride_dvn, stride_dvd),
        dv,
        keys,
        columns,
        n_k,
        HEAD,
    )
    # --8<-- [end:dkdv]


# --8<-- [start:sum]
@triton.jit
def sum_splits(
    program, splits_ptr, out_ptr, stride_b, stride_h, stride_n, stride_d,
    batch, heads, n, SPLITS: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    """Sum ROWS rows of (SPLITS, batch, heads, n, HEAD) over SPLITS, in fixed order."""
    out_ptr, rows, columns, row_index = locate_rows(
        program, out_ptr, stride_b, stride_h, heads, n, ROWS, D
    )
    all_rows = tl.cast(batch, tl.int64) * heads * n
    total = tl.zeros([ROWS, D], tl.float32)
    for split in tl.static_range(SPLITS):
        split_index = split * all_rows + row_index
        total += load_tile(
            splits_ptr + offsets(split_index, columns, HEAD, 1),
            rows,
            columns,
            n,
            HEAD,
            True,
        )
    store_tile(
        out_ptr + offsets(rows, columns, stride_n, stride_d),
        total,
        rows,
        columns,
        n,
        HEAD,
    )


@triton.jit(do_not_specialize=["batch", "heads", "kv_heads", "n_q", "n_k"])
def sum_kernel(
    dq_splits_ptr, dk_splits_ptr, dv_splits_ptr, dq_ptr, dk_ptr, dv_ptr,
    stride_dqb, stride_dqh, stride_dqn, stride_dqd,
    stride_dkb, stride_dkh, stride_dkn, stride_dkd,
    stride_dvb, stride_dvh, stride_dvn, stride_dvd,
    batch, heads, kv_heads, n_q, n_k,
    DQ_SPLITS: tl.constexpr, DKDV_SPLITS: tl.constexpr, ROWS: tl.constexpr,
    HEAD: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Sum the splits of dq, dk and dv. Grid: one program per ROWS rows of each
    gradient that has several splits.
    """
    program = tl.program_id(0)
    dq_programs = tl.cdiv(n_q, ROWS) * batch * heads if DQ_SPLITS > 1 else 0
    dk_programs = tl.cdiv(n_k, ROWS) * batch * kv_heads
    if program < dq_programs:
        sum_splits(
            program, dq_splits_ptr, dq_ptr, stride_dqb, stride_dqh, stride_dqn,
            stride_dqd, batch, heads, n_q, DQ_SPLITS, ROWS, HEAD, D,
        )  # fmt: skip
    elif program < dq_programs + dk_programs:
        sum_splits(
            program - dq_programs, dk_splits_ptr, dk_ptr, stride_dkb, stride_dkh,
            stride_dkn, stride_dkd, batch, kv_heads, n_k, DKDV_SPLITS, ROWS, HEAD, D,
        )  # fmt: skip
    else:
        sum_splits(
            program - dq_programs - dk_programs, dv_splits_ptr, dv_ptr, stride_dvb,
            stride_dvh, stride_dvn, stride_dvd, batch, kv_heads, n_k, DKDV_SPLITS, ROWS,
            HEAD, D,
        )  # fmt: skip
    # --8<-- [end:sum]
