"""The forward kernel of FlashAttention-2 in Triton (Dao 2023, arXiv 2307.08691, algorithm 1).

One program per tile of queries walks over the tiles of keys with online softmax; scores stay on chip, and only o and
lse are written. The causal mask costs only where it cuts: tiles above the diagonal are never visited, tiles below it
are not masked. Scores are kept in units of log 2, since a GPU computes exp2: scale · log2(e) is one factor.

Where there are fewer tiles than the GPU has room for, PARTS programs share the loop of one tile, each PARTS-th step to
each; what they leave is put together by a second kernel, in a fixed order.

Letters: q k v o, d for gradients; s scores, p probabilities, m running maximum, l running sum, lse = log Σ exp s.
UPPER is known when the kernel is compiled: BQ, BK rows of a tile; HEAD the head dimension, D the same padded to a
power of two; GROUP query heads that share one head of k and v; PIECES in which memory holds a factor of a product
(`flash_triton_tiles`). On a CPU Triton's interpreter runs the same kernels.
"""

import triton
import triton.language as tl

from systems.attention.triton.primitives import (
    LN2,
    add_product,
    cut,
    load_pieces,
    load_tile,
    offsets,
    place,
    product,
    rows_of_program,
    skip,
    store_tile,
    turn,
    turned,
)

# The maximum of no scores: the least float32, since an infinity can not be subtracted from itself.
LOWEST = tl.constexpr(-3.4028234663852886e38)


# --8<-- [start:forward_steps]
@triton.jit
def forward_steps(
    acc, m, l, q, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, rows, columns, first, last, n_k, scale_log2,
    BK: tl.constexpr, PARTS: tl.constexpr, HEAD: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    PIECES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax of one tile of queries over every PARTS-th tile of keys from `first` to `last`."""
    for start in range(first, last, BK * PARTS):
        keys = start + tl.arange(0, BK)
        # [BK, D]
        k = load_pieces(
            skip(k_ptr, start, stride_kn) + k_offsets,
            keys,
            columns,
            n_k,
            HEAD,
            MASKED,
            PIECES,
        )
        # [BQ, BK]
        s = product(q, turned(k), PRECISION)
        if MASKED:
            visible = (keys < n_k)[None, :]
            if CAUSAL:
                visible = visible & (rows[:, None] >= keys[None, :])
            s = tl.where(visible, s, -float("inf"))
        m_new = tl.maximum(m, tl.max(s, 1) * scale_log2)
        # [BQ, BK]
        p = tl.exp2(s * scale_log2 - m_new[:, None])
        rescale = tl.exp2(m - m_new)
        l = l * rescale + tl.sum(p, 1)
        # [BK, D]
        v = load_pieces(
            skip(v_ptr, start, stride_vn) + v_offsets,
            keys,
            columns,
            n_k,
            HEAD,
            MASKED,
            PIECES,
        )
        acc = add_product(
            cut(p, v[0].dtype, PIECES), v, acc * rescale[:, None], PRECISION
        )
        m = m_new
    return acc, m, l


# --8<-- [end:forward_steps]


# --8<-- [start:forward_kernel]
@triton.jit(do_not_specialize=["heads", "n_q", "n_k", "together"])
def forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_on, stride_od,
    heads, n_q, n_k, together, scale_log2,
    BQ: tl.constexpr, BK: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr,
    PARTS: tl.constexpr, CAUSAL: tl.constexpr, PIECES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o and lse of one tile of queries of one head. Grid: tiles of queries x batch x heads x PARTS.

    With PARTS > 1 the state of online softmax for `merge_kernel` instead: o_ptr takes acc (PARTS, batch, heads, n_q,
    HEAD), and lse_ptr takes m and l (2, PARTS, batch, heads, n_q).
    """
    tiles = tl.cdiv(n_q, BQ)
    # The last tile sees the most keys under a causal mask: it starts first, so that no long one is left at the end.
    tile, batch_head, batch_heads, part = place(tiles, together, PARTS)
    q_start = (tiles - 1 - tile) * BQ
    batch, head = batch_head // heads, batch_head % heads
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + head // GROUP * stride_kh
    v_ptr += batch * stride_vb + head // GROUP * stride_vh
    o_ptr += (part * (batch_heads // heads) + batch) * stride_ob + head * stride_oh

    rows, columns = q_start + tl.arange(0, BQ), tl.arange(0, D)
    k_offsets = offsets(tl.arange(0, BK), columns, stride_kn, stride_kd)
    v_offsets = offsets(tl.arange(0, BK), columns, stride_vn, stride_vd)
    # [BQ, D]
    q = load_pieces(
        q_ptr + offsets(rows, columns, stride_qn, stride_qd),
        rows,
        columns,
        n_q,
        HEAD,
        True,
        PIECES,
    )
    acc = tl.zeros([BQ, D], tl.float32)
    m = tl.full([BQ], LOWEST, tl.float32)
    l = tl.zeros([BQ], tl.float32)

    # Every row sees the keys before seen_by_all, no row sees one from seen_by_any on.
    seen_by_all, seen_by_any = n_k, n_k
    if CAUSAL:
        seen_by_all, seen_by_any = (
            tl.minimum(n_k, q_start + 1),
            tl.minimum(n_k, q_start + BQ),
        )
    whole = seen_by_all // BK * BK
    acc, m, l = forward_steps(
        acc, m, l, q, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, rows, columns, part * BK, whole,
        n_k, scale_log2, BK, PARTS, HEAD, CAUSAL, False, PIECES, PRECISION,
    )  # fmt: skip
    acc, m, l = forward_steps(
        acc, m, l, q, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, rows, columns,
        whole + turn(part, whole // BK, PARTS) * BK, seen_by_any, n_k, scale_log2, BK, PARTS, HEAD, CAUSAL, True,
        PIECES, PRECISION,
    )  # fmt: skip
    o_ptrs = o_ptr + offsets(rows, columns, stride_on, stride_od)
    lse_ptrs = lse_ptr + (part * batch_heads + batch_head) * n_q + rows
    if PARTS == 1:
        store_tile(o_ptrs, acc / l[:, None], rows, columns, n_q, HEAD)
        tl.store(lse_ptrs, (m + tl.log2(l)) * LN2, mask=rows < n_q)
    else:
        store_tile(o_ptrs, acc, rows, columns, n_q, HEAD)
        tl.store(lse_ptrs, m, mask=rows < n_q)
        tl.store(skip(lse_ptrs, PARTS * batch_heads, n_q), l, mask=rows < n_q)


# --8<-- [end:forward_kernel]


# --8<-- [start:merge]
@triton.jit(do_not_specialize=["heads", "n_q"])
def merge_kernel(
    acc_ptr, m_l_ptr, o_ptr, lse_ptr, stride_ob, stride_oh, stride_on, stride_od,
    heads, n_q, PARTS: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """o and lse of ROWS rows of one head: the states of its parts, rescaled to one maximum, are added up."""
    program = tl.program_id(0)
    o_ptr, rows, columns, own = rows_of_program(
        program, o_ptr, stride_ob, stride_oh, heads, n_q, ROWS, D
    )
    part_rows = tl.cast(tl.num_programs(0) // tl.cdiv(n_q, ROWS), tl.int64) * n_q
    l_ptr, inside = skip(m_l_ptr, PARTS, part_rows), rows < n_q
    # Unrolled, and the maximum first: so memory is asked for parts that don't wait for each other.
    m = tl.full([ROWS], LOWEST, tl.float32)
    for part in tl.static_range(PARTS):
        m = tl.maximum(
            m, tl.load(m_l_ptr + part * part_rows + own, mask=inside, other=0.0)
        )
    acc = tl.zeros([ROWS, D], tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    for part in tl.static_range(PARTS):
        here = part * part_rows + own
        weight = tl.exp2(tl.load(m_l_ptr + here, mask=inside, other=0.0) - m)
        l += weight * tl.load(l_ptr + here, mask=inside, other=1.0)
        acc_part = load_tile(
            acc_ptr + offsets(here, columns, HEAD, 1), rows, columns, n_q, HEAD, True
        )
        acc += weight[:, None] * acc_part
    store_tile(
        o_ptr + offsets(rows, columns, stride_on, stride_od),
        acc / l[:, None],
        rows,
        columns,
        n_q,
        HEAD,
    )
    tl.store(lse_ptr + own, (m + tl.log2(l)) * LN2, mask=inside)


# --8<-- [end:merge]
