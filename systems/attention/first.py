"""A first FlashAttention in Triton: the whole algorithm, forward and backward, for
contiguous (batch, n, d).

Dao (2022) builds attention on an online softmax (Milakov and Gimelshein 2018), so that
scores are never written to HBM; Dao (2023) divides by the sum once, at the end, and
computes each tile of queries in its own program instance.

As in the papers, s are scores, p probabilities, m is the running maximum, l the running
sum, a the unnormalized output, lse = m + log l, and delta = rowsum(o · do). A tile has
TILE rows; i is the first row of a tile of queries, j of a tile of keys, within the
sequence; `head` is the first row of the sequence when (batch, n, d) is seen as (batch ·
n, d). The grid is (tiles, batch).
"""

# The type checker does not know the calling convention of `triton.jit` kernels.
# pyright: reportCallIssue=false, reportArgumentType=false

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from triton import knobs

from systems.attention.inputs import (
    autocast_like_sdpa,
    check_inputs,
    default_scale,
    refuse_batched_gradients,
    refuse_second_derivative,
    refuse_transforms,
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HEAD_DIMS = (16, 32, 64, 128)
# n must be a multiple of LENGTH, so that all tiles are full and loads need no mask.
LENGTH = 64
# CUDA's limit on the second axis of a grid.
MAX_BATCH = 65_535


# --8<-- [start:helpers]
@triton.jit
def offsets(first, TILE: tl.constexpr, D: tl.constexpr):
    """Return the offsets [TILE, D] of the elements of TILE rows from row `first` on."""
    return (first + tl.arange(0, TILE))[:, None] * D + tl.arange(0, D)[None, :]


@triton.jit
def matmul(x, y):
    """Return x @ y, summed in float32; "ieee" prevents rounding of float32 to TF32."""
    return tl.dot(x, y, input_precision="ieee")
    # --8<-- [end:helpers]


# --8<-- [start:scores]
@triton.jit
def scores(q, k, i, j, scale, TILE: tl.constexpr, CAUSAL: tl.constexpr):
    """Return scaled scores [TILE queries, TILE keys]; if CAUSAL, -∞ for later keys."""
    s = matmul(q, tl.trans(k)) * scale
    if CAUSAL:
        t = tl.arange(0, TILE)
        s = tl.where((i + t)[:, None] >= (j + t)[None, :], s, float("-inf"))
    return s
    # --8<-- [end:scores]


# --8<-- [start:forward]
# --8<-- [start:forward_start]
@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, n, scale,
    TILE: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Compute o and lse of one tile of queries."""
    i = tl.program_id(0) * TILE
    head = tl.program_id(1).to(tl.int64) * n
    # [TILE, D]
    q = tl.load(q_ptr + offsets(head + i, TILE, D))
    m = tl.full([TILE], float("-inf"), tl.float32)
    l = tl.zeros([TILE], tl.float32)
    a = tl.zeros([TILE, D], tl.float32)
    # --8<-- [end:forward_start]
    # --8<-- [start:forward_loop]
    for j in range(0, i + TILE if CAUSAL else n, TILE):
        # [TILE, D]
        k = tl.load(k_ptr + offsets(head + j, TILE, D))
        v = tl.load(v_ptr + offsets(head + j, TILE, D))
        # [TILE queries, TILE keys]
        s = scores(q, k, i, j, scale, TILE, CAUSAL)
        m_new = tl.maximum(m, tl.max(s, 1))
        shrink = tl.exp(m - m_new)
        p = tl.exp(s - m_new[:, None])
        l = shrink * l + tl.sum(p, 1)
        a = shrink[:, None] * a + matmul(p.to(v.dtype), v)
        m = m_new
    # --8<-- [end:forward_loop]
    # --8<-- [start:forward_end]
    o = a / l[:, None]
    lse = m + tl.log(l)
    tl.store(o_ptr + offsets(head + i, TILE, D), o.to(o_ptr.dtype.element_ty))
    tl.store(lse_ptr + head + i + tl.arange(0, TILE), lse)
    # --8<-- [end:forward_end]
    # --8<-- [end:forward]


# --8<-- [start:p_and_ds]
@triton.jit
def p_and_ds(
    q, k, v, do, lse, delta, i, j, scale, TILE: tl.constexpr, CAUSAL: tl.constexpr
):  # fmt: skip
    """Return (p, ds) of a tile: recomputed probabilities, and the scores' gradient."""
    s = scores(q, k, i, j, scale, TILE, CAUSAL)
    p = tl.exp(s - lse[:, None])
    dp = matmul(do, tl.trans(v))
    return p, p * (dp - delta[:, None])
    # --8<-- [end:p_and_ds]


# --8<-- [start:dk_dv]
@triton.jit
def dk_dv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, n, scale,
    TILE: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of one tile of keys by a loop over tiles of queries."""
    j = tl.program_id(0) * TILE
    head = tl.program_id(1).to(tl.int64) * n
    # [TILE, D]
    k = tl.load(k_ptr + offsets(head + j, TILE, D))
    v = tl.load(v_ptr + offsets(head + j, TILE, D))
    dk = tl.zeros([TILE, D], tl.float32)
    dv = tl.zeros([TILE, D], tl.float32)
    # --8<-- [start:dk_dv_loop]
    for i in range(j if CAUSAL else 0, n, TILE):
        # [TILE, D]
        q = tl.load(q_ptr + offsets(head + i, TILE, D))
        do = tl.load(do_ptr + offsets(head + i, TILE, D))
        # [TILE]
        lse = tl.load(lse_ptr + head + i + tl.arange(0, TILE))
        delta = tl.load(delta_ptr + head + i + tl.arange(0, TILE))
        # [TILE queries, TILE keys]
        p, ds = p_and_ds(q, k, v, do, lse, delta, i, j, scale, TILE, CAUSAL)
        dv += matmul(tl.trans(p.to(do.dtype)), do)
        dk += matmul(tl.trans(ds.to(q.dtype)), q)
    # --8<-- [end:dk_dv_loop]
    tl.store(
        dk_ptr + offsets(head + j, TILE, D), (dk * scale).to(dk_ptr.dtype.element_ty)
    )
    tl.store(dv_ptr + offsets(head + j, TILE, D), dv.to(dv_ptr.dtype.element_ty))
    # --8<-- [end:dk_dv]


# --8<-- [start:dq]
@triton.jit
def dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, n, scale,
    TILE: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Compute dq of one tile of queries by a loop over tiles of keys."""
    i = tl.program_id(0) * TILE
    head = tl.program_id(1).to(tl.int64) * n
    # [TILE, D]
    q = tl.load(q_ptr + offsets(head + i, TILE, D))
    do = tl.load(do_ptr + offsets(head + i, TILE, D))
    # [TILE]
    lse = tl.load(lse_ptr + head + i + tl.arange(0, TILE))
    delta = tl.load(delta_ptr + head + i + tl.arange(0, TILE))
    dq = tl.zeros([TILE, D], tl.float32)
    # --8<-- [start:dq_loop]
    for j in range(0, i + TILE if CAUSAL else n, TILE):
        # [TILE, D]
        k = tl.load(k_ptr + offsets(head + j, TILE, D))
        v = tl.load(v_ptr + offsets(head + j, TILE, D))
        # [TILE queries, TILE keys]
        _, ds = p_and_ds(q, k, v, do, lse, delta, i, j, scale, TILE, CAUSAL)
        dq += matmul(ds.to(k.dtype), k)
    # --8<-- [end:dq_loop]
    tl.store(
        dq_ptr + offsets(head + i, TILE, D), (dq * scale).to(dq_ptr.dtype.element_ty)
    )
    # --8<-- [end:dq]


def launch_options(q: Tensor) -> dict[str, int]:
    """Return the kernels' keyword arguments TILE and D (rows and columns of a tile that
    fits the shared memory of an A100) and num_stages.
    """
    return {"TILE": 128 // q.element_size(), "D": q.shape[-1], "num_stages": 2}


# --8<-- [start:function]
class FlashAttentionFirst(torch.autograd.Function):
    """Autograd Function of `first_attention`: `apply(q, k, v, is_causal, scale)`."""

    @staticmethod
    def forward(
        ctx,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        check_arguments(q, k, v, is_causal, scale)
        batch, n, d = q.shape
        options = launch_options(q) | {"CAUSAL": is_causal}
        scale = default_scale(scale, d)
        o, lse = torch.empty_like(q), q.new_empty((batch, n), dtype=torch.float32)
        with torch.cuda.device_of(q):
            forward_kernel[(n // options["TILE"], batch)](
                q, k, v, o, lse, n, scale, enable_fp_fusion=True, **options
            )
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.scale, ctx.options = scale, options
        return o

    @staticmethod
    def backward(ctx, do: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_second_derivative()
        refuse_batched_gradients(do, "the first kernel")
        # Hooks on saved tensors can change strides.
        q, k, v, o, lse = (x.contiguous() for x in ctx.saved_tensors)
        batch, n, _ = q.shape
        grid = (n // ctx.options["TILE"], batch)
        # Copy expanded gradients (strides of zero), such as the gradient of a sum.
        do = do.contiguous()
        delta = (o.float() * do.float()).sum(-1)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        inputs = (q, k, v, do, lse, delta)
        with torch.cuda.device_of(q):
            dk_dv_kernel[grid](
                *inputs, dk, dv, n, ctx.scale, enable_fp_fusion=True, **ctx.options
            )
            dq_kernel[grid](
                *inputs, dq, n, ctx.scale, enable_fp_fusion=True, **ctx.options
            )
        return dq, dk, dv, *(None for _ in ctx.needs_input_grad[3:])

    # --8<-- [end:function]


def first_attention(
    q: Float[Tensor, "batch n d"],
    k: Float[Tensor, "batch n d"],
    v: Float[Tensor, "batch n d"],
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "batch n d"]:
    """Return softmax(scale · q kᵀ) v without storing the scores; differentiable once.

    q, k and v must be contiguous and have equal shapes, batch at most 65,535, n a
    multiple of 64 and d 16, 32, 64 or 128; float32, float16, or on a GPU bfloat16.
    `causal` hides key j from query i if j > i; `scale` defaults to 1 / sqrt(d). Raises
    ValueError or TypeError for unsupported arguments, NotImplementedError inside
    transforms of torch.func.
    """
    refuse_transforms()
    q, k, v = autocast_like_sdpa(q, k, v)
    return FlashAttentionFirst.apply(q, k, v, causal, scale)


def check_arguments(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None
) -> None:
    """Raise TypeError or ValueError unless these kernels support the arguments."""
    check_inputs(q, k, v, causal, scale, DTYPES)
    shape = tuple(q.shape)
    wrong_n_or_d = len(shape) != 3 or shape[1] % LENGTH or shape[2] not in HEAD_DIMS
    if wrong_n_or_d or shape[0] > MAX_BATCH:
        raise ValueError(
            f"q must be (batch, n, d) with n a multiple of {LENGTH}, d one of "
            f"{HEAD_DIMS} and batch at most {MAX_BATCH}, got shape {shape}: "
            "backend 'triton' takes any"
        )
    if k.shape != q.shape:
        raise ValueError(
            f"k must have the shape of q, {shape}, got {tuple(k.shape)}: "
            "backend 'triton' takes other lengths and fewer heads"
        )
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not x.is_contiguous():
            raise ValueError(f"{name} must be contiguous: call {name}.contiguous()")
    if not q.is_cuda and not (q.is_cpu and knobs.runtime.interpret):
        raise ValueError(
            f"q must be on a CUDA device, got {q.device}; the CPU is taken where "
            "TRITON_INTERPRET=1 is set before triton is first imported"
        )
    if not q.is_cuda and q.dtype == torch.bfloat16:
        raise TypeError(
            "q must be float32 or float16 on the CPU: Triton's interpreter can't "
            "multiply bfloat16"
        )
