"""Does the measuring add anything? The same forward pass timed by our clock and by bare
CUDA events, taking turns.

    python -m systems.experiments.method --context 128 --precision fp32
"""

from contextlib import nullcontext
from dataclasses import dataclass

import torch

from systems.benchmarking import timing
from systems.benchmarking.workload import Workload
from systems.model.sizes import SIZES
from systems.running.command import main, option

PROTOCOL = {
    "order": "one pass by the clock, one by events, in turns",
    "tf32": "off for fp32",
}


@dataclass(frozen=True)
class Config:
    size: str = option("small", "model size of Table 1", choices=SIZES)
    context: int = option(128, "sequence length in tokens")
    precision: str = option(
        "fp32", "precision: fp32 (TF32 off) or bf16 autocast", choices=("fp32", "bf16")
    )
    repeats: int = option(100, "passes measured each way")


def configs(quick: bool = False) -> list[Config]:
    """`small` at the assignment's contexts in both precisions."""
    if quick:
        return [Config(repeats=10)]
    return [
        Config("small", context, p)
        for context in (128, 256, 512, 1024)
        for p in ("fp32", "bf16")
    ]


# --8<-- [start:run]
def run(config: Config) -> dict[str, list[float]]:
    """Samples in ms of the same pass, by our clock and by a bare loop with CUDA events.

    `clock_ms` and `events_ms` take turns and wait for the GPU after each pass;
    `queued_events_ms` waits once, after all passes, so that the GPU always has work
    queued: the difference is what waiting costs, not what the clock adds.
    """
    device = timing.default_device()
    if device != "cuda":
        raise ValueError("CUDA events exist on a GPU only, and torch sees none here")
    work = Workload(device, config.size, config.context, "forward", config.precision)

    def passes_by_events(count: int) -> list[float]:
        pairs = [
            [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            for _ in range(count)
        ]
        for start, end in pairs:
            start.record()
            work.step(lambda _: nullcontext())
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]

    timing.measure(work.step, warmup=0, repeats=5, device=device)
    samples: dict[str, list[float]] = {
        "clock_ms": [],
        "events_ms": [],
        "queued_events_ms": [],
    }
    for _ in range(config.repeats):
        clocked = timing.measure(work.step, warmup=0, repeats=1, device=device)[
            "forward_ms"
        ]
        assert isinstance(clocked, list)
        samples["clock_ms"] += clocked
        samples["events_ms"] += passes_by_events(1)
    samples["queued_events_ms"] = passes_by_events(config.repeats)
    return samples


# --8<-- [end:run]

if __name__ == "__main__":
    main(Config, run)
