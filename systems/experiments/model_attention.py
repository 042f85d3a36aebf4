"""What attention changes in a whole training step: eager, PyTorch's fused one and ours
in the model's slot.

The step of `end_to_end` in bf16, with its protocol, for every size at context 1024 and
for `small` on to 16384.

    python -m systems.experiments.model_attention --context 4096 --attention flash
"""

from dataclasses import dataclass
from typing import Any

import torch

from systems.benchmarking import timing
from systems.benchmarking.peers import what_ran
from systems.experiments import end_to_end
from systems.model.sizes import SIZES, TABLE_1
from systems.running.command import main, option

PROTOCOL = end_to_end.PROTOCOL
BATCH = 4
# Entries of the model's slot, and the name by which `peers` knows what each of them
# runs.
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
    """Every size at context 1024, `small` at 4096 and 16384, each with the three
    attentions.
    """
    if quick:
        return [Config("small", 32, "sdpa", 1, warmup=0, steps=1)]
    cells = [(size, 1024) for size in TABLE_1] + [("small", 4096), ("small", 16384)]
    return [
        Config(size, context, name) for size, context in cells for name in ATTENTIONS
    ]


# --8<-- [start:run]
def run(config: Config) -> dict[str, Any]:
    """Samples in ms for each phase of a training step, peak memory in bytes, and what
    attention ran.
    """
    c, shape = config, SIZES[config.size]
    measured = end_to_end.run(
        end_to_end.Config(
            c.size,
            c.context,
            "step",
            "bf16",
            c.batch,
            warmup=c.warmup,
            steps=c.steps,
            attention=c.attention,
        )
    )
    heads = (c.batch, shape.num_heads, c.context, shape.d_model // shape.num_heads)
    # What attention gets under autocast.
    q = torch.empty(
        heads, dtype=torch.bfloat16, device=timing.default_device(), requires_grad=True
    )
    return {**measured, "ran": what_ran(ATTENTIONS[c.attention], q, q, q, causal=True)}


# --8<-- [end:run]

if __name__ == "__main__":
    main(Config, run)
