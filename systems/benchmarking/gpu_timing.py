"""How long the GPU works, apart from the host that launches the work: a call, a forward
and backward pass, a matrix product.

`systems.benchmarking.timing` measures what a user waits for. Here the samples are
Triton's own benchmark's, as the assignment asks. Which kernels the time goes to,
`systems.profiling.probes` tells.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from systems.benchmarking.timing import Clock

# How many times over the cache is emptied before calls that the GPU has soon computed,
# of one head or of middling lengths: that takes half a millisecond, in which the host
# mostly issues both passes.
OVERWRITTEN = 8
# Enough for quantiles; a record of a thousand rows stays readable.
SAMPLES_KEPT = 30
# Calls that a CPU is given: it has no events, and its times are for trying things out.
CPU_CALLS = 3


# --8<-- [start:kernel_times]
def kernel_times_ms(
    work: Callable[[], object],
    device: str,
    *,
    warmup_ms: int = 5,
    rep_ms: int = 20,
    overwritten: int = 1,
) -> list[float]:
    """Samples of one call of `work` in ms, at most SAMPLES_KEPT of them, spread over
    the run.

    On a GPU this is `triton.testing.do_bench`: a call, five more to estimate its time,
    as many as fill `warmup_ms`, then as many as fill `rep_ms`, at least one each.
    Before each measured call it overwrites a buffer larger than the L2 cache, so inputs
    come from memory, and counts that with the call where it estimates how many calls
    fill a time. A CUDA event stands right before the call and right after it. While the
    buffer is written the host runs ahead: launches show only where issuing them takes
    longer than that. With `overwritten` times as many writes it has as many times as
    long.
    """
    if device == "cpu":
        clock = Clock(device)
        for _ in range(CPU_CALLS):
            with clock.phase("call"):
                work()
        return clock.samples_ms["call_ms"]
    import triton.testing

    with buffer_overwritten(overwritten):
        times = triton.testing.do_bench(
            work, warmup=warmup_ms, rep=rep_ms, return_mode="all"
        )
    assert isinstance(times, list)
    return [round(time, 6) for time in times[:: -(-len(times) // SAMPLES_KEPT)]]


@contextmanager
def buffer_overwritten(times: int) -> Iterator[None]:
    """Inside, `do_bench` overwrites its buffer so many times where it would once.
    RuntimeError if it never does.
    """
    if times == 1:
        yield
        return
    from triton.runtime import driver

    active: Any = driver.active
    once, asked = active.clear_cache, False

    def often(buffer: Any) -> None:
        nonlocal asked
        asked = True
        for _ in range(times):
            once(buffer)

    active.clear_cache = often
    try:
        yield
    finally:
        active.clear_cache = once
    if not asked:
        raise RuntimeError(
            "do_bench of this Triton does not empty the cache by its driver's "
            "clear_cache; install a version that pyproject.toml allows"
        )


# --8<-- [end:kernel_times]


# --8<-- [start:pass_times]
def pass_times_ms(
    attention: Callable, q: Tensor, k: Tensor, v: Tensor, do: Tensor, **options: int
) -> dict[str, list[float]]:
    """Samples in ms of the forward pass with its graph recorded, of forward and
    backward, and of the backward pass.

    `options` are those of `kernel_times_ms`. Gradients are returned, not accumulated.
    Backward passes share one graph, built last: nothing else is timed while its tensors
    are held.
    """
    device, inputs = q.device.type, (q, k, v)
    forward = kernel_times_ms(lambda: attention(q, k, v), device, **options)
    both = kernel_times_ms(
        lambda: torch.autograd.grad(attention(q, k, v), inputs, do), device, **options
    )
    o = attention(q, k, v)
    backward = kernel_times_ms(
        lambda: torch.autograd.grad(o, inputs, do, retain_graph=True), device, **options
    )
    return {"forward_ms": forward, "backward_ms": backward, "both_ms": both}


# --8<-- [end:pass_times]


def product_times_ms(dtype: str, m: int, k: int, device: str) -> list[float]:
    """Samples in ms of one product of (m, k) by (k, m): 2·m²·k FLOPs. dtype "tf32" is
    fp32 with TF32 on.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    a, b = (
        torch.randn(m, k, device=device, dtype=kind),
        torch.randn(k, m, device=device, dtype=kind),
    )
    try:
        return kernel_times_ms(lambda: a @ b, device, warmup_ms=50, rep_ms=100)
    finally:
        torch.set_float32_matmul_precision(before)
