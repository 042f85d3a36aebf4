"""PyTorch's fused attention (SDPA) as an attention implementation of the model."""

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention of q, k and v; all have shape (batch, heads, n, d)."""
    return scaled_dot_product_attention(q, k, v, is_causal=True)
