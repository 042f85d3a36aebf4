"""PyTorch's own fused attention in the model's slot: PyTorch chooses the backend."""

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(b, h, s, e) three times -> (b, h, s, e)."""
    return scaled_dot_product_attention(q, k, v, is_causal=True)
