"""The model's eager attention, with profiler marks around its scores, mask, softmax and
output. Outputs are bitwise equal to the model's. Don't time it: marks take time.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from systems.benchmarking.phases import mark
from systems.model import transformer
from systems.profiling.marks import MASK, OUTPUT, SCORES, SOFTMAX


# --8<-- [start:attention]
def causal_attention(
    q: Float[Tensor, "b h s e"],
    k: Float[Tensor, "b h s e"],
    v: Float[Tensor, "b h s e"],
) -> Float[Tensor, "b h s e"]:
    """Compute eager causal attention, with profiler ranges around its four parts."""
    with mark(SCORES):
        scores = torch.einsum("...qe,...ke->...qk", q, k)
    with mark(MASK):
        position = torch.arange(q.shape[-2], device=q.device)
        scores = torch.where(
            position[:, None] >= position,
            scores / math.sqrt(k.shape[-1]),
            float("-inf"),
        )
    with mark(SOFTMAX):
        weights = transformer.softmax(scores)
    with mark(OUTPUT):
        return torch.einsum("...qk,...ke->...qe", weights, v)
    # --8<-- [end:attention]
