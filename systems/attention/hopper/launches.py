"""Launch the Hopper kernels: forward, and backward in two kernels or in one
(`one_pass_launches`), whichever is faster. The kernels are written in Gluon, Triton's
lower-level language, in which copies, barriers and matmuls are explicit.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from systems.attention.hopper.configs import CONFIGS, SHORT, SHORT_FORWARD, Config
from systems.attention.hopper.descriptors import (
    Descriptor,
    describe,
    prepare_for_tma,
    rows_descriptor,
    statistics_descriptor,
)
from systems.attention.hopper.limits import (
    TILE_DIMS,
    make_tma_readable,
    statistics_stride,
)
from systems.attention.hopper.one_pass_launches import launch_one_pass
from systems.attention.hopper.schedule import make_schedule
from systems.attention.hopper.walks import choose_walk, is_narrow
from systems.attention.relaunch import (
    Launch,
    Layout,
    ShapeAndStrides,
    empty_row_statistics,
    make_layout,
    shape_and_strides,
)
from systems.attention.triton.configs import choose_head_swizzle, count_sms
from systems.attention.triton.primitives import LOG2E


class ForwardPlan(NamedTuple):
    """A forward launch, TMA descriptors of q, k and v, and `make_schedule`'s result."""

    launch: Launch
    descriptors: list[Descriptor]
    starts: Tensor
    items: Tensor


# Schedules that captured CUDA graphs read by address, kept alive because the cache of
# `make_schedule` may drop them.
CAPTURED: set[Tensor] = set()


@lru_cache(maxsize=1024)
def plan_forward(
    dtype: torch.dtype, device: torch.device, config: Config | None, causal: bool,
    scale: float,
    *tensors: ShapeAndStrides,
) -> ForwardPlan:  # fmt: skip
    """Return and cache a forward plan, given the layouts of q, k, v and o."""
    from systems.attention.hopper.forward import forward_kernel

    q, k, v, o = (make_layout(*lies) for lies in tensors)
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    tile_d = TILE_DIMS[d]
    short = tile_d == 64 and n_k <= (SHORT if causal else SHORT // 2)
    c = config or (SHORT_FORWARD if short else CONFIGS["forward"][tile_d])
    # With short k all items take about equally long, as without a causal mask.
    uneven = causal and n_k > SHORT // 2
    head_swizzle = choose_head_swizzle(k, batch * heads, uneven, "half")
    starts, items = make_schedule(
        n_q, n_k, batch * heads, head_swizzle, 64 * c.groups, c.rows, causal,
        c.programs * count_sms(device), c.last_items, device,
    )  # fmt: skip
    launch = Launch(
        forward_kernel, (len(starts) - 1,),
        (*(stride for x in (q, k, v, o) for stride in x.strides[:3]),
         heads, n_q, n_k, scale * LOG2E.value),
        {"BK": c.rows, "HEAD": d, "D": tile_d, "HEADS_PER_KV": heads // kv_heads,
         "CAUSAL": causal, "GROUPS": c.groups, "STAGES": c.stages,
         "OVERLAP": c.overlap, "TURNS": c.turns or is_narrow(d),
         "NARROW": is_narrow(d), "REGISTERS": c.registers},
        num_warps=4, maxnreg=c.maxnreg,
    )  # fmt: skip
    descriptors = [
        rows_descriptor(x, rows, tile_d, dtype)
        for x, rows in ((q, 64), (k, c.rows), (v, c.rows))
    ]
    return ForwardPlan(launch, descriptors, starts, items)


def launch_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float,
    config: Config | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (o, lse) of TMA-readable q, k and v. `config` overrides the default."""
    o, lse = torch.empty_like(q), empty_row_statistics(q)
    plan = plan_forward(
        q.dtype, q.device, config, causal, scale, *map(shape_and_strides, (q, k, v, o))
    )
    if torch.cuda.is_current_stream_capturing():
        CAPTURED.update((plan.starts, plan.items))
    with prepare_for_tma(q):
        descriptors = describe(plan.descriptors, q, k, v)
        plan.launch(*descriptors, q, k, v, o, lse, plan.starts, plan.items)
    return o, lse


class TwoPassPlan(NamedTuple):
    """Two launches of a backward pass, the TMA descriptors of their arguments, and the
    row stride of lse and delta.
    """

    dq: Launch
    dq_descriptors: list[Descriptor]
    dkdv: Launch
    dkdv_descriptors: list[Descriptor]
    stride: int


@lru_cache(maxsize=1024)
def plan_two_passes(
    dtype: torch.dtype,
    device: torch.device,
    causal: bool,
    scale: float,
    *tensors: ShapeAndStrides,
) -> TwoPassPlan:
    """Return and cache a plan, given the layouts of q, k, v, o, do, dq, dk and dv."""
    from systems.attention.hopper.dkdv import dkdv_kernel
    from systems.attention.hopper.dq import dq_kernel

    q, k, v, o, do, dq, dk, dv = (make_layout(*lies) for lies in tensors)
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    stride = statistics_stride(n_q)
    tile_d = TILE_DIMS[d]
    constants = {"D": tile_d, "HEADS_PER_KV": heads // kv_heads, "CAUSAL": causal}

    def of_tiles(*tiles: tuple[Layout, int]) -> list[Descriptor]:
        return [rows_descriptor(x, rows, tile_d, dtype) for x, rows in tiles]

    c, e = CONFIGS["dq"][tile_d], CONFIGS["dkdv"][tile_d]
    statistics = statistics_descriptor(batch * heads, n_q, stride, e.rows)
    return TwoPassPlan(
        Launch(
            dq_kernel, (triton.cdiv(n_q, 64 * c.groups) * batch * heads,),
            (heads, n_q, n_k, stride, scale * LOG2E.value, scale),
            {"BK": c.rows, "GROUPS": c.groups, "STAGES": c.stages,
             "REGISTERS": c.registers, **constants},
            num_warps=4, maxnreg=c.maxnreg,
        ),
        of_tiles((q, 64), (k, c.rows), (v, c.rows), (o, 64), (do, 64), (dq, 64)),
        Launch(
            dkdv_kernel, (triton.cdiv(n_k, 64 * e.groups) * batch * kv_heads,),
            (heads, n_q, n_k, scale * LOG2E.value, scale),
            {"BQ": e.rows, "GROUPS": e.groups, "STAGES": e.stages,
             "IN_REGISTERS": e.in_registers, "REGISTERS": e.registers, **constants},
            num_warps=4, maxnreg=e.maxnreg,
        ),
        [*of_tiles((q, e.rows), (k, 64), (v, 64), (do, e.rows)), statistics, statistics,
         *of_tiles((dk, 64), (dv, 64))],
        stride,
    )  # fmt: skip


def launch_two_passes(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
    causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return (dq, dk, dv) from two kernels; do, q, k, v and o must be TMA-readable."""
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    plan = plan_two_passes(
        q.dtype,
        q.device,
        causal,
        scale,
        *map(shape_and_strides, (q, k, v, o, do, dq, dk, dv)),
    )
    lse_log2, delta = lse.new_empty((2, lse.numel() // lse.shape[-1], plan.stride))
    with prepare_for_tma(q):
        described = describe(plan.dq_descriptors, q, k, v, o, do, dq)
        plan.dq(*described, lse, lse_log2, delta)
        plan.dkdv(
            *describe(plan.dkdv_descriptors, q, k, v, do, lse_log2, delta, dk, dv)
        )
    return dq, dk, dv


def launch_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
    causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return (dq, dk, dv) from one kernel or two, whichever is faster. q, k and v
    must be TMA-readable and lse contiguous; do and o are copied if necessary.
    """
    do, o = make_tma_readable(do), make_tma_readable(o)
    layouts = (make_layout(*shape_and_strides(x)) for x in (q, k))
    walk = choose_walk(*layouts, causal, count_sms(q.device))
    if walk:
        return launch_one_pass(do, q, k, v, o, lse, causal, scale, walk)
    return launch_two_passes(do, q, k, v, o, lse, causal, scale)
