"""Record what forward passes or training steps allocate, for pytorch.org/memory_viz.

python docs/scripts/5_memory.py --size 2.7B --context 512
"""

from argparse import ArgumentParser
from contextlib import nullcontext

import torch
from torch.nn.functional import cross_entropy

from systems.model.optimizer import AdamW
from systems.model.sizes import SIZES, TABLE_1
from systems.model.transformer import build_model


def run_step(model, optimizer, tokens, targets, options):
    """Run a training step, or a forward pass without a graph; keep no logits."""
    autocast = torch.autocast("cuda", torch.bfloat16)
    optimizer.zero_grad()
    with autocast if options.precision == "bf16" else nullcontext():
        if options.forward_only:
            with torch.no_grad():
                return model(tokens)
        loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    loss.backward()
    optimizer.step()


def measure(size, options):
    """Print the peak memory of one model size, and keep a snapshot for the viewer."""
    with torch.device("cuda"):
        model = build_model(size, options.context)
        tokens, targets = torch.randint(10_000, (2, options.batch, options.context))
    step = (model, AdamW(model.parameters()), tokens, targets, options)
    for _ in range(options.warmup):
        run_step(*step)
    # --8<-- [start:snapshot]
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, clear_history=True)
    for _ in range(options.steps):
        run_step(*step)
    mode = options.precision + "-forward" * options.forward_only
    name = f"{size}-{options.context}-batch{options.batch}-{mode}.pickle"
    torch.cuda.memory._dump_snapshot(name)
    torch.cuda.memory._record_memory_history(enabled=None)
    peak_gib = torch.cuda.max_memory_allocated() / 2**30
    print(f"{size:6} peak {peak_gib:.2f} GiB, snapshot in {name}")
    # --8<-- [end:snapshot]


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, nargs="+", default=list(TABLE_1))
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--forward-only", action="store_true")
    for name, number in ("context", 256), ("batch", 4), ("warmup", 1), ("steps", 3):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    if min(options.context, options.batch, options.steps, options.warmup + 1) < 1:
        parser.error("--context, --batch, --steps must be at least 1, --warmup 0")
    if not torch.cuda.is_available():
        parser.error("this script needs a GPU, and torch sees none here")
    for size in options.size:
        try:
            measure(size, options)
        except torch.OutOfMemoryError:
            print(f"{size:6} out of memory")
