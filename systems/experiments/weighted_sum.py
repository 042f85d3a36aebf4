"""Compare the bandwidth of the weighted-sum kernel, of PyTorch's operations, and of a
copy, which is an upper bound because all are memory-bound.

    python -m systems.experiments.weighted_sum --implementation ours --dtype bf16
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from systems.benchmarking import gpu_time, timing
from systems.model.train_step import Phase
from systems.precision.dtypes import DTYPES, relative_error
from systems.records.outcome import AlternatingRun
from systems.running.command import main, option
from systems.weighted_sum import weighted_sum

IN_TURNS = "implementation"
PROTOCOL = {
    "gpu time": gpu_time.COLD_CLOCK["gpu time"],
    "order": "every implementation in turn, five rounds",
    "inputs": "standard normal, seed 0",
    "error": "norm of the difference from float64 over the norm of float64",
}
# --8<-- [start:implementations]
IMPLEMENTATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ours": weighted_sum,
    "mv": torch.mv,
    "einsum": lambda x, w: torch.einsum("nd,d->n", x, w),
    "product_and_sum": lambda x, w: (x * w).sum(-1),
}
# --8<-- [end:implementations]


@dataclass(frozen=True)
class Config:
    implementation: str = option(
        "ours", "ours, one of PyTorch's, or a copy of x", (*IMPLEMENTATIONS, "copy")
    )
    dtype: str = option("fp32", "dtype of x, w and the gradient", ("fp32", "bf16"))
    n: int = option(65536, "rows of x")
    d: int = option(2048, "columns of x, which is the length of w")


def configs(quick: bool = False) -> list[Config]:
    names = (*IMPLEMENTATIONS, "copy")
    if quick:
        return [Config(name, "fp32", 64, 256) for name in names]
    return [Config(name, dtype) for dtype in ("fp32", "bf16") for name in names]


# --8<-- [start:run]
def run(config: Config) -> AlternatingRun:
    """Return GPU times in ms; also relative errors, or `copied_bytes` for a copy."""
    device = timing.default_device()
    x, w, dy = make_inputs(config, device)
    compute = IMPLEMENTATIONS.get(config.implementation)
    if compute is None:
        source, target = x.detach(), torch.empty_like(x)
        metrics: dict[str, Any] = {"copied_bytes": source.nbytes}

        def step(phase: Phase) -> None:
            with phase("copy"):
                target.copy_(source)

    else:
        metrics = check_results(compute, x, w, dy)

        def step(phase: Phase) -> None:
            with phase("forward"):
                y = compute(x, w)
            with phase("backward"):
                torch.autograd.grad(y, (x, w), dy)

    yield
    for _ in range(gpu_time.ROUNDS):
        gpu_time.add_round(metrics, step, device)
        yield
    return metrics
    # --8<-- [end:run]


def check_results(
    compute: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor, dy: Tensor
) -> dict[str, Any]:
    """Return relative errors of y, dx, dw, and whether two calls are bitwise equal."""

    def run_both() -> tuple[Tensor, ...]:
        y = compute(x, w)
        return (y, *torch.autograd.grad(y, (x, w), dy))

    first, second = run_both(), run_both()
    metrics = relative_errors(first, x.detach(), w.detach(), dy)
    return metrics | {"repeats": all(map(torch.equal, first, second))}


def make_inputs(config: Config, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return normal x (n, d) and w (d,) that require gradients, and dy (n,)."""
    generator, dtype = torch.Generator(device).manual_seed(0), DTYPES[config.dtype]
    x, w, dy = (
        torch.randn(shape, generator=generator, device=device).to(dtype)
        for shape in ((config.n, config.d), (config.d,), (config.n,))
    )
    return x.requires_grad_(), w.requires_grad_(), dy


def relative_errors(
    found: tuple[Tensor, ...], x: Tensor, w: Tensor, dy: Tensor
) -> dict[str, Any]:
    """Return {"y_relative_error": ...} of `found` (y, dx, dw) against float64."""
    exact_x, exact_w, exact_dy = x.double(), w.double(), dy.double()
    exact = {
        "y": lambda: exact_x @ exact_w,
        "dx": lambda: exact_dy[:, None] * exact_w,
        "dw": lambda: exact_dy @ exact_x,
    }
    return {
        f"{name}_relative_error": relative_error(value.detach(), exactly())
        for (name, exactly), value in zip(exact.items(), found, strict=True)
    }


if __name__ == "__main__":
    main(Config, run)
