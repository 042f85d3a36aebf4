"""FlashAttention-2 in Triton, forward and backward (Dao 2023, arXiv 2307.08691, algorithms 1 and 2).

Forward: one program per tile of queries walks over the tiles of keys with online softmax; scores stay on chip, and
only o and lse are written. Backward: delta = rowsum(o · do); then one program per tile of keys walks over the queries
(dk, dv), and one per tile of queries walks over the keys (dq). Each recomputes P = exp(S - lse). Nobody adds to what
another program writes, so there are no atomics and every result repeats bit by bit.

The causal mask costs only where it cuts: tiles above the diagonal are never visited, tiles below it are not masked.
Scores are kept in units of log 2, since a GPU computes exp2: scale · log2(e) is one factor.

Letters: q k v o, d for gradients; s scores, p probabilities, m running maximum, l running sum, lse = log Σ exp s.
UPPER is known when the kernel is compiled: BQ, BK rows of a tile; HEAD the head dimension, D the same padded to a
power of two; GROUP query heads that share one head of k and v. On a CPU Triton's interpreter runs the same kernels.
On a Hopper GPU `flash_hopper` runs what it takes instead.
"""

# Triton's decorator hides from the type checker that a kernel is called with a grid, options and plain constants.
# pyright: reportCallIssue=false, reportArgumentType=false

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from systems.attention import flash_hopper
from systems.attention.inputs import (
    autocast_like_sdpa,
    check_inputs,
    default_scale,
    is_traced,
    refuse_second_derivative,
)
from systems.attention.launching import Launch, Layout, layout
from systems.attention.tiles import Tile, choose, padded

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_HEAD = 256
# Rows that one program of the delta kernel sums.
DELTA_ROWS = 64
# What tl.dot is told. Float32 to its own accuracy is six products of bfloat16 parts, which the matrix units add up:
# "ieee" would leave them idle.
PRECISION = {"half": "ieee", "tf32": "tf32", "fp32": "bf16x6"}
INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


# --8<-- [start:tiles]
@triton.jit
def offsets(rows, columns, stride_n, stride_d):
    """Where a tile's elements lie, in 64 bits: a long tensor reaches past 2³¹ elements."""
    return rows[:, None].to(tl.int64) * stride_n + columns[None, :].to(tl.int64) * stride_d


@triton.jit
def skip(ptr, rows, stride_n):
    """The pointer moved on by this many rows, in 64 bits."""
    return ptr + tl.cast(rows, tl.int64) * stride_n


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
def round_to_tf32(x):
    """float32 rounded to 10 bits behind the point. The matrix units would cut the others off, and err one way."""
    bits = (x.to(tl.int32, bitcast=True) + 0x1000) & ~0x1FFF
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def product(a, b, acc, PRECISION: tl.constexpr):
    """acc + a b with sums in float32."""
    if PRECISION == "tf32":
        a = round_to_tf32(a)
        b = round_to_tf32(b)
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
    BK: tl.constexpr, HEAD: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax of one tile of queries over the keys from `first` to `last`."""
    for start in range(first, last, BK):
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
@triton.jit(do_not_specialize=["heads", "n_q", "n_k"])
def forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_on, stride_od,
    heads, n_q, n_k, scale_log2,
    BQ: tl.constexpr, BK: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o and lse of one tile of queries of one head. Grid: tiles of queries x batch x heads, on the one long axis."""
    tiles = tl.cdiv(n_q, BQ)
    # The last tile sees the most keys under a causal mask: it starts first, so that no long one is left at the end.
    q_start = (tiles - 1 - tl.program_id(0) % tiles) * BQ
    batch_head = (tl.program_id(0) // tiles).to(tl.int64)
    batch, head = batch_head // heads, batch_head % heads
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + head // GROUP * stride_kh
    v_ptr += batch * stride_vb + head // GROUP * stride_vh
    o_ptr += batch * stride_ob + head * stride_oh

    rows, columns = q_start + tl.arange(0, BQ), tl.arange(0, D)
    k_offsets = offsets(tl.arange(0, BK), columns, stride_kn, stride_kd)
    v_offsets = offsets(tl.arange(0, BK), columns, stride_vn, stride_vd)
    # [BQ, D]
    q = load_tile(q_ptr + offsets(rows, columns, stride_qn, stride_qd), rows, columns, n_q, HEAD, True)
    acc = tl.zeros([BQ, D], tl.float32)
    m = tl.full([BQ], -float("inf"), tl.float32)
    l = tl.zeros([BQ], tl.float32)

    # Every row sees the keys before seen_by_all, no row sees one from seen_by_any on.
    seen_by_all, seen_by_any = n_k, n_k
    if CAUSAL:
        seen_by_all, seen_by_any = tl.minimum(n_k, q_start + 1), tl.minimum(n_k, q_start + BQ)
    whole = seen_by_all // BK * BK
    acc, m, l = forward_steps(
        acc, m, l, q, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, rows, columns, 0, whole, n_k,
        scale_log2, BK, HEAD, CAUSAL, False, PRECISION,
    )  # fmt: skip
    acc, m, l = forward_steps(
        acc, m, l, q, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, rows, columns, whole, seen_by_any, n_k,
        scale_log2, BK, HEAD, CAUSAL, True, PRECISION,
    )  # fmt: skip
    store_tile(o_ptr + offsets(rows, columns, stride_on, stride_od), acc / l[:, None], rows, columns, n_q, HEAD)
    tl.store(lse_ptr + batch_head * n_q + rows, (m + tl.log2(l)) * LN2, mask=rows < n_q)


# --8<-- [end:forward_kernel]


# --8<-- [start:delta]
@triton.jit(do_not_specialize=["heads", "n_q"])
def delta_kernel(
    o_ptr, do_ptr, delta_ptr,
    stride_ob, stride_oh, stride_on, stride_od,
    stride_gb, stride_gh, stride_gn, stride_gd,
    heads, n_q, ROWS: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """delta = rowsum(o · do), which is also rowsum(p · dp): what softmax takes off each dp. Strides of do: g."""
    tiles = tl.cdiv(n_q, ROWS)
    batch_head = (tl.program_id(0) // tiles).to(tl.int64)
    batch, head = batch_head // heads, batch_head % heads
    o_ptr += batch * stride_ob + head * stride_oh
    do_ptr += batch * stride_gb + head * stride_gh
    rows, columns = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    # [ROWS, D]
    o = load_tile(o_ptr + offsets(rows, columns, stride_on, stride_od), rows, columns, n_q, HEAD, True)
    do = load_tile(do_ptr + offsets(rows, columns, stride_gn, stride_gd), rows, columns, n_q, HEAD, True)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(delta_ptr + batch_head * n_q + rows, delta, mask=rows < n_q)


# --8<-- [end:delta]


# --8<-- [start:dkdv]
@triton.jit
def dkdv_steps(
    dk, dv, k, v, q_ptr, do_ptr, lse_ptr, delta_ptr, q_offsets, do_offsets, stride_qn, stride_gn, keys, columns,
    first, last, n_q, scale_log2,
    BQ: tl.constexpr, HEAD: tl.constexpr, MASKED: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk (without its scale) and dv of one tile of keys over the queries from `first` to `last`; all is transposed."""
    for start in range(first, last, BQ):
        rows = start + tl.arange(0, BQ)
        # [BQ, D]
        q = load_tile(skip(q_ptr, start, stride_qn) + q_offsets, rows, columns, n_q, HEAD, RAGGED)
        do = load_tile(skip(do_ptr, start, stride_gn) + do_offsets, rows, columns, n_q, HEAD, RAGGED)
        # [BQ]; an infinite lse makes the probabilities of a row past the end zero.
        if RAGGED:
            lse = tl.load(lse_ptr + rows, mask=rows < n_q, other=float("inf"))
            delta = tl.load(delta_ptr + rows, mask=rows < n_q, other=0.0)
        else:
            lse = tl.load(lse_ptr + rows)
            delta = tl.load(delta_ptr + rows)
        zeros = tl.zeros([k.shape[0], BQ], tl.float32)
        # [BK, BQ]
        s = product(k, tl.trans(q), zeros, PRECISION)
        if MASKED:
            s = tl.where(rows[None, :] >= keys[:, None], s, -float("inf"))
        p = tl.exp2(s * scale_log2 - (lse * LOG2E)[None, :])
        dv = product(narrow(p, do.dtype), do, dv, PRECISION)
        # [BK, BQ]
        dp = product(v, tl.trans(do), zeros, PRECISION)
        ds = p * (dp - delta[None, :])
        dk = product(narrow(ds, q.dtype), q, dk, PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=["heads", "n_q", "n_k"])
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_gb, stride_gh, stride_gn, stride_gd,
    stride_dkb, stride_dkh, stride_dkn, stride_dkd,
    stride_dvb, stride_dvh, stride_dvn, stride_dvd,
    heads, n_q, n_k, scale_log2, scale,
    BQ: tl.constexpr, BK: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv of one tile of keys of one head of k and v. Grid: tiles of keys x batch x heads of k and v."""
    tiles = tl.cdiv(n_k, BK)
    # The first tile is seen by the most queries under a causal mask: it starts first as it is.
    k_start = tl.program_id(0) % tiles * BK
    batch_head = (tl.program_id(0) // tiles).to(tl.int64)
    kv_heads = heads // GROUP
    batch, kv_head = batch_head // kv_heads, batch_head % kv_heads
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    dk_ptr += batch * stride_dkb + kv_head * stride_dkh
    dv_ptr += batch * stride_dvb + kv_head * stride_dvh

    keys, columns = k_start + tl.arange(0, BK), tl.arange(0, D)
    q_offsets = offsets(tl.arange(0, BQ), columns, stride_qn, stride_qd)
    do_offsets = offsets(tl.arange(0, BQ), columns, stride_gn, stride_gd)
    # [BK, D]; rows past n_k are zero, and what comes of them is never stored.
    k = load_tile(k_ptr + offsets(keys, columns, stride_kn, stride_kd), keys, columns, n_k, HEAD, True)
    v = load_tile(v_ptr + offsets(keys, columns, stride_vn, stride_vd), keys, columns, n_k, HEAD, True)
    dk = tl.zeros([BK, D], tl.float32)
    dv = tl.zeros([BK, D], tl.float32)

    # No query before `first` sees a key of this tile, every query from `whole` on sees all of them.
    first, whole = 0, 0
    if CAUSAL:
        first = k_start // BQ * BQ
        whole = tl.minimum(tl.cdiv(k_start + BK - 1, BQ) * BQ, n_q)
    for member in range(GROUP):
        head = kv_head * GROUP + member
        row = (batch * heads + head) * n_q
        q_head, do_head = q_ptr + batch * stride_qb + head * stride_qh, do_ptr + batch * stride_gb + head * stride_gh
        if CAUSAL:
            dk, dv = dkdv_steps(
                dk, dv, k, v, q_head, do_head, lse_ptr + row, delta_ptr + row, q_offsets, do_offsets, stride_qn,
                stride_gn, keys, columns, first, whole, n_q, scale_log2, BQ, HEAD, True, RAGGED, PRECISION,
            )  # fmt: skip
        dk, dv = dkdv_steps(
            dk, dv, k, v, q_head, do_head, lse_ptr + row, delta_ptr + row, q_offsets, do_offsets, stride_qn,
            stride_gn, keys, columns, whole, n_q, n_q, scale_log2, BQ, HEAD, False, RAGGED, PRECISION,
        )  # fmt: skip
    store_tile(dk_ptr + offsets(keys, columns, stride_dkn, stride_dkd), dk * scale, keys, columns, n_k, HEAD)
    store_tile(dv_ptr + offsets(keys, columns, stride_dvn, stride_dvd), dv, keys, columns, n_k, HEAD)


# --8<-- [end:dkdv]


# --8<-- [start:dq]
@triton.jit
def dq_steps(
    dq, q, do, lse, delta, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, rows, columns, first, last, n_k,
    scale_log2,
    BK: tl.constexpr, HEAD: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq (without its scale) of one tile of queries over the keys from `first` to `last`."""
    for start in range(first, last, BK):
        keys = start + tl.arange(0, BK)
        # [BK, D]
        k = load_tile(skip(k_ptr, start, stride_kn) + k_offsets, keys, columns, n_k, HEAD, MASKED)
        v = load_tile(skip(v_ptr, start, stride_vn) + v_offsets, keys, columns, n_k, HEAD, MASKED)
        zeros = tl.zeros([q.shape[0], BK], tl.float32)
        # [BQ, BK]
        s = product(q, tl.trans(k), zeros, PRECISION)
        if MASKED:
            visible = (keys < n_k)[None, :]
            if CAUSAL:
                visible = visible & (rows[:, None] >= keys[None, :])
            s = tl.where(visible, s, -float("inf"))
        p = tl.exp2(s * scale_log2 - lse[:, None])
        # [BQ, BK]
        dp = product(do, tl.trans(v), zeros, PRECISION)
        ds = p * (dp - delta[:, None])
        dq = product(narrow(ds, k.dtype), k, dq, PRECISION)
    return dq


@triton.jit(do_not_specialize=["heads", "n_q", "n_k"])
def dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_gb, stride_gh, stride_gn, stride_gd,
    stride_dqb, stride_dqh, stride_dqn, stride_dqd,
    heads, n_q, n_k, scale_log2, scale,
    BQ: tl.constexpr, BK: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq of one tile of queries of one head. Grid and order are those of the forward kernel."""
    tiles = tl.cdiv(n_q, BQ)
    q_start = (tiles - 1 - tl.program_id(0) % tiles) * BQ
    batch_head = (tl.program_id(0) // tiles).to(tl.int64)
    batch, head = batch_head // heads, batch_head % heads
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + head // GROUP * stride_kh
    v_ptr += batch * stride_vb + head // GROUP * stride_vh
    do_ptr += batch * stride_gb + head * stride_gh
    dq_ptr += batch * stride_dqb + head * stride_dqh

    rows, columns = q_start + tl.arange(0, BQ), tl.arange(0, D)
    k_offsets = offsets(tl.arange(0, BK), columns, stride_kn, stride_kd)
    v_offsets = offsets(tl.arange(0, BK), columns, stride_vn, stride_vd)
    # [BQ, D]
    q = load_tile(q_ptr + offsets(rows, columns, stride_qn, stride_qd), rows, columns, n_q, HEAD, True)
    do = load_tile(do_ptr + offsets(rows, columns, stride_gn, stride_gd), rows, columns, n_q, HEAD, True)
    # [BQ]
    lse = tl.load(lse_ptr + batch_head * n_q + rows, mask=rows < n_q, other=float("inf")) * LOG2E
    delta = tl.load(delta_ptr + batch_head * n_q + rows, mask=rows < n_q, other=0.0)
    dq = tl.zeros([BQ, D], tl.float32)

    seen_by_all, seen_by_any = n_k, n_k
    if CAUSAL:
        seen_by_all, seen_by_any = tl.minimum(n_k, q_start + 1), tl.minimum(n_k, q_start + BQ)
    whole = seen_by_all // BK * BK
    dq = dq_steps(
        dq, q, do, lse, delta, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, rows, columns, 0, whole, n_k,
        scale_log2, BK, HEAD, CAUSAL, False, PRECISION,
    )  # fmt: skip
    dq = dq_steps(
        dq, q, do, lse, delta, k_ptr, v_ptr, k_offsets, v_offsets, stride_kn, stride_vn, rows, columns, whole,
        seen_by_any, n_k, scale_log2, BK, HEAD, CAUSAL, True, PRECISION,
    )  # fmt: skip
    store_tile(dq_ptr + offsets(rows, columns, stride_dqn, stride_dqd), dq * scale, rows, columns, n_q, HEAD)


# --8<-- [end:dq]


def arithmetic(dtype: torch.dtype) -> str:
    """How products are formed: "half" of 16 bits; float32 as PyTorch's own, by `torch.set_float32_matmul_precision`."""
    if dtype != torch.float32:
        return "half"
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@lru_cache(maxsize=4096)
def forward_launch(
    arithmetic: str, dtype: torch.dtype, device: torch.device, tile: Tile | None, causal: bool, scale: float,
    q: Layout, k: Layout, v: Layout, o: Layout,
) -> Launch:  # fmt: skip
    """The forward kernel for tensors of these layouts. What isn't used here decides what Triton compiles."""
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    t = tile or choose("forward", d, arithmetic, device)
    return Launch(
        forward_kernel, triton.cdiv(n_q, t.q) * batch * heads,
        (*q.strides, *k.strides, *v.strides, *o.strides, heads, n_q, n_k, scale * LOG2E.value),
        {"BQ": t.q, "BK": t.k, "HEAD": d, "D": padded(d), "GROUP": heads // kv_heads, "CAUSAL": causal,
         "PRECISION": PRECISION[arithmetic]},
        num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip


def launch_forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, tile: Tile | None = None
) -> tuple[Tensor, Tensor]:
    """(o, lse); `tile` overrides the table."""
    o, lse = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)
    launch = forward_launch(
        arithmetic(q.dtype), q.dtype, q.device, tile, causal, scale, layout(q), layout(k), layout(v), layout(o)
    )
    # Triton launches on the current GPU, which need not be the tensor's.
    with torch.cuda.device_of(q):
        launch(q, k, v, o, lse)
    return o, lse


@lru_cache(maxsize=4096)
def backward_launches(
    arithmetic: str, dtype: torch.dtype, device: torch.device, dkdv_tile: Tile | None, dq_tile: Tile | None,
    causal: bool, scale: float, q: Layout, k: Layout, v: Layout, o: Layout, do: Layout, dq: Layout, dk: Layout,
    dv: Layout,
) -> tuple[Launch, Launch, Launch]:  # fmt: skip
    """The kernels of delta, of dk and dv, and of dq for tensors of these layouts."""
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    sizes = {"HEAD": d, "D": padded(d)}
    constants = {**sizes, "GROUP": heads // kv_heads, "CAUSAL": causal, "PRECISION": PRECISION[arithmetic]}
    inputs = (*q.strides, *k.strides, *v.strides, *do.strides)
    numbers = (heads, n_q, n_k, scale * LOG2E.value, scale)
    t, u = dkdv_tile or choose("dkdv", d, arithmetic, device), dq_tile or choose("dq", d, arithmetic, device)
    return (
        Launch(
            delta_kernel, triton.cdiv(n_q, DELTA_ROWS) * batch * heads,
            (*o.strides, *do.strides, heads, n_q), {"ROWS": DELTA_ROWS, **sizes},
        ),
        Launch(
            dkdv_kernel, triton.cdiv(n_k, t.k) * batch * kv_heads, (*inputs, *dk.strides, *dv.strides, *numbers),
            {"BQ": t.q, "BK": t.k, "RAGGED": n_q % t.q != 0, **constants}, num_warps=t.warps, num_stages=t.stages,
        ),
        Launch(
            dq_kernel, triton.cdiv(n_q, u.q) * batch * heads, (*inputs, *dq.strides, *numbers),
            {"BQ": u.q, "BK": u.k, **constants}, num_warps=u.warps, num_stages=u.stages,
        ),
    )  # fmt: skip


def launch_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    dkdv_tile: Tile | None = None,
    dq_tile: Tile | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv); the tiles override the table."""
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    delta = torch.empty_like(lse)
    launch_delta, launch_dkdv, launch_dq = backward_launches(
        arithmetic(q.dtype), q.dtype, q.device, dkdv_tile, dq_tile, causal, scale,
        layout(q), layout(k), layout(v), layout(o), layout(do), layout(dq), layout(dk), layout(dv),
    )  # fmt: skip
    with torch.cuda.device_of(q):
        launch_delta(o, do, delta)
        launch_dkdv(q, k, v, do, lse, delta, dk, dv)
        launch_dq(q, k, v, do, lse, delta, dq)
    return dq, dk, dv


def run_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """(o, lse) by the kernels for Hopper where they take the inputs, else by those of this module."""
    launch = flash_hopper.launch_forward if flash_hopper.takes(q, k, v) else launch_forward
    return launch(q, k, v, causal, scale)


def run_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), chosen as `run_forward` chooses; what either saved serves the other."""
    launch = flash_hopper.launch_backward if flash_hopper.takes(q, k, v) else launch_backward
    return launch(do, q, k, v, o, lse, causal, scale)


@torch.library.custom_op("systems::flash_forward", mutates_args=())
def flash_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """What torch.compile and torch.export see of the forward pass: (o, lse)."""
    return run_forward(q, k, v, causal, scale)


@torch.library.custom_op("systems::flash_backward", mutates_args=())
def flash_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What torch.compile and torch.export see of the backward pass: (dq, dk, dv)."""
    return run_backward(do, q, k, v, o, lse, causal, scale)


@flash_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)


@flash_backward.register_fake
def _(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def save_for_operator(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ctx.causal, ctx.scale = inputs
    o, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, o, lse)


def differentiate_operator(ctx, do: Tensor, dlse: Tensor | None):
    refuse_second_derivative()
    return *flash_backward(do, *ctx.saved_tensors, ctx.causal, ctx.scale), None, None


flash_forward.register_autograd(differentiate_operator, setup_context=save_for_operator)


class FlashAttentionTriton(torch.autograd.Function):
    """`FlashAttentionTriton.apply(q, k, v, is_causal)`; (batch, n, d), or heads before n too, d up to 256.

    float32, float16 or bfloat16. `ValueError` or `TypeError` names what can't be taken; a second derivative can't.
    """

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None) -> Tensor:
        check(q, k, v, is_causal, scale)
        if q.ndim not in (3, 4):
            raise ValueError(f"q must be (batch, N, d) or (batch, heads, N, d), got shape {tuple(q.shape)}")
        ctx.causal, ctx.scale = is_causal, default_scale(scale, q.shape[-1])
        run = flash_forward if is_traced(q) else run_forward
        o, lse = run(q, k, v, ctx.causal, ctx.scale)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx, do: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_second_derivative()
        run = flash_backward if is_traced(do) else run_backward
        gradients = run(do, *ctx.saved_tensors, ctx.causal, ctx.scale)
        # apply() may be called without the options: one gradient for each argument that it got.
        return *gradients, *(None for _ in ctx.needs_input_grad[3:])


def check(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> None:
    """TypeError or ValueError unless these kernels can run on this."""
    check_inputs(q, k, v, causal, scale, DTYPES)
    if q.shape[-1] > MAX_HEAD:
        raise ValueError(f"q must have a head dimension from 1 to {MAX_HEAD}, got {q.shape[-1]}")
    if q.device.type != "cuda" and not (q.device.type == "cpu" and INTERPRETED.value):
        raise ValueError(
            f"q must be on a CUDA device, got {q.device}; the CPU is taken where TRITON_INTERPRET=1 is set before "
            "triton is first imported"
        )


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """`flash_attention` by these kernels, with its arguments and errors."""
    q, k, v = autocast_like_sdpa(q, k, v)
    if isinstance(q, Tensor) and q.ndim in (3, 4) and not is_traced(q):
        # The class checks for itself.
        return FlashAttentionTriton.apply(q, k, v, causal, scale)
    check(q, k, v, causal, scale)
    shape = q.shape
    if q.ndim == 2:
        q, k, v = q[None], k[None], v[None]
    elif q.ndim > 4:
        q, k, v = (x.flatten(0, -4) for x in (q, k, v))
    if is_traced(q):
        return flash_forward(q, k, v, causal, default_scale(scale, shape[-1]))[0].view(shape)
    return FlashAttentionTriton.apply(q, k, v, causal, scale).view(shape)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The model's attention slot: (b, h, s, e) three times -> (b, h, s, e)."""
    return attention(q, k, v, causal=True)
