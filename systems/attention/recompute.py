"""The assignment's backward pass: PyTorch under `torch.compile`. It recomputes P from
the saved lse, but stores full n_q x n_k matrices.
"""

import torch
from torch import Tensor


# --8<-- [start:backward]
@torch.compile
def recompute_backward(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq, dk, dv. q, o, do: (*, n_q, d); k, v: (*, n_k, d); lse: (*, n_q)."""
    scale = q.shape[-1] ** -0.5
    s = q @ k.mT * scale
    p = torch.exp(s - lse[..., None])
    if causal:
        p = p.tril()
    dv = p.to(do.dtype).mT @ do
    dp = do @ v.mT
    delta = (o.float() * do).sum(-1, keepdim=True)
    ds = (p * (dp - delta) * scale).to(q.dtype)
    return ds @ k, ds.mT @ q, dv
    # --8<-- [end:backward]
