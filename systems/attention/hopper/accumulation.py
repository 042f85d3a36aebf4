"""Ordered accumulation of dq in global memory: a semaphore per tile makes programs add
partials (contributions) in a fixed, reproducible order. NARROW: see `matmuls`.
"""

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

from systems.attention.hopper.forward import async_store

# Queries in each step, and columns of a partial dq that one matmul computes.
QUERIES = gl.constexpr(64)
DQ_COLUMNS = gl.constexpr(64)
# QUERIES x DQ_COLUMNS numbers are stored as PACKED_ROWS rows of 32 numbers.
PACKED_ROWS = gl.constexpr(128)
DQ_LAYOUT = gl.constexpr(
    gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32)
)


# --8<-- [start:dq]
@gluon.jit
def pack_for_reduce(x):
    """Reorder x [QUERIES, DQ_COLUMNS] into rows of 32 numbers, so that stores have no
    bank conflicts. Order, innermost first: a thread's 4 numbers, lanes, columns, warps.
    """
    N: gl.constexpr = x.shape[1]
    return (
        x.reshape([4, 2, 8, N // 8, 4, 2])
        .permute([0, 3, 2, 4, 1, 5])
        .reshape([QUERIES * N // 32, 32])
    )


@gluon.jit
def start_dq_matmul(k, ds):
    """Start the matmul dS @ k and return its token; ds is dS transposed."""
    COLUMNS: gl.constexpr = k.shape[1]
    Q: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, COLUMNS, 16]
    )
    zeros = gl.zeros([QUERIES, COLUMNS], gl.float32, Q)
    return warpgroup_mma(ds.permute((1, 0)), k, zeros, use_acc=False, is_async=True)


@gluon.jit
def compute_partial_dq(
    dq_ring, ds_ring, kv, step, D: gl.constexpr, NARROW: gl.constexpr
):
    """Store a step's partial dq (its contribution to dq, unscaled) in dq_ring."""
    BLOCKS: gl.constexpr = D // DQ_COLUMNS
    stage, dq_stage = step % ds_ring.tiles.shape[0], step % dq_ring.tiles.shape[0]
    mbarrier.wait(ds_ring.full.index(stage), step // ds_ring.tiles.shape[0] & 1)
    ds = ds_ring.tiles.index(stage)
    for i in gl.static_range(BLOCKS):
        # If NARROW, the second block has only half of the columns.
        k = kv.k.slice(i * DQ_COLUMNS, DQ_COLUMNS // (i + 1 if NARROW else 1), 1)
        token = start_dq_matmul(k, ds)
        dq = warpgroup_mma_wait(0, deps=(token,))
        if i == BLOCKS - 1:
            mbarrier.arrive(ds_ring.empty.index(stage), count=1)
        if i == 0:
            phase = (step // dq_ring.tiles.shape[0] & 1) ^ 1
            mbarrier.wait(dq_ring.empty.index(dq_stage), phase)
        x = pack_for_reduce(dq)
        rows = dq_ring.tiles.index(dq_stage).slice(i * PACKED_ROWS, x.shape[0], 0)
        rows.store(x)
    fence_async_shared()
    mbarrier.arrive(dq_ring.full.index(dq_stage), count=1)
    # --8<-- [end:dq]


@builtin
def add_shared_to_global(desc, coord, src, _semantic=None):
    """Add a tile in shared memory to global memory by TMA, with Gluon's private API."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(
        ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle
    )


@gluon.jit
def load_acquire(semaphore_ptr):
    """Return a semaphore's value, loaded with acquire semantics at GPU scope."""
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
    """Order this thread's next TMA additions after writes seen by the acquire load."""
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
    """Wait until this thread's TMA writes are visible to other SMs."""
    gl.inline_asm_elementwise(
        "{ cp.async.bulk.wait_group 0; fence.proxy.async.global; "
        "bar.warp.sync 0xffffffff; mov.u32 $0, 0; }",
        "=r,r", [0], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


# --8<-- [start:writer]
@gluon.jit
def add_partial(
    dq_desc, semaphores_ptr, dq_ring, number, order, phase,
    ME: gl.constexpr, NARROW: gl.constexpr,
):  # fmt: skip
    """Wait until dq tile `number` has `order` partials (contributions), and add the one
    in ring stage ME. `phase` is the phase parity of that stage's barrier "full".
    """
    ROWS: gl.constexpr = dq_ring.tiles.shape[1]
    BOX: gl.constexpr = dq_desc.block_type.shape[0]
    # If NARROW, add three of four TMA boxes: the last has only padding columns.
    BOXES: gl.constexpr = 3 if NARROW else 1
    partial = dq_ring.tiles.index(ME)
    # Wait for the semaphore first, because the partial is usually ready later.
    while load_acquire(semaphores_ptr + number) != order:
        pass
    fence_after_acquire()
    mbarrier.wait(dq_ring.full.index(ME), phase)
    for i in gl.static_range(BOXES):
        coords, box = [number * ROWS + i * BOX, 0], partial.slice(i * BOX, BOX, 0)
        if order == 0:
            async_store(dq_desc, coords, box)
        else:
            add_shared_to_global(dq_desc, coords, box)
    tma.store_wait(0)
    mbarrier.arrive(dq_ring.empty.index(ME), count=1)
    fence_before_release()
    gl.atomic_add(semaphores_ptr + number, 1, sem="release", scope="gpu")
    # --8<-- [end:writer]
