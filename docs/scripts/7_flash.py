"""Time plain attention, SDPA and this guide's FlashAttention with `do_bench`.

python docs/scripts/7_flash.py --d 64 --dtype bfloat16
"""

from argparse import ArgumentParser
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention
from triton.testing import do_bench

from systems.attention.flash import flash_attention


def plain_attention(q, k, v):
    """Compute causal attention with the whole score matrix in HBM."""
    row = torch.arange(q.shape[-2], device="cuda")
    scores = q @ k.mT / q.shape[-1] ** 0.5
    scores = scores.masked_fill(row[:, None] < row, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


FUNCTIONS = {
    "plain": plain_attention,
    "SDPA": lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True),
    "flash": lambda q, k, v: flash_attention(q, k, v, causal=True),
}


def time_passes(function, inputs, do):
    """Return median times by `do_bench` in ms of forward, backward and both passes."""
    o, time_ms = function(*inputs), partial(do_bench, return_mode="median")
    with torch.no_grad():
        forward_ms = time_ms(lambda: function(*inputs))
    backward_ms = time_ms(lambda: torch.autograd.grad(o, inputs, do, retain_graph=True))
    both_ms = time_ms(lambda: torch.autograd.grad(function(*inputs), inputs, do))
    return forward_ms, backward_ms, both_ms


def measure(n, options):
    """Print one line per function for sequences of n tokens, batch 1, one head."""
    dtype = getattr(torch, options.dtype)
    q, k, v, do = torch.randn(4, 1, 1, n, options.d, device="cuda", dtype=dtype)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    for name, function in FUNCTIONS.items():
        try:
            times = time_passes(function, inputs, do)
            print(f"{n:6} {name:6}", *(f"{ms:9.3f}" for ms in times))
        except torch.OutOfMemoryError:
            print(f"{n:6} {name:6} out of memory")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    lengths = [2**power for power in range(7, 17)]
    parser.add_argument("--n", type=int, nargs="+", default=lengths)
    parser.add_argument("--d", type=int, default=64)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    options = parser.parse_args()
    if min(options.n) < 1 or not 1 <= options.d <= 256:
        parser.error("--n must be at least 1, --d 1 to 256")
    if not torch.cuda.is_available():
        parser.error("this script needs a GPU, and torch sees none here")
    print("tokens name     forward  backward      both   (ms)")
    for n in options.n:
        measure(n, options)
