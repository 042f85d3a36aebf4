"""The forward kernel for Hopper, in Gluon. `limits` lists the supported inputs.

One persistent program per SM computes items one after another; an item is GROUPS x 64
rows of o of one head. The CPU assigns items to programs (`schedule`). Warps have roles
and synchronize through barriers only, so that tiles of the next item are copied while o
of this item is finished:

    producer (1 warp)             copies q, and tiles of k and v into a ring buffer of
                                  STAGES stages
    consumers (GROUPS warp        64 rows of queries each: S = q kᵀ, online softmax,
    groups of 4 warps)            o += P v

A consumer starts S of the next tile of keys together with P v of the current one. With
OVERLAP, softmax runs before P v has ended (FlashAttention-3's intra-warpgroup
pipelining). With TURNS (its ping-pong scheduling), consumers start their matmuls one
after another, so that tensor cores work for one while another computes exponentials. A
consumer loops from the last visible tile of keys to the first. With BK of at least 64,
only the first step (before the loop) needs a mask, where each row sees a key.

Letters as in `triton.forward`, but m is scaled (base 2), GROUP numbers consumers, and
HEADS_PER_KV query heads share a KV head (GQA); NARROW: see `matmuls`. Step i uses stage
i % STAGES. The compiler moves a wait for matmuls up across arithmetic, but not across a
wait for a barrier, so a wait for tiles follows arithmetic that it should overlap.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from systems.attention.hopper.huge_rows import HUGE, LN2, recompute_huge_rows
from systems.attention.hopper.items import (
    Problem,
    Schedule,
    count_visible_keys,
    get_item,
    visible_mask,
)
from systems.attention.hopper.matmuls import (
    StridedTensor,
    scale_rows,
    start_add_matmul,
    start_matmul,
    store_rows,
    wait_all,
    wait_all_and_pin,
    zero_accumulators,
)

# Triton 3.8 renamed the TMA copies, and 3.9 removed the old names.
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
PRODUCER_REGISTERS = gl.constexpr(24)
# Layout of 16-bit tiles in shared memory, swizzled for TMA and tensor cores.
TILE_LAYOUT = gl.constexpr(
    gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)
)


# --8<-- [start:ring]
@gluon.jit
def make_barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Return COUNT barriers in shared memory, each complete after ARRIVALS arrivals."""
    memory = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(memory.index(i), count=ARRIVALS)
    return memory


class Ring(NamedTuple):
    """Ring buffer of tile pairs (such as k and v), with barriers "full" and "empty"."""

    a: gl.shared_memory_descriptor
    b: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor


class TileBuffers(NamedTuple):
    """Tiles in shared memory, each with a barrier "full" and a barrier "empty"."""

    tiles: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor


@gluon.jit
def make_ring(desc, STAGES: gl.constexpr, READERS: gl.constexpr):
    SHAPE: gl.constexpr = [STAGES, desc.block_shape[2], desc.block_shape[3]]
    return Ring(
        gl.allocate_shared_memory(desc.dtype, SHAPE, TILE_LAYOUT),
        gl.allocate_shared_memory(desc.dtype, SHAPE, TILE_LAYOUT),
        make_barriers(STAGES, 1),
        make_barriers(STAGES, READERS),
    )


# --8<-- [start:waits]
@gluon.jit
def fill_stage(ring, i, a_desc, b_desc, batch, head, row, MORE: gl.constexpr = 0):
    """Wait until the stage of step i is empty, and start copying its two tiles. Return
    (stage, full barrier); the barrier also expects MORE bytes that the caller copies.
    """
    STAGES: gl.constexpr = ring.a.shape[0]
    stage = i % STAGES
    full = ring.full.index(stage)
    mbarrier.wait(ring.empty.index(stage), (i // STAGES & 1) ^ 1)
    mbarrier.expect(full, 2 * a_desc.block_type.nbytes + MORE)
    coords = [batch, head, row, 0]
    async_load(a_desc, coords, full, ring.a.index(stage))
    async_load(b_desc, coords, full, ring.b.index(stage))
    return stage, full


@gluon.jit
def wait_full(ring, i, needed=True):
    """Return the two tiles of step i, after waiting for them if they are needed."""
    STAGES: gl.constexpr = ring.a.shape[0]
    mbarrier.wait(ring.full.index(i % STAGES), i // STAGES & 1, pred=needed)
    return ring.a.index(i % STAGES), ring.b.index(i % STAGES)


@gluon.jit
def release_stage(ring, i):
    """Signal the producer that this consumer has read the tiles of step i."""
    mbarrier.arrive(ring.empty.index(i % ring.a.shape[0]), count=1)
    # --8<-- [end:waits]


@gluon.jit
def skip_step(ring, i):
    """Release the tiles of step i unread: the producer waits for every consumer."""
    wait_full(ring, i)
    release_stage(ring, i)
    # --8<-- [end:ring]


# --8<-- [start:producer]
@gluon.jit
def forward_producer(
    work, q_desc, k_desc, v_desc,
    BQ: gl.constexpr, BK: gl.constexpr, HEADS_PER_KV: gl.constexpr,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    problem, schedule, queries, ring = work
    GROUPS: gl.constexpr = queries.tiles.shape[0]
    steps_done = 0
    number = gl.load(schedule.items_ptr + schedule.first)
    for index in range(schedule.first, schedule.end):
        item = get_item(number, problem, BQ, BK, CAUSAL)
        number = gl.load(schedule.items_ptr + gl.minimum(index + 1, schedule.end - 1))
        kv_head = item.head // HEADS_PER_KV
        # Load keys first, because consumers may still read the previous item's queries.
        last = (item.steps - 1) * BK
        fill_stage(ring, steps_done, k_desc, v_desc, item.batch, kv_head, last)
        for group in gl.static_range(GROUPS):
            full = queries.full.index(group)
            mbarrier.wait(queries.empty.index(group), (index - schedule.first & 1) ^ 1)
            mbarrier.expect(full, q_desc.block_type.nbytes)
            coords = [item.batch, item.head, item.q_start + 64 * group, 0]
            async_load(q_desc, coords, full, queries.tiles.index(group))
        for i in range(1, item.steps):
            start = (item.steps - 1 - i) * BK
            fill_stage(ring, steps_done + i, k_desc, v_desc, item.batch, kv_head, start)
        steps_done += item.steps
    # --8<-- [end:producer]


# --8<-- [start:turns]
# Number of the first named barrier to use; Triton reserves the first few of 16.
FIRST_BARRIER = gl.constexpr(8)


@gluon.jit
def wait_turn(GROUP: gl.constexpr):
    """Make consumer GROUP wait until the one before it has started its matmuls."""
    gl.inline_asm_elementwise(
        "bar.sync $1, 256; mov.b32 $0, 0;", "=r,r", [FIRST_BARRIER + GROUP],
        dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def pass_turn(GROUP: gl.constexpr, GROUPS: gl.constexpr):
    """Signal the next consumer that consumer GROUP has started its matmuls."""
    gl.inline_asm_elementwise(
        "bar.arrive $1, 256; mov.b32 $0, 0;", "=r,r",
        [FIRST_BARRIER + (GROUP + 1) % GROUPS],
        dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    # --8<-- [end:turns]


# --8<-- [start:consumer]
@gluon.jit
def forward_consumer(
    work, memory,
    GROUP: gl.constexpr, BQ: gl.constexpr, BK: gl.constexpr, HEAD: gl.constexpr,
    D: gl.constexpr, HEADS_PER_KV: gl.constexpr, CAUSAL: gl.constexpr,
    OVERLAP: gl.constexpr, TURNS: gl.constexpr, NARROW: gl.constexpr,
):  # fmt: skip
    """Compute o and lse of this consumer's 64 rows of each item."""
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BK, 16]
    )
    problem, schedule, queries, ring = work
    o, lse_ptr = memory[3], memory[4]
    TYPE: gl.constexpr = o.ptr.dtype.element_ty
    GROUPS: gl.constexpr = queries.tiles.shape[0]
    n_q, n_k, _, scale_log2 = problem

    q = queries.tiles.index(GROUP)
    zeros = gl.zeros([64, BK], gl.float32, S)
    columns = gl.arange(0, BK, gl.SliceLayout(0, S))
    steps_done = 0
    # For each of the 64 rows, the largest |m| of all items, to detect huge scores.
    largest = gl.zeros([64], gl.float32, gl.SliceLayout(1, S))
    if TURNS and GROUP == GROUPS - 1:
        # The last consumer lets the first consumer start.
        pass_turn(GROUP, GROUPS)
    number = gl.load(schedule.items_ptr + schedule.first)
    for index in range(schedule.first, schedule.end):
        item = get_item(number, problem, BQ, BK, CAUSAL)
        # Load the next item's number early, to hide the latency.
        number = gl.load(schedule.items_ptr + gl.minimum(index + 1, schedule.end - 1))
        q_start = item.q_start + 64 * GROUP
        rows = q_start + gl.arange(0, 64, gl.SliceLayout(1, S))
        last = gl.cdiv(count_visible_keys(q_start, 64, n_k, CAUSAL), BK) - 1
        # Skip the last tiles of keys, if only other consumers need them.
        first = steps_done + item.steps - 1 - last
        for i in range(steps_done, first):
            skip_step(ring, i)
            if TURNS:
                # Skipped steps count as turns, or consumers would wait forever.
                wait_turn(GROUP)
                pass_turn(GROUP, GROUPS)
        steps_done += item.steps

        mbarrier.wait(queries.full.index(GROUP), index - schedule.first & 1)
        # [64, BK]
        k, v = wait_full(ring, first)
        s = warpgroup_mma_wait(0, deps=(start_matmul(q, k, zeros, NARROW),))
        s = gl.where(
            visible_mask(rows, last * BK + columns, n_k, CAUSAL), s, -float("inf")
        )
        # A finite m keeps p of scores of -inf at zero.
        m = gl.maximum(gl.max(s, 1) * scale_log2, -HUGE)
        p = gl.exp2(s * scale_log2 - m[:, None])
        l = gl.sum(p, 1)
        acc = zero_accumulators(D, NARROW)
        # Convert p to a matmul operand here, so that the loop keeps p in 16 bits.
        P: gl.constexpr = gl.DotOperandLayout(
            operand_index=0, parent=acc[0].type.layout, k_width=2
        )
        p = gl.convert_layout(p.to(TYPE), P)
        k, v_next = wait_full(ring, first + 1, first + 1 < steps_done)
        # Unrolling this loop twice avoids copies of p, but was slower at D = 128.
        # --8<-- [start:consumer_loop]
        for i in range(first + 1, steps_done):
            if TURNS:
                wait_turn(GROUP)
            s_token = start_matmul(q, k, zeros, NARROW)
            acc_tokens = start_add_matmul(acc, p, v)
            if TURNS:
                pass_turn(GROUP, GROUPS)
            if OVERLAP:
                s = warpgroup_mma_wait(len(acc), deps=(s_token,))
            else:
                s, acc = wait_all_and_pin(s_token, acc_tokens)
                release_stage(ring, i - 1)
            m_new = gl.maximum(m, gl.max(s, 1) * scale_log2)
            p_wide = gl.exp2(s * scale_log2 - m_new[:, None])
            rescale = gl.exp2(m - m_new)
            l = l * rescale + gl.sum(p_wide, 1)
            m = m_new
            p = gl.convert_layout(p_wide.to(TYPE), P)
            v = v_next
            k, v_next = wait_full(ring, i + 1, i + 1 < steps_done)
            if OVERLAP:
                # Pass p, or the compiler would compute p only after the wait.
                p, acc = wait_all_and_pin(p, acc_tokens)
                release_stage(ring, i - 1)
            acc = scale_rows(acc, rescale)
        # --8<-- [end:consumer_loop]
        # Release q, so that the next item's queries are copied while o is finished.
        mbarrier.arrive(queries.empty.index(GROUP), count=1)
        acc = wait_all(start_add_matmul(acc, p, v))
        release_stage(ring, steps_done - 1)

        acc = scale_rows(acc, 1 / l)
        largest = gl.maximum(largest, gl.abs(m))
        batch_head = (item.batch * problem.heads + item.head).to(gl.int64)
        lse_ptrs = lse_ptr + batch_head * n_q + rows
        gl.store(lse_ptrs, (m + gl.log2(l)) * LN2, mask=rows < n_q)
        # Store directly from registers: at D = 128 shared memory is full.
        for i in gl.static_range(len(acc)):
            store_rows(
                acc[i], o, item.batch, item.head, q_start, n_q, 64 * i, HEAD, True
            )
    if gl.max(largest, 0) >= HUGE:
        recompute_huge_rows(
            memory, problem, schedule, GROUP, BQ, BK, HEAD, D, HEADS_PER_KV, CAUSAL
        )
    # --8<-- [end:consumer]


@gluon.jit(do_not_specialize=["heads", "n_q", "n_k"])
def forward_kernel(
    q_desc, k_desc, v_desc, q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, starts_ptr, items_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_ob, stride_oh, stride_on,
    heads, n_q, n_k, scale_log2,
    BK: gl.constexpr, HEAD: gl.constexpr, D: gl.constexpr, HEADS_PER_KV: gl.constexpr,
    CAUSAL: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
    OVERLAP: gl.constexpr, TURNS: gl.constexpr, NARROW: gl.constexpr,
    REGISTERS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Compute o and lse of `items[starts[i] : starts[i + 1]]` in program i."""
    gl.static_assert(2 <= GROUPS and GROUPS <= 4)
    BQ: gl.constexpr = 64 * GROUPS
    start_ptr = starts_ptr + gl.program_id(0)
    schedule = Schedule(items_ptr, gl.load(start_ptr), gl.load(start_ptr + 1))
    problem = Problem(n_q, n_k, heads, scale_log2)
    queries = TileBuffers(
        gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 64, D], TILE_LAYOUT),
        make_barriers(GROUPS, 1),
        make_barriers(GROUPS, 1),
    )
    ring = make_ring(k_desc, STAGES, GROUPS)
    # Arguments of all warp roles. Gluon variables can't hold functions, so the lists of
    # roles for 2, 3 and 4 (`else`) consumers are written out.
    work = (problem, schedule, queries, ring)
    load = (work, q_desc, k_desc, v_desc, BQ, BK, HEADS_PER_KV, CAUSAL)
    memory = (
        StridedTensor(q_ptr, stride_qb, stride_qh, stride_qn),
        StridedTensor(k_ptr, stride_kb, stride_kh, stride_kn),
        StridedTensor(v_ptr, stride_vb, stride_vh, stride_vn),
        StridedTensor(o_ptr, stride_ob, stride_oh, stride_on),
        lse_ptr,
    )
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (
                    forward_consumer,
                    (work, memory, 0, BQ, BK, HEAD, D, HEADS_PER_KV, CAUSAL, OVERLAP,
                     TURNS, NARROW),
                ),
                (
                    forward_consumer,
                    (work, memory, 1, BQ, BK, HEAD, D, HEADS_PER_KV, CAUSAL, OVERLAP,
                     TURNS, NARROW),
                ),
                (forward_producer, load),
            ],
            [4, 1],
            [REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
    elif GROUPS == 3:
        gl.warp_specialize(
            [
                (
                    forward_consumer,
                    (work, memory, 0, BQ, BK, HEAD, D, HEADS_PER_KV, CAUSAL, OVERLAP,
                     TURNS, NARROW),
                ),
                (
                    forward_consumer,
                    (work, memory, 1, BQ, BK, HEAD, D, HEADS_PER_KV, CAUSAL, OVERLAP,
                     TURNS, NARROW),
                ),
                (
                    forward_consumer,
                    (work, memory, 2, BQ, BK, HEAD, D, HEADS_PER_KV, CAUSAL, OVERLAP,
                     TURNS, NARROW),
                ),
                (forward_producer, load),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (
                    forward_consumer,
                    (work, memory, 0, BQ, BK, HEAD, D, HEADS_PER_KV, CAUSAL, OVERLAP,
                     TURNS, NARROW),
                ),
                (
                    forward_consumer,
                    (work, memory, 1, BQ, BK, HEAD, D, HEADS_PER_KV, CAUSAL, OVERLAP,
                     TURNS, NARROW),
                ),
                (
                    forward_consumer,
                    (work, memory, 2, BQ, BK, HEAD, D, HEADS_PER_KV, CAUSAL, OVERLAP,
                     TURNS, NARROW),
                ),
                (
                    forward_consumer,
                    (work, memory, 3, BQ, BK, HEAD, D, HEADS_PER_KV, CAUSAL, OVERLAP,
                     TURNS, NARROW),
                ),
                (forward_producer, load),
            ],
            [4, 4, 4, 1],
            [REGISTERS, REGISTERS, REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
