"""The assignment's benchmarking script: wall-clock time, GPU time and peak memory of
forward pass, backward pass and training step.

    python -m systems.experiments.end_to_end --size small --mode step --precision bf16
"""

from dataclasses import dataclass
from typing import Any

from systems.attention import IMPLEMENTATIONS
from systems.benchmarking import gpu_time, timing
from systems.benchmarking.workload import Workload
from systems.model.sizes import SIZES, TABLE_1, VOCAB_SIZE
from systems.model.train_step import PRECISIONS
from systems.running.command import main, option

PROTOCOL = gpu_time.STEP_CLOCKS | {
    "data": "random tokens and targets, seed 0",
    "tf32": "off for fp32 and bf16, on for tf32",
}
MODES = ("forward", "forward_backward", "step")
# Sizes whose AdamW state may not fit beside the activations.
LARGE = ("2.7B", "10B")


# --8<-- [start:config]
@dataclass(frozen=True)
class Config:
    size: str = option("small", "model size of Table 1", choices=SIZES)
    context: int = option(128, "sequence length in tokens")
    mode: str = option("step", "what to time", choices=MODES)
    precision: str = option(
        "fp32", "precision: fp32 (TF32 off), tf32, or bf16 autocast", choices=PRECISIONS
    )
    batch: int = option(4, "sequences in a batch")
    vocab: int = option(VOCAB_SIZE, "vocabulary size")
    warmup: int = option(5, "steps before the clock counts")
    steps: int = option(10, "steps that are measured")
    attention: str = option(
        "eager", "attention implementation", choices=IMPLEMENTATIONS
    )
    # --8<-- [end:config]


def configs(quick: bool = False) -> list[Config]:
    """Return configurations: Table 1 at contexts 128 to 1024 in fp32 and bf16 and at
    512 in TF32; 2.7B at 2048; CS336 2026's 10B. Mode "forward_backward", which needs no
    AdamW, is only for sizes whose steps may not fit in memory.
    """
    if quick:
        return [
            Config("small", 32, mode, precision, 1, warmup=0, steps=1)
            for mode, precision in (("forward", "fp32"), ("step", "bf16"))
        ]
    cells = [
        (size, context, p)
        for size in TABLE_1
        for context in (128, 256, 512, 1024)
        for p in ("fp32", "bf16")
    ]
    cells += [(size, 512, "tf32") for size in TABLE_1]
    cells += [("2.7B", 2048, p) for p in ("fp32", "bf16")]
    cells += [("10B", 512, p) for p in ("fp32", "bf16")]
    return [
        Config(size, context, mode, p)
        for size, context, p in cells
        for mode in MODES
        if mode != "forward_backward" or size in LARGE
    ]


# --8<-- [start:run]
def run(config: Config) -> dict[str, Any]:
    """Return each phase's times in ms, and on a GPU peak bytes and GPU times in ms."""
    c, device = config, timing.default_device()
    work = Workload(
        device, c.size, c.context, c.mode, c.precision, c.batch, c.vocab, c.attention
    )
    clear = work.model.zero_grad
    samples = timing.measure(
        work.step, warmup=c.warmup, repeats=c.steps, device=device, between=clear
    )
    return samples | gpu_time.measure(work.step, device, between=clear)
    # --8<-- [end:run]


if __name__ == "__main__":
    main(Config, run)
