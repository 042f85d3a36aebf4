"""A first Triton kernel: the weighted sum y = Σ_d w_d x_d of each row, forward and
backward.

A program (thread block) computes ROWS rows: it loops over tiles of columns and keeps
the sum in registers. The backward pass writes dx_nd = dy_n w_d tile by tile. dw_d = Σ_n
x_nd dy_n sums over the rows of all programs, so each program writes a partial sum, and
PyTorch adds these, without atomics and bitwise reproducibly. In bfloat16 a GPU rounds
dx to nearest, but Triton's interpreter truncates it.

    weighted_sum(x, w)      # x (..., d), w (d,) -> (...)
"""

# The type checker does not know the calling convention of `triton.jit` kernels.
# pyright: reportCallIssue=false, reportArgumentType=false

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from triton import knobs

from systems.attention.inputs import refuse_batched_gradients, refuse_second_derivative

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ROWS_TILE = 16
# CUDA limits a grid to 2³¹ - 1 programs.
MAX_ROWS = (2**31 - 1) * ROWS_TILE
MAX_COLUMNS_TILE = 128


# --8<-- [start:forward]
@triton.jit
def weighted_sum_forward_kernel(
    x_ptr, w_ptr, y_ptr, stride_xn, stride_xd, stride_w, n, d, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr
):  # fmt: skip
    """Compute y, the weighted sum, of ROWS rows of x."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    y = tl.zeros([ROWS], tl.float32)
    for start in range(0, d, COLUMNS):
        columns = start + tl.arange(0, COLUMNS).to(tl.int64)
        # [ROWS, COLUMNS]
        x = tl.load(
            x_ptr + rows[:, None] * stride_xn + columns[None, :] * stride_xd,
            mask=(rows < n)[:, None] & (columns < d)[None, :],
            other=0.0,
        )
        # [COLUMNS]
        w = tl.load(w_ptr + columns * stride_w, mask=columns < d, other=0.0)
        y += tl.sum(x.to(tl.float32) * w.to(tl.float32)[None, :], 1)
    tl.store(y_ptr + rows, y.to(y_ptr.dtype.element_ty), mask=rows < n)
    # --8<-- [end:forward]


# --8<-- [start:backward]
@triton.jit
def weighted_sum_backward_kernel(
    x_ptr, w_ptr, dy_ptr, dx_ptr, partial_dw_ptr, stride_xn, stride_xd, stride_w,
    stride_dy, n, d,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute dx of ROWS rows, and the partial sum of dw over these rows."""
    program = tl.program_id(0).to(tl.int64)
    rows = program * ROWS + tl.arange(0, ROWS)
    # [ROWS]
    dy = tl.load(dy_ptr + rows * stride_dy, mask=rows < n, other=0.0).to(tl.float32)
    for start in range(0, d, COLUMNS):
        columns = start + tl.arange(0, COLUMNS).to(tl.int64)
        inside = (rows < n)[:, None] & (columns < d)[None, :]
        # [COLUMNS]
        w = tl.load(w_ptr + columns * stride_w, mask=columns < d, other=0.0).to(
            tl.float32
        )
        # [ROWS, COLUMNS]
        dx = dy[:, None] * w[None, :]
        tl.store(
            dx_ptr + rows[:, None] * d + columns[None, :],
            dx.to(dx_ptr.dtype.element_ty),
            mask=inside,
        )
        # [ROWS, COLUMNS]
        x = tl.load(
            x_ptr + rows[:, None] * stride_xn + columns[None, :] * stride_xd,
            mask=inside,
            other=0.0,
        )
        dw = tl.sum(x.to(tl.float32) * dy[:, None], 0)
        tl.store(partial_dw_ptr + program * d + columns, dw, mask=columns < d)
    # --8<-- [end:backward]


def tile_columns(d: int) -> int:
    """Return a tile's columns: the least power of two >= d, but at most 128."""
    # Triton 3.7 declares that `next_power_of_2` returns no int.
    return min(  # pyright: ignore[reportReturnType]
        MAX_COLUMNS_TILE, triton.next_power_of_2(d)
    )


# --8<-- [start:function]
class WeightedSum(torch.autograd.Function):
    """Autograd Function: `WeightedSum.apply(x, w)` for x (n, d) and w (d,) -> (n,)."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor) -> Tensor:
        n, d = x.shape
        y = x.new_empty(n)
        weighted_sum_forward_kernel[(triton.cdiv(n, ROWS_TILE),)](
            x,
            w,
            y,
            *x.stride(),
            w.stride(0),
            n,
            d,
            ROWS=ROWS_TILE,
            COLUMNS=tile_columns(d),
            enable_fp_fusion=True,
        )
        ctx.save_for_backward(x, w)
        return y

    @staticmethod
    def backward(ctx, dy: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_second_derivative("the weighted sum")
        refuse_batched_gradients(dy, "the weighted sum")
        x, w = ctx.saved_tensors
        # Kernels read memory, which lacks a sign that PyTorch keeps as a flag.
        dy = dy.resolve_neg()
        n, d = x.shape
        programs = triton.cdiv(n, ROWS_TILE)
        dx = torch.empty((n, d), dtype=x.dtype, device=x.device)
        partial_dw = torch.empty((programs, d), dtype=torch.float32, device=x.device)
        weighted_sum_backward_kernel[(programs,)](
            x, w, dy, dx, partial_dw, *x.stride(), w.stride(0), dy.stride(0), n, d,
            ROWS=ROWS_TILE, COLUMNS=tile_columns(d), enable_fp_fusion=True,
        )  # fmt: skip
        return dx, partial_dw.sum(0).to(w.dtype)

    # --8<-- [end:function]


def weighted_sum(
    x: Float[Tensor, "... d"], w: Float[Tensor, " d"]
) -> Float[Tensor, "..."]:
    """Return Σ_d w_d x_d for each row of x, summed in float32, in the dtype of x
    (float32, float16 or bfloat16). It has no second derivative. Raise TypeError or
    ValueError for unsupported arguments.
    """
    for name, t in (("x", x), ("w", w)):
        if t.dtype not in DTYPES or t.dtype != x.dtype:
            raise TypeError(
                f"{name} must be float32, float16 or bfloat16, the same for both, got "
                f"{t.dtype}"
            )
        if t.device != x.device:
            raise ValueError(
                f"{name} must be on the device of x, {x.device}, got {t.device}"
            )
        if 0 in t.shape:
            raise ValueError(f"{name} must not be empty, got shape {tuple(t.shape)}")
    if x.ndim < 1 or w.shape != x.shape[-1:]:
        raise ValueError(
            f"w must have the shape of a row of x, {tuple(x.shape[-1:])}, got "
            f"{tuple(w.shape)}"
        )
    if x.device.type != "cuda" and not (
        x.device.type == "cpu" and knobs.runtime.interpret
    ):
        raise ValueError(
            "x must be on a CUDA device, or on the CPU with TRITON_INTERPRET=1, got "
            f"{x.device}"
        )
    if (rows := x.shape[:-1].numel()) > MAX_ROWS:
        raise ValueError(f"x must have at most {MAX_ROWS} rows, got {rows}")
    with torch.cuda.device_of(x):
        rows = x.reshape(-1, x.shape[-1]).resolve_neg()
        return WeightedSum.apply(rows, w.resolve_neg()).view(x.shape[:-1])
