"""How long the GPU works, apart from the host that launches the work: a call, a forward
and backward pass, a matrix product.

`systems.benchmarking.timing` measures what a user waits for. Here the samples are
Triton's own benchmark's, as the assignment asks. Which kernels the time goes to,
`systems.profiling.probes` tells.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from systems.benchmarking.timing import Clock

# How many times over the cache is emptied before calls that the GPU has soon computed,
# of one head or of middling lengths: that takes half a millisecond, in which the host
# mostly issues both passes.
OVERWRITTEN = 8
# As large as `do_bench`'s own buffer, and larger than any L2 cache.
BUFFER_BYTES = 2**28
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

    call, before = work, None
    if overwritten > 1:
        call = AfterWrites(work, overwritten - 1, device)
        before = [call]
    times = triton.testing.do_bench(
        call, warmup=warmup_ms, rep=rep_ms, grad_to_none=before, return_mode="all"
    )
    assert isinstance(times, list)
    return [round(time, 6) for time in times[:: -(-len(times) // SAMPLES_KEPT)]]


class AfterWrites:
    """`work` for `do_bench`, which has a buffer larger than the cache overwritten so
    many `times` more before each call than it would by itself.

    It knows `do_bench` by its signature alone, which says that right before a measured
    call the gradients of `grad_to_none` are cleared: given this object, that writes.
    Before any other call, by which it estimates how long one takes, the call itself
    does.
    """

    def __init__(self, work: Callable[[], object], times: int, device: str):
        self.work, self.times, self.written = work, times, False
        self.buffer = torch.empty(BUFFER_BYTES, dtype=torch.int8, device=device)

    def write(self) -> None:
        for _ in range(self.times):
            self.buffer.zero_()
        self.written = True

    def __setattr__(self, name: str, value: object) -> None:
        if name == "grad":
            self.write()
        else:
            super().__setattr__(name, value)

    def __call__(self) -> None:
        if not self.written:
            self.write()
        self.written = False
        self.work()


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


def product_times_ms(
    dtype: str, m: int, k: int, device: str, **options: int
) -> list[float]:
    """Samples in ms of one product of (m, k) by (k, m): 2·m²·k FLOPs. dtype "tf32" is
    fp32 with TF32 on. `options` are those of `kernel_times_ms`, the same as of what is
    held against it: in a longer burst the chip is warmer and its clock lower.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    a, b = (
        torch.randn(m, k, device=device, dtype=kind),
        torch.randn(k, m, device=device, dtype=kind),
    )
    try:
        return kernel_times_ms(lambda: a @ b, device, **options)
    finally:
        torch.set_float32_matmul_precision(before)
