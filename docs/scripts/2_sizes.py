"""Time the training steps of model sizes; report sizes that run out of memory.

python docs/scripts/2_sizes.py --context 128 --warmup 5
"""

from argparse import ArgumentParser
from time import perf_counter

import torch
from torch.nn.functional import cross_entropy

from systems.model.optimizer import AdamW
from systems.model.sizes import SIZES, TABLE_1
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


def time_step(model, optimizer, tokens, targets, options):
    """Run a training step. Return {phase: wall-clock time in ms}."""
    optimizer.zero_grad()
    forward_ms, logits = time_ms(lambda: model(tokens))
    loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
    backward_ms, _ = time_ms(loss.backward)
    times = {"forward": forward_ms, "backward": backward_ms}
    if not options.no_optimizer:
        times["optimizer"], _ = time_ms(optimizer.step)
    return times


def measure(size, options):
    """Print mean and standard deviation of each phase's time for one model size."""
    with torch.device(DEVICE):
        model = build_model(size, options.context)
        tokens, targets = torch.randint(10_000, (2, options.batch, options.context))
    step = (model, AdamW(model.parameters()), tokens, targets, options)
    steps = [time_step(*step) for _ in range(options.warmup + options.steps)]
    for name in steps[0]:
        times = torch.tensor([step[name] for step in steps[options.warmup :]])
        spread = f" ± {times.std():.2f}" if len(times) > 1 else ""
        print(f"{size:6} {name:9} {times.mean():8.2f}{spread} ms")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, nargs="+", default=list(TABLE_1))
    for name, number in ("context", 256), ("batch", 4), ("warmup", 5), ("steps", 10):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--no-optimizer", action="store_true")
    options = parser.parse_args()
    if min(options.context, options.batch, options.steps, options.warmup + 1) < 1:
        parser.error("--context, --batch, --steps must be at least 1, --warmup 0")
    for size in options.size:
        try:
            measure(size, options)
        except (RuntimeError, TypeError) as error:  # or torch.OutOfMemoryError
            if not any(x in str(error).lower() for x in ("allocate", "overflow")):
                raise
            print(f"{size:6} out of memory")
