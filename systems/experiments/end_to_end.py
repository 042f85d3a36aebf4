"""How long a forward pass, a backward pass and a training step take, and how much
memory they hold at the peak.

The assignment's benchmarking script: one configuration from the command line, or every
size and context as a table.

    python -m systems.experiments.end_to_end --size small --context 128 --mode step --precision bf16
"""

from dataclasses import dataclass

import torch

from systems.attention import IMPLEMENTATIONS
from systems.benchmarking import phases, timing
from systems.model.optimizer import AdamW
from systems.model.sizes import SIZES, VOCAB_SIZE
from systems.model.train_step import PRECISIONS, Phase, precision_context, training_step
from systems.model.transformer import build_model
from systems.running.command import main, option

PROTOCOL = {
    "clock": "wall time between two synchronisations, one pair around each phase",
    "data": "random tokens and targets, seed 0",
    "tf32": "off for fp32 and bf16, on for tf32",
}
MODES = {
    "forward": "no gradients recorded",
    "forward_graph": "graph built, freed before the next pass",
    "forward_backward": "forward, loss and backward, timed by phase",
    "step": "forward, loss, backward and AdamW, timed by phase",
}


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
    """All sizes and contexts in fp32 and bf16; TF32 at context 512; two larger batches
    that the source notes report.
    """
    if quick:
        cells = [(mode, "fp32") for mode in MODES] + [("step", "bf16")]
        return [
            Config("small", 32, mode, precision, 1, warmup=1, steps=3)
            for mode, precision in cells
        ]
    cells = [
        (size, context, p, 4)
        for size in SIZES
        for context in (128, 256, 512, 1024)
        for p in ("fp32", "bf16")
    ]
    cells += [(size, 512, "tf32", 4) for size in SIZES]
    cells += [
        (size, 256, p, batch)
        for size, batch in (("small", 64), ("large", 32))
        for p in PRECISIONS
    ]
    return [
        Config(size, context, mode, p, batch)
        for size, context, p, batch in cells
        for mode in MODES
    ]


# --8<-- [start:run]
def run(config: Config) -> dict[str, list[float] | int]:
    """Samples in ms for each phase of the mode, and peak memory in bytes (on a GPU)."""
    device = timing.default_device()
    torch.manual_seed(0)
    with torch.device(device):
        model = build_model(config.size, config.context, config.vocab, config.attention)
        token_ids, targets = torch.randint(
            config.vocab, (2, config.batch, config.context)
        )
    autocast = precision_context(config.precision, device)
    optimizer = AdamW(model.parameters()) if config.mode == "step" else None

    def step(phase: Phase) -> None:
        if config.mode == "forward":
            with phase(phases.FORWARD), torch.no_grad(), autocast:
                model(token_ids)
        elif config.mode == "forward_graph":
            with phase(phases.FORWARD), autocast:
                logits = model(token_ids)
            # Freed here, outside the clock and before the next graph is built.
            del logits
        else:
            training_step(model, token_ids, targets, autocast, optimizer, phase)

    return timing.measure(
        step,
        warmup=config.warmup,
        repeats=config.steps,
        device=device,
        between=lambda: model.zero_grad(),
    )


# --8<-- [end:run]

if __name__ == "__main__":
    main(Config, run)
