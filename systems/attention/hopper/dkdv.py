"""Kernel for dk and dv on Hopper, in Gluon: a program owns tiles of k and v, and loops
over tiles of q and do. lse · log2(e) and delta come from the kernel in `dq`. Only the
first tile of queries of a consumer (64 keys) needs the causal mask, because BQ is at
least 64. Queries beyond n_q add nothing: TMA reads do = delta = 0 there.
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

# Shared-memory layout of lse or delta: one float32 number per row of a tile.
STATISTICS_LAYOUT = gl.constexpr(
    gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
)


class Statistics(NamedTuple):
    """lse (`dkdv_kernel`: times log2(e)) and delta of each stage, in shared memory."""

    lse: gl.shared_memory_descriptor
    delta: gl.shared_memory_descriptor


@gluon.jit
def make_statistics(STAGES: gl.constexpr, ROWS: gl.constexpr):
    return Statistics(
        gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], STATISTICS_LAYOUT),
        gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], STATISTICS_LAYOUT),
    )


class QueryDescs(NamedTuple):
    """TMA descriptors of the tensors that a program loops over."""

    q: tma.tensor_descriptor
    do: tma.tensor_descriptor
    lse: tma.tensor_descriptor
    delta: tma.tensor_descriptor


@gluon.jit
def fill_stage_with_statistics(
    ring, statistics, i, descs, batch, head, batch_head, row
):
    """Wait for step i's stage, then start copying its tiles of q, do, lse and delta."""
    MORE: gl.constexpr = 2 * descs.lse.block_type.nbytes
    stage, full = fill_stage(ring, i, descs.q, descs.do, batch, head, row, MORE)
    coords = [batch_head, row]
    async_load(descs.lse, coords, full, statistics.lse.index(stage))
    async_load(descs.delta, coords, full, statistics.delta.index(stage))


class SharedKV(NamedTuple):
    """A program's keys and values in shared memory: a tile and barrier per consumer."""

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor


class KeyTile(NamedTuple):
    """A program's key tile, first query tile, and number of query tiles per head."""

    batch: gl.tensor
    kv_head: gl.tensor
    k_start: gl.tensor
    first: gl.tensor
    steps: gl.tensor


@gluon.jit
def dkdv_producer(
    descs, k_desc, v_desc, keys, ring, statistics, tile, heads,
    BQ: gl.constexpr, HEADS_PER_KV: gl.constexpr,
):  # fmt: skip
    GROUPS: gl.constexpr = keys.k.shape[0]
    batch, kv_head, k_start, first, steps = tile
    for group in gl.static_range(GROUPS):
        coords, full = [batch, kv_head, k_start + 64 * group, 0], keys.full.index(group)
        mbarrier.expect(full, 2 * k_desc.block_type.nbytes)
        async_load(k_desc, coords, full, keys.k.index(group))
        async_load(v_desc, coords, full, keys.v.index(group))
    for i in range(steps * HEADS_PER_KV):
        head = kv_head * HEADS_PER_KV + i // steps
        start = (first + i % steps) * BQ
        fill_stage_with_statistics(
            ring, statistics, i, descs, batch, head, batch * heads + head, start
        )


# --8<-- [start:dkdv]
@gluon.jit
def dkdv_step(
    dk, dv, ds, q_before, q, do, k, v, zeros, statistics, ring, i, end, diagonal,
    scale_log2, FIRST: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Run step i; return (dk, dv, ds, q, next q, next do). dv includes step i, but dk
    only steps before, because the next step adds ds · q to dk.
    """
    STAGES: gl.constexpr = statistics.lse.shape[0]
    COLUMNS: gl.constexpr = gl.SliceLayout(0, zeros.type.layout)
    A: gl.constexpr = gl.DotOperandLayout(
        operand_index=0, parent=dk.type.layout, k_width=2
    )
    TYPE: gl.constexpr = q.dtype
    s_token = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
    dp_token = warpgroup_mma(v, do.permute((1, 0)), zeros, use_acc=False, is_async=True)
    if not FIRST:
        dk_token = warpgroup_mma(ds, q_before, dk, is_async=True)
        # [64, BQ]
        s = warpgroup_mma_wait(2, deps=(s_token,))
    else:
        s = warpgroup_mma_wait(1, deps=(s_token,))
    if FIRST and CAUSAL:
        # Scores are transposed: query (column) y sees key (row) x if y - x ≥ diagonal.
        keys = gl.arange(0, zeros.shape[0], gl.SliceLayout(1, zeros.type.layout))
        rows = gl.arange(0, zeros.shape[1], COLUMNS)
        s = gl.where(rows[None, :] - keys[:, None] >= diagonal, s, -float("inf"))
    lse = statistics.lse.index(i % STAGES).load(COLUMNS)
    p = gl.exp2(s * scale_log2 - lse[None, :])
    dv_token = warpgroup_mma(gl.convert_layout(p.to(TYPE), A), do, dv, is_async=True)
    if not FIRST:
        dp, dk = warpgroup_mma_wait(1, deps=(dp_token, dk_token))
        release_stage(ring, i - 1)
    else:
        dp = warpgroup_mma_wait(1, deps=(dp_token,))
    delta = statistics.delta.index(i % STAGES).load(COLUMNS)
    # [64, BQ]
    ds = gl.convert_layout((p * (dp - delta[None, :])).to(TYPE), A)
    # This wait also keeps the compiler from moving the computation of ds further down.
    q_next, do_next = wait_full(ring, i + 1, i + 1 < end)
    dv, ds = warpgroup_mma_wait(0, deps=(dv_token, ds))
    return dk, dv, ds, q, q_next, do_next


@gluon.jit
def dkdv_consumer(
    out, work, scales,
    GROUP: gl.constexpr, BQ: gl.constexpr, D: gl.constexpr, HEADS_PER_KV: gl.constexpr,
    CAUSAL: gl.constexpr, IN_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Compute dk and dv of consumer GROUP's 64 keys; scores are [keys, queries]."""
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BQ, 16]
    )
    O: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16]
    )
    A: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=O, k_width=2)
    keys, ring, statistics, tile = work
    batch, kv_head, k_start, first, steps = tile
    dk_desc, dv_desc = out
    scale_log2, scale = scales
    TYPE: gl.constexpr = dk_desc.dtype

    k_start += 64 * GROUP
    # Skip the first tiles of queries, if only other consumers need them.
    skip = 0
    if CAUSAL:
        skip = gl.minimum(k_start // BQ - first, steps)
    k, v = keys.k.index(GROUP), keys.v.index(GROUP)
    mbarrier.wait(keys.full.index(GROUP), 0)
    if IN_REGISTERS:
        # [64, D]
        k = k.load(gl.DotOperandLayout(operand_index=0, parent=S, k_width=2))
        v = v.load(gl.DotOperandLayout(operand_index=0, parent=S, k_width=2))
    zeros = gl.zeros([64, BQ], gl.float32, S)
    dk, dv = gl.zeros([64, D], gl.float32, O), gl.zeros([64, D], gl.float32, O)
    ds = gl.zeros([64, BQ], TYPE, A)
    diagonal = k_start - (first + skip) * BQ
    for member in range(HEADS_PER_KV):
        begin, end = member * steps + skip, (member + 1) * steps
        for i in range(member * steps, begin):
            skip_step(ring, i)
        # Under a causal mask, no query sees keys from n_q on.
        if begin < end:
            q, do = wait_full(ring, begin)
            dk, dv, ds, q_before, q, do = dkdv_step(
                dk, dv, ds, q, q, do, k, v, zeros, statistics, ring, begin, end,
                diagonal, scale_log2, True, CAUSAL,
            )  # fmt: skip
            for i in range(begin + 1, end):
                dk, dv, ds, q_before, q, do = dkdv_step(
                    dk, dv, ds, q_before, q, do, k, v, zeros, statistics, ring, i, end,
                    diagonal, scale_log2, False, CAUSAL,
                )  # fmt: skip
            dk = warpgroup_mma(ds, q_before, dk)
            release_stage(ring, end - 1)
    # Reuse the shared memory of keys and values for dk and dv.
    dk_out, dv_out = keys.k.index(GROUP), keys.v.index(GROUP)
    dk_out.store((dk * scale).to(TYPE))
    dv_out.store(dv.to(TYPE))
    fence_async_shared()
    async_store(dk_desc, [batch, kv_head, k_start, 0], dk_out)
    async_store(dv_desc, [batch, kv_head, k_start, 0], dv_out)
    tma.store_wait(0)
    # --8<-- [end:dkdv]


@gluon.jit(do_not_specialize=["heads", "n_q", "n_k"])
def dkdv_kernel(
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, dk_desc, dv_desc,
    heads, n_q, n_k, scale_log2, scale,
    BQ: gl.constexpr, D: gl.constexpr, HEADS_PER_KV: gl.constexpr, CAUSAL: gl.constexpr,
    GROUPS: gl.constexpr, STAGES: gl.constexpr, IN_REGISTERS: gl.constexpr,
    REGISTERS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Compute dk and dv of one tile of keys. Grid: key tiles x batch x KV heads."""
    gl.static_assert(GROUPS == 2)
    BK: gl.constexpr = 64 * GROUPS
    tiles = gl.cdiv(n_k, BK)
    # Under a causal mask, the first tile has the most queries, and it starts first.
    k_start = gl.program_id(0) % tiles * BK
    batch_head = gl.program_id(0) // tiles
    kv_heads = heads // HEADS_PER_KV
    batch, kv_head = batch_head // kv_heads, batch_head % kv_heads
    first = 0
    if CAUSAL:
        first = k_start // BQ
    # Under a causal mask, no query sees keys from n_q on.
    steps = gl.maximum(gl.cdiv(n_q, BQ) - first, 0)

    keys = SharedKV(
        gl.allocate_shared_memory(k_desc.dtype, [GROUPS, 64, D], TILE_LAYOUT),
        gl.allocate_shared_memory(k_desc.dtype, [GROUPS, 64, D], TILE_LAYOUT),
        make_barriers(GROUPS, 1),
    )
    statistics, ring = make_statistics(STAGES, BQ), make_ring(q_desc, STAGES, GROUPS)
    tile = KeyTile(batch, kv_head, k_start, first, steps)
    descs = QueryDescs(q_desc, do_desc, lse_desc, delta_desc)
    load = (
        descs, k_desc, v_desc, keys, ring, statistics, tile, heads, BQ, HEADS_PER_KV,
    )  # fmt: skip
    work, scales = (keys, ring, statistics, tile), (scale_log2, scale)
    out = (dk_desc, dv_desc)
    gl.warp_specialize(
        [
            (
                dkdv_consumer,
                (out, work, scales, 0, BQ, D, HEADS_PER_KV, CAUSAL, IN_REGISTERS),
            ),
            (
                dkdv_consumer,
                (out, work, scales, 1, BQ, D, HEADS_PER_KV, CAUSAL, IN_REGISTERS),
            ),
            (dkdv_producer, load),
        ],
        [4, 1],
        [REGISTERS, PRODUCER_REGISTERS],
    )
