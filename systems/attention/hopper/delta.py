"""Kernels that compute delta before the one-pass backward, and round dq after it."""

import triton
import triton.language as tl

from systems.attention.triton.primitives import load_tile, mask_huge_lse


@triton.jit(do_not_specialize=["heads", "n", "row_stride"])
def delta_kernel(
    o_ptr, do_ptr, lse_ptr, lse_out_ptr, delta_ptr, semaphores_ptr, stride_ob,
    stride_oh, stride_on, stride_od, stride_gb, stride_gh, stride_gn, stride_gd, heads,
    n, row_stride, HEAD: tl.constexpr, D: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """Compute delta = rowsum(o · do), copy lse (inf where huge), zero the semaphores.
    lse_out and delta: (batch · heads, n), `row_stride` numbers between heads, for TMA.
    `stride_g*` are the strides of do. Grid: tiles of 64 queries x batch x heads.
    """
    tiles = tl.cdiv(n, 64)
    batch_head = (tl.program_id(0) // tiles).to(tl.int64)
    batch, head = batch_head // heads, batch_head % heads
    rows, columns = (
        (tl.program_id(0) % tiles * 64 + tl.arange(0, 64)).to(tl.int64),
        tl.arange(0, D),
    )
    o_ptrs = (
        o_ptr
        + batch * stride_ob
        + head * stride_oh
        + rows[:, None] * stride_on
        + columns[None, :] * stride_od
    )
    do_ptrs = (
        do_ptr
        + batch * stride_gb
        + head * stride_gh
        + rows[:, None] * stride_gn
        + columns[None, :] * stride_gd
    )
    o, do = (
        load_tile(o_ptrs, rows, columns, n, HEAD, RAGGED),
        load_tile(do_ptrs, rows, columns, n, HEAD, RAGGED),
    )
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    inside, row_index = rows < n, batch_head * n + rows
    out_index = batch_head * row_stride + rows
    tl.store(delta_ptr + out_index, delta, mask=inside)
    lse = tl.load(lse_ptr + row_index, mask=inside)
    tl.store(lse_out_ptr + out_index, mask_huge_lse(lse), mask=inside)
    tl.store(semaphores_ptr + tl.program_id(0), 0)


@triton.jit(do_not_specialize=["heads", "n"])
def round_kernel(
    held_ptr, dq_ptr, stride_b, stride_h, stride_n, stride_d, heads, n, scale,
    HEAD: tl.constexpr, D: tl.constexpr, RAGGED: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """Scale float32 dq (`held_ptr`), round it to the dtype of `dq_ptr`, and undo the
    order of `accumulation.pack_for_reduce`. Grid: tiles of 64 queries x batch x heads.
    """
    tiles = tl.cdiv(n, 64)
    batch_head = tl.program_id(0) // tiles
    rows, columns = tl.arange(0, 64)[:, None], tl.arange(0, D)[None, :]
    warp, half, lane_row = rows // 16, rows // 8 % 2, rows % 8
    part, eight, lane_column, element = (
        columns // 64,
        columns // 8 % 8,
        columns // 2 % 4,
        columns % 2,
    )
    # If NARROW, the second block has 32 columns: 4 groups of 8 columns instead of 8.
    eights = 8 - 4 * part if NARROW else 8
    packed = (
        (((part * 32 + warp * eights + eight) * 8 + lane_row) * 4 + lane_column) * 4
        + half * 2
        + element
    )
    dq = scale * tl.load(held_ptr + tl.program_id(0).to(tl.int64) * 64 * D + packed)
    start = tl.program_id(0) % tiles * 64
    dq_ptr += (batch_head // heads).to(tl.int64) * stride_b + (batch_head % heads).to(
        tl.int64
    ) * stride_h
    dq_ptrs, inside = (
        dq_ptr + (start + rows).to(tl.int64) * stride_n + columns * stride_d,
        None,
    )
    if HEAD < D:
        inside = columns < HEAD
        if RAGGED:
            inside = inside & (start + rows < n)
    elif RAGGED:
        inside = (start + rows < n) & (columns < D)
    tl.store(dq_ptrs, dq.to(dq_ptr.dtype.element_ty), mask=inside)
