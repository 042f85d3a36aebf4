"""The course's leaderboard test: the time of forward and backward pass for 16 heads,
16384 tokens, head dimension 64, bf16, causal.

Each implementation is timed by `do_bench`, by GPU time in alternating rounds, and
kernel by kernel by the profiler.

    python -m systems.experiments.flash_leaderboard --implementation ours
"""

from dataclasses import dataclass
from typing import Any

import torch

from systems.attention.dispatch import FlashAttentionTriton
from systems.attention.hopper.limits import missing_on_device
from systems.benchmarking import gpu_time, timing
from systems.benchmarking.peers import find_backend, load_peer, use_peer
from systems.model.train_step import Phase
from systems.profiling.probes import kernel_samples_ms
from systems.records.outcome import AlternatingRun, Unsupported
from systems.running.command import main, option

IN_TURNS = "implementation"
PROTOCOL = gpu_time.COLD_CLOCK | {
    "do_bench": "triton.testing.do_bench, L2 cache emptied before each call; before "
    "the rounds",
    "forward and backward": "the sum of o between them, whose gradient is given on",
    "inputs": "standard normal, seed 0; bf16, causal",
    "kernels": "torch.profiler, 10 calls, L2 cache not emptied",
}
IMPLEMENTATIONS = ("ours", "sdpa_cudnn", "sdpa_flash", "flex", "plain")
PROFILED_CALLS = 10
# Number of bytes that the measurement of TMA's peak rate adds to global memory.
ADDED_BYTES = 2**31
# Size in bytes of the tensor that TMA adds to: one head's dq in float32.
SUM_BYTES = 2**22


@dataclass(frozen=True)
class Config:
    implementation: str = option(
        "ours",
        "ours, a backend of SDPA, FlexAttention, plain PyTorch, or what the GPU can do",
        (*IMPLEMENTATIONS, "ceiling"),
    )
    warmup_ms: int = option(1000, "how long it runs before the clock counts, in ms")
    rep_ms: int = option(10_000, "how long it is measured, in ms")
    heads: int = option(16, "heads")
    n: int = option(16384, "sequence length in tokens")
    d: int = option(64, "head dimension")


def configs(quick: bool = False) -> list[Config]:
    """Return configurations: "ceiling" (hardware limits) and each implementation."""
    if quick:
        return [Config("plain", 100, 1000, heads=1, n=128, d=16)]
    return [Config(name) for name in ("ceiling", *IMPLEMENTATIONS)]


# --8<-- [start:run]
def run(config: Config) -> AlternatingRun:
    """Return times in ms of forward + backward by do_bench (`both_ms`) and on the GPU,
    and the GPU time of each kernel; for "ceiling" the result of `time_additions`.
    """
    device = timing.default_device()
    if config.implementation == "ceiling":
        return time_additions(device)
    torch.manual_seed(0)
    # As in the leaderboard's test, q, k and v are slices of one tensor with gradients.
    name, size = config.implementation, (3, config.heads, config.n, config.d)
    q, k, v = torch.randn(size, device=device, dtype=torch.bfloat16, requires_grad=True)
    if name == "ours":
        flash = torch.compile(FlashAttentionTriton.apply)

        def attend() -> Any:
            return flash(q, k, v, True)
    else:
        peer = load_peer(name, causal=True, n=config.n, device=device)

        # Libraries take (b, h, n, d). Keep the output's batch dimension: the backward
        # pass of o[0] would copy the gradient of o, which is an expanded scalar.
        def attend() -> Any:
            return peer(q[None], k[None], v[None])

    def run_test() -> None:
        o = attend()
        o.sum().backward()

    def step(phase: Phase) -> None:
        with phase("both"):
            run_test()

    with use_peer(name):
        backend = find_backend(name, q[None], k[None], v[None], causal=True)
        times = gpu_time.do_bench_ms(
            run_test, device, warmup_ms=config.warmup_ms, rep_ms=config.rep_ms
        )
    metrics: dict[str, Any] = {"both_ms": times, "ran": backend}
    yield
    for _ in range(gpu_time.ROUNDS):
        with use_peer(name):
            gpu_time.add_round(metrics, step, device)
        yield
    with use_peer(name):
        kernels = kernel_samples_ms(run_test, PROFILED_CALLS, device)
    rows = [{"name": name, "time_ms": samples} for name, samples in kernels.items()]
    return metrics | {"kernels": rows}
    # --8<-- [end:run]


def time_additions(device: str) -> dict[str, Any]:
    """Time additions to global memory by TMA from all SMs. Return `addition_ms` and
    `added_bytes`. Raise `Unsupported` except on a Hopper GPU.
    """
    if device != "cuda":
        raise Unsupported("needs a CUDA GPU")
    if reason := missing_on_device(torch.device(device)):
        raise Unsupported(reason)
    from systems.attention.hopper.tma_addition import ROWS, TILE_BYTES, add_ones

    programs = torch.cuda.get_device_properties(0).multi_processor_count
    sums = torch.zeros(SUM_BYTES // TILE_BYTES, ROWS, 32, device=device)
    steps = ADDED_BYTES // (programs * TILE_BYTES)
    times = gpu_time.do_bench_ms(lambda: add_ones(sums, programs, steps), device)
    return {"addition_ms": times, "added_bytes": programs * steps * TILE_BYTES}


if __name__ == "__main__":
    main(Config, run)
