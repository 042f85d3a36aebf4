"""The public function `flash_attention`, which selects a backend."""

from jaxtyping import Float
from torch import Tensor

BACKENDS = ("auto", "hopper", "triton", "torch", "first")


def flash_attention(
    q: Float[Tensor, "... q d"],
    k: Float[Tensor, "... k d"],
    v: Float[Tensor, "... k d"],
    causal: bool = False,
    scale: float | None = None,
    backend: str = "auto",
) -> Float[Tensor, "... q d"]:
    """Return softmax(scale · q kᵀ) v without storing the scores in global memory.
    Shapes are (..., heads, n, d); for the layout of flash-attn, (batch, n, heads, d),
    call `x.transpose(1, 2)` on q, k, v and the result.

    `causal` hides key j from query i if j > i, as PyTorch's `is_causal`, so each query
    sees key 0. k and v may have fewer heads than q: adjacent query heads then share a
    KV head. `scale` defaults to 1 / sqrt(d). The result has the dtype of q; sums are
    float32 or wider. `torch.set_float32_matmul_precision` applies to float32 matmuls.

    `backend` is one of

    - "triton": Triton kernels for the A100 and later GPUs. float32, float16 and
      bfloat16, d up to 256, any strides.
    - "hopper": Gluon kernels for Hopper GPUs. float16 and bfloat16, d a multiple of 8
      from 40 to 128, contiguous rows aligned to 16 bytes, no expanded dimension.
    - "torch": the same algorithm in PyTorch, slow, on any device; also float64.
    - "first": the kernel that the guide explains first, for contiguous (batch, n, d):
      batch at most 65,535, n a multiple of 64, d 16, 32, 64 or 128.
    - "auto": "hopper" if it supports the inputs and is faster, else "triton".

    A named backend runs or raises an error. All backends support autocast and, except
    "first", `torch.compile(fullgraph=True)` and `torch.export`; "torch" compiles slowly
    and again for each length, since its loops over tiles are unrolled. CUDA graphs can
    capture both passes after one call with the same shape. "first" rejects batched
    gradients (`is_grads_batched`); the others loop over them. With "triton" and
    "hopper", queries whose largest scaled score exceeds 1.8e8 in magnitude add nothing
    to gradients; "torch" and "first" need finite scores.

    Raises TypeError or ValueError for unsupported arguments or a backend that can't
    run, and NotImplementedError inside transforms of torch.func (vmap, grad, jvp),
    except for vmap inside `torch.compile`.
    """
    # Import here, so that backend "torch" works without Triton.
    if backend in ("auto", "hopper", "triton"):
        from systems.attention import dispatch

        return dispatch.attention(q, k, v, causal, scale, backend)
    if backend == "torch":
        from systems.attention import torch_tiles

        return torch_tiles.attention(q, k, v, causal, scale)
    if backend == "first":
        from systems.attention import first

        return first.first_attention(q, k, v, causal, scale)
    raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
