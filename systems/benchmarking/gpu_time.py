"""GPU time: the time in which kernels run, independent of the host CPU's speed.

Between hosts with the same GPU, the wall-clock time of a phase differs up to twofold,
but GPU time by less than 3 %. torch.profiler gets kernel times from CUPTI. The
assignment asks for Triton's `do_bench`, which measures the time between two CUDA
events, so its times include waits of the GPU for launches.
"""

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from systems.benchmarking import phases
from systems.benchmarking.timing import DEVICES, Clock, Step
from systems.model.train_step import Phase
from systems.profiling import probes
from systems.profiling.trace import TraceError, busy_ms

# Descriptions of how each kind of time is measured, stored in records.
STEP_CLOCKS = {
    "wall time": "between two synchronisations, one pair around each phase",
    "gpu time": "sum of kernel times by CUPTI (torch.profiler), of two passes after "
    "the timed ones",
}
COLD_CLOCK = {
    "gpu time": "sum of kernel times by CUPTI (torch.profiler); the L2 cache is "
    "emptied before each pass; implementations alternate in rounds",
    "forward and backward": "without a loss: the gradient of o is given",
}
# Number of profiled passes: of a training step, and of attention in each round.
PASSES, PASSES_IN_ROUND = 2, 5
ROUNDS = 5
# Maximum number of samples to keep: enough for quantiles, and records stay readable.
SAMPLES_KEPT = 30
# Number of calls to time on a CPU, only to test the code: `do_bench` needs a GPU.
CPU_CALLS = 3


# --8<-- [start:gpu_time]
def measure(
    step: Step,
    device: str,
    *,
    passes: int = PASSES,
    between: Callable[[], None] | None = None,
    cold: bool = False,
    counted: bool = False,
) -> dict[str, Any]:
    """Return GPU times in ms by phase (`forward_gpu_ms`), one sample per profiled pass.
    On a CPU, return no times.

    Call it last, because the profiler slows down later launches. `between` runs before
    each pass. `cold` empties the L2 cache before each phase. `counted` adds numbers of
    kernels (`probes.kernel_counts`). If profiling fails, return why as `no_gpu_time`.
    """
    try:
        by_phase = probes.phase_kernels(
            step, device, passes=passes, between=between, cold=cold
        )
    except (TraceError, torch.OutOfMemoryError) as error:
        return {"no_gpu_time": str(error).splitlines()[0]}
    times = {
        f"{phase}_gpu_ms": [round(busy_ms(kernels), 6) for kernels in in_passes]
        for phase, in_passes in by_phase.items()
        if all(in_passes)
    }
    return times | (probes.kernel_counts(by_phase) if counted else {})
    # --8<-- [end:gpu_time]


# --8<-- [start:round]
def add_round(
    metrics: dict[str, Any],
    step: Step,
    device: str,
    *,
    passes: int = PASSES_IN_ROUND,
    between: Callable[[], None] | None = None,
    counted: bool = False,
) -> None:
    """After a warm-up pass, append each phase's GPU times with a cold L2 cache to
    `metrics` (`forward_gpu_ms`), and this round's median (`forward_rounds_ms`). On a
    CPU, do nothing. Other arguments are as in `measure`.
    """
    assert device in DEVICES, device
    if device != "cuda":
        return
    if between is not None:
        between()
    step(phases.mark)
    new_metrics = measure(
        step, device, passes=passes, between=between, cold=True, counted=counted
    )
    for name, value in new_metrics.items():
        if not name.endswith("_gpu_ms"):
            metrics[name] = value
            continue
        metrics.setdefault(name, []).extend(value)
        median_name = name.replace("_gpu_ms", "_rounds_ms")
        metrics.setdefault(median_name, []).append(median(value))


def make_attention_step(
    attention: Callable, q: Tensor, k: Tensor, v: Tensor, do: Tensor
) -> Step:
    """Return a `Step` with phases "forward", "backward", "both"; it sets no .grad."""
    inputs = (q, k, v)

    def step(phase: Phase) -> None:
        with phase("forward"):
            o = attention(q, k, v)
        with phase("backward"):
            torch.autograd.grad(o, inputs, do)
        del o
        with phase("both"):
            torch.autograd.grad(attention(q, k, v), inputs, do)

    return step
    # --8<-- [end:round]


# --8<-- [start:do_bench]
def do_bench_ms(
    work: Callable[[], object], device: str, *, warmup_ms: int = 5, rep_ms: int = 100
) -> list[float]:
    """Time calls of `work` for `rep_ms` by Triton's `do_bench`, after a warm-up of
    `warmup_ms`. Return up to SAMPLES_KEPT times in ms, evenly spaced. On a CPU, return
    wall-clock times.

    `do_bench` empties the L2 cache before each call. Its times include launch overhead.
    """
    if device == "cpu":
        clock = Clock(device)
        for _ in range(CPU_CALLS):
            with clock.phase("call"):
                work()
        return clock.samples_ms["call_ms"]
    import triton.testing

    ms = triton.testing.do_bench(work, warmup=warmup_ms, rep=rep_ms, return_mode="all")
    assert isinstance(ms, list)
    return [round(x, 6) for x in ms[:: -(-len(ms) // SAMPLES_KEPT)]]
    # --8<-- [end:do_bench]


# --8<-- [start:pass_times]
def bench_passes(
    attention: Callable, q: Tensor, k: Tensor, v: Tensor, do: Tensor
) -> dict[str, list[float]]:
    """Return samples in ms that `do_bench_ms` measures: `forward_ms` (with an autograd
    graph), `both_ms` (forward and backward), `backward_ms` (repeated on one graph).
    """
    device, qkv = q.device.type, (q, k, v)
    forward = do_bench_ms(lambda: attention(q, k, v), device)
    both = do_bench_ms(lambda: torch.autograd.grad(attention(q, k, v), qkv, do), device)
    o = attention(q, k, v)
    backward = do_bench_ms(
        lambda: torch.autograd.grad(o, qkv, do, retain_graph=True), device
    )
    return {"forward_ms": forward, "backward_ms": backward, "both_ms": both}
    # --8<-- [end:pass_times]
