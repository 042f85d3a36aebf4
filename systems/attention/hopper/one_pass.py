"""The backward pass for Hopper in one kernel: five products where two passes need
seven, and the same bits every time.

A program owns 128 rows of keys and values; tiles of 64 queries stream past them:

producer (1 warp)            copies k and v, and tiles of q and do with their lse and
delta into a ring two key groups (4 warps)     64 keys each: S and dP, transposed; dv +=
Pᵀ do, dk += dSᵀ q; dS into shared memory share group (4 warps)        dS k of all 128
keys: this program's share of dq, into shared memory adders (1 warp each)         one
share each at a time: wait for its turn, have the copy engine add it to dq, count

The shares of dq from all programs of a head have to be added up. Floating-point sums
depend on their order, so each tile of dq has a counter that says how many shares it
holds, and a share waits for its turn. The turns are laid out so that nobody waits. All
programs of a head run at once and each starts at another tile: while the program of
keys j works on the tiles beside keys j + s, those beside keys t get their shares from
keys t, t - 1, t - 2, ..., one after the other. Under a causal mask programs of early
keys have the longer way. Then each takes the mirrored keys of the next head and walks
from the last tile back: there the shares come from keys 0, 1, 2, ..., again one after
the other, and after two heads all programs end together.
"""

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

from systems.attention.hopper.backward import LOG2E, NUMBERS, fill_with_numbers
from systems.attention.hopper.forward import (
    PRODUCER_REGISTERS,
    TILE,
    await_full,
    barriers,
    release,
    ring,
)
from systems.attention.triton.primitives import load_tile

# Rows of keys of a program, and of queries of a step; so many tiles of queries lie
# beside one of keys.
KEYS = gl.constexpr(128)
QUERIES = gl.constexpr(64)
BESIDE = gl.constexpr(2)
# Columns of a share that are computed at a time.
PART = gl.constexpr(64)
SHARE = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32))


@builtin
def add_shared_to_global(desc, coord, src, _semantic=None):
    """The copy engine's sum: global memory += src. Gluon of Triton 3.6 has the
    operation but no name for it.
    """
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(
        ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle
    )


@gluon.jit
def counted(counter_ptr):
    """A counter; what others did before they counted is seen after this."""
    return gl.inline_asm_elementwise(
        "ld.acquire.gpu.global.b32 $0, [$1];",
        "=r,l",
        [counter_ptr],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def others_written():
    """What others' copy engines wrote before the last acquire is what this one's will
    add to.
    """
    gl.inline_asm_elementwise(
        "{ fence.proxy.async.global; mov.u32 $0, 0; }",
        "=r,r",
        [0],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def written():
    """Wait until what the copy engine was given has arrived in global memory, for the
    other multiprocessors as well.
    """
    gl.inline_asm_elementwise(
        "{ cp.async.bulk.wait_group 0; fence.proxy.async.global; "
        "bar.warp.sync 0xffffffff; mov.u32 $0, 0; }",
        "=r,r", [0], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


# --8<-- [start:walk]
@gluon.jit
def item_of(n, place, CAUSAL: gl.constexpr):
    """(batch · heads + head, tile of keys, steps) of this program's item n."""
    group, groups, column, tiles = place
    keys = column
    steps = tiles * BESIDE
    if CAUSAL:
        if n % 2 == 0:
            keys = tiles - 1 - column
        steps -= keys * BESIDE
    return group + n * groups, keys, steps


@gluon.jit
def tile_of(step, n, keys, tiles, CAUSAL: gl.constexpr):
    """(tile of queries, its shares before this one) of a step of item n."""
    if CAUSAL:
        tile = keys * BESIDE + step
        turn = step // BESIDE
        if n % 2 == 1:
            tile = tiles * BESIDE - 1 - step
            turn = keys
    else:
        tile = (keys * BESIDE + step) % (tiles * BESIDE)
        turn = step // BESIDE
    return tile, turn


# --8<-- [end:walk]


@gluon.jit
def producer(
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, common, CAUSAL: gl.constexpr
):
    pipes, place, items, heads = common
    k_tile, v_tile, kv_full, kv_empty, stream, lses, deltas = pipes
    descs = (q_desc, do_desc, lse_desc, delta_desc)
    done = 0
    for n in range(items):
        batch_head, keys, steps = item_of(n, place, CAUSAL)
        batch, head = batch_head // heads, batch_head % heads
        mbarrier.wait(kv_empty.index(0), (n & 1) ^ 1)
        mbarrier.expect(kv_full.index(0), 2 * k_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(
            k_desc, [batch, head, keys * KEYS, 0], kv_full.index(0), k_tile
        )
        tma.async_copy_global_to_shared(
            v_desc, [batch, head, keys * KEYS, 0], kv_full.index(0), v_tile
        )
        for i in range(steps):
            tile, turn = tile_of(i, n, keys, place[3], CAUSAL)
            fill_with_numbers(
                descs,
                stream,
                lses,
                deltas,
                batch,
                head,
                batch_head,
                tile * QUERIES,
                done + i,
            )
        done += steps


# --8<-- [start:step]
@gluon.jit
def step(
    dk,
    dv,
    q,
    do,
    resident,
    tiles,
    ds_pipe,
    i,
    end,
    hidden,
    scale_log2,
    GROUP: gl.constexpr,
    MASKED: gl.constexpr,
):
    """One tile of queries: dk, dv, this group's half of dS, and the tiles of the next
    step.
    """
    k, v, zeros = resident
    stream, lses, deltas = tiles
    ds_tiles, ds_full, ds_empty = ds_pipe
    BEHIND: gl.constexpr = ds_tiles.shape[0]
    STAGES: gl.constexpr = lses.shape[0]
    COLUMNS: gl.constexpr = gl.SliceLayout(0, zeros.type.layout)
    A: gl.constexpr = gl.DotOperandLayout(
        operand_index=0, parent=dk.type.layout, k_width=2
    )
    TYPE: gl.constexpr = q.dtype
    # With 128 columns dk and dv leave no room for dP beside what the exponentials need.
    TOGETHER: gl.constexpr = dk.shape[1] == 64
    s_token = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
    if TOGETHER:
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
    lse = lses.index(i % STAGES).load(COLUMNS) * LOG2E
    p = gl.exp2(s * scale_log2 - lse[None, :])
    if not TOGETHER:
        dp_token = warpgroup_mma(
            v, do.permute((1, 0)), zeros, use_acc=False, is_async=True
        )
    dp, p = warpgroup_mma_wait(0, deps=(dp_token, p))
    delta = deltas.index(i % STAGES).load(COLUMNS)
    # [64 keys, QUERIES]
    ds = (p * (dp - delta[None, :])).to(TYPE)
    dv_token = warpgroup_mma(gl.convert_layout(p.to(TYPE), A), do, dv, is_async=True)
    dk_token = warpgroup_mma(gl.convert_layout(ds, A), q, dk, is_async=True)
    slot = i % BEHIND
    mbarrier.wait(ds_empty.index(slot), (i // BEHIND & 1) ^ 1)
    ds_tiles.index(slot).slice(64 * GROUP, 64, 0).store(ds)
    fence_async_shared()
    mbarrier.arrive(ds_full.index(slot), count=1)
    q_next, do_next = await_full(stream, i + 1, i + 1 < end)
    dv, dk = warpgroup_mma_wait(0, deps=(dv_token, dk_token))
    release(stream, i)
    return dk, dv, q_next, do_next


# --8<-- [end:step]


@gluon.jit
def steps_from(
    start, stop, dk, dv, q, do, resident, tiles, ds_pipe, done, steps, hidden, shift,
    scale_log2,
    GROUP: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Steps `start` to `stop` - 1 of an item, after `done` of those before; `hidden`
    moves by `shift` with each.
    """
    for i in range(start, stop):
        dk, dv, q, do = step(
            dk,
            dv,
            q,
            do,
            resident,
            tiles,
            ds_pipe,
            done + i,
            done + steps,
            hidden + i * shift,
            scale_log2,
            GROUP,
            MASKED,
        )
    return dk, dv, q, do


@gluon.jit
def store_rows(x, ptr, strides, batch, head, start, HEAD: gl.constexpr):
    """HEAD columns of x [64, D], straight from registers: shared memory is full."""
    stride_b, stride_h, stride_n = strides
    rows = start + gl.arange(0, x.shape[0], gl.SliceLayout(1, x.type.layout))
    columns = gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
    ptr += batch.to(gl.int64) * stride_b + head.to(gl.int64) * stride_h
    ptrs, inside = ptr + rows.to(gl.int64)[:, None] * stride_n + columns[None, :], None
    if HEAD < x.shape[1]:
        inside = (columns < HEAD)[None, :]
    gl.store(ptrs, x.to(ptr.dtype.element_ty), mask=inside)


@gluon.jit
def key_group(
    outputs,
    ds_pipe,
    common,
    scales,
    GROUP: gl.constexpr,
    HEAD: gl.constexpr,
    D: gl.constexpr,
    CAUSAL: gl.constexpr,
):
    """dk and dv of 64 rows of this program's items, and their dS."""
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, QUERIES, 16]
    )
    O: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16]
    )
    A: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=S, k_width=2)
    dk_ptr, dk_strides, dv_ptr, dv_strides = outputs
    pipes, place, items, heads = common
    k_tile, v_tile, kv_full, kv_empty, stream, lses, deltas = pipes
    scale_log2, scale = scales
    zeros = gl.zeros([64, QUERIES], gl.float32, S)
    tiles = (stream, lses, deltas)
    done = 0
    for n in range(items):
        batch_head, keys, steps = item_of(n, place, CAUSAL)
        # The mask cuts as many steps as lie beside the keys: the first ones forwards,
        # the last ones backwards.
        cut, hidden, shift = 0, 64 * GROUP, -QUERIES
        if n % 2 == 1:
            cut, hidden, shift = (
                steps - BESIDE,
                64 * GROUP + (1 - steps) * QUERIES,
                QUERIES,
            )
        dk, dv = gl.zeros([64, D], gl.float32, O), gl.zeros([64, D], gl.float32, O)
        mbarrier.wait(kv_full.index(0), n & 1)
        # [64, D], in registers where they have room.
        k, v = k_tile.slice(64 * GROUP, 64, 0), v_tile.slice(64 * GROUP, 64, 0)
        if D == 64:
            resident = (k.load(A), v.load(A), zeros)
        else:
            resident = (k, v, zeros)
        q, do = await_full(stream, done)
        start = 0
        if CAUSAL:
            dk, dv, q, do = steps_from(
                0,
                cut,
                dk,
                dv,
                q,
                do,
                resident,
                tiles,
                ds_pipe,
                done,
                steps,
                hidden,
                shift,
                scale_log2,
                GROUP,
                False,
            )
            start = cut + BESIDE
            dk, dv, q, do = steps_from(
                cut,
                start,
                dk,
                dv,
                q,
                do,
                resident,
                tiles,
                ds_pipe,
                done,
                steps,
                hidden,
                shift,
                scale_log2,
                GROUP,
                True,
            )
        dk, dv, q, do = steps_from(
            start,
            steps,
            dk,
            dv,
            q,
            do,
            resident,
            tiles,
            ds_pipe,
            done,
            steps,
            hidden,
            shift,
            scale_log2,
            GROUP,
            False,
        )
        done += steps
        mbarrier.arrive(kv_empty.index(0), count=1)
        batch, head = batch_head // heads, batch_head % heads
        store_rows(
            dk * scale, dk_ptr, dk_strides, batch, head, keys * KEYS + 64 * GROUP, HEAD
        )
        store_rows(dv, dv_ptr, dv_strides, batch, head, keys * KEYS + 64 * GROUP, HEAD)


# --8<-- [start:share]
@gluon.jit
def as_held(x):
    """x [QUERIES, PART] in the order in which threads hold it, 32 in a row: each its
    four, a warp's lanes, its columns.

    Each thread stores 16 bytes beside the last one's, and no two meet in a bank.
    """
    N: gl.constexpr = x.shape[1]
    return (
        x.reshape([4, 2, 8, N // 8, 4, 2])
        .permute([0, 3, 2, 4, 1, 5])
        .reshape([QUERIES * N // 32, 32])
    )


@gluon.jit
def share_group(pipe, ds_pipe, common, scale, D: gl.constexpr, CAUSAL: gl.constexpr):
    """This program's shares of dq."""
    Q: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PART, 16]
    )
    pipes, place, items, heads = common
    k, v, kv_full, kv_empty, stream, lses, deltas = pipes
    ds_tiles, ds_full, ds_empty = ds_pipe
    shares, full, empty = pipe
    BEHIND: gl.constexpr = ds_tiles.shape[0]
    SLOTS: gl.constexpr = shares.shape[0]
    zeros = gl.zeros([QUERIES, PART], gl.float32, Q)
    done = 0
    for n in range(items):
        batch_head, keys, steps = item_of(n, place, CAUSAL)
        mbarrier.wait(kv_full.index(0), n & 1)
        for _ in range(steps):
            slot = done % BEHIND
            mbarrier.wait(ds_full.index(slot), done // BEHIND & 1)
            there = done % SLOTS
            for part in gl.static_range(D // PART):
                columns = k.slice(part * PART, PART, 1)
                dq_token = warpgroup_mma(
                    ds_tiles.index(slot).permute((1, 0)),
                    columns,
                    zeros,
                    use_acc=False,
                    is_async=True,
                )
                dq = warpgroup_mma_wait(0, deps=(dq_token,))
                if part == D // PART - 1:
                    mbarrier.arrive(ds_empty.index(slot), count=1)
                if part == 0:
                    mbarrier.wait(empty.index(there), (done // SLOTS & 1) ^ 1)
                rows = as_held(dq * scale)
                shares.index(there).slice(part * rows.shape[0], rows.shape[0], 0).store(
                    rows
                )
            fence_async_shared()
            mbarrier.arrive(full.index(there), count=1)
            done += 1
        mbarrier.arrive(kv_empty.index(0), count=1)


# --8<-- [end:share]


# --8<-- [start:adder]
@gluon.jit
def adder(
    dq_desc, counters_ptr, pipe, place, items, ME: gl.constexpr, CAUSAL: gl.constexpr
):
    """Adds every ADDERS-th share to dq, each when it is its turn."""
    shares, full, empty = pipe
    ADDERS: gl.constexpr = shares.shape[0]
    ROWS: gl.constexpr = shares.shape[1]
    tiles = place[3]
    done = 0
    # A warp without a slot has nothing to do.
    if ME >= ADDERS:
        items = 0
    for n in range(items):
        batch_head, keys, steps = item_of(n, place, CAUSAL)
        for i in range((ME + ADDERS - done % ADDERS) % ADDERS, steps, ADDERS):
            tile, turn = tile_of(i, n, keys, tiles, CAUSAL)
            number = batch_head * tiles * BESIDE + tile
            # Most often it is its turn before the share is there.
            while counted(counters_ptr + number) != turn:
                pass
            others_written()
            mbarrier.wait(full.index(ME), (done + i) // ADDERS & 1)
            if turn == 0:
                tma.async_copy_shared_to_global(
                    dq_desc, [number * ROWS, 0], shares.index(ME)
                )
            else:
                add_shared_to_global(dq_desc, [number * ROWS, 0], shares.index(ME))
            tma.store_wait(0)
            mbarrier.arrive(empty.index(ME), count=1)
            written()
            gl.atomic_add(counters_ptr + number, 1, sem="release", scope="gpu")
        done += steps


# --8<-- [end:adder]


@gluon.jit(do_not_specialize=["batch", "heads", "tiles", "groups"])
def one_pass_kernel(
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, dq_desc, dk_ptr, dv_ptr,
    counters_ptr,
    stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh, stride_dvn,
    batch, heads, tiles, groups, scale_log2, scale,
    HEAD: gl.constexpr, D: gl.constexpr, CAUSAL: gl.constexpr, STAGES: gl.constexpr,
    BEHIND: gl.constexpr, ADDERS: gl.constexpr, REGISTERS: gl.constexpr,
    SHARE_REGISTERS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """dq in float32 and as held, dk and dv. Grid: tiles of keys x groups; group g takes
    heads g, g + groups, ...
    """
    group = gl.program_id(0) // tiles
    items = gl.cdiv(batch * heads - group, groups)
    place = (group, groups, gl.program_id(0) % tiles, tiles)
    TYPE: gl.constexpr = k_desc.dtype

    k_tile = gl.allocate_shared_memory(TYPE, [KEYS, D], TILE)
    v_tile = gl.allocate_shared_memory(TYPE, [KEYS, D], TILE)
    ds_tiles = gl.allocate_shared_memory(TYPE, [BEHIND, KEYS, QUERIES], TILE)
    ds_pipe = (ds_tiles, barriers(BEHIND, 2), barriers(BEHIND, 1))
    lses = gl.allocate_shared_memory(gl.float32, [STAGES, QUERIES], NUMBERS)
    deltas = gl.allocate_shared_memory(gl.float32, [STAGES, QUERIES], NUMBERS)
    pipes = (
        k_tile,
        v_tile,
        barriers(1, 1),
        barriers(1, 3),
        ring(q_desc, STAGES, 2),
        lses,
        deltas,
    )
    shares = gl.allocate_shared_memory(
        gl.float32, [ADDERS, QUERIES * D // 32, 32], SHARE
    )
    pipe = (shares, barriers(ADDERS, 1), barriers(ADDERS, 1))
    outputs = (
        dk_ptr,
        (stride_dkb, stride_dkh, stride_dkn),
        dv_ptr,
        (stride_dvb, stride_dvh, stride_dvn),
    )
    common, scales = (pipes, place, items, heads), (scale_log2, scale)
    gl.warp_specialize(
        [
            (key_group, (outputs, ds_pipe, common, scales, 0, HEAD, D, CAUSAL)),
            (key_group, (outputs, ds_pipe, common, scales, 1, HEAD, D, CAUSAL)),
            (share_group, (pipe, ds_pipe, common, scale, D, CAUSAL)),
            (
                producer,
                (q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, common, CAUSAL),
            ),
            (adder, (dq_desc, counters_ptr, pipe, place, items, 0, CAUSAL)),
            (adder, (dq_desc, counters_ptr, pipe, place, items, 1, CAUSAL)),
            (adder, (dq_desc, counters_ptr, pipe, place, items, 2, CAUSAL)),
        ],
        [4, 4, 1, 1, 1, 1],
        [
            REGISTERS,
            SHARE_REGISTERS,
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
