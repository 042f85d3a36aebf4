"""Flash attention for Hopper GPUs: which inputs these kernels take, their launch configurations, their launchers.

The kernels stand in `flash_hopper_forward` and `flash_hopper_backward`, written in Gluon, the dialect of Triton in
which warps have roles and each copy, barrier and product is placed by hand. They hold what `flash_triton` promises (no
atomics, results that repeat bit by bit) and take less: 16-bit dtypes, head dimensions 64 and 128, tensors that the
copy engine can read. `takes` decides; what it refuses runs on the plain kernels.
"""

# Triton's decorator hides from the type checker that a kernel is called with a grid, options and plain constants.
# pyright: reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false

from functools import cache, lru_cache, partial
from heapq import heapreplace
from itertools import accumulate
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton import knobs

from systems.attention.inputs import with_heads
from systems.attention.tiles import multiprocessors

# --8<-- [start:limits]
# Off while a change to these kernels has not yet passed tests/test_attention_hopper.py on such a GPU.
VERIFIED = True
# Versions of Triton whose Gluon these kernels were tested with: the dialect changes from one to the next.
VERSIONS = ("3.6.",)
HEAD_DIMS = (64, 128)
DTYPES = (torch.float16, torch.bfloat16)
# With fewer scores the GPU may be done before the host has described the tensors to the copy engine, which the plain
# kernels' launches are spared.
MIN_SCORES = 2**27
# With fewer queries of all heads together some multiprocessors would have no tile, or one where others have two; the
# plain kernels share the loops of theirs.
MIN_ROWS = 2**15
# --8<-- [end:limits]
# Of the L2 cache's 50 MiB, what the keys and values of heads that are walked through side by side may take.
L2_BYTES = 2**23
LOG2E = 1.4426950408889634


# --8<-- [start:configs]
class Config(NamedTuple):
    """GROUPS x 64 rows stay in a program; tiles of `rows` stream past it through `stages` slots."""

    groups: int
    rows: int
    stages: int
    # Of each consumer's thread, and of all threads on average.
    registers: int = 240
    maxnreg: int = 168
    # Forward: P v of a step runs beside the softmax of the next in one consumer, not only in the others.
    overlap: bool = True
    # dk and dv: k and v as the tensor cores' operands stay in registers.
    in_registers: bool = False
    # Forward: programs on each multiprocessor at a time.
    programs: int = 1


# CONFIGS[kernel][head dimension]
CONFIGS = {
    "forward": {64: Config(3, 128, 3, 160, 128, overlap=False), 128: Config(2, 128, 3)},
    "dq": {64: Config(2, 64, 4), 128: Config(2, 64, 4)},
    "dkdv": {64: Config(2, 64, 4, in_registers=True), 128: Config(2, 64, 3)},
}
# Few keys: three small programs on each multiprocessor hide one another's beginning and end.
SHORT = 1024
SHORT_FORWARD = Config(1, 64, 3, 136, 80, programs=3)
# --8<-- [end:configs]
# What an item costs beside its steps, in steps.
ITEM_STEPS = 1


@cache
def available(device: torch.device) -> bool:
    """Whether this GPU is a Hopper, with a Triton whose Gluon was tested."""
    tested = triton.__version__.startswith(VERSIONS) and not knobs.runtime.interpret
    return tested and torch.cuda.get_device_capability(device) == (9, 0)


# --8<-- [start:takes]
def readable(x: Tensor) -> bool:
    """Whether the copy engine can read x: rows in one piece, and rows, heads and batches at multiples of 16 bytes."""
    *outer, last = zip(x.shape, x.stride(), strict=True)
    aligned = all(size == 1 or stride > 0 and stride * x.element_size() % 16 == 0 for size, stride in outer)
    return last[1] == 1 and x.data_ptr() % 16 == 0 and aligned


def takes(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether these kernels compute attention of q (..., n_q, d), k and v (..., n_k, d): with 3 or 4 dimensions."""
    return (
        VERIFIED
        and q.device.type == "cuda"
        and q.dtype in DTYPES
        and q.shape[-1] in HEAD_DIMS
        and q.shape[:-1].numel() >= MIN_ROWS
        and q.shape[:-1].numel() * k.shape[-2] >= MIN_SCORES
        and available(q.device)
        and readable(q)
        and readable(k)
        and readable(v)
    )


# --8<-- [end:takes]


def descriptor(x: Tensor, rows: int):
    """What the copy engine needs to know of x (b, h, n, d) to move `rows` rows; it fills and drops rows past n."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    d = x.shape[-1]
    # A dimension of size 1 may have any stride.
    strides = [stride if size > 1 else d for size, stride in zip(x.shape, x.stride(), strict=True)]
    strides[-1] = 1
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    return TensorDescriptor(x, list(x.shape), strides, [1, 1, rows, d], layout)


def row_descriptor(x: Tensor, n: int, rows: int):
    """The same for numbers of rows: x (b · h, stride), of which the first n count."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    return TensorDescriptor(x, [x.shape[0], n], [x.shape[1], 1], [1, rows], layout)


# --8<-- [start:schedule]
@lru_cache(maxsize=256)
def schedule(
    n_q: int, n_k: int, batch_heads: int, heads_together: int, rows: int, keys: int, causal: bool, programs: int,
    device: torch.device,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(starts, items): program i computes items[starts[i]] to items[starts[i + 1] - 1], in this order.

    An item is a tile of `rows` queries + tiles · head. Long ones first, each to the program that is free first: under a
    causal mask their lengths differ by the number of tiles. `heads_together` heads are walked through side by side.
    """
    tiles = triton.cdiv(n_q, rows)
    steps = [triton.cdiv(min(n_k, (tile + 1) * rows) if causal else n_k, keys) for tile in range(tiles)]
    order = (
        tile + tiles * head
        for start in range(0, batch_heads, heads_together)
        for tile in reversed(range(tiles))
        for head in range(start, min(start + heads_together, batch_heads))
    )
    taken: list[list[int]] = [[] for _ in range(min(programs, tiles * batch_heads))]
    free = [(0, program) for program in range(len(taken))]
    for item in order:
        time, program = free[0]
        taken[program].append(item)
        heapreplace(free, (time + steps[item % tiles] + ITEM_STEPS, program))
    starts = [0, *accumulate(len(items) for items in taken)]
    as_tensor = partial(torch.tensor, dtype=torch.int32, device=device)
    return as_tensor(starts), as_tensor([item for items in taken for item in items])


# --8<-- [end:schedule]


def together(k: Tensor, heads: int, causal: bool) -> int:
    """How many heads are walked through side by side: those whose k and v (b, h, n, d) stay in the L2 cache.

    Without a mask all items are as long, and short ones are many: then one head after the other reads less.
    """
    if not causal or k.shape[2] <= SHORT:
        return 1
    return min(heads, max(1, L2_BYTES // (2 * k.shape[2] * k.shape[3] * k.element_size())))


def launch_forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, config: Config | None = None
) -> tuple[Tensor, Tensor]:
    """(o, lse); `config` overrides the table."""
    from systems.attention.flash_hopper_forward import forward_kernel

    o, lse = torch.empty_like(q), torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    qh, kh, vh, oh = with_heads(q), with_heads(k), with_heads(v), with_heads(o)
    batch, heads, n_q, d = qh.shape
    n_k = kh.shape[2]
    c = config or (SHORT_FORWARD if d == 64 and n_k <= SHORT else CONFIGS["forward"][d])
    programs = c.programs * multiprocessors(q.device)
    starts, items = schedule(
        n_q, n_k, batch * heads, together(kh, batch * heads, causal), 64 * c.groups, c.rows, causal, programs, q.device
    )
    with torch.cuda.device_of(q):
        forward_kernel[(len(starts) - 1,)](
            descriptor(qh, 64), descriptor(kh, c.rows), descriptor(vh, c.rows), o, lse, starts, items,
            *oh.stride()[:3], heads, n_q, n_k, scale * LOG2E,
            BK=c.rows, D=d, HEADS_PER_KV=heads // kh.shape[1], CAUSAL=causal, GROUPS=c.groups, STAGES=c.stages,
            OVERLAP=c.overlap, REGISTERS=c.registers, num_warps=4, maxnreg=c.maxnreg,
        )  # fmt: skip
    return o, lse


def launch_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    dkdv_config: Config | None = None,
    dq_config: Config | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv); the configs override the table."""
    from systems.attention.flash_hopper_backward import dkdv_kernel, dq_kernel

    # The gradient of a sum is one number with strides of zero: it is written out.
    do, o = (x if readable(x) else x.contiguous() for x in (do, o))
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    qh, kh, vh, oh, doh, dqh, dkh, dvh = (with_heads(x) for x in (q, k, v, o, do, dq, dk, dv))
    batch, heads, n_q, d = qh.shape
    kv_heads, n_k = kh.shape[1:3]
    # Rows of lse and delta, 16 bytes aligned.
    stride = triton.cdiv(n_q, 4) * 4
    lse_log2, delta = torch.empty((2, batch * heads, stride), dtype=torch.float32, device=q.device)
    options = {"D": d, "HEADS_PER_KV": heads // kv_heads, "CAUSAL": causal, "num_warps": 4}
    with torch.cuda.device_of(q):
        c = dq_config or CONFIGS["dq"][d]
        dq_kernel[(triton.cdiv(n_q, 64 * c.groups) * batch * heads,)](
            descriptor(qh, 64), descriptor(kh, c.rows), descriptor(vh, c.rows), descriptor(oh, 64),
            descriptor(doh, 64), descriptor(dqh, 64), lse, lse_log2, delta,
            heads, n_q, n_k, stride, scale * LOG2E, scale,
            BK=c.rows, GROUPS=c.groups, STAGES=c.stages, REGISTERS=c.registers, maxnreg=c.maxnreg, **options,
        )  # fmt: skip
        c = dkdv_config or CONFIGS["dkdv"][d]
        dkdv_kernel[(triton.cdiv(n_k, 64 * c.groups) * batch * kv_heads,)](
            descriptor(qh, c.rows), descriptor(kh, 64), descriptor(vh, 64), descriptor(doh, c.rows),
            row_descriptor(lse_log2, n_q, c.rows), row_descriptor(delta, n_q, c.rows),
            descriptor(dkh, 64), descriptor(dvh, 64), heads, n_q, n_k, scale * LOG2E, scale,
            BQ=c.rows, GROUPS=c.groups, STAGES=c.stages, IN_REGISTERS=c.in_registers,
            REGISTERS=c.registers, maxnreg=c.maxnreg, **options,
        )  # fmt: skip
    return dq, dk, dv
