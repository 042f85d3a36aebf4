"""Measure plain attention with one head by head dimension d and sequence length n: time
of forward and backward, and memory saved for backward. Eager and compiled alternate.

    python -m systems.experiments.attention --d 64 --n 4096 --execution compiled
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from systems.benchmarking import compiling, gpu_time, phases, timing
from systems.benchmarking.workload import random_inputs
from systems.model import transformer
from systems.model.train_step import Phase
from systems.precision.dtypes import DTYPES
from systems.profiling import probes
from systems.records.outcome import AlternatingRun
from systems.running.command import main, option

IN_TURNS = "execution"
PROTOCOL = gpu_time.COLD_CLOCK | {
    "wall time": "between two synchronisations, one pair around each pass",
    "data": "standard normal, seed 0, batch of 8, one head",
    "bf16": "inputs in bf16, no autocast",
    "tf32": "off",
    "compiler": "torch.compile, one graph, static shapes, caches empty before each row",
}
FORMATS, EXECUTIONS = ("fp32", "bf16"), ("eager", "compiled")
WIDTHS = (16, 32, 64, 128)
LENGTHS = (256, 1024, 4096, 8192, 16384)
# Twice the longest sequence of the assignment; eager needs more than 140 GiB.
TOO_LONG = 32768
ROUNDS = 3
# From length LONG on, run fewer passes, except in the assignment's own configurations.
LONG, PASSES_IF_LONG = 8192, 30


@dataclass(frozen=True)
class Config:
    d: int = option(64, "width of the head")
    n: int = option(4096, "sequence length in tokens")
    causal: bool = option(False, "causal mask")
    dtype: str = option(
        "fp32", "dtype of q, k, v and the gradient: fp32 (TF32 off) or bf16", FORMATS
    )
    execution: str = option("eager", "as written, or through torch.compile", EXECUTIONS)
    batch: int = option(8, "sequences in a batch")
    warmup: int = option(5, "passes before the clock counts, timed apart")
    passes: int = option(100, "forward passes and backward passes that are measured")


def configs(quick: bool = False) -> list[Config]:
    """Return Configs: the assignment's shapes; causal d = 64; and d = 64, n = 32768."""
    if quick:
        return [Config(16, 256, execution=e, warmup=2, passes=3) for e in EXECUTIONS]

    def count_passes(dtype: str, causal: bool, n: int) -> int:
        assigned = dtype == "fp32" and not causal
        return Config.passes if assigned or n < LONG else PASSES_IF_LONG

    grid = [
        Config(d, n, causal, dtype, execution, passes=count_passes(dtype, causal, n))
        for dtype in FORMATS
        for causal, widths in ((False, WIDTHS), (True, (64,)))
        for d in widths
        for n in LENGTHS
        for execution in EXECUTIONS
    ]
    return grid + [
        Config(64, TOO_LONG, execution=e, warmup=1, passes=10) for e in EXECUTIONS
    ]


def choose_attention(causal: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the model's attention function, with its causal mask if `causal`."""
    return (
        transformer.eager_attention
        if causal
        else transformer.scaled_dot_product_attention
    )


# --8<-- [start:run]
def run(config: Config) -> AlternatingRun:
    """Return times in ms of forward, backward and warm-up passes, the saved tensors,
    and the number of compiled graphs; on a GPU also memory in bytes, GPU times in ms,
    and numbers of kernels. Raise ValueError if compiled without a warm-up pass.
    """
    is_compiled = config.execution == "compiled"
    if is_compiled and config.warmup < 1:
        raise ValueError("--warmup must be 1 or more where the first pass compiles")
    device = timing.default_device()
    torch.set_float32_matmul_precision("highest")
    shape = (config.batch, 1, config.n, config.d)
    q, k, v, do = cached_inputs(shape, DTYPES[config.dtype], device)
    attention = choose_attention(config.causal)

    def step(phase: Phase) -> None:
        with phase(phases.FORWARD):
            o = attention(q, k, v)
        with phase(phases.BACKWARD):
            o.backward(do)

    def clear_gradients() -> None:
        for x in (q, k, v):
            x.grad = None

    with compiling.fresh_caches(device) if is_compiled else nullcontext():
        if is_compiled:
            attention = compiling.compile_work(attention)
        metrics: dict[str, Any] = compiling.measure(
            step,
            warmup=config.warmup,
            repeats=config.passes,
            device=device,
            between=clear_gradients,
        )
        saved, memory = probes.SavedTensors((q, k, v)), probes.MemoryInUse(device)
        for probe in (saved, memory):
            clear_gradients()
            step(probe.phase)
        metrics |= memory.bytes | {"saved": saved.tensors}
        clear_gradients()
        timing.empty_cache(device)
        yield
        for _ in range(ROUNDS):
            gpu_time.add_round(
                metrics, step, device, between=clear_gradients, counted=True
            )
            clear_gradients()
            timing.empty_cache(device)
            yield
    return metrics


@lru_cache(maxsize=1)
def cached_inputs(
    shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return `random_inputs`; consecutive calls with equal arguments share tensors."""
    return random_inputs(shape, dtype, device)
    # --8<-- [end:run]


if __name__ == "__main__":
    main(Config, run)
