"""Time the forward pass, the backward pass and the optimizer of one model.

python docs/scripts/1_clock.py --size small --context 256
"""

from argparse import ArgumentParser
from time import perf_counter

import torch
from torch.nn.functional import cross_entropy

from systems.model.optimizer import AdamW
from systems.model.sizes import SIZES
from systems.model.transformer import build_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
synchronize = torch.cuda.synchronize if DEVICE == "cuda" else torch.cpu.synchronize


def time_ms(function):
    """Run the function once; return its wall-clock time in ms and its result."""
    synchronize()  # The GPU must be idle when the clock starts.
    start = perf_counter()
    result = function()
    synchronize()  # The GPU must be idle when the clock stops.
    return (perf_counter() - start) * 1e3, result


def time_step(model, optimizer, tokens, targets):
    """Run a training step. Return {phase: wall-clock time in ms}."""
    optimizer.zero_grad()
    forward_ms, logits = time_ms(lambda: model(tokens))
    loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
    backward_ms, _ = time_ms(loss.backward)
    optimizer_ms, _ = time_ms(optimizer.step)
    return {"forward": forward_ms, "backward": backward_ms, "optimizer": optimizer_ms}


def measure(size, options):
    """Print mean and standard deviation of each phase's time for one model size."""
    with torch.device(DEVICE):
        model = build_model(size, options.context)
        tokens, targets = torch.randint(10_000, (2, options.batch, options.context))
    step = (model, AdamW(model.parameters()), tokens, targets)
    steps = [time_step(*step) for _ in range(options.warmup + options.steps)]
    for name in steps[0]:
        times = torch.tensor([step[name] for step in steps[options.warmup :]])
        spread = f" ± {times.std():.2f}" if len(times) > 1 else ""
        print(f"{size:6} {name:9} {times.mean():8.2f}{spread} ms")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    for name, number in ("context", 256), ("batch", 4), ("warmup", 5), ("steps", 10):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    if min(options.context, options.batch, options.steps, options.warmup + 1) < 1:
        parser.error("--context, --batch, --steps must be at least 1, --warmup 0")
    try:
        measure(options.size, options)
    except (RuntimeError, TypeError) as error:  # or torch.OutOfMemoryError
        if not any(x in str(error).lower() for x in ("allocate", "overflow")):
            raise
        parser.error("out of memory: --size, --context or --batch must be smaller")
