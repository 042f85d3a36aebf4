"""A one-pass backward with persistent programs ("shift walk"): contributions to dq
(partials) are ready in the order in which they are added, so programs hardly wait.

All programs run at the same time (the launch is cooperative), and a step waits only for
earlier steps, or in a backward loop for smaller key tiles in the same step, so there is
no deadlock. In step s, the program of key tile j (128 rows) processes query tile 2j + s
(64 rows), so query tile t gets its partials from key tiles t // 2, t // 2 - 1, ..., one
in every second step.

Under a causal mask, programs of early keys have more steps. To balance this, the
program of key tile j takes tile `tiles` - 1 - j of the next head, and loops over its
queries backwards. After two heads all programs end at the same time.

This requires as many KV heads as query heads, as many keys as queries, no incomplete
tile of keys, and at most one tile of keys per SM. `ordered` handles other shapes.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from systems.attention.hopper.accumulation import (
    QUERIES,
    add_partial,
    compute_partial_dq,
)
from systems.attention.hopper.dkdv import QueryDescs, fill_stage_with_statistics
from systems.attention.hopper.forward import (
    PRODUCER_REGISTERS,
    async_load,
    make_barriers,
    wait_full,
)
from systems.attention.hopper.matmuls import StridedTensor, zero_accumulators
from systems.attention.hopper.one_pass import (
    KEYS,
    QUERY_TILES,
    allocate_shared,
    process_tiles,
    store_dk_dv,
)


class Program(NamedTuple):
    """A program's work: key tile `column`, one of `tiles`, in every `groups`-th head
    from `group` on. Under a causal mask every second head counts tiles from the end.
    """

    group: gl.tensor
    groups: gl.tensor
    column: gl.tensor
    tiles: gl.tensor


class Item(NamedTuple):
    """A unit of work: head (counted over batches), tile of keys, number of steps."""

    batch_head: gl.tensor
    keys: gl.tensor
    steps: gl.tensor


# --8<-- [start:walk]
@gluon.jit
def get_item(n, program, CAUSAL: gl.constexpr):
    """Return the n-th unit of work (item) of this program."""
    group, groups, column, tiles = program
    keys = column
    steps = tiles * QUERY_TILES
    if CAUSAL:
        if n % 2 == 0:
            keys = tiles - 1 - column
        steps -= keys * QUERY_TILES
    return Item(group + n * groups, keys, steps)


@gluon.jit
def get_tile(step, n, keys, tiles, CAUSAL: gl.constexpr):
    """Return a step's query tile, and how many partial dq are added to it before."""
    if CAUSAL:
        tile = keys * QUERY_TILES + step
        order = step // QUERY_TILES
        if n % 2 == 1:
            tile = tiles * QUERY_TILES - 1 - step
            order = keys
    else:
        tile = (keys * QUERY_TILES + step) % (tiles * QUERY_TILES)
        order = step // QUERY_TILES
    return tile, order
    # --8<-- [end:walk]


@gluon.jit
def one_pass_producer(descs, k_desc, v_desc, work, CAUSAL: gl.constexpr):
    kv, kv_empty, ring, statistics, program, items, heads = work
    full, empty = kv.full.index(0), kv_empty.index(0)
    steps_done = 0
    for n in range(items):
        batch_head, keys, steps = get_item(n, program, CAUSAL)
        batch, head = batch_head // heads, batch_head % heads
        mbarrier.wait(empty, (n & 1) ^ 1)
        mbarrier.expect(full, 2 * k_desc.block_type.nbytes)
        coords = [batch, head, keys * KEYS, 0]
        async_load(k_desc, coords, full, kv.k)
        async_load(v_desc, coords, full, kv.v)
        for i in range(steps):
            tile, order = get_tile(i, n, keys, program.tiles, CAUSAL)
            row = tile * QUERIES
            fill_stage_with_statistics(
                ring, statistics, steps_done + i, descs, batch, head, batch_head, row
            )
        steps_done += steps


@gluon.jit
def dkdv_consumer(
    out, ds_ring, work, scales,
    GROUP: gl.constexpr, HEAD: gl.constexpr, D: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Compute dk and dv of half GROUP (64 keys) of each key tile; put dS in ds_ring."""
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, QUERIES, 16]
    )
    A: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=S, k_width=2)
    kv, kv_empty, ring, statistics, program, items, heads = work
    scale_log2, scale = scales
    zeros = gl.zeros([64, QUERIES], gl.float32, S)
    steps_done = 0
    for n in range(items):
        batch_head, keys, steps = get_item(n, program, CAUSAL)
        # Mask only steps on the diagonal: the first two, or the last two if backwards.
        cut, diagonal, shift = 0, 64 * GROUP, -QUERIES
        if n % 2 == 1:
            cut = steps - QUERY_TILES
            diagonal, shift = 64 * GROUP + (1 - steps) * QUERIES, QUERIES
        dk, dv = zero_accumulators(D, False), zero_accumulators(D, False)
        mbarrier.wait(kv.full.index(0), n & 1)
        # [64, D]; at D = 64 k and v fit in registers.
        k, v = kv.k.slice(64 * GROUP, 64, 0), kv.v.slice(64 * GROUP, 64, 0)
        if D == 64:
            resident = (k.load(A), v.load(A), zeros)
        else:
            resident = (k, v, zeros)
        end = steps_done + steps
        q, do = wait_full(ring, steps_done)
        start = 0
        if CAUSAL:
            dk, dv, q, do = process_tiles(
                0, cut, dk, dv, q, do, resident, ring, statistics, ds_ring, steps_done,
                end, diagonal, shift, 0, scale_log2, GROUP, False, False, False,
            )  # fmt: skip
            start = cut + QUERY_TILES
            dk, dv, q, do = process_tiles(
                cut, start, dk, dv, q, do, resident, ring, statistics, ds_ring,
                steps_done, end, diagonal, shift, 0, scale_log2, GROUP, True, False,
                False,
            )  # fmt: skip
        dk, dv, q, do = process_tiles(
            start, steps, dk, dv, q, do, resident, ring, statistics, ds_ring,
            steps_done, end, diagonal, shift, 0, scale_log2, GROUP, False, False,
            D == 64 and not CAUSAL,
        )  # fmt: skip
        steps_done = end
        mbarrier.arrive(kv_empty.index(0), count=1)
        batch, head = batch_head // heads, batch_head % heads
        row = keys * KEYS + 64 * GROUP
        store_dk_dv(dk, dv, out, batch, head, row, 0, scale, HEAD, False)


@gluon.jit
def dq_consumer(dq_ring, ds_ring, work, D: gl.constexpr, CAUSAL: gl.constexpr):
    """In every step, compute this program's partial dq, its contribution to dq."""
    kv, kv_empty, ring, statistics, program, items, heads = work
    steps_done = 0
    for n in range(items):
        batch_head, keys, steps = get_item(n, program, CAUSAL)
        mbarrier.wait(kv.full.index(0), n & 1)
        for _ in range(steps):
            compute_partial_dq(dq_ring, ds_ring, kv, steps_done, D, False)
            steps_done += 1
        mbarrier.arrive(kv_empty.index(0), count=1)


@gluon.jit
def dq_writer(
    dq_desc, semaphores_ptr, dq_ring, program, items,
    ME: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Add each partial dq in ring stage ME to its tile of dq, in a fixed order."""
    DQ_STAGES: gl.constexpr = dq_ring.tiles.shape[0]
    steps_done = 0
    # A writer warp without a stage is idle.
    if ME >= DQ_STAGES:
        items = 0
    for n in range(items):
        batch_head, keys, steps = get_item(n, program, CAUSAL)
        first = (ME + DQ_STAGES - steps_done % DQ_STAGES) % DQ_STAGES
        for i in range(first, steps, DQ_STAGES):
            tile, order = get_tile(i, n, keys, program.tiles, CAUSAL)
            number = batch_head * program.tiles * QUERY_TILES + tile
            phase = (steps_done + i) // DQ_STAGES & 1
            add_partial(
                dq_desc, semaphores_ptr, dq_ring, number, order, phase, ME, False
            )
        steps_done += steps


@gluon.jit(do_not_specialize=["batch", "heads", "tiles", "groups"])
def one_pass_kernel(
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, dq_desc, dk_ptr, dv_ptr,
    semaphores_ptr, stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh,
    stride_dvn, batch, heads, tiles, groups, scale_log2, scale,
    HEAD: gl.constexpr, D: gl.constexpr, CAUSAL: gl.constexpr, STAGES: gl.constexpr,
    DS_STAGES: gl.constexpr, DQ_STAGES: gl.constexpr, REGISTERS: gl.constexpr,
    DQ_REGISTERS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Compute dq (in float32, in the order of `pack_for_reduce`), dk and dv. Grid:
    tiles of keys x groups; group g computes heads g, g + groups, ...
    """
    group = gl.program_id(0) // tiles
    items = gl.cdiv(batch * heads - group, groups)
    program = Program(group, groups, gl.program_id(0) % tiles, tiles)
    kv, ring, statistics, ds_ring, dq_ring = allocate_shared(
        q_desc, k_desc, D, STAGES, DS_STAGES, DQ_STAGES
    )
    # A barrier that completes when all three groups have read an item's k and v.
    kv_empty = make_barriers(1, 3)
    out = (
        StridedTensor(dk_ptr, stride_dkb, stride_dkh, stride_dkn),
        StridedTensor(dv_ptr, stride_dvb, stride_dvh, stride_dvn),
    )
    descs = QueryDescs(q_desc, do_desc, lse_desc, delta_desc)
    work = (kv, kv_empty, ring, statistics, program, items, heads)
    scales = (scale_log2, scale)
    gl.warp_specialize(
        [
            (dkdv_consumer, (out, ds_ring, work, scales, 0, HEAD, D, CAUSAL)),
            (dkdv_consumer, (out, ds_ring, work, scales, 1, HEAD, D, CAUSAL)),
            (dq_consumer, (dq_ring, ds_ring, work, D, CAUSAL)),
            (one_pass_producer, (descs, k_desc, v_desc, work, CAUSAL)),
            (dq_writer, (dq_desc, semaphores_ptr, dq_ring, program, items, 0, CAUSAL)),
            (dq_writer, (dq_desc, semaphores_ptr, dq_ring, program, items, 1, CAUSAL)),
            (dq_writer, (dq_desc, semaphores_ptr, dq_ring, program, items, 2, CAUSAL)),
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
