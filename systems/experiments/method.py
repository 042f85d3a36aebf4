"""Compare ways to time the same pass: wall clock, CUDA events, the sum of kernel times
by CUPTI, and a CUDA graph.

    python -m systems.experiments.method --context 128 --precision fp32
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from systems.benchmarking import gpu_time, timing
from systems.benchmarking.graphs import capture
from systems.benchmarking.timing import Step
from systems.benchmarking.workload import Workload
from systems.model.sizes import SIZES
from systems.records.outcome import Unsupported
from systems.running.command import main, option

PROTOCOL = {
    "order": "one pass by the clock, one by events, in turns; then events without "
    "waits, CUDA graphs without waits, and CUPTI",
    "gpu time": "sum of kernel times by CUPTI (torch.profiler)",
    "tf32": "off for fp32",
}
MODES = ("forward", "step")
# Number of profiled passes for the sum of kernel times.
PROFILED_PASSES = 5


@dataclass(frozen=True)
class Config:
    size: str = option("small", "model size of Table 1", choices=SIZES)
    context: int = option(128, "sequence length in tokens")
    precision: str = option(
        "fp32", "precision: fp32 (TF32 off) or bf16 autocast", choices=("fp32", "bf16")
    )
    mode: str = option("forward", "what to time", choices=MODES)
    repeats: int = option(100, "passes measured each way")


def configs(quick: bool = False) -> list[Config]:
    """Return configurations: forward passes of `small`, and steps of two sizes."""
    if quick:
        return [Config(repeats=10)]
    passes = [
        Config("small", context, p)
        for context in (128, 256, 512, 1024)
        for p in ("fp32", "bf16")
    ]
    steps = [
        Config(size, 512, p, "step", repeats=10)
        for size in ("small", "2.7B")
        for p in ("fp32", "bf16")
    ]
    return passes + steps


# --8<-- [start:run]
def run(config: Config) -> dict[str, Any]:
    """Return samples in ms of the same pass by each clock. Raise ValueError on a CPU.

    `clock_ms` and `events_ms` alternate and synchronize after each pass.
    `queued_events_ms` and `graph_ms` synchronize once, after all passes.
    """
    c, device = config, timing.default_device()
    if device != "cuda":
        raise ValueError("CUDA events exist on a GPU only, and torch sees none here")
    work = Workload(device, c.size, c.context, c.mode, c.precision)
    clear = work.model.zero_grad

    def event_times(
        step: Step, count: int, between: Callable[[], None] = clear
    ) -> list[float]:
        pairs = [
            [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            for _ in range(count)
        ]
        for start, end in pairs:
            between()
            start.record()
            step(lambda _: nullcontext())
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]

    def clock_times(count: int) -> list[float]:
        metrics = timing.measure(
            work.step, warmup=0, repeats=count, device=device, between=clear
        )
        phases = (samples for samples in metrics.values() if isinstance(samples, list))
        return [sum(phase_ms) for phase_ms in zip(*phases, strict=True)]

    clock_times(5)
    metrics: dict[str, Any] = {"clock_ms": [], "events_ms": []}
    for _ in range(c.repeats):
        metrics["clock_ms"] += clock_times(1)
        metrics["events_ms"] += event_times(work.step, 1)
    metrics["queued_events_ms"] = event_times(work.step, c.repeats)
    try:
        with capture(work.step, clear, device) as replay:
            # Gradients need not be cleared, because each replay overwrites them.
            event_times(replay, 1, between=lambda: None)
            metrics["graph_ms"] = event_times(replay, c.repeats, between=lambda: None)
    except (Unsupported, torch.OutOfMemoryError) as error:
        metrics["no_graphs"] = str(error).splitlines()[0]
    return metrics | gpu_time.measure(
        work.step, device, passes=PROFILED_PASSES, between=clear, counted=True
    )
    # --8<-- [end:run]


if __name__ == "__main__":
    main(Config, run)
