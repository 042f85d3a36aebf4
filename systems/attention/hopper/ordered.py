"""The one-pass backward for any shape ("ordered walk"), in which programs wait only for
programs that started earlier.

A program owns one tile of keys, and loops over all or some of the query heads that
share it, so that dk and dv stay in registers. Partials are added to a tile of dq in the
order of program numbers. There is no deadlock, because a program waits only for smaller
numbers, which GPUs start first (in practice, although no manual guarantees it).

Under a causal mask, the programs of most heads loop over queries forwards, and programs
of the last keys start first: no program waits, but the longest programs start last. In
the last heads, programs loop backwards, and programs of the first keys start first: the
shortest programs start last, and fill the SMs at the end.

The module `walks` decides whether the query heads of a KV head are divided among
several programs, whose dk and dv are summed afterwards.
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
from systems.attention.hopper.forward import PRODUCER_REGISTERS, async_load, wait_full
from systems.attention.hopper.matmuls import StridedTensor, zero_accumulators
from systems.attention.hopper.one_pass import (
    KEYS,
    QUERY_TILES,
    allocate_shared,
    process_narrow_tiles,
    process_tiles,
    store_dk_dv,
)


class Walk(NamedTuple):
    """Parameters of the ordered walk. Programs of KV heads below number `turn` loop
    over queries forwards, and are interleaved in groups of `side` heads. Programs of
    the other heads loop backwards, and are all interleaved. If its query heads are
    divided into `parts`, a KV head counts as that many KV heads.
    """

    heads: gl.tensor
    batch_kv_heads: gl.tensor
    tiles_q: gl.tensor
    tiles_k: gl.tensor
    side: gl.tensor
    turn: gl.tensor
    parts: gl.tensor


class Item(NamedTuple):
    """A program's work: a tile of keys of one KV head, and its loop over queries."""

    batch_head: gl.tensor  # batch · KV heads + KV head
    keys: gl.tensor  # number of the tile of keys
    steps: gl.tensor  # number of tiles of queries, for each query head
    backwards: gl.tensor  # 1 if the loop over queries runs backwards, else 0


# --8<-- [start:walk]
@gluon.jit
def get_item(number, walk, CAUSAL: gl.constexpr):
    """Return the work (item) of program `number`."""
    _, batch_kv_heads, tiles_q, tiles_k, side, turn, _ = walk
    first = number // (side * tiles_k) * side
    width = turn - first
    backwards = 0
    if width > side:
        width = side
    if number >= turn * tiles_k:
        backwards = 1
        first = turn
        width = batch_kv_heads - turn
    inside = number - first * tiles_k
    keys = inside // width
    steps = tiles_q
    if CAUSAL:
        if number < turn * tiles_k:
            keys = tiles_k - 1 - keys
        steps = tiles_q - keys * QUERY_TILES
        # With more keys than queries, no query sees the last keys.
        if steps < 0:
            steps = 0
    return Item(first + inside % width, keys, steps, backwards)


@gluon.jit
def get_tile(step, item, walk, CAUSAL: gl.constexpr):
    """Return a step's query tile, and how many partial dq are added to it before."""
    tile = step
    order = item.keys
    if CAUSAL:
        if item.backwards == 1:
            tile = walk.tiles_q - 1 - step
        else:
            tile = item.keys * QUERY_TILES + step
            order = tile // QUERY_TILES - item.keys
            if tile // QUERY_TILES >= walk.tiles_k:
                order = walk.tiles_k - 1 - item.keys
    return tile, order
    # --8<-- [end:walk]


@gluon.jit
def one_pass_producer(
    descs, k_desc, v_desc, work, HEADS_PER_KV: gl.constexpr, CAUSAL: gl.constexpr
):
    kv, ring, statistics, item, walk, n_k = work
    kv_heads = walk.heads // HEADS_PER_KV
    batch, kv_head = item.batch_head // kv_heads, item.batch_head % kv_heads
    full = kv.full.index(0)
    mbarrier.expect(full, 2 * k_desc.block_type.nbytes)
    coords = [batch, kv_head // walk.parts, item.keys * KEYS, 0]
    async_load(k_desc, coords, full, kv.k)
    async_load(v_desc, coords, full, kv.v)
    steps_done = 0
    for member in range(HEADS_PER_KV):
        head = kv_head * HEADS_PER_KV + member
        for i in range(item.steps):
            tile, order = get_tile(i, item, walk, CAUSAL)
            fill_stage_with_statistics(
                ring, statistics, steps_done + i, descs, batch, head,
                batch * walk.heads + head, tile * QUERIES,
            )  # fmt: skip
        steps_done += item.steps


@gluon.jit
def dkdv_consumer(
    out, ds_ring, work, scales,
    GROUP: gl.constexpr, HEAD: gl.constexpr, D: gl.constexpr,
    HEADS_PER_KV: gl.constexpr, CAUSAL: gl.constexpr, RAGGED: gl.constexpr,
    NARROW: gl.constexpr,
):  # fmt: skip
    """Compute dk and dv of half GROUP (64 keys) of the key tile; put dS in ds_ring."""
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, QUERIES, 16]
    )
    A: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=S, k_width=2)
    kv, ring, statistics, item, walk, n_k = work
    scale_log2, scale = scales
    zeros = gl.zeros([64, QUERIES], gl.float32, S)
    steps = item.steps
    # Mask the first steps of a forward loop, or the last steps of a backward loop.
    cut, masked = 0, 0
    diagonal, shift = 64 * GROUP, -QUERIES
    limit = n_k - item.keys * KEYS - 64 * GROUP
    if CAUSAL:
        masked = QUERY_TILES
        if masked > steps:
            masked = steps
        if item.backwards == 1:
            cut = steps - masked
            diagonal, shift = 64 * GROUP + (1 - steps) * QUERIES, QUERIES
    else:
        diagonal, shift = -QUERIES, 0
    if RAGGED:
        # The last tile of keys may be incomplete, so mask it in all steps.
        if item.keys == walk.tiles_k - 1:
            cut, masked = 0, steps
    dk, dv = zero_accumulators(D, NARROW), zero_accumulators(D, NARROW)
    mbarrier.wait(kv.full.index(0), 0)
    # [64, D]. If D = 64, registers hold k and v.
    k, v = kv.k.slice(64 * GROUP, 64, 0), kv.v.slice(64 * GROUP, 64, 0)
    if D == 64:
        resident = (k.load(A), v.load(A), zeros)
    else:
        resident = (k, v, zeros)
    if NARROW:
        dk, dv = process_narrow_tiles(
            steps, HEADS_PER_KV, dk, dv, resident, ring, statistics, ds_ring, diagonal,
            shift, limit, cut, cut + masked, scale_log2, GROUP, CAUSAL or RAGGED,
            RAGGED,
        )  # fmt: skip
    else:
        end = steps * HEADS_PER_KV
        q, do = wait_full(ring, 0, steps > 0)
        steps_done = 0
        for _ in range(HEADS_PER_KV):
            if CAUSAL:
                dk, dv, q, do = process_tiles(
                    0, cut, dk, dv, q, do, resident, ring, statistics, ds_ring,
                    steps_done, end, diagonal, shift, limit, scale_log2, GROUP, False,
                    RAGGED, False,
                )  # fmt: skip
            if CAUSAL or RAGGED:
                dk, dv, q, do = process_tiles(
                    cut, cut + masked, dk, dv, q, do, resident, ring, statistics,
                    ds_ring, steps_done, end, diagonal, shift, limit, scale_log2, GROUP,
                    True, RAGGED, False,
                )  # fmt: skip
            dk, dv, q, do = process_tiles(
                cut + masked, steps, dk, dv, q, do, resident, ring, statistics, ds_ring,
                steps_done, end, diagonal, shift, limit, scale_log2, GROUP, False,
                RAGGED, False,
            )  # fmt: skip
            steps_done += steps
    kv_heads = walk.heads // HEADS_PER_KV
    batch, head = item.batch_head // kv_heads, item.batch_head % kv_heads
    start = item.keys * KEYS + 64 * GROUP
    store_dk_dv(dk, dv, out, batch, head, start, n_k, scale, HEAD, RAGGED)


@gluon.jit
def dq_consumer(
    dq_ring, ds_ring, work, D: gl.constexpr, HEADS_PER_KV: gl.constexpr,
    NARROW: gl.constexpr,
):  # fmt: skip
    """In every step, compute this program's partial dq, its contribution to dq."""
    kv, ring, statistics, item, walk, n_k = work
    mbarrier.wait(kv.full.index(0), 0)
    for step in range(item.steps * HEADS_PER_KV):
        compute_partial_dq(dq_ring, ds_ring, kv, step, D, NARROW)


@gluon.jit
def dq_writer(
    dq_desc, semaphores_ptr, dq_ring, work, ME: gl.constexpr,
    HEADS_PER_KV: gl.constexpr, CAUSAL: gl.constexpr, NARROW: gl.constexpr,
):  # fmt: skip
    """Add each partial dq in ring stage ME to its tile of dq, in a fixed order."""
    DQ_STAGES: gl.constexpr = dq_ring.tiles.shape[0]
    kv, ring, statistics, item, walk, n_k = work
    steps = item.steps
    end = steps * HEADS_PER_KV
    # A writer warp without a stage is idle.
    if ME < DQ_STAGES:
        # The first query head of this KV head, over all batches.
        head = item.batch_head * HEADS_PER_KV
        for i in range(ME, end, DQ_STAGES):
            member, head_step = 0, i
            if HEADS_PER_KV > 1:
                member, head_step = i // steps, i % steps
            tile, order = get_tile(head_step, item, walk, CAUSAL)
            number = (head + member) * walk.tiles_q + tile
            phase = i // DQ_STAGES & 1
            add_partial(
                dq_desc, semaphores_ptr, dq_ring, number, order, phase, ME, NARROW
            )


@gluon.jit(
    do_not_specialize=["heads", "batch_kv_heads", "n_q", "n_k", "side", "turn", "parts"]
)
def one_pass_kernel(
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, dq_desc, dk_ptr, dv_ptr,
    semaphores_ptr, stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh,
    stride_dvn, heads, batch_kv_heads, n_q, n_k, side, turn, parts,
    scale_log2, scale, HEAD: gl.constexpr, D: gl.constexpr, HEADS_PER_KV: gl.constexpr,
    CAUSAL: gl.constexpr, RAGGED: gl.constexpr, NARROW: gl.constexpr,
    STAGES: gl.constexpr, DS_STAGES: gl.constexpr, DQ_STAGES: gl.constexpr,
    REGISTERS: gl.constexpr, DQ_REGISTERS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Compute dq (in float32, in the order of `pack_for_reduce`), dk and dv. Grid:
    tiles of keys x batch x KV heads x parts; each part has its own dk and dv.
    """
    walk = Walk(
        heads, batch_kv_heads, gl.cdiv(n_q, QUERIES), gl.cdiv(n_k, KEYS), side, turn,
        parts,
    )  # fmt: skip
    item = get_item(gl.program_id(0), walk, CAUSAL)
    kv, ring, statistics, ds_ring, dq_ring = allocate_shared(
        q_desc, k_desc, D, STAGES, DS_STAGES, DQ_STAGES
    )
    out = (
        StridedTensor(dk_ptr, stride_dkb, stride_dkh, stride_dkn),
        StridedTensor(dv_ptr, stride_dvb, stride_dvh, stride_dvn),
    )
    descs = QueryDescs(q_desc, do_desc, lse_desc, delta_desc)
    work, scales = (kv, ring, statistics, item, walk, n_k), (scale_log2, scale)
    gl.warp_specialize(
        [
            (
                dkdv_consumer,
                (out, ds_ring, work, scales, 0,
                 HEAD, D, HEADS_PER_KV, CAUSAL, RAGGED, NARROW),
            ),
            (
                dkdv_consumer,
                (out, ds_ring, work, scales, 1,
                 HEAD, D, HEADS_PER_KV, CAUSAL, RAGGED, NARROW),
            ),
            (dq_consumer, (dq_ring, ds_ring, work, D, HEADS_PER_KV, NARROW)),
            (one_pass_producer, (descs, k_desc, v_desc, work, HEADS_PER_KV, CAUSAL)),
            (
                dq_writer,
                (dq_desc, semaphores_ptr, dq_ring, work, 0,
                 HEADS_PER_KV, CAUSAL, NARROW),
            ),
            (
                dq_writer,
                (dq_desc, semaphores_ptr, dq_ring, work, 1,
                 HEADS_PER_KV, CAUSAL, NARROW),
            ),
            (
                dq_writer,
                (dq_desc, semaphores_ptr, dq_ring, work, 2,
                 HEADS_PER_KV, CAUSAL, NARROW),
            ),
        ],
        [4, 4, 1, 1, 1, 1],
        [REGISTERS, DQ_REGISTERS, PRODUCER_REGISTERS, PRODUCER_REGISTERS,
         PRODUCER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
