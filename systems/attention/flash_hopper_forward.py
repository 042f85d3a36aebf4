"""The forward kernel for Hopper, in Gluon; `flash_hopper` says what it takes and launches it.

One program computes GROUPS x 64 rows of o. Its warps have roles, and meet only at barriers in shared memory:

    producer (1 warp)               copies tiles of k and v into a ring of STAGES slots, ahead of those who read them
    consumers (GROUPS x 4 warps)    64 rows of queries each: S = q kᵀ, online softmax, o += P v

A consumer starts S of the next tile of keys together with P v of the present one, and the tensor cores work for one
consumer while another computes exponentials. It walks from the last tile of keys that its rows see to the first: the
mask cuts only that first step, which stands before the loop.

Letters as in `flash_triton`; i counts steps, and slot i % STAGES of the ring holds step i. The compiler moves a wait
for products in front of arithmetic that does not need them; it does not move it over a wait for a barrier. So the
wait for the next tiles stands where products and arithmetic shall overlap.
"""

# Triton's decorator hides from the type checker what a kernel's arguments are.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportPossiblyUnboundVariable=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

LN2 = gl.constexpr(0.6931471805599453)
PRODUCER_REGISTERS = gl.constexpr(24)
# Rows of 64 elements of 16 bits, in the order that the copy engine writes and the tensor cores read.
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
    """(a, b, full, empty): a slot takes two tiles; it is full when both have arrived, empty when all have read them."""
    a = gl.allocate_shared_memory(desc.dtype, [STAGES, desc.block_shape[2], desc.block_shape[3]], TILE)
    b = gl.allocate_shared_memory(desc.dtype, [STAGES, desc.block_shape[2], desc.block_shape[3]], TILE)
    return a, b, barriers(STAGES, 1), barriers(STAGES, READERS)


@gluon.jit
def fill(a_desc, b_desc, batch, head, row, to, i):
    """The producer's step i: wait until the slot is empty, then start the copies into it."""
    a, b, full, empty = to
    slot = i % a.shape[0]
    mbarrier.wait(empty.index(slot), (i // a.shape[0] & 1) ^ 1)
    mbarrier.expect(full.index(slot), 2 * a_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(a_desc, [batch, head, row, 0], full.index(slot), a.index(slot))
    tma.async_copy_global_to_shared(b_desc, [batch, head, row, 0], full.index(slot), b.index(slot))


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
    """Let go of step i unread. Its phase must have ended all the same: a later wait tells phases by parity only."""
    await_full(of, i)
    release(of, i)


# --8<-- [end:ring]


@gluon.jit
def place_of(tiles, batch_heads, together):
    """(tile, batch · heads + head) of this program. The first tile of `together` heads comes first, then the second.

    Programs start in order, and under a causal mask the first tile is the longest: none is left at the end. The keys
    and values of so many heads fit into the L2 cache.
    """
    group = gl.program_id(0) // (tiles * together)
    place = gl.program_id(0) % (tiles * together)
    members = gl.minimum(together, batch_heads - group * together)
    return place // members, group * together + place % members


# --8<-- [start:producer]
@gluon.jit
def forward_producer(
    q_desc, k_desc, v_desc, pipes, batch, head, kv_head, q_start, steps, BK: gl.constexpr
):  # fmt: skip
    q_tiles, q_full, stream = pipes
    GROUPS: gl.constexpr = q_tiles.shape[0]
    for group in gl.static_range(GROUPS):
        mbarrier.expect(q_full.index(group), q_desc.block_type.nbytes)
        row = q_start + 64 * group
        tma.async_copy_global_to_shared(q_desc, [batch, head, row, 0], q_full.index(group), q_tiles.index(group))
    for i in range(steps):
        fill(k_desc, v_desc, batch, kv_head, (steps - 1 - i) * BK, stream, i)


# --8<-- [end:producer]


# --8<-- [start:consumer]
@gluon.jit
def forward_consumer(
    common, GROUP: gl.constexpr, BK: gl.constexpr, D: gl.constexpr, CAUSAL: gl.constexpr, OVERLAP: gl.constexpr
):
    """o and lse of 64 rows."""
    S: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BK, 16])
    O: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    P: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=O, k_width=2)
    o_desc, lse_ptr, pipes, place, scale_log2 = common
    TYPE: gl.constexpr = o_desc.dtype
    q_tiles, q_full, stream = pipes
    batch, head, q_start, n_q, n_k, steps = place

    q_start += 64 * GROUP
    rows = q_start + gl.arange(0, 64, gl.SliceLayout(1, S))
    columns = gl.arange(0, BK, gl.SliceLayout(0, S))
    seen_by_any = n_k
    if CAUSAL:
        seen_by_any = gl.minimum(n_k, q_start + 64)
    last = gl.cdiv(seen_by_any, BK) - 1
    # The last tiles of keys may be for the other groups alone.
    first = steps - 1 - last
    for i in range(first):
        pass_over(stream, i)

    q = q_tiles.index(GROUP)
    mbarrier.wait(q_full.index(GROUP), 0)
    zeros = gl.zeros([64, BK], gl.float32, S)
    acc = gl.zeros([64, D], gl.float32, O)
    # [64, BK]
    k, v = await_full(stream, first)
    s = warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    visible = (last * BK + columns < n_k)[None, :]
    if CAUSAL:
        visible = visible & (rows[:, None] >= last * BK + columns[None, :])
    s = gl.where(visible, s, -float("inf"))
    m = gl.max(s, 1) * scale_log2
    p = gl.exp2(s * scale_log2 - m[:, None])
    l = gl.sum(p, 1)
    p = gl.convert_layout(p.to(TYPE), P)
    k, v_next = await_full(stream, first + 1, first + 1 < steps)
    for i in range(first + 1, steps):
        s_token = warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
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
        k, v_next = await_full(stream, i + 1, i + 1 < steps)
        if OVERLAP:
            # That p goes through this wait, and the wait above, keep the compiler from computing p afterwards.
            acc, p = warpgroup_mma_wait(0, deps=(acc_token, p))
            release(stream, i - 1)
        acc = acc * gl.convert_layout(rescale, gl.SliceLayout(1, O))[:, None]
    acc = warpgroup_mma(p, v, acc)

    acc = acc / gl.convert_layout(l, gl.SliceLayout(1, O))[:, None]
    gl.store(lse_ptr + rows, (m + gl.log2(l)) * LN2, mask=rows < n_q)
    # The queries have been read: their memory takes o.
    q.store(acc.to(TYPE))
    fence_async_shared()
    tma.async_copy_shared_to_global(o_desc, [batch, head, q_start, 0], q)
    tma.store_wait(0)


# --8<-- [end:consumer]


@gluon.jit(do_not_specialize=["heads", "together", "n_q", "n_k"])
def forward_kernel(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, heads, together, n_q, n_k, scale_log2,
    BK: gl.constexpr, D: gl.constexpr, HEADS_PER_KV: gl.constexpr, CAUSAL: gl.constexpr, GROUPS: gl.constexpr,
    STAGES: gl.constexpr, OVERLAP: gl.constexpr, REGISTERS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """o and lse of one tile of queries of one head. Grid: tiles of queries x batch x heads, on the one long axis."""
    BQ: gl.constexpr = 64 * GROUPS
    tiles = gl.cdiv(n_q, BQ)
    # The last tile sees the most keys under a causal mask: it comes first.
    place, batch_head = place_of(tiles, gl.num_programs(0) // tiles, together)
    q_start = (tiles - 1 - place) * BQ
    batch, head = batch_head // heads, batch_head % heads
    seen_by_any = n_k
    if CAUSAL:
        seen_by_any = gl.minimum(n_k, q_start + BQ)
    steps = gl.cdiv(seen_by_any, BK)

    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 64, D], TILE)
    pipes = (q_tiles, barriers(GROUPS, 1), ring(k_desc, STAGES, GROUPS))
    # Row 0 of this head in lse, in 64 bits.
    lse_ptr += batch_head.to(gl.int64) * n_q
    load = (q_desc, k_desc, v_desc, pipes, batch, head, head // HEADS_PER_KV, q_start, steps, BK)
    common = (o_desc, lse_ptr, pipes, (batch, head, q_start, n_q, n_k, steps), scale_log2)
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (forward_consumer, (common, 0, BK, D, CAUSAL, OVERLAP)),
                (forward_producer, load),
            ],
            [1],
            [PRODUCER_REGISTERS],
        )
    elif GROUPS == 2:
        gl.warp_specialize(
            [
                (forward_consumer, (common, 0, BK, D, CAUSAL, OVERLAP)),
                (forward_consumer, (common, 1, BK, D, CAUSAL, OVERLAP)),
                (forward_producer, load),
            ],
            [4, 1],
            [REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (forward_consumer, (common, 0, BK, D, CAUSAL, OVERLAP)),
                (forward_consumer, (common, 1, BK, D, CAUSAL, OVERLAP)),
                (forward_consumer, (common, 2, BK, D, CAUSAL, OVERLAP)),
                (forward_producer, load),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, PRODUCER_REGISTERS],
        )
