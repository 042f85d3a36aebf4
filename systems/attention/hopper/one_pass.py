"""The backward pass for Hopper in one kernel: five products where two passes need
seven, and the same bits every time.

A program owns 128 rows of keys and values; tiles of 64 queries stream past them:

    producer (1 warp)             copies k and v, and tiles of q and do with their lse
                                  and delta, into a ring
    two key groups (warp groups)  64 keys each: S and dP, transposed; dv += Pᵀ do,
                                  dk += dSᵀ q; dS into shared memory
    dq group (warp group)         dS k of all 128 keys, this program's partial dq, into
                                  shared memory
    writers (1 warp each)         one partial dq at a time: wait until the semaphore
                                  says that it is next, have TMA add it to dq, release
                                  the semaphore

The partial dq of all programs of a head have to be added up. Floating-point sums depend
on their order, so accumulation is ordered: each tile of dq has a semaphore that counts
the partials it holds, and a partial waits for its number. The order is laid out so that
nobody waits. All programs of a head run at once and each starts at another tile: while
the program of keys j works on the tiles beside keys j + s, those beside keys t get
their partials from keys t, t - 1, t - 2, ..., one after the other. Under a causal mask
programs of early keys have the longer way. Then each takes the mirrored keys of the
next head and walks from the last tile back: there the partials come from keys 0, 1, 2,
..., again one after the other, and after two heads all programs end together.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin, ir
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from systems.attention.hopper.backward import (
    LOG2E,
    Streamed,
    fill_with_statistics,
    make_statistics,
)
from systems.attention.hopper.forward import (
    PRODUCER_REGISTERS,
    TILE,
    Staged,
    async_load,
    async_store,
    await_full,
    barriers,
    make_ring,
    release,
)
from systems.attention.triton.primitives import load_tile

# Rows of keys of a program, and of queries of a step; so many tiles of queries lie
# beside one of keys.
KEYS = gl.constexpr(128)
QUERIES = gl.constexpr(64)
BESIDE = gl.constexpr(2)
# Columns of a partial dq that are computed at a time.
DQ_COLUMNS = gl.constexpr(64)
DQ_LAYOUT = gl.constexpr(
    gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32)
)


@builtin
def add_shared_to_global(desc, coord, src, _semantic=None):
    """TMA's sum: global memory += src. Gluon of Triton 3.6 has the operation but no
    name for it.
    """
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(
        ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle
    )


@gluon.jit
def acquired(semaphore_ptr):
    """A semaphore's value; what others did before its release is seen after this."""
    return gl.inline_asm_elementwise(
        "ld.acquire.gpu.global.b32 $0, [$1];",
        "=r,l",
        [semaphore_ptr],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def fence_after_acquire():
    """What others' TMA wrote before the last acquire is what this one's will add to."""
    gl.inline_asm_elementwise(
        "{ fence.proxy.async.global; mov.u32 $0, 0; }",
        "=r,r",
        [0],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def fence_before_release():
    """Wait until TMA's writes have arrived in global memory, for the other SMs too."""
    gl.inline_asm_elementwise(
        "{ cp.async.bulk.wait_group 0; fence.proxy.async.global; "
        "bar.warp.sync 0xffffffff; mov.u32 $0, 0; }",
        "=r,r", [0], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


class Place(NamedTuple):
    """A program takes heads group, group + groups, ...; of each the tile of keys
    `column` of `tiles`, or under a causal mask in every second head the mirrored one.
    """

    group: gl.tensor
    groups: gl.tensor
    column: gl.tensor
    tiles: gl.tensor


class Item(NamedTuple):
    """batch · heads + head, a tile of its keys, and the steps over the queries."""

    batch_head: gl.tensor
    keys: gl.tensor
    steps: gl.tensor


# --8<-- [start:walk]
@gluon.jit
def item_of(n, place, CAUSAL: gl.constexpr):
    """This program's item n."""
    group, groups, column, tiles = place
    keys = column
    steps = tiles * BESIDE
    if CAUSAL:
        if n % 2 == 0:
            keys = tiles - 1 - column
        steps -= keys * BESIDE
    return Item(group + n * groups, keys, steps)


@gluon.jit
def tile_of(step, n, keys, tiles, CAUSAL: gl.constexpr):
    """(tile of queries, partial dq that it gets before) of a step of item n."""
    if CAUSAL:
        tile = keys * BESIDE + step
        order = step // BESIDE
        if n % 2 == 1:
            tile = tiles * BESIDE - 1 - step
            order = keys
    else:
        tile = (keys * BESIDE + step) % (tiles * BESIDE)
        order = step // BESIDE
    return tile, order


# --8<-- [end:walk]


class Keys(NamedTuple):
    """The keys and values of an item in shared memory."""

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor


@gluon.jit
def producer(descs, k_desc, v_desc, work, CAUSAL: gl.constexpr):
    kv, ring, statistics, place, items, heads = work
    full, empty = kv.full.index(0), kv.empty.index(0)
    done = 0
    for n in range(items):
        batch_head, keys, steps = item_of(n, place, CAUSAL)
        batch, head = batch_head // heads, batch_head % heads
        mbarrier.wait(empty, (n & 1) ^ 1)
        mbarrier.expect(full, 2 * k_desc.block_type.nbytes)
        at = [batch, head, keys * KEYS, 0]
        async_load(k_desc, at, full, kv.k)
        async_load(v_desc, at, full, kv.v)
        for i in range(steps):
            tile, order = tile_of(i, n, keys, place.tiles, CAUSAL)
            row = tile * QUERIES
            fill_with_statistics(
                ring, statistics, done + i, descs, batch, head, batch_head, row
            )
        done += steps


# --8<-- [start:step]
@gluon.jit
def step(
    dk, dv, q, do, resident, ring, statistics, ds_ring, i, end, hidden, scale_log2,
    GROUP: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """One tile of queries: dk, dv, this group's half of dS, and the tiles of the next
    step.
    """
    k, v, zeros = resident
    DS_STAGES: gl.constexpr = ds_ring.tiles.shape[0]
    STAGES: gl.constexpr = statistics.lse.shape[0]
    COLUMNS: gl.constexpr = gl.SliceLayout(0, zeros.type.layout)
    A: gl.constexpr = gl.DotOperandLayout(
        operand_index=0, parent=dk.type.layout, k_width=2
    )
    TYPE: gl.constexpr = q.dtype
    # With 128 columns dk and dv leave no room for dP beside what the exponentials need.
    AT_ONCE: gl.constexpr = dk.shape[1] == 64
    s_token = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
    if AT_ONCE:
        dp_token = warpgroup_mma(
            v, do.permute((1, 0)), zeros, use_acc=False, is_async=True
        )
        # [64 keys, QUERIES]
        s = warpgroup_mma_wait(1, deps=(s_token,))
    else:
        s = warpgroup_mma_wait(0, deps=(s_token,))
    if MASKED:
        # Row x of the tile is a key, column y a query, and y sees x from y - x = hidden
        # on.
        keys = gl.arange(0, s.shape[0], gl.SliceLayout(1, s.type.layout))
        queries = gl.arange(0, s.shape[1], COLUMNS)
        s = gl.where(queries[None, :] - keys[:, None] >= hidden, s, -float("inf"))
    lse = statistics.lse.index(i % STAGES).load(COLUMNS) * LOG2E
    p = gl.exp2(s * scale_log2 - lse[None, :])
    if not AT_ONCE:
        dp_token = warpgroup_mma(
            v, do.permute((1, 0)), zeros, use_acc=False, is_async=True
        )
    dp, p = warpgroup_mma_wait(0, deps=(dp_token, p))
    delta = statistics.delta.index(i % STAGES).load(COLUMNS)
    # [64 keys, QUERIES]
    ds = (p * (dp - delta[None, :])).to(TYPE)
    dv_token = warpgroup_mma(gl.convert_layout(p.to(TYPE), A), do, dv, is_async=True)
    dk_token = warpgroup_mma(gl.convert_layout(ds, A), q, dk, is_async=True)
    stage = i % DS_STAGES
    mbarrier.wait(ds_ring.empty.index(stage), (i // DS_STAGES & 1) ^ 1)
    ds_ring.tiles.index(stage).slice(64 * GROUP, 64, 0).store(ds)
    fence_async_shared()
    mbarrier.arrive(ds_ring.full.index(stage), count=1)
    q_next, do_next = await_full(ring, i + 1, i + 1 < end)
    dv, dk = warpgroup_mma_wait(0, deps=(dv_token, dk_token))
    release(ring, i)
    return dk, dv, q_next, do_next


# --8<-- [end:step]


@gluon.jit
def steps_from(
    start, stop, dk, dv, q, do, resident, ring, statistics, ds_ring, done, steps,
    hidden, shift, scale_log2, GROUP: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Steps `start` to `stop` - 1 of an item, after `done` of those before; `hidden`
    moves by `shift` with each.
    """
    for i in range(start, stop):
        dk, dv, q, do = step(
            dk, dv, q, do, resident, ring, statistics, ds_ring, done + i, done + steps,
            hidden + i * shift, scale_log2, GROUP, MASKED,
        )  # fmt: skip
    return dk, dv, q, do


class Output(NamedTuple):
    """A gradient, with the strides of its batches, heads and rows."""

    ptr: gl.tensor
    stride_b: gl.tensor
    stride_h: gl.tensor
    stride_n: gl.tensor


@gluon.jit
def store_rows(x, out, batch, head, start, HEAD: gl.constexpr):
    """HEAD columns of x [64, D], straight from registers: shared memory is full."""
    rows = start + gl.arange(0, x.shape[0], gl.SliceLayout(1, x.type.layout))
    columns = gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
    ptr = out.ptr
    ptr += batch.to(gl.int64) * out.stride_b + head.to(gl.int64) * out.stride_h
    ptrs = ptr + rows.to(gl.int64)[:, None] * out.stride_n + columns[None, :]
    inside = None
    if HEAD < x.shape[1]:
        inside = (columns < HEAD)[None, :]
    gl.store(ptrs, x.to(ptr.dtype.element_ty), mask=inside)


@gluon.jit
def key_group(
    dk_out, dv_out, ds_ring, work, scales,
    GROUP: gl.constexpr, HEAD: gl.constexpr, D: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """dk and dv of 64 rows of this program's items, and their dS."""
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, QUERIES, 16]
    )
    O: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16]
    )
    A: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=S, k_width=2)
    kv, ring, statistics, place, items, heads = work
    scale_log2, scale = scales
    zeros = gl.zeros([64, QUERIES], gl.float32, S)
    done = 0
    for n in range(items):
        batch_head, keys, steps = item_of(n, place, CAUSAL)
        # The mask cuts as many steps as lie beside the keys: the first ones forwards,
        # the last ones backwards.
        cut, hidden, shift = 0, 64 * GROUP, -QUERIES
        if n % 2 == 1:
            cut = steps - BESIDE
            hidden, shift = 64 * GROUP + (1 - steps) * QUERIES, QUERIES
        dk, dv = gl.zeros([64, D], gl.float32, O), gl.zeros([64, D], gl.float32, O)
        mbarrier.wait(kv.full.index(0), n & 1)
        # [64, D], in registers where they have room.
        k, v = kv.k.slice(64 * GROUP, 64, 0), kv.v.slice(64 * GROUP, 64, 0)
        if D == 64:
            resident = (k.load(A), v.load(A), zeros)
        else:
            resident = (k, v, zeros)
        q, do = await_full(ring, done)
        start = 0
        if CAUSAL:
            dk, dv, q, do = steps_from(
                0, cut, dk, dv, q, do, resident, ring, statistics, ds_ring, done, steps,
                hidden, shift, scale_log2, GROUP, False,
            )  # fmt: skip
            start = cut + BESIDE
            dk, dv, q, do = steps_from(
                cut, start, dk, dv, q, do, resident, ring, statistics, ds_ring, done,
                steps, hidden, shift, scale_log2, GROUP, True,
            )  # fmt: skip
        dk, dv, q, do = steps_from(
            start, steps, dk, dv, q, do, resident, ring, statistics, ds_ring, done,
            steps, hidden, shift, scale_log2, GROUP, False,
        )  # fmt: skip
        done += steps
        mbarrier.arrive(kv.empty.index(0), count=1)
        batch, head = batch_head // heads, batch_head % heads
        store_rows(dk * scale, dk_out, batch, head, keys * KEYS + 64 * GROUP, HEAD)
        store_rows(dv, dv_out, batch, head, keys * KEYS + 64 * GROUP, HEAD)


# --8<-- [start:dq]
@gluon.jit
def as_held(x):
    """x [QUERIES, DQ_COLUMNS] in the order in which threads hold it, 32 in a row: each
    its four, a warp's lanes, its columns.

    Each thread stores 16 bytes beside the last one's, and no two meet in a bank.
    """
    N: gl.constexpr = x.shape[1]
    return (
        x.reshape([4, 2, 8, N // 8, 4, 2])
        .permute([0, 3, 2, 4, 1, 5])
        .reshape([QUERIES * N // 32, 32])
    )


@gluon.jit
def dq_group(dq_ring, ds_ring, work, scale, D: gl.constexpr, CAUSAL: gl.constexpr):
    """This program's partial dq."""
    Q: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, DQ_COLUMNS, 16]
    )
    kv, ring, statistics, place, items, heads = work
    DS_STAGES: gl.constexpr = ds_ring.tiles.shape[0]
    DQ_STAGES: gl.constexpr = dq_ring.tiles.shape[0]
    zeros = gl.zeros([QUERIES, DQ_COLUMNS], gl.float32, Q)
    done = 0
    for n in range(items):
        batch_head, keys, steps = item_of(n, place, CAUSAL)
        mbarrier.wait(kv.full.index(0), n & 1)
        for _ in range(steps):
            stage = done % DS_STAGES
            mbarrier.wait(ds_ring.full.index(stage), done // DS_STAGES & 1)
            ds = ds_ring.tiles.index(stage)
            to = done % DQ_STAGES
            for i in gl.static_range(D // DQ_COLUMNS):
                k = kv.k.slice(i * DQ_COLUMNS, DQ_COLUMNS, 1)
                dq_token = warpgroup_mma(
                    ds.permute((1, 0)), k, zeros, use_acc=False, is_async=True
                )
                dq = warpgroup_mma_wait(0, deps=(dq_token,))
                if i == D // DQ_COLUMNS - 1:
                    mbarrier.arrive(ds_ring.empty.index(stage), count=1)
                if i == 0:
                    mbarrier.wait(dq_ring.empty.index(to), (done // DQ_STAGES & 1) ^ 1)
                x = as_held(dq * scale)
                dq_ring.tiles.index(to).slice(i * x.shape[0], x.shape[0], 0).store(x)
            fence_async_shared()
            mbarrier.arrive(dq_ring.full.index(to), count=1)
            done += 1
        mbarrier.arrive(kv.empty.index(0), count=1)


# --8<-- [end:dq]


# --8<-- [start:writer]
@gluon.jit
def dq_writer(
    dq_desc, semaphores_ptr, dq_ring, place, items,
    ME: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Adds the partials of one stage to dq, each after those that come before it."""
    DQ_STAGES: gl.constexpr = dq_ring.tiles.shape[0]
    ROWS: gl.constexpr = dq_ring.tiles.shape[1]
    partial, tiles = dq_ring.tiles.index(ME), place.tiles
    done = 0
    # A warp without a stage has nothing to do.
    if ME >= DQ_STAGES:
        items = 0
    for n in range(items):
        batch_head, keys, steps = item_of(n, place, CAUSAL)
        first = (ME + DQ_STAGES - done % DQ_STAGES) % DQ_STAGES
        for i in range(first, steps, DQ_STAGES):
            tile, order = tile_of(i, n, keys, tiles, CAUSAL)
            number = batch_head * tiles * BESIDE + tile
            # Most often it is next before the partial is there.
            while acquired(semaphores_ptr + number) != order:
                pass
            fence_after_acquire()
            mbarrier.wait(dq_ring.full.index(ME), (done + i) // DQ_STAGES & 1)
            if order == 0:
                async_store(dq_desc, [number * ROWS, 0], partial)
            else:
                add_shared_to_global(dq_desc, [number * ROWS, 0], partial)
            tma.store_wait(0)
            mbarrier.arrive(dq_ring.empty.index(ME), count=1)
            fence_before_release()
            gl.atomic_add(semaphores_ptr + number, 1, sem="release", scope="gpu")
        done += steps


# --8<-- [end:writer]


@gluon.jit(do_not_specialize=["batch", "heads", "tiles", "groups"])
def one_pass_kernel(
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, dq_desc, dk_ptr, dv_ptr,
    semaphores_ptr, stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh,
    stride_dvn, batch, heads, tiles, groups, scale_log2, scale,
    HEAD: gl.constexpr, D: gl.constexpr, CAUSAL: gl.constexpr, STAGES: gl.constexpr,
    DS_STAGES: gl.constexpr, DQ_STAGES: gl.constexpr, REGISTERS: gl.constexpr,
    DQ_REGISTERS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """dq in float32 and as held, dk and dv. Grid: tiles of keys x groups; group g takes
    heads g, g + groups, ...
    """
    group = gl.program_id(0) // tiles
    items = gl.cdiv(batch * heads - group, groups)
    place = Place(group, groups, gl.program_id(0) % tiles, tiles)
    TYPE: gl.constexpr = k_desc.dtype

    k = gl.allocate_shared_memory(TYPE, [KEYS, D], TILE)
    v = gl.allocate_shared_memory(TYPE, [KEYS, D], TILE)
    ds_ring = Staged(
        gl.allocate_shared_memory(TYPE, [DS_STAGES, KEYS, QUERIES], TILE),
        barriers(DS_STAGES, 2),
        barriers(DS_STAGES, 1),
    )
    statistics = make_statistics(STAGES, QUERIES)
    kv, ring = Keys(k, v, barriers(1, 1), barriers(1, 3)), make_ring(q_desc, STAGES, 2)
    dq_ring = Staged(
        gl.allocate_shared_memory(
            gl.float32, [DQ_STAGES, QUERIES * D // 32, 32], DQ_LAYOUT
        ),
        barriers(DQ_STAGES, 1),
        barriers(DQ_STAGES, 1),
    )
    dk_out = Output(dk_ptr, stride_dkb, stride_dkh, stride_dkn)
    dv_out = Output(dv_ptr, stride_dvb, stride_dvh, stride_dvn)
    descs = Streamed(q_desc, do_desc, lse_desc, delta_desc)
    work, scales = (kv, ring, statistics, place, items, heads), (scale_log2, scale)
    gl.warp_specialize(
        [
            (key_group, (dk_out, dv_out, ds_ring, work, scales, 0, HEAD, D, CAUSAL)),
            (key_group, (dk_out, dv_out, ds_ring, work, scales, 1, HEAD, D, CAUSAL)),
            (dq_group, (dq_ring, ds_ring, work, scale, D, CAUSAL)),
            (producer, (descs, k_desc, v_desc, work, CAUSAL)),
            (dq_writer, (dq_desc, semaphores_ptr, dq_ring, place, items, 0, CAUSAL)),
            (dq_writer, (dq_desc, semaphores_ptr, dq_ring, place, items, 1, CAUSAL)),
            (dq_writer, (dq_desc, semaphores_ptr, dq_ring, place, items, 2, CAUSAL)),
        ],
        [4, 4, 1, 1, 1, 1],
        [
            REGISTERS,
            DQ_REGISTERS,
            PRODUCER_REGISTERS,
            PRODUCER_REGISTERS,
            PRODUCER_REGISTERS,
            PRODUCER_REGISTERS,
        ],
    )


@triton.jit
def delta_kernel(
    o_ptr, do_ptr, delta_ptr, stride_ob, stride_oh, stride_on, stride_od, stride_gb,
    stride_gh, stride_gn, stride_gd,
    heads, n, HEAD: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """delta = rowsum(o · do), which is also rowsum(p · dp): what softmax takes off each
    dp. Strides of do: g.

    Grid: tiles of 64 queries x batch x heads.
    """
    tiles = n // 64
    batch_head = (tl.program_id(0) // tiles).to(tl.int64)
    batch, head = batch_head // heads, batch_head % heads
    rows, columns = (
        (tl.program_id(0) % tiles * 64 + tl.arange(0, 64)).to(tl.int64),
        tl.arange(0, D),
    )
    at_o = (
        o_ptr
        + batch * stride_ob
        + head * stride_oh
        + rows[:, None] * stride_on
        + columns[None, :] * stride_od
    )
    at_do = (
        do_ptr
        + batch * stride_gb
        + head * stride_gh
        + rows[:, None] * stride_gn
        + columns[None, :] * stride_gd
    )
    o, do = (
        load_tile(at_o, rows, columns, n, HEAD, False),
        load_tile(at_do, rows, columns, n, HEAD, False),
    )
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(delta_ptr + batch_head * n + rows, delta)


@triton.jit
def round_kernel(
    held_ptr,
    dq_ptr,
    stride_b,
    stride_h,
    stride_n,
    stride_d,
    heads,
    n,
    HEAD: tl.constexpr,
    D: tl.constexpr,
):
    """dq in its own dtype, from float32 as held. Grid: tiles of 64 queries x batch x
    heads.
    """
    tiles = n // 64
    batch_head = tl.program_id(0) // tiles
    rows, columns = tl.arange(0, 64)[:, None], tl.arange(0, D)[None, :]
    warp, half, lane_row = rows // 16, rows // 8 % 2, rows % 8
    part, eight, lane_column, one = (
        columns // 64,
        columns // 8 % 8,
        columns // 2 % 4,
        columns % 2,
    )
    held = (
        ((((part * 4 + warp) * 8 + eight) * 8 + lane_row) * 4 + lane_column) * 4
        + half * 2
        + one
    )
    dq = tl.load(held_ptr + tl.program_id(0).to(tl.int64) * 64 * D + held)
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
    tl.store(dq_ptrs, dq.to(dq_ptr.dtype.element_ty), mask=inside)
