"""Launch Hopper's one-pass backward: delta kernel, main kernel, rounding of dq."""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from systems.attention.hopper.configs import (
    ONE_PASS,
    ONE_PASS_KEYS,
    ONE_PASS_MAXNREG,
    ONE_PASS_QUERIES,
)
from systems.attention.hopper.descriptors import (
    Descriptor,
    describe,
    prepare_for_tma,
    rows_descriptor,
    statistics_descriptor,
)
from systems.attention.hopper.limits import TILE_DIMS, statistics_stride
from systems.attention.hopper.walks import OrderedWalk, ShiftWalk, is_narrow
from systems.attention.relaunch import (
    Launch,
    ShapeAndStrides,
    make_layout,
    shape_and_strides,
)
from systems.attention.triton.primitives import LOG2E


class OnePassPlan(NamedTuple):
    """The launches of a one-pass backward, the TMA descriptors of the main kernel's
    arguments, the number of query tiles in all heads, and the row stride of lse and
    delta.
    """

    delta: Launch
    main: Launch
    descriptors: list[Descriptor]
    rounded: Launch
    tiles: int
    stride: int


@lru_cache(maxsize=1024)
def plan_one_pass(
    dtype: torch.dtype,
    device: torch.device,
    walk: ShiftWalk | OrderedWalk,
    causal: bool,
    scale: float,
    *tensors: ShapeAndStrides,
) -> OnePassPlan:
    """Return and cache a plan, given the layouts of q, k, v, o, do, dq, dk and dv."""
    from systems.attention.hopper import ordered, shift
    from systems.attention.hopper.delta import delta_kernel, round_kernel

    q, k, v, o, do, dq, dk, dv = (make_layout(*x) for x in tensors)
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    step, tile_d = ONE_PASS_QUERIES, TILE_DIMS[d]
    tiles = batch * heads * triton.cdiv(n_q, step)
    tiles_k = triton.cdiv(n_k, ONE_PASS_KEYS)
    stride = statistics_stride(n_q)
    # The shift walk has no matmuls for narrow heads.
    narrow = is_narrow(d) and isinstance(walk, OrderedWalk)
    ragged = {"HEAD": d, "D": tile_d, "RAGGED": n_q % step > 0}
    strides = (*dk.strides[:3], *dv.strides[:3])
    scales = (scale * LOG2E.value, scale)
    constants = {"HEAD": d, "D": tile_d, "CAUSAL": causal, **ONE_PASS[tile_d]}
    options = {"num_warps": 4, "maxnreg": ONE_PASS_MAXNREG}
    statistics = statistics_descriptor(batch * heads, n_q, stride, step)
    if isinstance(walk, ShiftWalk):
        main = Launch(
            shift.one_pass_kernel, (tiles_k * walk.groups,),
            (*strides, batch, heads, tiles_k, walk.groups, *scales),
            constants,
            # Programs wait for one another, so all must run at the same time.
            launch_cooperative_grid=True, **options,
        )  # fmt: skip
    else:
        batch_kv_heads = batch * kv_heads * walk.parts
        main = Launch(
            ordered.one_pass_kernel, (tiles_k * batch_kv_heads,),
            (*strides, heads, batch_kv_heads, n_q, n_k, *walk, *scales),
            {"HEADS_PER_KV": heads // kv_heads // walk.parts,
             "RAGGED": n_k % ONE_PASS_KEYS > 0, "NARROW": narrow, **constants},
            **options,
        )  # fmt: skip
    return OnePassPlan(
        Launch(
            delta_kernel, (tiles,),
            (*o.strides, *do.strides, heads, n_q, stride),
            ragged,
        ),
        main,
        [
            rows_descriptor(q, step, tile_d, dtype),
            rows_descriptor(k, ONE_PASS_KEYS, tile_d, dtype),
            rows_descriptor(v, ONE_PASS_KEYS, tile_d, dtype),
            rows_descriptor(do, step, tile_d, dtype),
            statistics, statistics,
            # dq as rows of 32 numbers. One TMA copy moves the partial dq of a step, or
            # a quarter of it for narrow heads.
            Descriptor(
                (tiles * step * tile_d // 32, 32), (32, 1),
                [64 if narrow else step * tile_d // 32, 32], torch.float32, swizzle=128
            ),
        ],
        Launch(
            round_kernel, (tiles,), (*dq.strides, heads, n_q, scale),
            {"NARROW": narrow, **ragged},
        ),
        tiles,
        stride,
    )  # fmt: skip


def launch_one_pass(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    walk: ShiftWalk | OrderedWalk,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (dq, dk, dv) from one main kernel; q, k, v and do must be TMA-readable."""
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    parts = walk.parts if isinstance(walk, OrderedWalk) else 1
    if parts > 1:
        # [2, ..., h_kv · parts, n_k, d]: dk and dv of each part of the query heads.
        parts_shape = (2, *k.shape[:-3], k.shape[-3] * parts, *k.shape[-2:])
        to_dk, to_dv = sums = k.new_empty(parts_shape, dtype=torch.float32)
    else:
        to_dk, to_dv = dk, dv
    layouts = map(shape_and_strides, (q, k, v, o, do, dq, to_dk, to_dv))
    plan = plan_one_pass(q.dtype, q.device, walk, causal, scale, *layouts)
    n_q, d = q.shape[-2:]
    statistics = lse.new_empty((2, lse.numel() // n_q, plan.stride))
    packed_dq = q.new_empty(
        (plan.tiles * ONE_PASS_QUERIES, TILE_DIMS[d]), dtype=torch.float
    )
    # The delta kernel sets the semaphores to zero.
    semaphores = torch.empty(plan.tiles, dtype=torch.int32, device=q.device)
    with prepare_for_tma(q):
        plan.delta(o, do, lse, *statistics, semaphores)
        described = describe(plan.descriptors, q, k, v, do, *statistics, packed_dq)
        plan.main(*described, to_dk, to_dv, semaphores)
        plan.rounded(packed_dq, dq)
    if parts > 1:
        # Sum the parts in a fixed order.
        total_dk, total_dv = sums.unflatten(-3, (-1, parts)).sum(-3)
        dk.copy_(total_dk)
        dv.copy_(total_dv)
    return dq, dk, dv
