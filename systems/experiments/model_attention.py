"""Measure a training step in bf16 with three attention implementations: eager, fused by
PyTorch, and this project's FlashAttention.

The three implementations alternate, with one model in memory at a time. GPU time is
measured too, because faster attention doesn't shorten a launch-bound step.

    python -m systems.experiments.model_attention --context 4096 --attention flash
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from systems.benchmarking import gpu_time, timing
from systems.benchmarking.peers import find_backend
from systems.benchmarking.workload import Workload
from systems.model.sizes import SIZES, TABLE_1
from systems.records.outcome import AlternatingRun
from systems.running.command import main, option

IN_TURNS = "attention"
PROTOCOL = gpu_time.STEP_CLOCKS | {
    "data": "random tokens and targets, seed 0",
    "order": "the three attentions in turn, three rounds, each with a new model",
}
ROUNDS = 3
BATCH = 4
# Name of each attention implementation in the model, and in the module `peers`.
ATTENTIONS = {"eager": "eager", "sdpa": "sdpa", "flash": "ours"}


@dataclass(frozen=True)
class Config:
    size: str = option("small", "model size of Table 1", choices=SIZES)
    context: int = option(1024, "sequence length in tokens")
    attention: str = option("flash", "attention implementation", choices=ATTENTIONS)
    batch: int = option(BATCH, "sequences in a batch")
    warmup: int = option(5, "steps before the clock counts")
    steps: int = option(10, "steps that are measured")


def configs(quick: bool = False) -> list[Config]:
    if quick:
        return [Config("small", 32, "sdpa", 1, warmup=0, steps=1)]
    cells = [(size, 1024) for size in TABLE_1] + [("small", 4096), ("small", 16384)]
    return [Config(size, n, name) for size, n in cells for name in ATTENTIONS]


# --8<-- [start:run]
def run(config: Config) -> AlternatingRun:
    """Measure each phase of a training step: samples in ms, peak memory in bytes, GPU
    time, and the backend that ran. Each turn runs some of the steps.
    """
    c, shape, device = config, SIZES[config.size], timing.default_device()
    ends, times = [c.steps * i // ROUNDS for i in range(ROUNDS + 1)], dict[str, Any]()
    for steps in (end - start for start, end in pairwise(ends) if end > start):
        for name, value in time_steps(c, steps, device).items():
            if isinstance(value, list):
                times.setdefault(name, []).extend(value)
            else:
                times[name] = max(value, times.get(name, 0))
        timing.empty_cache(device)
        yield
    times |= measure_gpu_time(c, device)
    timing.empty_cache(device)
    heads = (c.batch, shape.num_heads, c.context, shape.d_model // shape.num_heads)
    # Under autocast, attention gets q, k and v in bf16.
    q = torch.empty(heads, dtype=torch.bfloat16, device=device, requires_grad=True)
    return {**times, "ran": find_backend(ATTENTIONS[c.attention], q, q, q, causal=True)}


def make_workload(c: Config, device: str) -> Workload:
    settings = c.size, c.context, "step", "bf16", c.batch
    return Workload(device, *settings, attention=c.attention)


def time_steps(c: Config, steps: int, device: str) -> dict[str, Any]:
    """Run `steps` steps of a new model; return ms by phase and peak bytes."""
    work = make_workload(c, device)
    clear = work.model.zero_grad
    return timing.measure(
        work.step, warmup=c.warmup, repeats=steps, device=device, between=clear
    )


def measure_gpu_time(c: Config, device: str) -> dict[str, Any]:
    work = make_workload(c, device)
    clear = work.model.zero_grad
    # Run a warm-up step, because AdamW's first step creates its state.
    timing.measure(work.step, warmup=1, repeats=0, device=device, between=clear)
    return gpu_time.measure(work.step, device, between=clear)
    # --8<-- [end:run]


if __name__ == "__main__":
    main(Config, run)
