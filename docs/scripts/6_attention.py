"""Time plain attention, and read the memory in use before its backward pass.

python docs/scripts/6_attention.py --d 16 32 64 128 --compile
"""

from argparse import ArgumentParser
from time import perf_counter

import torch

from systems.model.transformer import scaled_dot_product_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
synchronize = torch.cuda.synchronize if DEVICE == "cuda" else torch.cpu.synchronize


def time_ms(function):
    """Run the function once; return its wall-clock time in ms and its result."""
    synchronize()  # The GPU must be idle when the clock starts.
    start = perf_counter()
    result = function()
    synchronize()  # The GPU must be idle when the clock stops.
    return (perf_counter() - start) * 1e3, result


def measure(attention, d, n, options):
    """Print d, n, mean ms of forward, GiB in use after it, and mean ms of backward."""
    q, k, v, do = torch.randn(4, options.batch, n, d, device=DEVICE)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    times = []
    for _ in range(options.warmup + options.passes):
        forward_ms, o = time_ms(lambda: attention(*inputs))
        gib = torch.cuda.memory_allocated() / 2**30 if DEVICE == "cuda" else torch.nan
        backward_ms, _ = time_ms(lambda o=o: torch.autograd.grad(o, inputs, do))
        times.append((forward_ms, backward_ms))
    forward, backward = torch.tensor(times[options.warmup :]).mean(0)
    print(f"{d:3} {n:6} {forward:9.2f} {gib:9.2f} {backward:9.2f}")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--d", type=int, nargs="+", default=[64])
    lengths = [256, 1024, 4096, 8192, 16384]
    parser.add_argument("--n", type=int, nargs="+", default=lengths)
    parser.add_argument("--compile", action="store_true")
    for name, number in ("batch", 8), ("warmup", 5), ("passes", 100):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    counts = *options.d, *options.n, options.batch, options.passes
    if min(*counts, options.warmup + 1) < 1:
        parser.error("--d, --n, --batch, --passes must be at least 1, --warmup 0")
    print("  d tokens   forward kept, GiB  backward   (ms)")
    for d in options.d:
        for n in options.n:
            function = scaled_dot_product_attention
            if options.compile:
                torch._dynamo.reset()
                function = torch.compile(function, dynamic=False)
            try:
                measure(function, d, n, options)
            except (RuntimeError, TypeError) as e:  # or torch.OutOfMemoryError
                if not any(x in str(e)[:200].lower() for x in ("allocate", "overflow")):
                    raise
                print(f"{d:3} {n:6} out of memory")
