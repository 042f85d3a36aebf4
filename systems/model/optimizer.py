"""AdamW as the course defines it: one parameter at a time, unfused, weight decay after
the update.

Loshchilov and Hutter 2019, algorithm 2. It differs from `torch.optim.AdamW` in two
ways: decay comes last, and eps is added before the bias correction of the second
moment. It launches several small kernels per parameter tensor, so launch overhead and
memory bandwidth are its bottlenecks.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor


# --8<-- [start:adamw]
class AdamW(torch.optim.Optimizer):
    """AdamW. State per parameter: m (first moment), v (second moment), t (the number of
    the next step, from 1).

    m and v have the shape and dtype of their parameter. Raise ValueError for options
    out of range.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ):
        if (
            lr < 0
            or eps < 0
            or weight_decay < 0
            or not all(0 <= beta < 1 for beta in betas)
        ):
            raise ValueError(f"AdamW takes no {lr=}, {betas=}, {eps=}, {weight_decay=}")
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Update parameters that have gradients. Return the closure's loss, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(m=torch.zeros_like(p), v=torch.zeros_like(p), t=1)
                m, v, t = state["m"], state["v"], state["t"]
                m.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                step_size = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
                p.addcdiv_(m, v.sqrt().add_(group["eps"]), value=-step_size)
                p.mul_(1 - lr * group["weight_decay"])
                state["t"] = t + 1
        return loss


# --8<-- [end:adamw]
