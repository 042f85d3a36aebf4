"""Measure how fast TMA adds to memory in L2, which limits the one-pass backward."""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from systems.attention.hopper.accumulation import DQ_LAYOUT, add_shared_to_global
from systems.attention.hopper.descriptors import Descriptor

# Rows of 32 float32 numbers in a tile: the size of a 64 x 64 partial dq.
ROWS = 128
TILE_BYTES = ROWS * 32 * 4
# TMA additions in flight per program, as in `one_pass`.
IN_FLIGHT = gl.constexpr(3)


# --8<-- [start:additions]
@gluon.jit
def add_kernel(sum_desc, tiles, steps, num_warps: gl.constexpr):
    """In each program, add ones to `steps` consecutive tiles, wrapping at the end."""
    ROWS: gl.constexpr = sum_desc.block_shape[0]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [num_warps, 1], [1, 0])
    ones = gl.allocate_shared_memory(
        gl.float32, [ROWS, 32], DQ_LAYOUT, gl.full([ROWS, 32], 1.0, gl.float32, LAYOUT)
    )
    fence_async_shared()
    first = gl.program_id(0) * tiles // gl.num_programs(0)
    for i in range(steps):
        add_shared_to_global(sum_desc, [(first + i) % tiles * ROWS, 0], ones)
        tma.store_wait(IN_FLIGHT - 1)
    tma.store_wait(0)


def add_ones(sums: Tensor, programs: int, steps: int) -> None:
    """Add `programs` x `steps` tiles of ones to `sums` (tiles, ROWS, 32)."""
    tiles = len(sums)
    descriptor = Descriptor(
        (tiles * ROWS, 32), (32, 1), [ROWS, 32], torch.float32, swizzle=128
    )
    add_kernel[(programs,)](
        descriptor(sums), tiles, steps, num_warps=4, enable_fp_fusion=True
    )
    # --8<-- [end:additions]
