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
the partials it holds, and a partial waits for its number. `shift` and `ordered` say
which program walks over which tiles, and so in which order partials come; what a warp
does with a tile is the same for both: of keys here, of dq in `accumulation`. The small
kernels before and after stand in `delta`.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from systems.attention.hopper.accumulation import DQ_LAYOUT, QUERIES
from systems.attention.hopper.dkdv import make_statistics
from systems.attention.hopper.forward import (
    TILE,
    Staged,
    await_full,
    barriers,
    make_ring,
    release,
)
from systems.attention.triton.primitives import LOG2E

# Rows of keys of a program; so many tiles of queries lie beside one.
KEYS = gl.constexpr(128)
BESIDE = gl.constexpr(2)


class Keys(NamedTuple):
    """The keys and values of an item in shared memory."""

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor


@gluon.jit
def make_shared(
    q_desc, k_desc, D: gl.constexpr, STAGES: gl.constexpr, DS_STAGES: gl.constexpr,
    DQ_STAGES: gl.constexpr,
):  # fmt: skip
    """(keys and values, ring of q and do, their statistics, of dS, of partial dq)."""
    TYPE: gl.constexpr = k_desc.dtype
    k = gl.allocate_shared_memory(TYPE, [KEYS, D], TILE)
    v = gl.allocate_shared_memory(TYPE, [KEYS, D], TILE)
    ds_ring = Staged(
        gl.allocate_shared_memory(TYPE, [DS_STAGES, KEYS, QUERIES], TILE),
        barriers(DS_STAGES, 2),
        barriers(DS_STAGES, 1),
    )
    statistics = make_statistics(STAGES, QUERIES)
    kv, ring = Keys(k, v, barriers(1, 1)), make_ring(q_desc, STAGES, 2)
    dq_ring = Staged(
        gl.allocate_shared_memory(
            gl.float32, [DQ_STAGES, QUERIES * D // 32, 32], DQ_LAYOUT
        ),
        barriers(DQ_STAGES, 1),
        barriers(DQ_STAGES, 1),
    )
    return kv, ring, statistics, ds_ring, dq_ring


# --8<-- [start:narrow]
@gluon.jit
def blocks_of_zeros(D: gl.constexpr, NARROW: gl.constexpr):
    """Sums of 64 rows in blocks of columns: D, or where NARROW the first 64 and the
    next 32. A tensor's columns are a power of two, and 96 are not.
    """
    FIRST: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64 if NARROW else D, 16]
    )
    REST: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 32, 16]
    )
    if NARROW:
        blocks = (
            gl.zeros([64, 64], gl.float32, FIRST),
            gl.zeros([64, 32], gl.float32, REST),
        )
    else:
        blocks = (gl.zeros([64, D], gl.float32, FIRST),)
    return blocks


@gluon.jit
def product(a, b, zeros, NARROW: gl.constexpr):
    """a bᵀ, under way; where NARROW of columns 0 to 95."""
    if NARROW:
        token = warpgroup_mma(
            a.slice(0, 64, 1), b.slice(0, 64, 1).permute((1, 0)), zeros, use_acc=False,
            is_async=True,
        )  # fmt: skip
        token = warpgroup_mma(
            a.slice(64, 32, 1), b.slice(64, 32, 1).permute((1, 0)), token, is_async=True
        )
    else:
        token = warpgroup_mma(a, b.permute((1, 0)), zeros, use_acc=False, is_async=True)
    return token


@gluon.jit
def add_product(block, p, x, FIRST: gl.constexpr):
    """block += p x of as many columns of x, from FIRST on; under way."""
    A: gl.constexpr = gl.DotOperandLayout(
        operand_index=0, parent=block.type.layout, k_width=2
    )
    columns = x.slice(FIRST, block.shape[1], 1)
    return warpgroup_mma(gl.convert_layout(p, A), columns, block, is_async=True)


@gluon.jit
def add_products(blocks, p, x):
    """The same for each block of columns."""
    tokens = (add_product(blocks[0], p, x, 0),)
    if len(blocks) == 2:
        tokens = tokens + (add_product(blocks[1], p, x, 64),)
    return tokens


# --8<-- [end:narrow]


# --8<-- [start:step]
@gluon.jit
def step(
    dk, dv, q, do, resident, ring, statistics, ds_ring, i, end, hidden, limit,
    scale_log2, GROUP: gl.constexpr, MASKED: gl.constexpr, RAGGED: gl.constexpr,
):  # fmt: skip
    """Tile i of queries: dk and dv in blocks of columns, this group's half of dS, and
    the tiles of the next step, before step `end`.
    """
    k, v, zeros = resident
    DS_STAGES: gl.constexpr = ds_ring.tiles.shape[0]
    STAGES: gl.constexpr = statistics.lse.shape[0]
    COLUMNS: gl.constexpr = gl.SliceLayout(0, zeros.type.layout)
    BLOCKS: gl.constexpr = len(dk)
    NARROW: gl.constexpr = BLOCKS == 2
    TYPE: gl.constexpr = q.dtype
    # With 128 columns dk and dv leave no room for both: the compiler would run all
    # products one after another. dP below needs no p, and it issues that one first.
    AT_ONCE: gl.constexpr = dk[0].shape[1] == 64
    s_token = product(k, q, zeros, NARROW)
    if AT_ONCE:
        dp_token = product(v, do, zeros, NARROW)
        # [64 keys, QUERIES]. dP goes on, in as many products as dv has blocks.
        s = warpgroup_mma_wait(BLOCKS, deps=(s_token,))
    else:
        s = warpgroup_mma_wait(0, deps=(s_token,))
    if MASKED:
        # Row x of the tile is a key, column y a query, and y sees x from y - x = hidden
        # on. Keys from `limit` on are none.
        keys = gl.arange(0, s.shape[0], gl.SliceLayout(1, s.type.layout))
        queries = gl.arange(0, s.shape[1], COLUMNS)
        seen = queries[None, :] - keys[:, None] >= hidden
        if RAGGED:
            seen = seen & (keys < limit)[:, None]
        s = gl.where(seen, s, -float("inf"))
    lse = statistics.lse.index(i % STAGES).load(COLUMNS) * LOG2E
    p = gl.exp2(s * scale_log2 - lse[None, :])
    if not AT_ONCE:
        dp_token = product(v, do, zeros, NARROW)
    if NARROW:
        # dv needs no dP and goes on beside what dk waits for. In one block of 64
        # columns this order is slower, by times on an H200.
        dv_sums = add_products(dv, p.to(TYPE), do)
        dp = warpgroup_mma_wait(BLOCKS, deps=(dp_token,))
    else:
        dp, p = warpgroup_mma_wait(0, deps=(dp_token, p))
    delta = statistics.delta.index(i % STAGES).load(COLUMNS)
    # [64 keys, QUERIES]
    ds = (p * (dp - delta[None, :])).to(TYPE)
    if not NARROW:
        dv_sums = add_products(dv, p.to(TYPE), do)
    sums = dv_sums + add_products(dk, ds, q)
    stage = i % DS_STAGES
    mbarrier.wait(ds_ring.empty.index(stage), (i // DS_STAGES & 1) ^ 1)
    ds_ring.tiles.index(stage).slice(64 * GROUP, 64, 0).store(ds)
    fence_async_shared()
    mbarrier.arrive(ds_ring.full.index(stage), count=1)
    q_next, do_next = await_full(ring, i + 1, i + 1 < end)
    sums = warpgroup_mma_wait(0, deps=sums)
    release(ring, i)
    return sums[BLOCKS:], sums[:BLOCKS], q_next, do_next


# --8<-- [end:step]


@gluon.jit
def steps_from(
    start, stop, dk, dv, q, do, resident, ring, statistics, ds_ring, done, end, hidden,
    shift, limit, scale_log2,
    GROUP: gl.constexpr, MASKED: gl.constexpr, RAGGED: gl.constexpr,
):  # fmt: skip
    """Steps `start` to `stop` - 1 of one head of queries, after `done` of those before
    and before `end`; `hidden` moves by `shift` with each.
    """
    for i in range(start, stop):
        dk, dv, q, do = step(
            dk, dv, q, do, resident, ring, statistics, ds_ring, done + i, end,
            hidden + i * shift, limit, scale_log2, GROUP, MASKED, RAGGED,
        )  # fmt: skip
    return dk, dv, q, do


class Output(NamedTuple):
    """A gradient, with the strides of its batches, heads and rows."""

    ptr: gl.tensor
    stride_b: gl.tensor
    stride_h: gl.tensor
    stride_n: gl.tensor


@gluon.jit
def store_rows(
    x, out, batch, head, start, n, FIRST: gl.constexpr, HEAD: gl.constexpr,
    RAGGED: gl.constexpr,
):  # fmt: skip
    """Columns of x from FIRST to HEAD, of rows before n, straight from registers:
    shared memory is full.
    """
    rows = start + gl.arange(0, x.shape[0], gl.SliceLayout(1, x.type.layout))
    columns = FIRST + gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
    ptr = out.ptr
    ptr += batch.to(gl.int64) * out.stride_b + head.to(gl.int64) * out.stride_h
    ptrs = ptr + rows.to(gl.int64)[:, None] * out.stride_n + columns[None, :]
    inside = None
    if HEAD < FIRST + x.shape[1]:
        inside = (columns < HEAD)[None, :]
        if RAGGED:
            inside = inside & (rows < n)[:, None]
    elif RAGGED:
        inside = (rows < n)[:, None]
    gl.store(ptrs, x.to(ptr.dtype.element_ty), mask=inside)


@gluon.jit
def store_keys(
    dk, dv, out, batch, head, start, n, scale, HEAD: gl.constexpr, RAGGED: gl.constexpr
):
    """dk and dv of 64 rows from `start` on, of n that there are."""
    dk_out, dv_out = out
    for i in gl.static_range(len(dk)):
        store_rows(dk[i] * scale, dk_out, batch, head, start, n, 64 * i, HEAD, RAGGED)
        store_rows(dv[i], dv_out, batch, head, start, n, 64 * i, HEAD, RAGGED)
