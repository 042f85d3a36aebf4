"""Measure peak memory and time of a forward and backward pass with each strategy of
activation checkpointing: runs of blocks, nested runs, half blocks, attention alone.

Each row has two peaks: one if the backward pass allocates the gradients, as after
`zero_grad()`, and one if gradients already exist, as in gradient accumulation.

    python -m systems.experiments.gradient_checkpointing --strategy runs --run 4
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from systems.benchmarking import gpu_time, timing
from systems.benchmarking.compiling import BACKEND, fresh_caches
from systems.benchmarking.workload import Workload
from systems.model import checkpointing
from systems.model.sizes import SIZES
from systems.model.transformer import BasicsTransformerLM
from systems.running.command import main, option

PROTOCOL = gpu_time.STEP_CLOCKS | {
    "peak": "of the allocator, over the steps after the warm-up; then over one step "
    "more whose gradients are there from the start",
    "data": "random tokens and targets, seed 0",
    "tf32": "off",
}
STRATEGIES: dict[str, Callable[[BasicsTransformerLM], None] | None] = {
    "none": None,
    "runs": None,
    "half_blocks": checkpointing.checkpoint_half_blocks,
    "halving": checkpointing.checkpoint_halving,
    "chain": checkpointing.checkpoint_chain,
    "attention": checkpointing.checkpoint_attention,
    "by_hand": checkpointing.checkpoint_by_hand,
}
ATTENTIONS = ("eager", "sdpa", "flash")
# Blocks recomputed together; the 2.7B model has 32 blocks.
RUNS = (1, 2, 3, 4, 6, 8, 11, 16, 32)


@dataclass(frozen=True)
class Config:
    size: str = option("2.7B", "model size", choices=SIZES)
    context: int = option(2048, "sequence length in tokens")
    attention: str = option("flash", "attention implementation", choices=ATTENTIONS)
    strategy: str = option("none", "what is computed again", choices=STRATEGIES)
    run: int = option(1, "blocks that are computed again together")
    blocks_compiled: bool = option(False, "each block through torch.compile")
    precision: str = option(
        "bf16", "precision: fp32 (TF32 off) or bf16 autocast", choices=("fp32", "bf16")
    )
    batch: int = option(4, "sequences in a batch")
    warmup: int = option(1, "steps before the clock counts")
    steps: int = option(2, "steps that are measured")


def configs(quick: bool = False) -> list[Config]:
    """Return configurations: no checkpointing, runs of blocks, other strategies."""
    if quick:
        tiny: dict[str, Any] = {"batch": 1, "warmup": 0, "steps": 1}
        return [
            Config("small", 32, "eager", name, precision="fp32", **tiny)
            for name in ("none", "runs", "halving")
        ]
    flash = [Config(strategy="runs", run=run) for run in RUNS]
    eager = [Config(attention="eager", strategy="runs", run=run) for run in (1, 2)]
    others = [
        Config(strategy="half_blocks"),
        Config(strategy="by_hand"),
        Config(strategy="halving", steps=1),
        Config(strategy="chain", steps=1),
        Config(attention="eager", strategy="attention"),
        Config(attention="sdpa"),
        Config(attention="sdpa", blocks_compiled=True),
    ]
    return [Config(), *flash, *eager, *others]


# --8<-- [start:run]
def run(config: Config) -> dict[str, Any]:
    """Return times in ms by phase; on a GPU also GPU times in ms and peaks in bytes."""
    c, device = config, timing.default_device()
    settings = c.size, c.context, "forward_backward", c.precision, c.batch
    work = Workload(device, *settings, attention=c.attention)
    apply_strategy(work.model, c.strategy, c.run)
    if not c.blocks_compiled:
        return measure_work(c, work, device)
    with fresh_caches(device):
        for block in work.model.layers:
            block.compile(fullgraph=True, dynamic=False, backend=BACKEND)
        return measure_work(c, work, device)


def apply_strategy(model: BasicsTransformerLM, strategy: str, run: int) -> None:
    """Checkpoint the model by a strategy in STRATEGIES ("runs": every `run` blocks)."""
    if strategy == "runs":
        checkpointing.checkpoint_blocks(model, run)
    elif (change := STRATEGIES[strategy]) is not None:
        change(model)


def measure_work(c: Config, work: Workload, device: str) -> dict[str, Any]:
    def measure(warmup: int, repeats: int, between: Callable[[], None]) -> dict:
        return timing.measure(
            work.step, warmup=warmup, repeats=repeats, device=device, between=between
        )

    def keep_gradients() -> None:
        work.model.zero_grad(set_to_none=False)

    clear = work.model.zero_grad
    metrics = measure(c.warmup, c.steps, clear)
    if peak := measure(0, 1, keep_gradients).get("peak_allocated_bytes"):
        metrics["kept_peak_allocated_bytes"] = peak
    return metrics | gpu_time.measure(work.step, device, between=clear)
    # --8<-- [end:run]


if __name__ == "__main__":
    main(Config, run)
