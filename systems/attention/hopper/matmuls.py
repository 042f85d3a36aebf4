"""Matmuls of tiles whose columns are divided into blocks. Head dimensions from 72 to 96
(NARROW) use blocks of 64 and 32, because Triton's tensors have powers of two as sizes.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.jit
def zero_accumulators(D: gl.constexpr, NARROW: gl.constexpr):
    """Return a tuple of float32 zeros: [64, D], or if NARROW [64, 64] and [64, 32]."""
    FIRST: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64 if NARROW else D, 16]
    )
    REST: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 32, 16]
    )
    if NARROW:
        blocks = (
            gl.zeros([64, 64], gl.float32, FIRST),
            gl.zeros([64, 32], gl.float32, REST),
        )
    else:
        blocks = (gl.zeros([64, D], gl.float32, FIRST),)
    return blocks


@gluon.jit
def start_matmul(a, b, zeros, NARROW: gl.constexpr):
    """Start the matmul a @ bᵀ; return its token. If NARROW, use columns 0 to 95."""
    if NARROW:
        token = warpgroup_mma(
            a.slice(0, 64, 1), b.slice(0, 64, 1).permute((1, 0)), zeros, use_acc=False,
            is_async=True,
        )  # fmt: skip
        token = warpgroup_mma(
            a.slice(64, 32, 1), b.slice(64, 32, 1).permute((1, 0)), token, is_async=True
        )
    else:
        token = warpgroup_mma(a, b.permute((1, 0)), zeros, use_acc=False, is_async=True)
    return token


@gluon.jit
def start_block_matmul(block, p, x, FIRST: gl.constexpr):
    """Start block += p @ x, for columns of x from FIRST on, and return the token."""
    A: gl.constexpr = gl.DotOperandLayout(
        operand_index=0, parent=block.type.layout, k_width=2
    )
    columns = x.slice(FIRST, block.shape[1], 1)
    return warpgroup_mma(gl.convert_layout(p, A), columns, block, is_async=True)


@gluon.jit
def start_add_matmul(blocks, p, x):
    """Start blocks += p @ x, a wgmma for each block of columns; return their tokens."""
    tokens = (start_block_matmul(blocks[0], p, x, 0),)
    if len(blocks) == 2:
        tokens = tokens + (start_block_matmul(blocks[1], p, x, 64),)
    return tokens


@gluon.jit
def wait_all(tokens):
    """Wait for the matmuls of one or two wgmma tokens; return a tuple of results."""
    if len(tokens) == 2:
        sums = warpgroup_mma_wait(0, deps=tokens)
    else:
        sums = (warpgroup_mma_wait(0, deps=tokens),)
    return sums


@gluon.jit
def wait_all_and_pin(x, tokens):
    """Wait for all matmuls; return (x, results). Because x passes through the wait, the
    compiler can't move the computation of x below it.
    """
    if len(tokens) == 2:
        x, first, rest = warpgroup_mma_wait(0, deps=(x, tokens[0], tokens[1]))
        sums = (first, rest)
    else:
        x, first = warpgroup_mma_wait(0, deps=(x, tokens[0]))
        sums = (first,)
    return x, sums


@gluon.jit
def scale_rows(blocks, factor):
    """Return the blocks, with row i of each multiplied by factor[i]."""
    FIRST: gl.constexpr = gl.SliceLayout(1, blocks[0].type.layout)
    scaled = (blocks[0] * gl.convert_layout(factor, FIRST)[:, None],)
    if len(blocks) == 2:
        REST: gl.constexpr = gl.SliceLayout(1, blocks[1].type.layout)
        scaled = scaled + (  # noqa: RUF005
            blocks[1] * gl.convert_layout(factor, REST)[:, None],
        )
    return scaled


class StridedTensor(NamedTuple):
    """A tensor in global memory, with the strides of batches, heads and rows."""

    ptr: gl.tensor
    stride_b: gl.tensor
    stride_h: gl.tensor
    stride_n: gl.tensor


@gluon.jit
def store_rows(
    x, out, batch, head, start, n, FIRST: gl.constexpr, HEAD: gl.constexpr,
    RAGGED: gl.constexpr,
):  # fmt: skip
    """Store x in a head of `out`, from row `start` and column FIRST on. Skip columns
    from HEAD on and, if RAGGED, rows from n on.
    """
    rows = start + gl.arange(0, x.shape[0], gl.SliceLayout(1, x.type.layout))
    columns = FIRST + gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
    ptr = out.ptr
    ptr += batch.to(gl.int64) * out.stride_b + head.to(gl.int64) * out.stride_h
    ptrs = ptr + rows.to(gl.int64)[:, None] * out.stride_n + columns[None, :]
    inside = None
    if HEAD < FIRST + x.shape[1]:
        inside = (columns < HEAD)[None, :]
        if RAGGED:
            inside = inside & (rows < n)[:, None]
    elif RAGGED:
        inside = (rows < n)[:, None]
    gl.store(ptrs, x.to(ptr.dtype.element_ty), mask=inside)
