"""Kernel for dq on Hopper, in the backward pass with two kernels (`one_pass` has one).
With the warp roles of `forward`, a program owns 64 x GROUPS rows of q, and loops over
tiles of k and v.

The kernel also computes delta = rowsum(o · do) for `dkdv`. Both kernels recompute P =
exp(S - lse). Each step starts the matmuls for dP and for the previous step's dq, which
overlap with the exponentials. No matmul may be in flight at the end of an iteration, or
the compiler would serialize all of them.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from systems.attention.hopper.forward import (
    PRODUCER_REGISTERS,
    TILE_LAYOUT,
    async_load,
    async_store,
    fill_stage,
    make_barriers,
    make_ring,
    release_stage,
    skip_step,
    wait_full,
)
from systems.attention.hopper.huge_rows import HUGE, LN2
from systems.attention.hopper.items import Problem, count_visible_keys, visible_mask
from systems.attention.triton.primitives import LOG2E


class SharedQueries(NamedTuple):
    """A program's q, do and o in shared memory: tiles and a barrier per consumer."""

    q: gl.shared_memory_descriptor
    do: gl.shared_memory_descriptor
    o: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor


class QueryTile(NamedTuple):
    """A program's tile of queries, with the number of steps over keys."""

    batch: gl.tensor
    head: gl.tensor
    q_start: gl.tensor
    steps: gl.tensor


@gluon.jit
def dq_producer(
    q_desc, k_desc, v_desc, o_desc, do_desc, queries, ring, tile, kv_head,
    BK: gl.constexpr,
):  # fmt: skip
    GROUPS: gl.constexpr = queries.q.shape[0]
    for group in gl.static_range(GROUPS):
        coords = [tile.batch, tile.head, tile.q_start + 64 * group, 0]
        full = queries.full.index(group)
        mbarrier.expect(full, 3 * q_desc.block_type.nbytes)
        async_load(q_desc, coords, full, queries.q.index(group))
        async_load(do_desc, coords, full, queries.do.index(group))
        async_load(o_desc, coords, full, queries.o.index(group))
    for i in range(tile.steps):
        start = (tile.steps - 1 - i) * BK
        fill_stage(ring, i, k_desc, v_desc, tile.batch, kv_head, start)


# --8<-- [start:dq]
@gluon.jit
def dq_step(
    dq, ds, k_before, s, k, v, q, do, zeros, lse, delta, ring, i, steps, scale_log2,
    FIRST: gl.constexpr,
):  # fmt: skip
    """Run step i; return (dq, ds, k, next s, next k, next v). dq includes only steps
    before i, because the next step adds ds · k to dq.
    """
    A: gl.constexpr = gl.DotOperandLayout(
        operand_index=0, parent=dq.type.layout, k_width=2
    )
    dp_token = warpgroup_mma(do, v.permute((1, 0)), zeros, use_acc=False, is_async=True)
    if not FIRST:
        dq_token = warpgroup_mma(ds, k_before, dq, is_async=True)
    # [64, BK]
    p = gl.exp2(s * scale_log2 - lse[:, None])
    # This wait also keeps the compiler from moving the computation of p further down.
    k_next, v_next = wait_full(ring, i + 1, i + 1 < steps)
    # After the last step this matmul reads old tiles, and its result is unused.
    s_token = warpgroup_mma(
        q, k_next.permute((1, 0)), zeros, use_acc=False, is_async=True
    )
    if FIRST:
        dp, p = warpgroup_mma_wait(1, deps=(dp_token, p))
    else:
        dp, dq, p = warpgroup_mma_wait(1, deps=(dp_token, dq_token, p))
        release_stage(ring, i - 1)
    # [64, BK]
    ds = gl.convert_layout((p * (dp - delta[:, None])).to(k.dtype), A)
    s, ds = warpgroup_mma_wait(0, deps=(s_token, ds))
    return dq, ds, k, s, k_next, v_next


@gluon.jit
def dq_consumer(
    dq_desc, rows_out, work, scale,
    GROUP: gl.constexpr, BK: gl.constexpr, D: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Compute dq, delta and lse · log2(e) of 64 queries; start at the last key tile."""
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BK, 16]
    )
    O: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16]
    )
    A: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=O, k_width=2)
    TYPE: gl.constexpr = dq_desc.dtype
    queries, ring, tile, problem = work
    n_q, n_k, _, scale_log2 = problem
    steps = tile.steps

    q_start = tile.q_start + 64 * GROUP
    rows = q_start + gl.arange(0, 64, gl.SliceLayout(1, S))
    columns = gl.arange(0, BK, gl.SliceLayout(0, S))
    last = gl.cdiv(count_visible_keys(q_start, 64, n_k, CAUSAL), BK) - 1
    # Skip the last tiles of keys, if only other consumers need them.
    skip = steps - 1 - last
    for i in range(skip):
        skip_step(ring, i)

    lse = gl.load(rows_out.lse_ptr + rows, mask=rows < n_q, other=0.0)
    lse = gl.where(gl.abs(lse) >= HUGE * LN2, float("inf"), lse) * LOG2E
    q, do, o = queries.q.index(GROUP), queries.do.index(GROUP), queries.o.index(GROUP)
    mbarrier.wait(queries.full.index(GROUP), 0)
    # [64]
    delta = gl.sum(o.load(O).to(gl.float32) * do.load(O).to(gl.float32), 1)
    delta = gl.convert_layout(delta, gl.SliceLayout(1, S))
    gl.store(rows_out.lse_log2_ptr + rows, lse, mask=rows < n_q)
    gl.store(rows_out.delta_ptr + rows, delta, mask=rows < n_q)
    zeros = gl.zeros([64, BK], gl.float32, S)
    dq, ds = gl.zeros([64, D], gl.float32, O), gl.zeros([64, BK], TYPE, A)

    # Only the first step needs the mask, because BK is at least 64.
    k, v = wait_full(ring, skip)
    s = warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    s = gl.where(visible_mask(rows, last * BK + columns, n_k, CAUSAL), s, -float("inf"))
    dq, ds, k_before, s, k, v = dq_step(
        dq, ds, k, s, k, v, q, do, zeros, lse, delta, ring, skip, steps, scale_log2,
        True,
    )  # fmt: skip
    for i in range(skip + 1, steps):
        dq, ds, k_before, s, k, v = dq_step(
            dq, ds, k_before, s, k, v, q, do, zeros, lse, delta, ring, i, steps,
            scale_log2, False,
        )  # fmt: skip
    dq = warpgroup_mma(ds, k_before, dq)
    # Reuse the shared memory of the queries for dq.
    q.store((dq * scale).to(TYPE))
    fence_async_shared()
    async_store(dq_desc, [tile.batch, tile.head, q_start, 0], q)
    tma.store_wait(0)
    # --8<-- [end:dq]


class StatisticsPtrs(NamedTuple):
    """Pointers to a head's row statistics: lse (input), lse · log2(e) and delta."""

    lse_ptr: gl.tensor
    lse_log2_ptr: gl.tensor
    delta_ptr: gl.tensor


@gluon.jit(do_not_specialize=["heads", "n_q", "n_k", "row_stride"])
def dq_kernel(
    q_desc, k_desc, v_desc, o_desc, do_desc, dq_desc, lse_ptr, lse_log2_ptr, delta_ptr,
    heads, n_q, n_k, row_stride, scale_log2, scale,
    BK: gl.constexpr, D: gl.constexpr, HEADS_PER_KV: gl.constexpr, CAUSAL: gl.constexpr,
    GROUPS: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """Compute dq, delta and lse · log2(e). Grid: tiles of queries x batch x heads."""
    gl.static_assert(GROUPS == 2)
    BQ: gl.constexpr = 64 * GROUPS
    tiles = gl.cdiv(n_q, BQ)
    q_start = (tiles - 1 - gl.program_id(0) % tiles) * BQ
    batch_head = gl.program_id(0) // tiles
    batch, head = batch_head // heads, batch_head % heads
    steps = gl.cdiv(count_visible_keys(q_start, BQ, n_k, CAUSAL), BK)
    tile = QueryTile(batch, head, q_start, steps)

    queries = SharedQueries(
        gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 64, D], TILE_LAYOUT),
        gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 64, D], TILE_LAYOUT),
        gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 64, D], TILE_LAYOUT),
        make_barriers(GROUPS, 1),
    )
    ring = make_ring(k_desc, STAGES, GROUPS)
    rows = StatisticsPtrs(
        lse_ptr + batch_head.to(gl.int64) * n_q,
        lse_log2_ptr + batch_head.to(gl.int64) * row_stride,
        delta_ptr + batch_head.to(gl.int64) * row_stride,
    )
    problem = Problem(n_q, n_k, heads, scale_log2)
    load = (
        q_desc, k_desc, v_desc, o_desc, do_desc, queries, ring, tile,
        head // HEADS_PER_KV, BK,
    )  # fmt: skip
    work = (queries, ring, tile, problem)
    gl.warp_specialize(
        [
            (dq_consumer, (dq_desc, rows, work, scale, 0, BK, D, CAUSAL)),
            (dq_consumer, (dq_desc, rows, work, scale, 1, BK, D, CAUSAL)),
            (dq_producer, load),
        ],
        [4, 1],
        [REGISTERS, PRODUCER_REGISTERS],
    )
