"""What attention changes in a whole training step: eager, PyTorch's fused one and ours
in the model's slot.

The step of `end_to_end` in bf16, with its protocol, for every size at context 1024 and
for `small` on to 16384. The three attentions of a cell are measured in turns, so that
all meet the same host; only one model is in memory at a time. Then each step is timed
as CUDA graphs, which is what the GPU needs for it: where a host launches kernel by
kernel, a faster attention only waits longer.

    python -m systems.experiments.model_attention --context 4096 --attention flash
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from systems.benchmarking import timing
from systems.benchmarking.graphs import as_graphs
from systems.benchmarking.peers import what_ran
from systems.benchmarking.workload import Workload
from systems.experiments import end_to_end
from systems.model.sizes import SIZES, TABLE_1
from systems.records.outcome import Turns
from systems.running.command import main, option

# The rows that differ in this field alone are measured in turns.
IN_TURNS = "attention"
PROTOCOL = end_to_end.PROTOCOL | {
    "order": "the three attentions in turn, three rounds, each with a new model",
    "graph": "a CUDA graph of each phase of the step, after the turns",
}
ROUNDS = 3
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
def run(config: Config) -> Turns:
    """Samples in ms for each phase of a training step, as it is and as CUDA graphs,
    peak memory in bytes, and what attention ran. A turn has its share of the steps,
    after the warm-up steps.
    """
    c, shape, device = config, SIZES[config.size], timing.default_device()
    given, metrics = ("step", "bf16", c.batch), dict[str, Any]()
    ends = [c.steps * i // ROUNDS for i in range(ROUNDS + 1)]
    for steps in (end - start for start, end in pairwise(ends) if end > start):
        turn = end_to_end.Config(
            c.size,
            c.context,
            *given,
            warmup=c.warmup,
            steps=steps,
            attention=c.attention,
        )
        for name, value in end_to_end.run(turn).items():
            if isinstance(value, list):
                metrics.setdefault(name, []).extend(value)
            else:
                metrics[name] = max(value, metrics.get(name, 0))
        timing.give_back(device)
        yield
    work = Workload(device, c.size, c.context, *given, attention=c.attention)
    metrics |= as_graphs(work, c.steps, device)
    del work
    timing.give_back(device)
    heads = (c.batch, shape.num_heads, c.context, shape.d_model // shape.num_heads)
    # What attention gets under autocast.
    q = torch.empty(heads, dtype=torch.bfloat16, device=device, requires_grad=True)
    return {**metrics, "ran": what_ran(ATTENTIONS[c.attention], q, q, q, causal=True)}


# --8<-- [end:run]


if __name__ == "__main__":
    main(Config, run)
