"""`flash_attention`, the public function. A named backend runs or raises."""

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
    """Return softmax(scale · q kᵀ) v without ever storing the scores. Leading
    dimensions are free; the last of them is heads. For tensors of flash-attn, (batch,
    n, heads, d), call `x.transpose(1, 2)` on q, k, v and the result.

    `causal` hides key j from query i where j > i, counted from the top left like
    PyTorch's `is_causal`. k and v may have fewer heads than q: adjacent query heads
    then share a KV head. `scale` None is 1 / sqrt(d). The result has the dtype of q;
    sums are kept in float32 or wider.

    `backend` is one of

    - "triton": the Triton kernels, for any GPU from the A100 on. float32, float16 and
      bfloat16, d up to 256, any strides.
    - "hopper": the Gluon kernels for a Hopper GPU. float16 and bfloat16, d a multiple
      of 8 from 40 to 128, contiguous rows whose addresses are multiples of 16 bytes.
    - "torch": the same algorithm in PyTorch, slow, on any device; float64 too.
    - "first": the kernel that the guide teaches, for contiguous (batch, n, d): n a
      multiple of 64, d 16, 32, 64 or 128.
    - "auto": "hopper" where it can run and is faster, else "triton".

    All backends work under autocast and, except for "first", in
    `torch.compile(fullgraph=True)` and `torch.export`. After one call of a shape CUDA
    graphs can capture both passes. "first" refuses a batch of gradients
    (`is_grads_batched`), others compute one member after another. A row whose largest
    scaled score lies beyond ±1.8e8 contributes nothing to the gradients of "triton" and
    "hopper".

    `TypeError` or `ValueError` names an unsupported argument or what a backend lacks.
    Transforms of torch.func (vmap, grad, jvp) raise `NotImplementedError`, except for
    vmap inside `torch.compile`.
    """
    # Imported here, so that the PyTorch tiles work without Triton installed.
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
