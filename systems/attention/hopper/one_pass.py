"""The backward pass for Hopper in one kernel, with five matmuls instead of seven in two
kernels, and bitwise reproducible. A program owns 128 rows of k and v, and loops over
tiles of 64 queries:

    producer (1 warp)             copies k and v, and tiles of q and do with their lse
                                  and delta, into a ring
    two key groups (warp groups)  64 keys each: S and dP, transposed; dv += Pᵀ do,
                                  dk += dSᵀ q; dS into shared memory (`dkdv_consumer`)
    dq group (warp group)         dS k of all 128 keys, this program's partial dq, into
                                  shared memory (`dq_consumer`)
    writers (1 warp each)         wait for the semaphore, and add a partial to dq by TMA
                                  (`dq_writer`)

Floating-point sums depend on their order. Therefore each tile of dq has a semaphore
that counts the partials added so far, and a writer adds the n-th partial when the count
is n. The modules `shift` and `ordered` define two such orders ("walks") and the roles,
which call `process_tiles` here, `compute_partial_dq` and `add_partial` in
`accumulation`.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma_wait,
)

from systems.attention.hopper.accumulation import DQ_LAYOUT, QUERIES
from systems.attention.hopper.dkdv import make_statistics
from systems.attention.hopper.forward import (
    TILE_LAYOUT,
    TileBuffers,
    make_barriers,
    make_ring,
    release_stage,
    wait_full,
)
from systems.attention.hopper.matmuls import start_add_matmul, start_matmul, store_rows
from systems.attention.triton.primitives import LOG2E

# Rows of a program's tile of keys, in keys and in tiles of 64 queries.
KEYS = gl.constexpr(128)
QUERY_TILES = gl.constexpr(2)


class SharedKV(NamedTuple):
    """A program's tiles of k and v in shared memory, and the barrier of their copy."""

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor


@gluon.jit
def allocate_shared(
    q_desc, k_desc, D: gl.constexpr, STAGES: gl.constexpr, DS_STAGES: gl.constexpr,
    DQ_STAGES: gl.constexpr,
):  # fmt: skip
    """Allocate shared memory; return (k and v, ring buffer of q and do, lse and delta,
    ring buffer of dS, ring buffer of partial dq).
    """
    TYPE: gl.constexpr = k_desc.dtype
    k = gl.allocate_shared_memory(TYPE, [KEYS, D], TILE_LAYOUT)
    v = gl.allocate_shared_memory(TYPE, [KEYS, D], TILE_LAYOUT)
    ds_ring = TileBuffers(
        gl.allocate_shared_memory(TYPE, [DS_STAGES, KEYS, QUERIES], TILE_LAYOUT),
        make_barriers(DS_STAGES, 2),
        make_barriers(DS_STAGES, 1),
    )
    statistics = make_statistics(STAGES, QUERIES)
    kv, ring = SharedKV(k, v, make_barriers(1, 1)), make_ring(q_desc, STAGES, 2)
    gl.static_assert(DQ_STAGES <= 3)  # Each stage has one of three writers.
    dq_ring = TileBuffers(
        gl.allocate_shared_memory(
            gl.float32, [DQ_STAGES, QUERIES * D // 32, 32], DQ_LAYOUT
        ),
        make_barriers(DQ_STAGES, 1),
        make_barriers(DQ_STAGES, 1),
    )
    return kv, ring, statistics, ds_ring, dq_ring


@gluon.jit
def apply_mask(s, diagonal, limit, RAGGED: gl.constexpr):
    """Return s [keys, queries], with -∞ where query - key < `diagonal` or, if RAGGED,
    where key ≥ `limit`. Keys and queries are numbered from 0 in this tile.
    """
    keys = gl.arange(0, s.shape[0], gl.SliceLayout(1, s.type.layout))
    queries = gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
    visible = queries[None, :] - keys[:, None] >= diagonal
    if RAGGED:
        visible = visible & (keys < limit)[:, None]
    return gl.where(visible, s, -float("inf"))


@gluon.jit
def wait_empty(ds_ring, i):
    """Wait until the stage for dS of step i is free, and return the stage's index."""
    DS_STAGES: gl.constexpr = ds_ring.tiles.shape[0]
    stage = i % DS_STAGES
    mbarrier.wait(ds_ring.empty.index(stage), (i // DS_STAGES & 1) ^ 1)
    return stage


@gluon.jit
def store_ds(ds, ds_ring, stage, GROUP: gl.constexpr):
    """Store ds, this key group's 64 of 128 rows, in shared memory for the dq group."""
    ds_ring.tiles.index(stage).slice(64 * GROUP, 64, 0).store(ds)
    fence_async_shared()
    mbarrier.arrive(ds_ring.full.index(stage), count=1)


# --8<-- [start:step]
@gluon.jit
def process_tile(
    dk, dv, q, do, resident, ring, statistics, ds_ring, i, end, diagonal, limit,
    scale_log2, GROUP: gl.constexpr, MASKED: gl.constexpr, RAGGED: gl.constexpr,
    EARLY: gl.constexpr,
):  # fmt: skip
    """Add query tile i to dk and dv, and store dS. Return (dk, dv, next q, next do).
    `resident` is (k, v, zeros [64, QUERIES]). If EARLY, wait for a free dS stage before
    the wait for dP, so that the compiler doesn't move the wait for dP above exp2.
    """
    k, v, zeros = resident
    STAGES: gl.constexpr = statistics.lse.shape[0]
    COLUMNS: gl.constexpr = gl.SliceLayout(0, zeros.type.layout)
    TYPE: gl.constexpr = q.dtype
    # At D = 128 the compiler would serialize two matmuls in flight, for lack of
    # registers, so dP is started later.
    AT_ONCE: gl.constexpr = dk[0].shape[1] == 64
    s_token = start_matmul(k, q, zeros, False)
    if AT_ONCE:
        dp_token = start_matmul(v, do, zeros, False)
        # [64 keys, QUERIES]
        s = warpgroup_mma_wait(1, deps=(s_token,))
    else:
        s = warpgroup_mma_wait(0, deps=(s_token,))
    if MASKED:
        s = apply_mask(s, diagonal, limit, RAGGED)
    # Scaling lse in the delta kernel saves instructions, but was measured to be slower.
    lse = statistics.lse.index(i % STAGES).load(COLUMNS) * LOG2E
    p = gl.exp2(s * scale_log2 - lse[None, :])
    if not AT_ONCE:
        dp_token = start_matmul(v, do, zeros, False)
    if EARLY:
        stage = wait_empty(ds_ring, i)
    dp, p = warpgroup_mma_wait(0, deps=(dp_token, p))
    delta = statistics.delta.index(i % STAGES).load(COLUMNS)
    # [64 keys, QUERIES]
    ds = (p * (dp - delta[None, :])).to(TYPE)
    sums = start_add_matmul(dv, p.to(TYPE), do) + start_add_matmul(dk, ds, q)
    if not EARLY:
        stage = wait_empty(ds_ring, i)
    store_ds(ds, ds_ring, stage, GROUP)
    q_next, do_next = wait_full(ring, i + 1, i + 1 < end)
    dv, dk = warpgroup_mma_wait(0, deps=sums)
    release_stage(ring, i)
    return (dk,), (dv,), q_next, do_next
    # --8<-- [end:step]


@gluon.jit
def process_tiles(
    start, stop, dk, dv, q, do, resident, ring, statistics, ds_ring, steps_done, end,
    diagonal, shift, limit, scale_log2, GROUP: gl.constexpr, MASKED: gl.constexpr,
    RAGGED: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """Return `process_tile`'s result after steps `start` to `stop` - 1 of a query head.
    Step i is masked with `diagonal` + i · `shift`. Earlier heads took `steps_done` of
    the `end` steps.
    """
    for i in range(start, stop):
        dk, dv, q, do = process_tile(
            dk, dv, q, do, resident, ring, statistics, ds_ring, steps_done + i, end,
            diagonal + i * shift, limit, scale_log2, GROUP, MASKED, RAGGED, EARLY,
        )  # fmt: skip
    return dk, dv, q, do


@gluon.jit
def store_dk_dv(
    dk, dv, out, batch, head, start, n, scale, HEAD: gl.constexpr, RAGGED: gl.constexpr
):
    """Store dk · scale and dv of 64 keys from `start` on, if RAGGED only below n."""
    dk_out, dv_out = out
    for i in gl.static_range(len(dk)):
        store_rows(dk[i] * scale, dk_out, batch, head, start, n, 64 * i, HEAD, RAGGED)
        store_rows(dv[i], dv_out, batch, head, start, n, 64 * i, HEAD, RAGGED)


# Steps for head dimensions from 72 to 96. Unlike in the steps above, the matmul for the
# next step's S is queued behind the matmuls for dv and dk, and one wait covers all
# three, so that tensor cores don't idle between steps.
@gluon.jit
def keep_branch():
    """Emit a no-op in assembly, so that the compiler doesn't if-convert this branch."""
    gl.inline_asm_elementwise(
        "mov.u32 $0, 0;", "=r,r", [0], dtype=gl.int32, is_pure=False, pack=1
    )


# --8<-- [start:process_narrow_tile]
@gluon.jit
def process_narrow_tile(
    dk, dv, s, q, do, resident, ring, statistics, ds_ring, i, end, diagonal, limit,
    is_cut, scale_log2, GROUP: gl.constexpr, MASKED: gl.constexpr, RAGGED: gl.constexpr,
):  # fmt: skip
    """Process query tile i, with scores s, as `process_tile` does; mask s if `is_cut`.
    Return (dk, dv, next s, next q, next do).
    """
    k, v, zeros = resident
    STAGES: gl.constexpr = statistics.lse.shape[0]
    COLUMNS: gl.constexpr = gl.SliceLayout(0, zeros.type.layout)
    TYPE: gl.constexpr = q.dtype
    dp_token = start_matmul(v, do, zeros, True)
    if MASKED:
        if is_cut:
            keep_branch()
            s = apply_mask(s, diagonal, limit, RAGGED)
    lse = statistics.lse.index(i % STAGES).load(COLUMNS) * LOG2E
    p = gl.exp2(s * scale_log2 - lse[None, :])
    # This wait also keeps the compiler from moving the wait for dP above exp2.
    stage = wait_empty(ds_ring, i)
    # The matmul for dv does not need dP, so it overlaps with the wait for dP.
    dv_tokens = start_add_matmul(dv, p.to(TYPE), do)
    dp = warpgroup_mma_wait(2, deps=(dp_token,))
    delta = statistics.delta.index(i % STAGES).load(COLUMNS)
    # [64 keys, QUERIES]
    ds = (p * (dp - delta[None, :])).to(TYPE)
    tokens = dv_tokens + start_add_matmul(dk, ds, q)
    store_ds(ds, ds_ring, stage, GROUP)
    q_next, do_next = wait_full(ring, i + 1, i + 1 < end)
    # After the last step this matmul reads old tiles, and its result is unused.
    s_token = start_matmul(k, q_next, zeros, True)
    sums = warpgroup_mma_wait(0, deps=(s_token,) + tokens)  # noqa: RUF005
    release_stage(ring, i)
    return sums[3:], sums[1:3], sums[0], q_next, do_next
    # --8<-- [end:process_narrow_tile]


@gluon.jit
def process_narrow_tiles(
    steps, heads, dk, dv, resident, ring, statistics, ds_ring, diagonal, shift, limit,
    cut, cut_end, scale_log2,
    GROUP: gl.constexpr, MASKED: gl.constexpr, RAGGED: gl.constexpr,
):  # fmt: skip
    """Return (dk, dv) of all heads; mask steps `cut` to `cut_end` - 1 of each head."""
    k, v, zeros = resident
    end = steps * heads
    q, do = wait_full(ring, 0, end > 0)
    s = warpgroup_mma_wait(0, deps=(start_matmul(k, q, zeros, True),))
    for i in range(end):
        head_step = i % steps
        dk, dv, s, q, do = process_narrow_tile(
            dk, dv, s, q, do, resident, ring, statistics, ds_ring, i, end,
            diagonal + head_step * shift, limit,
            (head_step >= cut) & (head_step < cut_end), scale_log2, GROUP, MASKED,
            RAGGED,
        )  # fmt: skip
    return dk, dv
