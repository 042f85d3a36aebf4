"""What a first kernel reaches: the weighted sum of rows beside PyTorch's own, and a
copy of as many bytes.

Each number of x is used once forwards and once backwards, so memory decides, and a copy
says which rate can be had.

    python -m systems.experiments.weighted_sum --implementation ours --dtype bf16
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from systems.benchmarking import timing
from systems.benchmarking.gpu_timing import OVERWRITTEN, kernel_times_ms
from systems.precision.dtypes import DTYPES, relative_error
from systems.records.outcome import Turns
from systems.running.command import main, option
from systems.weighted_sum import weighted_sum

# The rows that differ in this field alone are measured in turns.
IN_TURNS = "implementation"
PROTOCOL = {
    "clock": "triton.testing.do_bench, 5 ms of warm-up, 20 ms of calls with the "
    "L2 cache emptied eight times over before each",
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
ROUNDS = 5


@dataclass(frozen=True)
class Config:
    implementation: str = option(
        "ours", "ours, one of PyTorch's, or a copy of x", (*IMPLEMENTATIONS, "copy")
    )
    dtype: str = option("fp32", "dtype of x, w and the gradient", ("fp32", "bf16"))
    n: int = option(65536, "rows of x")
    d: int = option(2048, "columns of x, which is the length of w")


def configs(quick: bool = False) -> list[Config]:
    """Every implementation in both dtypes: x is far larger than the L2 cache."""
    names = (*IMPLEMENTATIONS, "copy")
    if quick:
        return [Config(name, "fp32", 64, 256) for name in names]
    return [Config(name, dtype) for dtype in ("fp32", "bf16") for name in names]


# --8<-- [start:run]
def run(config: Config) -> Turns:
    """Samples in ms of the forward and the backward pass, errors, and whether two calls
    give the same bits; of a copy its samples.
    """
    device = timing.default_device()
    x, w, dy = made(config, device)
    if config.implementation == "copy":
        source, target = x.detach(), torch.empty_like(x)
        times: dict[str, list[float]] = {"copy_ms": []}
        for _ in range(ROUNDS):
            times["copy_ms"] += times_ms(lambda: target.copy_(source), device)
            yield
        return times
    compute = IMPLEMENTATIONS[config.implementation]
    y = compute(x, w)

    def backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(y, (x, w), dy, retain_graph=True)

    once, again = (y, *backward()), (compute(x, w), *backward())
    metrics = errors(once, x.detach(), w.detach(), dy)
    metrics["repeats"] = all(map(torch.equal, once, again))
    del once, again
    yield
    for _ in range(ROUNDS):
        for name, work in (("forward", lambda: compute(x, w)), ("backward", backward)):
            metrics.setdefault(f"{name}_ms", []).extend(times_ms(work, device))
        yield
    return metrics


# --8<-- [end:run]


def times_ms(work: Callable[[], object], device: str) -> list[float]:
    """Samples of one call, which takes so little that the host needs a head start."""
    return kernel_times_ms(work, device, overwritten=OVERWRITTEN)


def made(config: Config, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """x and w, which require gradients, and dy."""
    generator, dtype = torch.Generator(device).manual_seed(0), DTYPES[config.dtype]
    x, w, dy = (
        torch.randn(shape, generator=generator, device=device).to(dtype)
        for shape in ((config.n, config.d), (config.d,), (config.n,))
    )
    return x.requires_grad_(), w.requires_grad_(), dy


def errors(
    found: tuple[Tensor, ...], x: Tensor, w: Tensor, dy: Tensor
) -> dict[str, Any]:
    """Relative errors of y, dx and dw."""
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
