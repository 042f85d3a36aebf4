"""Plain attention, which stores all scores, as the reference in tests. It computes in
the dtype of its inputs, including float64.

    S = scale · Q Kᵀ      lse = log Σ exp S      P = exp(S - lse)      O = P V
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def attention_reference(
    q: Float[Tensor, "... q d"],
    k: Float[Tensor, "... k d"],
    v: Float[Tensor, "... k d"],
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Float[Tensor, "... q d"], Float[Tensor, "... q"]]:
    """Return (o, lse): outputs, and the natural log-sum-exp of each query's scores. If
    `causal`, query i does not see keys j > i. If k and v have fewer heads (dimension
    -3) than q, adjacent query heads share a KV head. `scale` defaults to 1 / sqrt(d).
    """
    if q.ndim > 2 and k.shape[-3] != q.shape[-3]:
        group = q.shape[-3] // k.shape[-3]
        k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    s = (q @ k.mT) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        hidden = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
        s = s.masked_fill(hidden, float("-inf"))
    return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)
