"""Mark phases and the operations of attention for a profile by Nsight Systems.

nsys profile -o small -- python docs/scripts/3_nvtx.py --size small
"""

from argparse import ArgumentParser
from time import perf_counter

import torch
from torch.cuda import nvtx, synchronize
from torch.nn.functional import cross_entropy

from systems.model import transformer
from systems.model.optimizer import AdamW
from systems.model.sizes import SIZES


# --8<-- [start:annotated]
def annotated_attention(Q, K, V, mask):
    """Compute the model's attention, with NVTX ranges around its three operations."""
    with nvtx.range("scores"):
        scores = torch.where(mask, Q @ K.mT / K.shape[-1] ** 0.5, float("-inf"))
    with nvtx.range("softmax"):
        weights = transformer.softmax(scores, dim=-1)
    with nvtx.range("output"):
        return torch.einsum("...qk,...ke->...qe", weights, V)
    # --8<-- [end:annotated]


def time_ms(name, function):
    """Run the function once; return its wall-clock time in ms and its result."""
    synchronize()  # The GPU must be idle when the clock starts.
    start = perf_counter()
    with nvtx.range(name):
        result = function()
        synchronize()  # The GPU must be idle when the clock stops.
    return (perf_counter() - start) * 1e3, result


def time_step(model, optimizer, tokens, targets):
    """Run a training step. Return {phase: wall-clock time in ms}."""
    optimizer.zero_grad()
    forward_ms, logits = time_ms("forward", lambda: model(tokens))
    loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
    backward_ms, _ = time_ms("backward", loss.backward)
    optimizer_ms, _ = time_ms("optimizer", optimizer.step)
    return {"forward": forward_ms, "backward": backward_ms, "optimizer": optimizer_ms}


def measure(size, options):
    """Print mean and standard deviation of each phase's time for one model size."""
    with torch.device("cuda"):
        model = transformer.build_model(size, options.context)
        tokens, targets = torch.randint(10_000, (2, options.batch, options.context))
    step = (model, AdamW(model.parameters()), tokens, targets)
    with nvtx.range("warm-up"):
        steps = [time_step(*step) for _ in range(options.warmup)]
    steps += [time_step(*step) for _ in range(options.steps)]
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
    if not torch.cuda.is_available():
        parser.error("this script needs a GPU, and torch sees none here")
    transformer.scaled_dot_product_attention = annotated_attention
    measure(options.size, options)
