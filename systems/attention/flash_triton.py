"""FlashAttention-2 by Triton kernels, forward and backward: their launches, the autograd Function, the operators.

The kernels stand in `flash_triton_forward` and `flash_triton_backward`. On a Hopper GPU `flash_hopper` runs what it
takes instead.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from systems.attention import flash_hopper
from systems.attention.flash_triton_backward import dkdv_kernel, dq_kernel, sum_kernel
from systems.attention.flash_triton_forward import INTERPRETED, LOG2E, forward_kernel, merge_kernel
from systems.attention.inputs import (
    autocast_like_sdpa,
    check_inputs,
    default_scale,
    is_differentiated,
    is_traced,
    refuse_second_derivative,
)
from systems.attention.launching import (
    Launch,
    Layout,
    ShapeAndStrides,
    layout,
    numbers_for,
    on_device_of,
    shape_and_strides,
)
from systems.attention.tiles import Tile, choose, heads_together, padded, parts_for

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_HEAD = 256
# Numbers that one program puts together from parts: four of each part for each of its threads, one load. With more,
# fewer programs wait for more loads.
MERGED_NUMBERS = 512
# What tl.dot is told. Float32 is cut into parts of bfloat16, whose products the matrix units add up: six products are
# as good as float32's own ("ieee" would leave those units idle), three keep 16 bits.
PRECISION = {"half": "ieee", "high": "bf16x3", "highest": "bf16x6"}


def arithmetic(dtype: torch.dtype) -> str:
    """How products are formed: "half" of 16 bits; float32 as `torch.set_float32_matmul_precision` says."""
    if dtype != torch.float32:
        return "half"
    return "highest" if torch.get_float32_matmul_precision() == "highest" else "high"


def rows_in_one_piece(x: Tensor) -> tuple[Tensor, ShapeAndStrides]:
    """x, or a copy of it, and how that lies: each tile is read by many programs, and rows in pieces cost each of them
    many loads. The gradient of a sum, one number with strides of zero, is written out here.
    """
    lies = shape_and_strides(x)
    if lies[1][-1] == 1:
        return x, lies
    x = x.contiguous()
    return x, shape_and_strides(x)


def memory_for(x: Tensor, parts: int) -> Tensor:
    """Where a kernel writes: x itself, or (parts, *x.shape) in float32 if programs share its loops."""
    return x if parts == 1 else x.new_empty((parts, *x.shape), dtype=torch.float32)


def strides_of(x: Layout, parts: int) -> tuple[int, ...]:
    """Those of x (b, h, n, d), or of what `memory_for` makes, where b counts on from part to part."""
    _, heads, n, d = x.shape
    return x.strides if parts == 1 else (heads * n * d, n * d, d, 1)


@lru_cache(maxsize=4096)
def forward_launches(
    arithmetic: str, dtype: torch.dtype, device: torch.device, tile: Tile | None, parts: int | None,
    together: int | None, causal: bool, scale: float, *tensors: ShapeAndStrides,
) -> tuple[Launch, Launch]:  # fmt: skip
    """The forward kernel for q, k, v and o that lie so, and what merges its parts.

    What isn't used here decides what Triton compiles.
    """
    q, k, v, o = (layout(*lies) for lies in tensors)
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    t = tile or choose("forward", d, arithmetic, causal, batch * heads * n_q, device)
    programs = triton.cdiv(n_q, t.q) * batch * heads
    parts = parts or parts_for(programs, t.warps, n_k, t.k, arithmetic, device)
    sizes, merged = {"PARTS": parts, "HEAD": d, "D": padded(d)}, MERGED_NUMBERS // padded(d)
    return (
        Launch(
            forward_kernel, (programs * parts,),
            (*q.strides, *k.strides, *v.strides, *strides_of(o, parts), heads, n_q, n_k,
             together or heads_together(k, batch * heads, causal, arithmetic), scale * LOG2E.value),
            {"BQ": t.q, "BK": t.k, "GROUP": heads // kv_heads, "CAUSAL": causal, "PRECISION": PRECISION[arithmetic],
             **sizes},
            **t.options,
        ),
        Launch(
            merge_kernel, (triton.cdiv(n_q, merged) * batch * heads,), (*o.strides, heads, n_q),
            {"ROWS": merged, **sizes},
        ),
    )  # fmt: skip


def launch_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float,
    tile: Tile | None = None,
    parts: int | None = None,
    together: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(o, lse); `tile`, `parts` and `together` override what `tiles` chooses."""
    o, lse = torch.empty_like(q), numbers_for(q)
    (q, q_lies), (k, k_lies), (v, v_lies) = rows_in_one_piece(q), rows_in_one_piece(k), rows_in_one_piece(v)
    forward, merge = forward_launches(
        arithmetic(q.dtype), q.dtype, q.device, tile, parts, together, causal, scale,
        q_lies, k_lies, v_lies, shape_and_strides(o),
    )  # fmt: skip
    shares: int = forward.constants["PARTS"]
    with on_device_of(q):
        if shares == 1:
            forward(q, k, v, o, lse)
        else:
            acc, m_l = memory_for(o, shares), lse.new_empty((2, shares, *lse.shape))
            forward(q, k, v, acc, m_l)
            merge(acc, m_l, o, lse)
    return o, lse


class Backward(NamedTuple):
    """The launches of one backward pass; sums follow where there are parts to add up."""

    dq: Launch
    dkdv: Launch
    sums: Launch


@lru_cache(maxsize=4096)
def backward_launches(
    arithmetic: str, dtype: torch.dtype, device: torch.device, dkdv_tile: Tile | None, dq_tile: Tile | None,
    parts: int | None, together: int | None, causal: bool, scale: float, *tensors: ShapeAndStrides,
) -> Backward:  # fmt: skip
    """The kernels of a backward pass for q, k, v, o, do, dq, dk and dv that lie so."""
    q, k, v, o, do, dq, dk, dv = (layout(*lies) for lies in tensors)
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    sizes = {"HEAD": d, "D": padded(d)}
    constants = {**sizes, "GROUP": heads // kv_heads, "CAUSAL": causal, "PRECISION": PRECISION[arithmetic]}
    inputs = (*q.strides, *k.strides, *v.strides)
    together = together or heads_together(k, batch * heads, causal, arithmetic)
    numbers = (heads, n_q, n_k, together, scale * LOG2E.value, scale)
    t = dkdv_tile or choose("dkdv", d, arithmetic, causal, batch * kv_heads * n_k, device)
    u = dq_tile or choose("dq", d, arithmetic, causal, batch * heads * n_q, device)
    dkdv_programs, dq_programs = triton.cdiv(n_k, t.k) * batch * kv_heads, triton.cdiv(n_q, u.q) * batch * heads
    dkdv_parts = parts or parts_for(dkdv_programs, t.warps, heads // kv_heads * n_q, t.q, arithmetic, device)
    dq_parts = parts or parts_for(dq_programs, u.warps, n_k, u.k, arithmetic, device)

    rows = MERGED_NUMBERS // padded(d)
    dq_sums = triton.cdiv(n_q, rows) * batch * heads if dq_parts > 1 else 0
    dkdv_sums = 2 * triton.cdiv(n_k, rows) * batch * kv_heads if dkdv_parts > 1 else 0
    return Backward(
        Launch(
            dq_kernel, (dq_programs * dq_parts,),
            (*inputs, *o.strides, *do.strides, *strides_of(dq, dq_parts), *numbers),
            {"BQ": u.q, "BK": u.k, "PARTS": dq_parts, **constants}, **u.options,
        ),
        Launch(
            dkdv_kernel, (dkdv_programs * dkdv_parts,),
            (*inputs, *do.strides, *strides_of(dk, dkdv_parts), *strides_of(dv, dkdv_parts), *numbers),
            {"BQ": t.q, "BK": t.k, "PARTS": dkdv_parts, "RAGGED": n_q % t.q != 0, **constants},
            **t.options,
        ),
        Launch(
            sum_kernel, (dq_sums + dkdv_sums,),
            (*dq.strides, *dk.strides, *dv.strides, batch, heads, kv_heads, n_q, n_k),
            {"DQ_PARTS": dq_parts, "DKDV_PARTS": dkdv_parts, "ROWS": rows, **sizes},
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
    dkdv_tile: Tile | None = None,
    dq_tile: Tile | None = None,
    parts: int | None = None,
    together: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv); the tiles, `parts` and `together` override what `tiles` chooses."""
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    rows = lse.new_empty((*lse.shape, 2))
    (q, q_lies), (k, k_lies), (v, v_lies), (do, do_lies) = map(rows_in_one_piece, (q, k, v, do))
    launch = backward_launches(
        arithmetic(q.dtype), q.dtype, q.device, dkdv_tile, dq_tile, parts, together, causal, scale,
        q_lies, k_lies, v_lies, shape_and_strides(o), do_lies, *map(shape_and_strides, (dq, dk, dv)),
    )  # fmt: skip
    dkdv_parts, dq_parts = launch.dkdv.constants["PARTS"], launch.dq.constants["PARTS"]
    with on_device_of(q):
        to_dq, to_dk, to_dv = memory_for(dq, dq_parts), memory_for(dk, dkdv_parts), memory_for(dv, dkdv_parts)
        launch.dq(q, k, v, o, do, lse, rows, to_dq)
        launch.dkdv(q, k, v, do, rows, to_dk, to_dv)
        if dq_parts > 1 or dkdv_parts > 1:
            launch.sums(to_dq, to_dk, to_dv, dq, dk, dv)
    return dq, dk, dv


def run_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """(o, lse) by the kernels for Hopper where they take the inputs, else by those of this module."""
    launch = flash_hopper.launch_forward if flash_hopper.takes(q, k, v) else launch_forward
    return launch(q, k, v, causal, scale)


def run_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), chosen as `run_forward` chooses; what either saved serves the other."""
    launch = flash_hopper.launch_backward if flash_hopper.takes(q, k, v) else launch_backward
    return launch(do, q, k, v, o, lse, causal, scale)


@torch.library.custom_op("systems::flash_forward", mutates_args=())
def flash_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """What torch.compile and torch.export see of the forward pass: (o, lse)."""
    return run_forward(q, k, v, causal, scale)


@torch.library.custom_op("systems::flash_backward", mutates_args=())
def flash_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What torch.compile and torch.export see of the backward pass: (dq, dk, dv)."""
    return run_backward(do, q, k, v, o, lse, causal, scale)


@flash_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)


@flash_backward.register_fake
def _(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, scale: float):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def save_for_operator(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ctx.causal, ctx.scale = inputs
    o, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, o, lse)


def differentiate_operator(ctx, do: Tensor, dlse: Tensor | None):
    refuse_second_derivative()
    return *flash_backward(do, *ctx.saved_tensors, ctx.causal, ctx.scale), None, None


flash_forward.register_autograd(differentiate_operator, setup_context=save_for_operator)


class FlashAttentionTriton(torch.autograd.Function):
    """`FlashAttentionTriton.apply(q, k, v, is_causal)`; (batch, n, d), or heads before n too, d up to 256.

    float32, float16 or bfloat16. `ValueError` or `TypeError` names what can't be taken; a second derivative can't.
    """

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None) -> Tensor:
        check(q, k, v, is_causal, scale)
        if q.ndim not in (3, 4):
            raise ValueError(f"q must be (batch, N, d) or (batch, heads, N, d), got shape {tuple(q.shape)}")
        ctx.causal, ctx.scale = is_causal, default_scale(scale, q.shape[-1])
        run = flash_forward if is_traced(q) else run_forward
        o, lse = run(q, k, v, ctx.causal, ctx.scale)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx, do: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_second_derivative()
        run = flash_backward if is_traced(do) else run_backward
        gradients = run(do, *ctx.saved_tensors, ctx.causal, ctx.scale)  # pyright: ignore[reportCallIssue]
        # apply() may be called without the options: one gradient for each argument that it got.
        return *gradients, *(None for _ in ctx.needs_input_grad[3:])


def check(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> None:
    """TypeError or ValueError unless these kernels can run on this."""
    check_inputs(q, k, v, causal, scale, DTYPES)
    if q.shape[-1] > MAX_HEAD:
        raise ValueError(f"q must have a head dimension from 1 to {MAX_HEAD}, got {q.shape[-1]}")
    if not q.is_cuda and not (q.is_cpu and INTERPRETED.value):
        raise ValueError(
            f"q must be on a CUDA device, got {q.device}; the CPU is taken where TRITON_INTERPRET=1 is set before "
            "triton is first imported"
        )


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """`flash_attention` by these kernels, with its arguments and errors."""
    q, k, v = autocast_like_sdpa(q, k, v)
    tensors = isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)
    if tensors and q.ndim in (3, 4) and not is_traced(q):
        if is_differentiated(q, k, v):
            # The class checks for itself.
            return FlashAttentionTriton.apply(q, k, v, causal, scale)
        check(q, k, v, causal, scale)
        # An autograd Function costs the host as much as a launch.
        return run_forward(q, k, v, causal, default_scale(scale, q.shape[-1]))[0]
    check(q, k, v, causal, scale)
    shape = q.shape
    if q.ndim == 2:
        q, k, v = q[None], k[None], v[None]
    elif q.ndim > 4:
        q, k, v = (x.flatten(0, -4) for x in (q, k, v))
    if is_traced(q):
        return flash_forward(q, k, v, causal, default_scale(scale, shape[-1]))[0].view(shape)
    return FlashAttentionTriton.apply(q, k, v, causal, scale).view(shape)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The model's attention slot: (b, h, s, e) three times -> (b, h, s, e)."""
    return attention(q, k, v, causal=True)
