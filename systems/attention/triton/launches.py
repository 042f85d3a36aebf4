"""Launch the Triton kernels, with launches cached by the layout of the tensors.

The forward pass launches up to three kernels, the backward pass up to four. The first
splits float32 into bfloat16 limbs (if the configuration says `ahead`). Then follow the
forward (or dq and dkdv) kernel, and one that combines the splits (if loops are split).
"""

from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from systems.attention.relaunch import (
    Launch,
    Layout,
    ShapeAndStrides,
    empty_row_statistics,
    make_layout,
    shape_and_strides,
    use_device,
)
from systems.attention.triton.backward import dkdv_kernel, dq_kernel, sum_kernel
from systems.attention.triton.chooser import choose_config, pad_head_dim
from systems.attention.triton.configs import Config, choose_head_swizzle, count_splits
from systems.attention.triton.forward import combine_kernel, forward_kernel
from systems.attention.triton.primitives import LOG2E, limbs_kernel

# Output elements per program of the kernels that combine splits: four per thread.
COMBINED_ELEMENTS = 512
# Elements per program of the kernel that splits float32 into limbs.
LIMB_ELEMENTS = 2048
# Maximum n, because `dkdv_kernel` indexes two statistics per row with 32 bits.
MAX_LENGTH = 2**30
# Number of bfloat16 limbs per float32: three limbs keep 24 bits, two keep 16.
LIMBS = {"half": 1, "high": 2, "highest": 3}
# Argument `input_precision` of tl.dot for operands that are not split ahead.
PRECISION = {"half": "ieee", "high": "bf16x3", "highest": "bf16x6"}


def choose_arithmetic(dtype: torch.dtype) -> str:
    """Return the arithmetic of matmuls: "half" for 16-bit dtypes; for float32 "highest"
    (three bfloat16 per number), or "high" (two) where PyTorch itself would use TF32.
    """
    if dtype != torch.float32:
        return "half"
    # `torch.get_float32_matmul_precision` can raise an error; this attribute can't.
    return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


def make_rows_contiguous(x: Tensor) -> tuple[Tensor, ShapeAndStrides]:
    """Return x, or a copy if its rows aren't contiguous, and its (shape, strides)."""
    shape_strides = shape_and_strides(x)
    if shape_strides[1][-1] == 1:
        return x, shape_strides
    x = x.contiguous()
    return x, shape_and_strides(x)


def allocate_output(x: Tensor, splits: int) -> Tensor:
    """Return x or, if there are several splits, a float32 buffer (splits, *x.shape)."""
    return x if splits == 1 else x.new_empty((splits, *x.shape), dtype=torch.float32)


def output_layout(x: Layout, splits: int) -> Layout:
    """Return the layout of `allocate_output`'s result as (splits · b, h, n, d)."""
    batch, heads, n, d = x.shape
    if splits == 1:
        return x
    return Layout((splits * batch, heads, n, d), (heads * n * d, n * d, d, 1))


def find_stride_divisor(*tensors: Layout) -> int:
    """Return 8 if 8, but not 16, divides all strides, else 1. Ignore dimension d and
    dimensions of size 1. Triton itself detects divisibility by 16.
    """
    divisor = gcd(
        *(
            stride
            for x in tensors
            for size, stride in zip(x.shape[:3], x.strides[:3], strict=True)
            if size > 1
        )
    )
    return 8 if divisor % 16 == 8 else 1


def make_limbs_launch(
    q: Layout, k: Layout, v: Layout, do: Layout | None, limbs: int
) -> Launch:
    """Return the launch that splits q, k, v and, if given, do into `limbs` limbs."""
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    rows = LIMB_ELEMENTS // pad_head_dim(d)
    programs = (
        triton.cdiv(n_q, rows) * heads * (2 if do else 1)
        + 2 * triton.cdiv(n_k, rows) * kv_heads
    )
    return Launch(
        limbs_kernel, (programs * batch,),
        (*q.strides, *k.strides, *v.strides, *(do or q).strides,
         batch, heads, kv_heads, n_q, n_k),
        {"ROWS": rows, "HEAD": d, "D": pad_head_dim(d), "LIMBS": limbs},
    )  # fmt: skip


def limbs_layout(x: Layout, limbs: int) -> Layout:
    """Return the layout of a limb of x (b, h, n, d), if a row's limbs are adjacent."""
    _, heads, n, d = x.shape
    return Layout(x.shape, (heads * n * limbs * d, n * limbs * d, limbs * d, 1))


def split_into_limbs(launch: Launch, *tensors: Tensor) -> list[Tensor]:
    """Return q, k, v and, if given, do (..., d) as bfloat16 limbs (..., limbs · d)."""
    count = launch.constants["LIMBS"]
    limbs = [
        x.new_empty((*x.shape[:-1], count * x.shape[-1]), dtype=torch.bfloat16)
        for x in tensors
    ]
    # Without do, pass q in its place: no program reads this argument.
    launch(*(*tensors, *tensors[:1])[:4], *(*limbs, *limbs[:1])[:4])
    return limbs


class ForwardLaunches(NamedTuple):
    """Launches of a forward pass: `limbs` splits the inputs into limbs (None: not
    needed), `kernel` computes attention, and `combine` combines the loop's splits.
    """

    limbs: Launch | None
    kernel: Launch
    combine: Launch


@lru_cache(maxsize=4096)
def forward_launches(
    arithmetic: str, dtype: torch.dtype, device: torch.device, causal: bool,
    scale: float, *tensors: ShapeAndStrides,
    config: Config | None = None, splits: int = 0, head_swizzle: int = 0,
) -> ForwardLaunches:  # fmt: skip
    """Return the cached launches of a forward pass for q, k, v and o of these layouts.
    `dtype` is only a cache key. An argument after `tensors` that is None or 0 means the
    default. Raise ValueError for more than MAX_LENGTH queries or keys.
    """
    q, k, v, o = (make_layout(*lies) for lies in tensors)
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    if max(n_q, n_k) > MAX_LENGTH:
        raise ValueError(
            f"q and k must have at most {MAX_LENGTH} rows, got {n_q} and {n_k}"
        )
    c = config or choose_config(
        "forward", d, arithmetic, causal, batch * heads * n_q, device
    )
    programs = triton.cdiv(n_q, c.q) * batch * heads
    splits = splits or count_splits(programs, c.warps, n_k, c.k, arithmetic, device)
    sizes = {"SPLITS": splits, "HEAD": d, "D": pad_head_dim(d)}
    rows = COMBINED_ELEMENTS // pad_head_dim(d)
    swizzle = head_swizzle or choose_head_swizzle(k, batch * heads, causal, arithmetic)
    limbs, split_ahead = 1, None
    if c.ahead:
        limbs = LIMBS[arithmetic]
        split_ahead = make_limbs_launch(q, k, v, None, limbs)
        q, k, v = (limbs_layout(x, limbs) for x in (q, k, v))
    accessed = q, k, v, output_layout(o, splits)
    return ForwardLaunches(
        split_ahead,
        Launch(
            forward_kernel, (programs * splits,),
            (*(stride for x in accessed for stride in x.strides),
             heads, n_q, n_k, swizzle, scale * LOG2E.value),
            {"BQ": c.q, "BK": c.k, "GROUP": heads // kv_heads, "CAUSAL": causal,
             "LIMBS": limbs, "PRECISION": PRECISION[arithmetic],
             "UNIT": find_stride_divisor(*accessed), **sizes},
            **c.options,
        ),
        Launch(
            combine_kernel, (triton.cdiv(n_q, rows) * batch * heads,),
            (*o.strides, heads, n_q, scale * LOG2E.value),
            {"ROWS": rows, **sizes},
        ),
    )  # fmt: skip


def launch_forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, **overrides: Any
) -> tuple[Tensor, Tensor]:
    """Return (o, lse). `overrides` are keyword arguments of `forward_launches`."""
    o, lse = torch.empty_like(q), empty_row_statistics(q)
    (q, q_layout), (k, k_layout), (v, v_layout) = map(make_rows_contiguous, (q, k, v))
    launch = forward_launches(
        choose_arithmetic(q.dtype), q.dtype, q.device, causal, scale,
        q_layout, k_layout, v_layout, shape_and_strides(o), **overrides,
    )  # fmt: skip
    run_forward(launch, q, k, v, o, lse)
    return o, lse


def run_forward(
    launch: ForwardLaunches, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor
) -> None:
    """Fill o and lse; `launch` is from `forward_launches`, for these layouts."""
    count: int = launch.kernel.constants["SPLITS"]
    with use_device(q):
        if launch.limbs:
            q, k, v = split_into_limbs(launch.limbs, q, k, v)
        if count == 1:
            launch.kernel(q, k, v, o, lse)
        else:
            acc, m_l = allocate_output(o, count), lse.new_empty((2, count, *lse.shape))
            launch.kernel(q, k, v, acc, m_l)
            launch.combine(acc, m_l, o, lse)


class BackwardLaunches(NamedTuple):
    """Launches of a backward pass: `limbs` splits the inputs into limbs (None: not
    needed), `dq` and `dkdv` compute gradients, and `sums` sums the loops' splits.
    """

    limbs: Launch | None
    dq: Launch
    dkdv: Launch
    sums: Launch


@lru_cache(maxsize=4096)
def backward_launches(
    arithmetic: str, dtype: torch.dtype, device: torch.device, causal: bool,
    scale: float, *tensors: ShapeAndStrides,
    dkdv_config: Config | None = None, dq_config: Config | None = None,
    dkdv_splits: int = 0, dq_splits: int = 0, head_swizzle: int = 0,
) -> BackwardLaunches:  # fmt: skip
    """Return the cached launches of a backward pass for q, k, v, o, do, dq, dk, dv of
    these layouts. An argument after `tensors` that is None or 0 means the default.
    """
    q, k, v, o, do, dq, dk, dv = (make_layout(*lies) for lies in tensors)
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    sizes = {"HEAD": d, "D": pad_head_dim(d)}
    constants = {
        **sizes,
        "GROUP": heads // kv_heads,
        "CAUSAL": causal,
        "PRECISION": PRECISION[arithmetic],
    }
    swizzle = head_swizzle or choose_head_swizzle(k, batch * heads, causal, arithmetic)
    scalars = (heads, n_q, n_k, swizzle, scale * LOG2E.value, scale)
    c = dq_config or choose_config(
        "dq", d, arithmetic, causal, batch * heads * n_q, device
    )
    e = dkdv_config or choose_config(
        "dkdv", d, arithmetic, causal, batch * kv_heads * n_k, device
    )
    dq_programs = triton.cdiv(n_q, c.q) * batch * heads
    dkdv_programs = triton.cdiv(n_k, e.k) * batch * kv_heads
    dq_splits = dq_splits or count_splits(
        dq_programs, c.warps, n_k, c.k, arithmetic, device
    )
    dkdv_splits = dkdv_splits or count_splits(
        dkdv_programs, e.warps, heads // kv_heads * n_q, e.q, arithmetic, device
    )

    inputs, split_ahead, limbs = (q, k, v, do), None, LIMBS[arithmetic]
    if c.ahead or e.ahead:
        split_ahead = make_limbs_launch(*inputs, limbs)
    dq_reads, dkdv_reads = (
        [limbs_layout(x, limbs) if ahead else x for x in inputs]
        for ahead in (c.ahead, e.ahead)
    )
    dq_layouts = *dq_reads[:3], o, dq_reads[3], output_layout(dq, dq_splits)
    dkdv_layouts = *dkdv_reads, *(output_layout(x, dkdv_splits) for x in (dk, dv))

    rows = COMBINED_ELEMENTS // pad_head_dim(d)
    dq_sums = triton.cdiv(n_q, rows) * batch * heads if dq_splits > 1 else 0
    dkdv_sums = 2 * triton.cdiv(n_k, rows) * batch * kv_heads if dkdv_splits > 1 else 0
    return BackwardLaunches(
        split_ahead,
        Launch(
            dq_kernel, (dq_programs * dq_splits,),
            (*(stride for x in dq_layouts for stride in x.strides), *scalars),
            {"BQ": c.q, "BK": c.k, "SPLITS": dq_splits,
            "UNIT": find_stride_divisor(*dq_layouts),
             "LIMBS": limbs if c.ahead else 1, "RECOMPUTE": c.recompute, **constants},
            **c.options,
        ),
        Launch(
            dkdv_kernel, (dkdv_programs * dkdv_splits,),
            (*(stride for x in dkdv_layouts for stride in x.strides), *scalars),
            {"BQ": e.q, "BK": e.k, "SPLITS": dkdv_splits,
            "UNIT": find_stride_divisor(*dkdv_layouts),
             "RAGGED": n_q % e.q != 0, "LIMBS": limbs if e.ahead else 1,
             "RECOMPUTE": e.recompute, **constants},
            **e.options,
        ),
        Launch(
            sum_kernel, (dq_sums + dkdv_sums,),
            (*dq.strides, *dk.strides, *dv.strides, batch, heads, kv_heads, n_q, n_k),
            {"DQ_SPLITS": dq_splits, "DKDV_SPLITS": dkdv_splits, "ROWS": rows, **sizes},
        ),
    )  # fmt: skip


def launch_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    **overrides: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (dq, dk, dv). `overrides` are keyword arguments of `backward_launches`."""
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    (q, q_layout), (k, k_layout), (v, v_layout), (do, do_layout) = map(
        make_rows_contiguous, (q, k, v, do)
    )
    launch = backward_launches(
        choose_arithmetic(q.dtype), q.dtype, q.device, causal, scale,
        q_layout, k_layout, v_layout, shape_and_strides(o), do_layout,
        *map(shape_and_strides, (dq, dk, dv)), **overrides,
    )  # fmt: skip
    run_backward(launch, do, q, k, v, o, lse, dq, dk, dv)
    return dq, dk, dv


def run_backward(
    launch: BackwardLaunches, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor,
    lse: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
) -> None:  # fmt: skip
    """Fill dq, dk, dv; `launch` is from `backward_launches`, for these layouts."""
    statistics = lse.new_empty((*lse.shape, 2))
    dq_constants, dkdv_constants = launch.dq.constants, launch.dkdv.constants
    dq_splits, dkdv_splits = dq_constants["SPLITS"], dkdv_constants["SPLITS"]
    with use_device(q):
        to_dq = allocate_output(dq, dq_splits)
        to_dk, to_dv = (allocate_output(x, dkdv_splits) for x in (dk, dv))
        inputs = [q, k, v, do]
        limbs = split_into_limbs(launch.limbs, *inputs) if launch.limbs else inputs
        q, k, v, do = inputs if dq_constants["LIMBS"] == 1 else limbs
        launch.dq(q, k, v, o, do, lse, statistics, to_dq)
        inputs = inputs if dkdv_constants["LIMBS"] == 1 else limbs
        launch.dkdv(*inputs, statistics, to_dk, to_dv)
        if dq_splits > 1 or dkdv_splits > 1:
            launch.sums(to_dq, to_dk, to_dv, dq, dk, dv)
