"""The backward kernels for Hopper in Gluon; the roles of the warps are those of
`flash_hopper_forward`.

dq first: 64 x GROUPS rows of queries stay, tiles of keys and values stream past. It has
o and do at hand, so it also writes delta = rowsum(o · do). Then dk and dv: rows of keys
and values stay, tiles of queries and of do stream past. Each recomputes P = exp(S -
lse), and nobody adds to what another program writes: results repeat bit by bit.

Each step starts with the product into the accumulator that the step before left over
(its dq or dk): the tensor cores have work while exponentials are computed. No product
is under way when the loop turns, else the compiler would run them all one after
another.
"""

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
    TILE,
    await_full,
    barriers,
    fill,
    pass_over,
    release,
    ring,
    sees,
)

LOG2E = gl.constexpr(1.4426950408889634)
# One number for each row of a tile.
NUMBERS = gl.constexpr(
    gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
)


@gluon.jit
def fill_with_numbers(descs, to, lses, deltas, batch, head, batch_head, row, i):
    """`fill` with tiles of q and do and the numbers of their rows: lse and delta travel
    with each tile.
    """
    q_desc, do_desc, lse_desc, delta_desc = descs
    slot, arrived = fill(
        q_desc, do_desc, batch, head, row, to, i, 2 * lse_desc.block_type.nbytes
    )
    tma.async_copy_global_to_shared(
        lse_desc, [batch_head, row], arrived, lses.index(slot)
    )
    tma.async_copy_global_to_shared(
        delta_desc, [batch_head, row], arrived, deltas.index(slot)
    )


@gluon.jit
def dq_producer(
    q_desc,
    k_desc,
    v_desc,
    o_desc,
    do_desc,
    pipes,
    batch,
    head,
    kv_head,
    q_start,
    steps,
    BK: gl.constexpr,
):
    q_tiles, do_tiles, o_tiles, resident, stream = pipes
    GROUPS: gl.constexpr = q_tiles.shape[0]
    for group in gl.static_range(GROUPS):
        row, full = q_start + 64 * group, resident.index(group)
        mbarrier.expect(full, 3 * q_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(
            q_desc, [batch, head, row, 0], full, q_tiles.index(group)
        )
        tma.async_copy_global_to_shared(
            do_desc, [batch, head, row, 0], full, do_tiles.index(group)
        )
        tma.async_copy_global_to_shared(
            o_desc, [batch, head, row, 0], full, o_tiles.index(group)
        )
    for i in range(steps):
        start = (steps - 1 - i) * BK
        fill(k_desc, v_desc, batch, kv_head, start, stream, i)


# --8<-- [start:dq]
@gluon.jit
def dq_step(
    dq,
    ds,
    k_before,
    s,
    k,
    v,
    q,
    do,
    zeros,
    lse,
    delta,
    stream,
    i,
    steps,
    scale_log2,
    FIRST: gl.constexpr,
):
    """One tile of keys, whose scores are s: dq of the step before, ds, and the scores
    and tiles of the next step.
    """
    A: gl.constexpr = gl.DotOperandLayout(
        operand_index=0, parent=dq.type.layout, k_width=2
    )
    dp_token = warpgroup_mma(do, v.permute((1, 0)), zeros, use_acc=False, is_async=True)
    if not FIRST:
        dq_token = warpgroup_mma(ds, k_before, dq, is_async=True)
    # [64, BK]
    p = gl.exp2(s * scale_log2 - lse[:, None])
    # This wait also keeps the compiler from computing p after the next one.
    k_next, v_next = await_full(stream, i + 1, i + 1 < steps)
    # After the last step this computes with what the slot held before, and nobody looks
    # at it.
    s_token = warpgroup_mma(
        q, k_next.permute((1, 0)), zeros, use_acc=False, is_async=True
    )
    if FIRST:
        dp, p = warpgroup_mma_wait(1, deps=(dp_token, p))
    else:
        dp, dq, p = warpgroup_mma_wait(1, deps=(dp_token, dq_token, p))
        release(stream, i - 1)
    # [64, BK]
    ds = gl.convert_layout((p * (dp - delta[:, None])).to(k.dtype), A)
    s, ds = warpgroup_mma_wait(0, deps=(s_token, ds))
    return dq, ds, k, s, k_next, v_next


@gluon.jit
def dq_consumer(
    common, GROUP: gl.constexpr, BK: gl.constexpr, D: gl.constexpr,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    """dq of 64 rows, from the last tile of keys that they see to the first."""
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BK, 16]
    )
    O: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16]
    )
    A: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=O, k_width=2)
    dq_desc, row_ptrs, pipes, place, scales = common
    TYPE: gl.constexpr = dq_desc.dtype
    q_tiles, do_tiles, o_tiles, resident, stream = pipes
    lse_ptr, lse_log2_ptr, delta_ptr = row_ptrs
    batch, head, q_start, n_q, n_k, steps = place
    scale_log2, scale = scales

    q_start += 64 * GROUP
    rows = q_start + gl.arange(0, 64, gl.SliceLayout(1, S))
    columns = gl.arange(0, BK, gl.SliceLayout(0, S))
    seen_by_any = n_k
    if CAUSAL:
        seen_by_any = gl.minimum(n_k, q_start + 64)
    last = gl.cdiv(seen_by_any, BK) - 1
    # The last tiles of keys may be for the other groups alone.
    skip = steps - 1 - last
    for i in range(skip):
        pass_over(stream, i)

    lse = gl.load(lse_ptr + rows, mask=rows < n_q, other=0.0) * LOG2E
    q, do = q_tiles.index(GROUP), do_tiles.index(GROUP)
    mbarrier.wait(resident.index(GROUP), 0)
    # [64]
    delta = gl.sum(
        o_tiles.index(GROUP).load(O).to(gl.float32) * do.load(O).to(gl.float32), 1
    )
    delta = gl.convert_layout(delta, gl.SliceLayout(1, S))
    gl.store(lse_log2_ptr + rows, lse, mask=rows < n_q)
    gl.store(delta_ptr + rows, delta, mask=rows < n_q)
    zeros = gl.zeros([64, BK], gl.float32, S)
    dq, ds = gl.zeros([64, D], gl.float32, O), gl.zeros([64, BK], TYPE, A)

    # The mask cuts the first step only.
    k, v = await_full(stream, skip)
    s = warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    s = gl.where(sees(rows, last * BK + columns, n_k, CAUSAL), s, -float("inf"))
    dq, ds, k_before, s, k, v = dq_step(
        dq,
        ds,
        k,
        s,
        k,
        v,
        q,
        do,
        zeros,
        lse,
        delta,
        stream,
        skip,
        steps,
        scale_log2,
        True,
    )
    for i in range(skip + 1, steps):
        dq, ds, k_before, s, k, v = dq_step(
            dq,
            ds,
            k_before,
            s,
            k,
            v,
            q,
            do,
            zeros,
            lse,
            delta,
            stream,
            i,
            steps,
            scale_log2,
            False,
        )
    dq = warpgroup_mma(ds, k_before, dq)
    # The queries have been read: their memory takes dq.
    out = q_tiles.index(GROUP)
    out.store((dq * scale).to(TYPE))
    fence_async_shared()
    tma.async_copy_shared_to_global(dq_desc, [batch, head, q_start, 0], out)
    tma.store_wait(0)


# --8<-- [end:dq]


@gluon.jit(do_not_specialize=["heads", "n_q", "n_k", "row_stride"])
def dq_kernel(
    q_desc, k_desc, v_desc, o_desc, do_desc, dq_desc, lse_ptr, lse_log2_ptr, delta_ptr,
    heads, n_q, n_k, row_stride, scale_log2, scale,
    BK: gl.constexpr, D: gl.constexpr, HEADS_PER_KV: gl.constexpr, CAUSAL: gl.constexpr,
    GROUPS: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """dq, delta and lse in units of log 2 of one tile of queries. Grid: tiles of
    queries x batch x heads.
    """
    BQ: gl.constexpr = 64 * GROUPS
    tiles = gl.cdiv(n_q, BQ)
    q_start = (tiles - 1 - gl.program_id(0) % tiles) * BQ
    batch_head = gl.program_id(0) // tiles
    batch, head = batch_head // heads, batch_head % heads
    seen_by_any = n_k
    if CAUSAL:
        seen_by_any = gl.minimum(n_k, q_start + BQ)
    steps = gl.cdiv(seen_by_any, BK)

    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 64, D], TILE)
    do_tiles = gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 64, D], TILE)
    o_tiles = gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 64, D], TILE)
    pipes = (
        q_tiles,
        do_tiles,
        o_tiles,
        barriers(GROUPS, 1),
        ring(k_desc, STAGES, GROUPS),
    )
    lse_ptr += batch_head.to(gl.int64) * n_q
    lse_log2_ptr += batch_head.to(gl.int64) * row_stride
    delta_ptr += batch_head.to(gl.int64) * row_stride
    rows = (lse_ptr, lse_log2_ptr, delta_ptr)
    place = (batch, head, q_start, n_q, n_k, steps)
    load = (
        q_desc,
        k_desc,
        v_desc,
        o_desc,
        do_desc,
        pipes,
        batch,
        head,
        head // HEADS_PER_KV,
        q_start,
        steps,
        BK,
    )
    scales = (scale_log2, scale)
    common = (dq_desc, rows, pipes, place, scales)
    gl.warp_specialize(
        [
            (dq_consumer, (common, 0, BK, D, CAUSAL)),
            (dq_consumer, (common, 1, BK, D, CAUSAL)),
            (dq_producer, load),
        ],
        [4, 1],
        [REGISTERS, PRODUCER_REGISTERS],
    )


@gluon.jit
def dkdv_producer(
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, pipes, batch, kv_head, heads,
    k_start, first, steps,
    BQ: gl.constexpr, HEADS_PER_KV: gl.constexpr,
):  # fmt: skip
    k_tiles, v_tiles, resident, stream, lses, deltas = pipes
    GROUPS: gl.constexpr = k_tiles.shape[0]
    descs = (q_desc, do_desc, lse_desc, delta_desc)
    for group in gl.static_range(GROUPS):
        row, here = k_start + 64 * group, resident.index(group)
        mbarrier.expect(here, 2 * k_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(
            k_desc, [batch, kv_head, row, 0], here, k_tiles.index(group)
        )
        tma.async_copy_global_to_shared(
            v_desc, [batch, kv_head, row, 0], here, v_tiles.index(group)
        )
    for i in range(steps * HEADS_PER_KV):
        head = kv_head * HEADS_PER_KV + i // steps
        start = (first + i % steps) * BQ
        fill_with_numbers(
            descs, stream, lses, deltas, batch, head, batch * heads + head, start, i
        )


# --8<-- [start:dkdv]
@gluon.jit
def dkdv_step(
    dk, dv, ds, q_before, q, do, k, v, zeros, lses, deltas, stream, i, end, hidden,
    scale_log2,
    FIRST: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """One tile of queries: dv, dk of the step before, ds, and the tiles of the next
    step.
    """
    STAGES: gl.constexpr = lses.shape[0]
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
        # Row x of the tile is a key, column y a query, and y sees x from x - y = hidden
        # on.
        keys = gl.arange(0, zeros.shape[0], gl.SliceLayout(1, zeros.type.layout))
        rows = gl.arange(0, zeros.shape[1], COLUMNS)
        s = gl.where(rows[None, :] - keys[:, None] >= hidden, s, -float("inf"))
    lse = lses.index(i % STAGES).load(COLUMNS)
    p = gl.exp2(s * scale_log2 - lse[None, :])
    dv_token = warpgroup_mma(gl.convert_layout(p.to(TYPE), A), do, dv, is_async=True)
    if not FIRST:
        dp, dk = warpgroup_mma_wait(1, deps=(dp_token, dk_token))
        release(stream, i - 1)
    else:
        dp = warpgroup_mma_wait(1, deps=(dp_token,))
    delta = deltas.index(i % STAGES).load(COLUMNS)
    # [64, BQ]
    ds = gl.convert_layout((p * (dp - delta[None, :])).to(TYPE), A)
    # This wait also keeps the compiler from computing ds after the next one.
    q_next, do_next = await_full(stream, i + 1, i + 1 < end)
    dv, ds = warpgroup_mma_wait(0, deps=(dv_token, ds))
    return dk, dv, ds, q, q_next, do_next


@gluon.jit
def dkdv_consumer(
    common, GROUP: gl.constexpr, BQ: gl.constexpr, D: gl.constexpr,
    HEADS_PER_KV: gl.constexpr, CAUSAL: gl.constexpr, IN_REGISTERS: gl.constexpr,
):  # fmt: skip
    """dk and dv of 64 rows, over the tiles of queries that see them. Transposed."""
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BQ, 16]
    )
    O: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16]
    )
    A: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=O, k_width=2)
    dk_desc, dv_desc, pipes, place, scales = common
    TYPE: gl.constexpr = dk_desc.dtype
    k_tiles, v_tiles, resident, stream, lses, deltas = pipes
    batch, kv_head, k_start, first, steps = place
    scale_log2, scale = scales

    k_start += 64 * GROUP
    # The first tiles of queries may be for the other groups alone.
    skip = 0
    if CAUSAL:
        skip = gl.minimum(k_start // BQ - first, steps)
    k, v = k_tiles.index(GROUP), v_tiles.index(GROUP)
    mbarrier.wait(resident.index(GROUP), 0)
    if IN_REGISTERS:
        # [64, D]
        k = k.load(gl.DotOperandLayout(operand_index=0, parent=S, k_width=2))
        v = v.load(gl.DotOperandLayout(operand_index=0, parent=S, k_width=2))
    zeros = gl.zeros([64, BQ], gl.float32, S)
    dk, dv = gl.zeros([64, D], gl.float32, O), gl.zeros([64, D], gl.float32, O)
    ds = gl.zeros([64, BQ], TYPE, A)
    hidden = k_start - (first + skip) * BQ
    for member in range(HEADS_PER_KV):
        begin, end = member * steps + skip, (member + 1) * steps
        for i in range(member * steps, begin):
            pass_over(stream, i)
        # With more keys than queries no query may see them.
        if begin < end:
            q, do = await_full(stream, begin)
            dk, dv, ds, q_before, q, do = dkdv_step(
                dk, dv, ds, q, q, do, k, v, zeros, lses, deltas, stream, begin, end,
                hidden, scale_log2,
                True, CAUSAL,
            )  # fmt: skip
            for i in range(begin + 1, end):
                dk, dv, ds, q_before, q, do = dkdv_step(
                    dk, dv, ds, q_before, q, do, k, v, zeros, lses, deltas, stream, i,
                    end, hidden, scale_log2,
                    False, CAUSAL,
                )  # fmt: skip
            dk = warpgroup_mma(ds, q_before, dk)
            release(stream, end - 1)
    # Keys and values have been read: their memory takes dk and dv.
    dk_out, dv_out = k_tiles.index(GROUP), v_tiles.index(GROUP)
    dk_out.store((dk * scale).to(TYPE))
    dv_out.store(dv.to(TYPE))
    fence_async_shared()
    tma.async_copy_shared_to_global(dk_desc, [batch, kv_head, k_start, 0], dk_out)
    tma.async_copy_shared_to_global(dv_desc, [batch, kv_head, k_start, 0], dv_out)
    tma.store_wait(0)


# --8<-- [end:dkdv]


@gluon.jit(do_not_specialize=["heads", "n_q", "n_k"])
def dkdv_kernel(
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, dk_desc, dv_desc, heads, n_q,
    n_k,
    scale_log2, scale,
    BQ: gl.constexpr, D: gl.constexpr, HEADS_PER_KV: gl.constexpr, CAUSAL: gl.constexpr,
    GROUPS: gl.constexpr, STAGES: gl.constexpr, IN_REGISTERS: gl.constexpr,
    REGISTERS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """dk and dv of one tile of keys of one head of k and v. Grid: tiles of keys x batch
    x heads of k and v.
    """
    BK: gl.constexpr = 64 * GROUPS
    tiles = gl.cdiv(n_k, BK)
    # The first tile is seen by the most queries under a causal mask: it starts first as
    # it is.
    k_start = gl.program_id(0) % tiles * BK
    batch_head = gl.program_id(0) // tiles
    kv_heads = heads // HEADS_PER_KV
    batch, kv_head = batch_head // kv_heads, batch_head % kv_heads
    first = 0
    if CAUSAL:
        first = k_start // BQ
    # With more keys than queries, no query sees the last keys.
    steps = gl.maximum(gl.cdiv(n_q, BQ) - first, 0)

    k_tiles = gl.allocate_shared_memory(k_desc.dtype, [GROUPS, 64, D], TILE)
    v_tiles = gl.allocate_shared_memory(k_desc.dtype, [GROUPS, 64, D], TILE)
    lses = gl.allocate_shared_memory(gl.float32, [STAGES, BQ], NUMBERS)
    deltas = gl.allocate_shared_memory(gl.float32, [STAGES, BQ], NUMBERS)
    pipes = (
        k_tiles,
        v_tiles,
        barriers(GROUPS, 1),
        ring(q_desc, STAGES, GROUPS),
        lses,
        deltas,
    )
    load = (
        q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, pipes, batch, kv_head,
        heads, k_start, first, steps, BQ,
        HEADS_PER_KV,
    )  # fmt: skip
    place, scales = (batch, kv_head, k_start, first, steps), (scale_log2, scale)
    common = (dk_desc, dv_desc, pipes, place, scales)
    gl.warp_specialize(
        [
            (dkdv_consumer, (common, 0, BQ, D, HEADS_PER_KV, CAUSAL, IN_REGISTERS)),
            (dkdv_consumer, (common, 1, BQ, D, HEADS_PER_KV, CAUSAL, IN_REGISTERS)),
            (dkdv_producer, load),
        ],
        [4, 1],
        [REGISTERS, PRODUCER_REGISTERS],
    )
