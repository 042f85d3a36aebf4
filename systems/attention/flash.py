"""`flash_attention`, the public function. The named backend runs or the call fails:
none stands in for another.
"""

from jaxtyping import Float
from torch import Tensor


def flash_attention(
    q: Float[Tensor, "... q d"],
    k: Float[Tensor, "... k d"],
    v: Float[Tensor, "... k d"],
    causal: bool = False,
    scale: float | None = None,
    backend: str = "triton",
) -> Float[Tensor, "... q d"]:
    """softmax(scale · q kᵀ) v without ever holding the scores. Leading dimensions are
    free, the last of them is heads.

    `causal` hides key j from query i where j > i, counted from the top left as
    PyTorch's `is_causal` does, also where the numbers of queries and keys differ. k and
    v may have fewer heads, shared by neighbouring query heads. `scale` None is 1 /
    sqrt(d). `backend` is "triton" (float32, float16, bfloat16) or "torch" (float64
    too). The result has the dtype of q; sums are kept in float32 or wider. `ValueError`
    or `TypeError` names what can't be taken.
    """
    # Imported here, so that the PyTorch tiles work where Triton is not installed.
    if backend == "triton":
        from systems.attention.triton import function

        return function.attention(q, k, v, causal, scale)
    if backend == "torch":
        from systems.attention import torch_tiles

        return torch_tiles.attention(q, k, v, causal, scale)
    raise ValueError(f"backend must be 'triton' or 'torch', got {backend!r}")
