"""Time FlashAttention, plain and compiled PyTorch, and SDPA: forward, backward and
both, in the assignment's 80 configurations (batch 1, one head, causal).

`forward_ms`, `backward_ms` and `both_ms` come from Triton's `do_bench`, as the
assignment asks. `forward_gpu_ms` and so on are GPU time, measured in rounds in which
implementations alternate.

    python -m systems.experiments.flash_benchmarking --dtype bf16 --d 64 --n 16384
"""

from dataclasses import dataclass
from typing import Any

import torch

from systems.benchmarking import gpu_time, timing
from systems.benchmarking.peers import find_backend, load_peer, use_peer
from systems.benchmarking.workload import random_inputs
from systems.precision.dtypes import DTYPES
from systems.records.outcome import AlternatingRun
from systems.running.command import main, option

IN_TURNS = "implementation"
PROTOCOL = gpu_time.COLD_CLOCK | {
    "do_bench": "triton.testing.do_bench, 5 ms of warm-up, 100 ms of calls with the "
    "emptying of the L2 cache before each; before the rounds",
    "inputs": "standard normal, seed 0, batch 1, one head, causal",
    "tf32": "off",
}
IMPLEMENTATIONS = ("ours", "plain", "compiled", "sdpa")
FORMATS = ("fp32", "bf16")
ROUNDS, PASSES_IN_ROUND = 3, 3


@dataclass(frozen=True)
class Config:
    implementation: str = option(
        "ours",
        "ours, plain or compiled PyTorch, or SDPA",
        IMPLEMENTATIONS,
    )
    dtype: str = option("bf16", "dtype of q, k, v and the gradient", FORMATS)
    d: int = option(64, "head dimension")
    n: int = option(1024, "sequence length in tokens")


def configs(quick: bool = False) -> list[Config]:
    """Return the four implementations at each of 80 combinations of dtype, d and n."""
    if quick:
        return [Config(name, "fp32", 16, 128) for name in ("plain", "sdpa")]
    return [
        Config(name, dtype, d, 2**power)
        for dtype in ("bf16", "fp32")
        for d in (16, 32, 64, 128)
        for power in range(7, 17)
        for name in IMPLEMENTATIONS
    ]


# --8<-- [start:run]
def run(config: Config) -> AlternatingRun:
    """Return do_bench times and GPU times in ms, memory in bytes, and the backend."""
    device = timing.default_device()
    q, k, v, do = random_inputs(
        (1, 1, config.n, config.d), DTYPES[config.dtype], device
    )
    attend = load_peer(config.implementation, causal=True, n=config.n, device=device)
    metrics: dict[str, Any] = {}
    with use_peer(config.implementation):
        # Before memory is measured, compile and let libraries allocate workspaces.
        torch.autograd.grad(attend(q, k, v), (q, k, v), do)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            metrics["held_bytes"] = torch.cuda.memory_allocated()
        torch.autograd.grad(attend(q, k, v), (q, k, v), do)
        metrics |= timing.peak_memory(device)
        metrics["ran"] = find_backend(config.implementation, q, k, v, causal=True)
    yield
    with use_peer(config.implementation):
        metrics |= gpu_time.bench_passes(attend, q, k, v, do)
    timing.empty_cache(device)
    yield
    step = gpu_time.make_attention_step(attend, q, k, v, do)
    for _ in range(ROUNDS):
        with use_peer(config.implementation):
            gpu_time.add_round(metrics, step, device, passes=PASSES_IN_ROUND)
        timing.empty_cache(device)
        yield
    return metrics
    # --8<-- [end:run]


if __name__ == "__main__":
    main(Config, run)
