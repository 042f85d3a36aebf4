"""The forward kernel for Hopper, in Gluon; `flash_hopper` says what it takes and
launches it.

One program on each multiprocessor computes one item after another: GROUPS x 64 rows of
o of one head. A schedule made on the host says which (`flash_hopper.schedule`). Its
warps have roles, and meet only at barriers in shared memory, so the keys and queries of
the next item arrive while o of this one is finished:

producer (1 warp)               copies tiles of k and v into a ring of STAGES slots,
ahead of those who read them consumers (GROUPS x 4 warps)    64 rows of queries each: S
= q kᵀ, online softmax, o += P v

A consumer starts S of the next tile of keys together with P v of the present one, and
the tensor cores work for one consumer while another computes exponentials. It walks
from the last tile of keys that its rows see to the first: the mask cuts only that first
step, which stands before the loop.

Letters as in `flash_triton_forward`; i counts steps, and slot i % STAGES of the ring
holds step i. The compiler moves a wait for products in front of arithmetic that does
not need them; it does not move it over a wait for a barrier. So the wait for the next
tiles stands where products and arithmetic shall overlap.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

LN2 = gl.constexpr(0.6931471805599453)
PRODUCER_REGISTERS = gl.constexpr(24)
# Rows of 64 elements of 16 bits, in the order that the copy engine writes and the
# tensor cores read.
TILE = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16))


# --8<-- [start:ring]
@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT barriers in shared memory, each complete when ARRIVALS have arrived."""
    memory = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(memory.index(i), count=ARRIVALS)
    return memory


@gluon.jit
def ring(desc, STAGES: gl.constexpr, READERS: gl.constexpr):
    """(a, b, full, empty): a slot takes two tiles; it is full when both have arrived,
    empty when all have read them.
    """
    a = gl.allocate_shared_memory(
        desc.dtype, [STAGES, desc.block_shape[2], desc.block_shape[3]], TILE
    )
    b = gl.allocate_shared_memory(
        desc.dtype, [STAGES, desc.block_shape[2], desc.block_shape[3]], TILE
    )
    return a, b, barriers(STAGES, 1), barriers(STAGES, READERS)


@gluon.jit
def fill(a_desc, b_desc, batch, head, row, to, i, MORE: gl.constexpr = 0):
    """The producer's step i: wait until the slot is empty, then start the copies into
    it.

    (slot, its barrier); it is full when MORE bytes than those of the two tiles have
    arrived.
    """
    a, b, full, empty = to
    slot = i % a.shape[0]
    arrived = full.index(slot)
    mbarrier.wait(empty.index(slot), (i // a.shape[0] & 1) ^ 1)
    mbarrier.expect(arrived, 2 * a_desc.block_type.nbytes + MORE)
    tma.async_copy_global_to_shared(
        a_desc, [batch, head, row, 0], arrived, a.index(slot)
    )
    tma.async_copy_global_to_shared(
        b_desc, [batch, head, row, 0], arrived, b.index(slot)
    )
    return slot, arrived


@gluon.jit
def tiles_of(of, i):
    """The two tiles in the slot of step i."""
    a, b, _, _ = of
    return a.index(i % a.shape[0]), b.index(i % a.shape[0])


@gluon.jit
def await_full(of, i, needed=True):
    """The two tiles of step i, once they have arrived."""
    a, _, full, _ = of
    mbarrier.wait(full.index(i % a.shape[0]), i // a.shape[0] & 1, pred=needed)
    return tiles_of(of, i)


@gluon.jit
def release(of, i, needed=True):
    """A consumer has read the tiles of step i."""
    a, _, _, empty = of
    mbarrier.arrive(empty.index(i % a.shape[0]), count=1, pred=needed)


@gluon.jit
def pass_over(of, i):
    """Let go of step i unread. Its phase must have ended all the same: a later wait
    tells phases by parity only.
    """
    await_full(of, i)
    release(of, i)


# --8<-- [end:ring]


@gluon.jit
def place_of(
    item, n_q, n_k, heads, BQ: gl.constexpr, BK: gl.constexpr, CAUSAL: gl.constexpr
):
    """(batch, head, first row, steps) of an item of the schedule: tile of queries +
    tiles · (batch · heads + head).
    """
    tiles = gl.cdiv(n_q, BQ)
    batch_head = item // tiles
    q_start = item % tiles * BQ
    seen_by_any = n_k
    if CAUSAL:
        seen_by_any = gl.minimum(n_k, q_start + BQ)
    return batch_head // heads, batch_head % heads, q_start, gl.cdiv(seen_by_any, BK)


# --8<-- [start:producer]
@gluon.jit
def forward_producer(
    q_desc, k_desc, v_desc, pipes, schedule, sizes,
    BQ: gl.constexpr, BK: gl.constexpr, HEADS_PER_KV: gl.constexpr,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    q_tiles, q_full, q_empty, stream = pipes
    items_ptr, first_item, end = schedule
    n_q, n_k, heads = sizes
    GROUPS: gl.constexpr = q_tiles.shape[0]
    done = 0
    item = gl.load(items_ptr + first_item)
    for place in range(first_item, end):
        batch, head, q_start, steps = place_of(item, n_q, n_k, heads, BQ, BK, CAUSAL)
        item = gl.load(items_ptr + gl.minimum(place + 1, end - 1))
        # Keys first: the consumers may still be reading the queries of the item before.
        fill(
            k_desc, v_desc, batch, head // HEADS_PER_KV, (steps - 1) * BK, stream, done
        )
        for group in gl.static_range(GROUPS):
            mbarrier.wait(q_empty.index(group), (place - first_item & 1) ^ 1)
            mbarrier.expect(q_full.index(group), q_desc.block_type.nbytes)
            row = q_start + 64 * group
            tma.async_copy_global_to_shared(
                q_desc, [batch, head, row, 0], q_full.index(group), q_tiles.index(group)
            )
        for i in range(1, steps):
            fill(
                k_desc,
                v_desc,
                batch,
                head // HEADS_PER_KV,
                (steps - 1 - i) * BK,
                stream,
                done + i,
            )
        done += steps


# --8<-- [end:producer]


@gluon.jit
def sees(rows, keys, n_k, CAUSAL: gl.constexpr):
    """Which of `keys` each of `rows` sees."""
    if CAUSAL:
        visible = keys[None, :] <= gl.minimum(rows, n_k - 1)[:, None]
    else:
        visible = (keys < n_k)[None, :]
    return visible


# --8<-- [start:consumer]
@gluon.jit
def forward_consumer(
    common, GROUP: gl.constexpr, BQ: gl.constexpr, BK: gl.constexpr, HEAD: gl.constexpr,
    D: gl.constexpr, CAUSAL: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """o and lse of 64 rows of each item."""
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BK, 16]
    )
    O: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16]
    )
    P: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=O, k_width=2)
    pipes, schedule, sizes, o_ptr, strides, lse_ptr, scale_log2 = common
    TYPE: gl.constexpr = o_ptr.dtype.element_ty
    q_tiles, q_full, q_empty, stream = pipes
    items_ptr, first_item, end = schedule
    n_q, n_k, heads = sizes
    stride_ob, stride_oh, stride_on = strides

    q = q_tiles.index(GROUP)
    zeros = gl.zeros([64, BK], gl.float32, S)
    columns = gl.arange(0, BK, gl.SliceLayout(0, S))
    done = 0
    item = gl.load(items_ptr + first_item)
    for place in range(first_item, end):
        batch, head, q_start, steps = place_of(item, n_q, n_k, heads, BQ, BK, CAUSAL)
        # The next one is known when this one ends.
        item = gl.load(items_ptr + gl.minimum(place + 1, end - 1))
        q_start += 64 * GROUP
        rows = q_start + gl.arange(0, 64, gl.SliceLayout(1, S))
        seen_by_any = n_k
        if CAUSAL:
            seen_by_any = gl.minimum(n_k, q_start + 64)
        last = gl.cdiv(seen_by_any, BK) - 1
        # The last tiles of keys may be for the other groups alone.
        first = done + steps - 1 - last
        for i in range(done, first):
            pass_over(stream, i)
        done += steps

        mbarrier.wait(q_full.index(GROUP), place - first_item & 1)
        # [64, BK]
        k, v = await_full(stream, first)
        s = warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, deps=(s,))
        s = gl.where(sees(rows, last * BK + columns, n_k, CAUSAL), s, -float("inf"))
        m = gl.max(s, 1) * scale_log2
        p = gl.exp2(s * scale_log2 - m[:, None])
        l = gl.sum(p, 1)
        p = gl.convert_layout(p.to(TYPE), P)
        acc = gl.zeros([64, D], gl.float32, O)
        k, v_next = await_full(stream, first + 1, first + 1 < done)
        for i in range(first + 1, done):
            s_token = warpgroup_mma(
                q, k.permute((1, 0)), zeros, use_acc=False, is_async=True
            )
            acc_token = warpgroup_mma(p, v, acc, is_async=True)
            if OVERLAP:
                s = warpgroup_mma_wait(1, deps=(s_token,))
            else:
                s, acc = warpgroup_mma_wait(0, deps=(s_token, acc_token))
                release(stream, i - 1)
            m_new = gl.maximum(m, gl.max(s, 1) * scale_log2)
            p_wide = gl.exp2(s * scale_log2 - m_new[:, None])
            rescale = gl.exp2(m - m_new)
            l = l * rescale + gl.sum(p_wide, 1)
            m = m_new
            p = gl.convert_layout(p_wide.to(TYPE), P)
            v = v_next
            k, v_next = await_full(stream, i + 1, i + 1 < done)
            if OVERLAP:
                # That p goes through this wait, and the wait above, keep the compiler
                # from computing p afterwards.
                acc, p = warpgroup_mma_wait(0, deps=(acc_token, p))
                release(stream, i - 1)
            acc = acc * gl.convert_layout(rescale, gl.SliceLayout(1, O))[:, None]
        # The queries have been read: those of the next item may come while o is
        # finished.
        mbarrier.arrive(q_empty.index(GROUP), count=1)
        acc = warpgroup_mma(p, v, acc)
        release(stream, done - 1)

        acc = acc * gl.convert_layout(1 / l, gl.SliceLayout(1, O))[:, None]
        batch_head = (batch * heads + head).to(gl.int64)
        gl.store(
            lse_ptr + batch_head * n_q + rows, (m + gl.log2(l)) * LN2, mask=rows < n_q
        )
        # Straight from registers, for shared memory is full: each thread has pairs of
        # columns.
        o_rows = q_start + gl.arange(0, 64, gl.SliceLayout(1, O))
        o_columns = gl.arange(0, D, gl.SliceLayout(0, O))
        o_head = o_ptr + batch.to(gl.int64) * stride_ob + head.to(gl.int64) * stride_oh
        o_tile = o_head + o_rows.to(gl.int64)[:, None] * stride_on + o_columns[None, :]
        inside = (o_rows < n_q)[:, None]
        if HEAD < D:
            inside = inside & (o_columns < HEAD)[None, :]
        gl.store(o_tile, acc.to(TYPE), mask=inside)


# --8<-- [end:consumer]


@gluon.jit(do_not_specialize=["heads", "n_q", "n_k"])
def forward_kernel(
    q_desc, k_desc, v_desc, o_ptr, lse_ptr, starts_ptr, items_ptr, stride_ob, stride_oh,
    stride_on,
    heads, n_q, n_k, scale_log2,
    BK: gl.constexpr, HEAD: gl.constexpr, D: gl.constexpr, HEADS_PER_KV: gl.constexpr,
    CAUSAL: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
    OVERLAP: gl.constexpr, REGISTERS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """o and lse of the items that the schedule has for this program: those from
    starts[program] to the next start.
    """
    BQ: gl.constexpr = 64 * GROUPS
    program = gl.program_id(0)
    schedule = (
        items_ptr,
        gl.load(starts_ptr + program),
        gl.load(starts_ptr + program + 1),
    )
    sizes = (n_q, n_k, heads)

    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 64, D], TILE)
    pipes = (
        q_tiles,
        barriers(GROUPS, 1),
        barriers(GROUPS, 1),
        ring(k_desc, STAGES, GROUPS),
    )
    load = (
        q_desc,
        k_desc,
        v_desc,
        pipes,
        schedule,
        sizes,
        BQ,
        BK,
        HEADS_PER_KV,
        CAUSAL,
    )
    common = (
        pipes,
        schedule,
        sizes,
        o_ptr,
        (stride_ob, stride_oh, stride_on),
        lse_ptr,
        scale_log2,
    )
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (forward_consumer, (common, 0, BQ, BK, HEAD, D, CAUSAL, OVERLAP)),
                (forward_consumer, (common, 1, BQ, BK, HEAD, D, CAUSAL, OVERLAP)),
                (forward_producer, load),
            ],
            [4, 1],
            [REGISTERS, PRODUCER_REGISTERS],
        )
    elif GROUPS == 3:
        gl.warp_specialize(
            [
                (forward_consumer, (common, 0, BQ, BK, HEAD, D, CAUSAL, OVERLAP)),
                (forward_consumer, (common, 1, BQ, BK, HEAD, D, CAUSAL, OVERLAP)),
                (forward_consumer, (common, 2, BQ, BK, HEAD, D, CAUSAL, OVERLAP)),
                (forward_producer, load),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (forward_consumer, (common, 0, BQ, BK, HEAD, D, CAUSAL, OVERLAP)),
                (forward_consumer, (common, 1, BQ, BK, HEAD, D, CAUSAL, OVERLAP)),
                (forward_consumer, (common, 2, BQ, BK, HEAD, D, CAUSAL, OVERLAP)),
                (forward_consumer, (common, 3, BQ, BK, HEAD, D, CAUSAL, OVERLAP)),
                (forward_producer, load),
            ],
            [4, 4, 4, 1],
            [REGISTERS, REGISTERS, REGISTERS, PRODUCER_REGISTERS],
        )
