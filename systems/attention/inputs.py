"""What flash attention takes, said before anything runs, and how autocast changes it.

Every refusal names the argument, what it got and what it takes. Shapes: ... any leading dimensions, the last of them
the heads; n_q queries, n_k keys, d head dimension.
"""

import math
from collections.abc import Collection

import torch
from torch import Tensor


def check_inputs(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, dtypes: Collection[torch.dtype]
) -> None:
    """TypeError or ValueError unless q (..., n_q, d), k and v (..., n_k, d) and the options can be computed with."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
        if x.layout != torch.strided:
            raise TypeError(f"{name} must be a strided tensor, got layout {x.layout}")
        if x.dtype not in dtypes:
            takes = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise TypeError(f"{name} must be one of {takes}, got {str(x.dtype).removeprefix('torch.')}")
        if x.dtype != q.dtype:
            raise TypeError(f"{name} must have the dtype of q, {q.dtype}, got {x.dtype}")
        if x.device != q.device:
            raise ValueError(f"{name} must be on the device of q, {q.device}, got {x.device}")
        if x.ndim < 2:
            raise ValueError(f"{name} must have two or more dimensions (..., N, d), got shape {tuple(x.shape)}")
        if x.ndim != q.ndim:
            raise ValueError(f"{name} must have as many dimensions as q, {q.ndim}, got shape {tuple(x.shape)}")
        if 0 in x.shape:
            raise ValueError(f"{name} must not be empty, got shape {tuple(x.shape)}")
        if x.shape[-1] != q.shape[-1]:
            raise ValueError(f"{name} must have the head dimension of q, {q.shape[-1]}, got shape {tuple(x.shape)}")
    if v.shape != k.shape:
        raise ValueError(f"v must have the shape of k, {tuple(k.shape)}, got {tuple(v.shape)}")
    if q.shape[:-3] != k.shape[:-3]:
        raise ValueError(
            f"k must have the leading dimensions of q, {tuple(q.shape[:-3])}, got {tuple(k.shape[:-3])} "
            f"in shape {tuple(k.shape)}"
        )
    if q.ndim > 2 and q.shape[-3] % k.shape[-3]:
        raise ValueError(f"k must have as many heads as q, {q.shape[-3]}, or a divisor of them, got {k.shape[-3]}")
    if not isinstance(causal, bool):
        raise TypeError(f"causal must be True or False, got {causal!r}")
    if scale is not None:
        if not isinstance(scale, int | float) or isinstance(scale, bool):
            raise TypeError(f"scale must be a number or None, got {type(scale).__name__}")
        if not 0 < scale < math.inf:
            raise ValueError(f"scale must be positive and finite, got {scale}")


def with_heads(x: Tensor) -> Tensor:
    """(h, n, d) as (1, h, n, d); (b, h, n, d) as it is."""
    return x if x.ndim == 4 else x[None]


def refuse_second_derivative() -> None:
    """ValueError inside a backward pass that records a graph of its own (`create_graph=True`)."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise ValueError(
            "the gradient of flash attention can't be differentiated again: backward got create_graph=True, takes False"
        )


def autocast_like_sdpa(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Under autocast, cast as PyTorch does for its own attention: floating dtypes but float64 become autocast's."""
    tensors = (q, k, v)
    device = next((x.device.type for x in tensors if isinstance(x, Tensor)), None)
    # Other devices are refused later, and asking whether they know autocast would break a graph of torch.compile.
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)

    def cast(x: Tensor) -> Tensor:
        eligible = isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
        return x.to(dtype) if eligible and x.device.type == device else x

    return cast(q), cast(k), cast(v)


def default_scale(scale: float | None, d: int) -> float:
    """1 / sqrt(d) unless another scale is given."""
    return 1 / math.sqrt(d) if scale is None else float(scale)
