"""Matmuls of tiles in blocks of columns. A tile has 64 or 128 columns, of which a head
dimension from 72 to 96 needs 96: as 64 and 32, since a tensor's columns are a power of
two.
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
    """Sums of 64 rows in blocks of columns: D, or where NARROW the first 64 and the
    next 32. A tensor's columns are a power of two, and 96 are not.
    """
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
    """a bᵀ, under way; where NARROW of columns 0 to 95."""
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
def accumulate_block(block, p, x, FIRST: gl.constexpr):
    """block += p x of as many columns of x, from FIRST on; under way."""
    A: gl.constexpr = gl.DotOperandLayout(
        operand_index=0, parent=block.type.layout, k_width=2
    )
    columns = x.slice(FIRST, block.shape[1], 1)
    return warpgroup_mma(gl.convert_layout(p, A), columns, block, is_async=True)


@gluon.jit
def accumulate(blocks, p, x):
    """The same for each block of columns."""
    tokens = (accumulate_block(blocks[0], p, x, 0),)
    if len(blocks) == 2:
        tokens = tokens + (accumulate_block(blocks[1], p, x, 64),)
    return tokens


@gluon.jit
def wait_all(tokens):
    """The sums, once all matmuls are done."""
    if len(tokens) == 2:
        sums = warpgroup_mma_wait(0, deps=tokens)
    else:
        sums = (warpgroup_mma_wait(0, deps=tokens),)
    return sums


@gluon.jit
def wait_all_and(x, tokens):
    """(x, sums): wait for all matmuls. That x goes through the wait keeps the compiler
    from computing it afterwards.
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
    """Each row of all blocks times its factor."""
    FIRST: gl.constexpr = gl.SliceLayout(1, blocks[0].type.layout)
    scaled = (blocks[0] * gl.convert_layout(factor, FIRST)[:, None],)
    if len(blocks) == 2:
        REST: gl.constexpr = gl.SliceLayout(1, blocks[1].type.layout)
        scaled = scaled + (  # noqa: RUF005
            blocks[1] * gl.convert_layout(factor, REST)[:, None],
        )
    return scaled


class Rows(NamedTuple):
    """Rows of a tensor in memory, with the strides of batches, heads and rows."""

    ptr: gl.tensor
    stride_b: gl.tensor
    stride_h: gl.tensor
    stride_n: gl.tensor


@gluon.jit
def store_rows(
    x, out, batch, head, start, n, FIRST: gl.constexpr, HEAD: gl.constexpr,
    RAGGED: gl.constexpr,
):  # fmt: skip
    """Columns of x from FIRST to HEAD, of rows before n, straight from registers:
    shared memory is full.
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
