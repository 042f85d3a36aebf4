"""The forward kernel of FlashAttention-2 in Triton (Dao 2023, arXiv 2307.08691, algorithm 1), and what both share.

One program per tile of queries walks over the tiles of keys with online softmax; scores stay on chip, and only o and
lse are written. The causal mask costs only where it cuts: tiles above the diagonal are never visited, tiles below it
are not masked. Scores are kept in units of log 2, since a GPU computes exp2: scale · log2(e) is one factor.

Where there are fewer tiles than the GPU has room for, PARTS programs share the loop of one tile, each PARTS-th step to
each; what they leave is put together by a second kernel, in a fixed order.

Letters: q k v o, d for gradients; s scores, p probabilities, m running maximum, l running sum, lse = log Σ exp s.
UPPER is known when the kernel is compiled: BQ, BK rows of a tile; HEAD the head dimension, D the same padded to a
power of two; GROUP query heads that share one head of k and v. On a CPU Triton's interpreter runs the same kernels.
"""

# Triton hides from the type checker that arguments become constants and what its loops run over.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# The maximum of no scores: the least float32, since an infinity can not be subtracted from itself.
LOWEST = tl.constexpr(-3.4028234663852886e38)


# --8<-- [start:tiles]
@triton.jit
def place(tiles, together, PARTS: tl.constexpr):
    """(tile, batch · heads + head, how many heads there are, part) of this program.

    Of `together` heads first come all parts of the first tile of each, then of the second; then the next heads. So no
    long tile, nor a part of one, starts when all other work is done.
    """
    # Alone, the part is zero; were that known when the kernel is compiled, its second loop would become slower.
    part = tl.program_id(0) % PARTS if PARTS > 1 else tl.program_id(1)
    program, heads = tl.program_id(0) // PARTS, tl.num_programs(0) // PARTS // tiles
    group = program // (tiles * together)
    members = tl.minimum(together, heads - group * together)
    rest = program - group * tiles * together
    return rest // members, (group * together + rest % members).to(tl.int64), heads, part


@triton.jit
def offsets(rows, columns, stride_n, stride_d):
    """Where a tile's elements lie, in 64 bits: a long tensor reaches past 2³¹ elements."""
    return rows[:, None].to(tl.int64) * stride_n + columns[None, :].to(tl.int64) * stride_d


@triton.jit
def skip(ptr, rows, stride_n):
    """The pointer moved on by this many rows, in 64 bits."""
    return ptr + tl.cast(rows, tl.int64) * stride_n


@triton.jit
def turn(part, steps, PARTS: tl.constexpr):
    """Which step of a loop is the first of this part, where the loops before had so many: dealt out on and on."""
    return (part + PARTS - steps % PARTS) % PARTS if PARTS > 1 else part


@triton.jit
def narrow(x, TYPE: tl.constexpr):
    """float32 rounded to the nearest value of TYPE."""
    if INTERPRETED and TYPE == tl.bfloat16:
        # The interpreter cuts the low 16 bits off: half a unit, and ties to even, must be added first.
        bits = x.to(tl.int32, bitcast=True)
        x = (bits + 0x7FFF + ((bits >> 16) & 1)).to(tl.float32, bitcast=True)
    return x.to(TYPE)


@triton.jit
def load_tile(ptrs, rows, columns, n, HEAD: tl.constexpr, RAGGED: tl.constexpr):
    """Zero where a column is padding and, if RAGGED, where a row lies past n: such memory is not ours to read."""
    PADDED: tl.constexpr = columns.shape[0] != HEAD
    if RAGGED and PADDED:
        tile = tl.load(ptrs, mask=(rows < n)[:, None] & (columns < HEAD)[None, :], other=0.0)
    elif RAGGED:
        tile = tl.load(ptrs, mask=(rows < n)[:, None], other=0.0)
    elif PADDED:
        tile = tl.load(ptrs, mask=(columns < HEAD)[None, :], other=0.0)
    else:
        tile = tl.load(ptrs)
    return tile


@triton.jit
def store_tile(ptrs, tile, rows, columns, n, HEAD: tl.constexpr):
    """Round to the dtype of the memory and write what lies inside it."""
    mask = (rows < n)[:, None] & (columns < HEAD)[None, :]
    tl.store(ptrs, narrow(tile, ptrs.dtype.element_ty), mask=mask)


@triton.jit
def product(a, b, acc, PRECISION: tl.constexpr):
    """acc + a b with sums in float32."""
    if INTERPRETED:
        # The interpreter multiplies the bit patterns of bfloat16; float32 holds the same values.
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


# --8<-- [end:tiles]


# --8<-- [start:forward_steps]
@triton.jit
def forward_steps(
    acc, m, l, q, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, rows, columns, first, last, n_k, scale_log2,
    BK: tl.constexpr, PARTS: tl.constexpr, HEAD: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax of one tile of queries over every PARTS-th tile of keys from `first` to `last`."""
    for start in range(first, last, BK * PARTS):
        keys = start + tl.arange(0, BK)
        # [BK, D]
        k = load_tile(skip(k_ptr, start, stride_kn) + k_offsets, keys, columns, n_k, HEAD, MASKED)
        # [BQ, BK]
        s = product(q, tl.trans(k), tl.zeros([q.shape[0], BK], tl.float32), PRECISION)
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
        v = load_tile(skip(v_ptr, start, stride_vn) + v_offsets, keys, columns, n_k, HEAD, MASKED)
        acc = product(narrow(p, v.dtype), v, acc * rescale[:, None], PRECISION)
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
    PARTS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
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
    q = load_tile(q_ptr + offsets(rows, columns, stride_qn, stride_qd), rows, columns, n_q, HEAD, True)
    acc = tl.zeros([BQ, D], tl.float32)
    m = tl.full([BQ], LOWEST, tl.float32)
    l = tl.zeros([BQ], tl.float32)

    # Every row sees the keys before seen_by_all, no row sees one from seen_by_any on.
    seen_by_all, seen_by_any = n_k, n_k
    if CAUSAL:
        seen_by_all, seen_by_any = tl.minimum(n_k, q_start + 1), tl.minimum(n_k, q_start + BQ)
    whole = seen_by_all // BK * BK
    acc, m, l = forward_steps(
        acc, m, l, q, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, rows, columns, part * BK, whole,
        n_k, scale_log2, BK, PARTS, HEAD, CAUSAL, False, PRECISION,
    )  # fmt: skip
    acc, m, l = forward_steps(
        acc, m, l, q, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, rows, columns,
        whole + turn(part, whole // BK, PARTS) * BK, seen_by_any, n_k, scale_log2, BK, PARTS, HEAD, CAUSAL, True,
        PRECISION,
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
@triton.jit
def rows_of_program(program, out_ptr, stride_b, stride_h, heads, n, ROWS: tl.constexpr, D: tl.constexpr):
    """(head's output, rows, columns, where these rows stand among those of all heads)."""
    tiles = tl.cdiv(n, ROWS)
    batch_head = (program // tiles).to(tl.int64)
    rows, columns = program % tiles * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    return (
        out_ptr + batch_head // heads * stride_b + batch_head % heads * stride_h,
        rows,
        columns,
        batch_head * n + rows,
    )


@triton.jit(do_not_specialize=["heads", "n_q"])
def merge_kernel(
    acc_ptr, m_l_ptr, o_ptr, lse_ptr, stride_ob, stride_oh, stride_on, stride_od,
    heads, n_q, PARTS: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """o and lse of ROWS rows of one head: the states of its parts, rescaled to one maximum, are added up."""
    program = tl.program_id(0)
    o_ptr, rows, columns, own = rows_of_program(program, o_ptr, stride_ob, stride_oh, heads, n_q, ROWS, D)
    part_rows = tl.cast(tl.num_programs(0) // tl.cdiv(n_q, ROWS), tl.int64) * n_q
    l_ptr, inside = skip(m_l_ptr, PARTS, part_rows), rows < n_q
    # Unrolled, and the maximum first: so memory is asked for parts that don't wait for each other.
    m = tl.full([ROWS], LOWEST, tl.float32)
    for part in tl.static_range(PARTS):
        m = tl.maximum(m, tl.load(m_l_ptr + part * part_rows + own, mask=inside, other=0.0))
    acc = tl.zeros([ROWS, D], tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    for part in tl.static_range(PARTS):
        here = part * part_rows + own
        weight = tl.exp2(tl.load(m_l_ptr + here, mask=inside, other=0.0) - m)
        l += weight * tl.load(l_ptr + here, mask=inside, other=1.0)
        acc_part = load_tile(acc_ptr + offsets(here, columns, HEAD, 1), rows, columns, n_q, HEAD, True)
        acc += weight[:, None] * acc_part
    store_tile(o_ptr + offsets(rows, columns, stride_on, stride_od), acc / l[:, None], rows, columns, n_q, HEAD)
    tl.store(lse_ptr + own, (m + tl.log2(l)) * LN2, mask=inside)


# --8<-- [end:merge]
