"""Measure a pass's peak memory by category, such as weights and activations.

The first passes measure the allocator's peak. One more records the allocator's history;
--keep-snapshots saves it for pytorch.org/memory_viz.

    python -m systems.experiments.peak_memory --size small --precision bf16
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from systems import ROOT
from systems.benchmarking import timing
from systems.benchmarking.workload import MODES, Workload
from systems.model.checkpointing import checkpoint_blocks
from systems.model.sizes import SIZES, TABLE_1, VOCAB_SIZE
from systems.profiling.memory.digest import summarize
from systems.profiling.memory.recorder import Recorder
from systems.running.command import main, option

PROTOCOL = {
    "peak": "of the allocator, over passes after the warm-up, nothing recorded",
    "categories": "of one pass more, from the allocator's history, in bytes as asked "
    "for",
    "data": "random tokens and targets, seed 0",
    "tf32": "off",
}
# Attention implementations: eager, and this project's, which needs less memory.
ATTENTIONS = ("eager", "flash")
# Passes of 2.7B whose memory over time is drawn.
DRAWN = (
    (128, "step", "fp32"),
    *((512, mode, p) for mode in ("forward", "step") for p in ("fp32", "bf16")),
    *((2048, "forward", p) for p in ("fp32", "bf16")),
)
# Folder of snapshots, which are not committed: they are large and name the machine.
SNAPSHOTS = ROOT / "snapshots"


# --8<-- [start:config]
@dataclass(frozen=True)
class Config:
    size: str = option("small", "model size of Table 1", choices=SIZES)
    context: int = option(512, "sequence length in tokens")
    mode: str = option("step", "which passes", choices=MODES)
    precision: str = option(
        "fp32", "precision: fp32 (TF32 off) or bf16 autocast", choices=("fp32", "bf16")
    )
    attention: str = option("eager", "attention implementation", choices=ATTENTIONS)
    checkpoint: bool = option(False, "compute each block again in the backward pass")
    timeline: bool = option(False, "keep memory over time in the row")
    keep_snapshots: bool = option(
        False, "keep the snapshot, for pytorch.org/memory_viz"
    )
    batch: int = option(4, "sequences in a batch")
    vocab: int = option(VOCAB_SIZE, "vocabulary size")
    warmup: int = option(1, "passes before the peak counts")
    steps: int = option(3, "passes whose peak is kept")
    # --8<-- [end:config]


def configs(quick: bool = False) -> list[Config]:
    """Return 2.7B at contexts 128 to 512 and other sizes at 512, in all modes and
    precisions; 2.7B at 2048; its bf16 steps with and without flash and checkpointing.
    """
    if quick:
        return [
            Config("small", 128, mode, p, batch=1, timeline=True)
            for p in ("fp32", "bf16")
            for mode in MODES
        ]
    cells = [("2.7B", context) for context in (128, 256, 512)]
    cells += [(size, 512) for size in TABLE_1 if size != "2.7B"]
    passes = [
        Config(size, context, mode, precision)
        for size, context in cells
        for precision in ("fp32", "bf16")
        for mode in MODES
    ]
    long = Config("2.7B", 2048, "forward", "fp32")
    passes += [long, replace(long, precision="bf16"), replace(long, mode="step")]
    remedies = [
        Config("2.7B", context, "step", "bf16", attention, checkpoint)
        for context in (512, 2048)
        for attention in ATTENTIONS
        for checkpoint in (False, True)
    ]
    # One configuration is in both lists.
    every = dict.fromkeys(passes + remedies)
    drawn = [Config("2.7B", *fields) for fields in DRAWN]
    return [replace(config, timeline=config in drawn) for config in every]


# --8<-- [start:run]
def run(config: Config) -> dict[str, Any]:
    """Return peak bytes of a pass, bytes by category over time, and its largest
    allocations. Raise ValueError on a CPU.
    """
    c, device = config, require_gpu()
    work = Workload(
        device, c.size, c.context, c.mode, c.precision, c.batch, c.vocab, c.attention
    )
    if c.checkpoint:
        checkpoint_blocks(work.model)
    timing.measure(
        work.step,
        warmup=c.warmup,
        repeats=c.steps,
        device=device,
        between=work.model.zero_grad,
    )
    return {
        **timing.peak_memory(device),
        **record_pass(config, work),
    }
    # --8<-- [end:run]


def require_gpu() -> str:
    if timing.default_device() != "cuda":
        raise ValueError(
            "the allocator whose history is recorded is the GPU's, and torch sees no "
            "GPU here"
        )
    return "cuda"


def record_pass(config: Config, work: Workload) -> dict[str, Any]:
    """Record the allocator's history of a pass. Return its summary, the output bytes of
    a block (`residual_bytes`), and the path of the snapshot if it is saved.
    """
    work.model.zero_grad()
    residual: dict[str, int] = {}

    def record_output(block: nn.Module, inputs: Any, output: Tensor) -> None:
        residual["residual_bytes"] = output.untyped_storage().nbytes()

    hook = work.model.get_submodule("layers.0").register_forward_hook(record_output)
    try:
        with Recorder(work.model, work.optimizer) as recorder:
            work.step(recorder.phase)
    finally:
        hook.remove()
    metrics = residual | summarize(recorder.history(), timeline=config.timeline)
    if config.keep_snapshots:
        path = snapshot_path(config)
        recorder.save(path)
        metrics["snapshot"] = (
            f"{path.relative_to(ROOT).as_posix()}, for pytorch.org/memory_viz"
        )
    return metrics


def snapshot_path(config: Config) -> Path:
    """Return a snapshot's path; a dot in the model size becomes "_"."""
    c = config
    parts = (c.size.replace(".", "_"), c.context, c.mode, c.precision, c.attention)
    kind = f"batch{c.batch}" + "-checkpoint" * c.checkpoint
    return SNAPSHOTS / f"peak_memory-{'-'.join(map(str, parts))}-{kind}.pickle"


if __name__ == "__main__":
    main(Config, run)
