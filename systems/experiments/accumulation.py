"""Add 0.01 a thousand times (the assignment's snippets) or 0.001 ten thousand times to
a running sum, in each number format, on the CPU and on the GPU.

    python -m systems.experiments.accumulation --value fp16 --accumulator fp32
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from systems.benchmarking import timing
from systems.precision.dtypes import DTYPES
from systems.running.command import main, option

PROTOCOL = {
    "sum": "one addition per step, on the CPU and on the GPU",
    "agreement": "every bit of every step",
}
# Approximate number of running sums to store in a row, evenly spaced.
STORED_SUMS = 250


@dataclass(frozen=True)
class Config:
    value: str = option("fp32", "dtype of the term", choices=DTYPES)
    accumulator: str = option("fp32", "dtype of the sum", choices=DTYPES)
    cast: str = option(
        "implicit",
        "is the term cast by hand before it is added?",
        choices=("implicit", "explicit"),
    )
    term: float = option(0.01, "number that is added")
    steps: int = option(1000, "how many times it is added")


def configs(quick: bool = False) -> list[Config]:
    """Return the assignment's four sums, two sums of bf16 terms, and sums of 0.001."""
    if quick:
        return [Config(dtype, dtype, steps=500) for dtype in ("fp16", "bf16")]
    snippets = [
        ("fp32", "fp32", "implicit"),
        ("fp16", "fp16", "implicit"),
        ("fp16", "fp32", "implicit"),
        ("fp16", "fp32", "explicit"),
        ("bf16", "bf16", "implicit"),
        ("bf16", "fp32", "implicit"),
    ]
    smaller = [Config(dtype, dtype, term=0.001, steps=10_000) for dtype in DTYPES]
    return [Config(*snippet) for snippet in snippets] + smaller


# --8<-- [start:run]
def running_sums(config: Config, device: str) -> Float[Tensor, "steps"]:
    s = torch.tensor(0, dtype=DTYPES[config.accumulator], device=device)
    x = torch.tensor(config.term, dtype=DTYPES[config.value], device=device)
    sums = torch.empty(config.steps, dtype=s.dtype, device=device)
    for i in range(config.steps):
        s += x if config.cast == "implicit" else x.type(s.dtype)
        sums[i] = s
    return sums.cpu()
    # --8<-- [end:run]


def run(config: Config) -> dict[str, object]:
    """Return the final sums on the CPU and on the device, in how many steps they
    differ, the last step that changed the sum, and about STORED_SUMS running sums.
    """
    device = timing.default_device()
    on_cpu, on_device = running_sums(config, "cpu"), running_sums(config, device)
    stride = max(1, config.steps // STORED_SUMS)
    return {
        "stored": torch.tensor(config.term, dtype=DTYPES[config.value]).item(),
        "cpu_result": on_cpu[-1].item(),
        "device_result": on_device[-1].item(),
        "device": device,
        "differing_steps": int((on_cpu != on_device).sum()),
        "last_change": last_changing_step(on_device),
        "kept_every": stride,
        "sums": on_device[stride - 1 :: stride].tolist(),
    }


def last_changing_step(sums: Float[Tensor, "steps"]) -> int:
    """Return the number, from 1, of the last step that increased a sum; 0 if empty."""
    return 1 + int((sums != sums[-1]).sum()) if len(sums) else 0


if __name__ == "__main__":
    main(Config, run)
