"""The course's leaderboard test: forward and backward of 16 heads, 16384 tokens, head
dimension 64, bf16, causal.

Ours under torch.compile as the test prescribes, the libraries by the same test, and
where the time of each goes.

    python -m systems.experiments.flash_leaderboard --warmup-ms 1000 --rep-ms 10000
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from systems.attention.hopper.limits import missing_here
from systems.attention.triton.function import FlashAttentionTriton
from systems.benchmarking import timing
from systems.benchmarking.gpu_timing import kernel_times_ms
from systems.benchmarking.peers import Attention, attention, only, what_ran
from systems.profiling.probes import kernel_samples_ms
from systems.running.command import main, option

PROTOCOL = {
    "clock": "triton.testing.do_bench, L2 cache emptied before each call",
    "inputs": "standard normal, seed 0; bf16, causal",
    "kernels": "torch.profiler, 10 calls, L2 cache not emptied",
}
IMPLEMENTATIONS = ("ours", "sdpa_cudnn", "sdpa_flash", "flex", "plain")
PROFILED_CALLS = 10
# Bytes that are added, which the kernels are held against.
ADDED = 2**31
# Bytes that they are added to: dq of one head at the test's shape, in float32.
SUMS = 2**22


@dataclass(frozen=True)
class Config:
    implementation: str = option(
        "ours",
        "ours, a backend of SDPA, FlexAttention, plain PyTorch, or what the GPU can do",
        (*IMPLEMENTATIONS, "ceiling"),
    )
    warmup_ms: int = option(100, "how long it runs before the clock counts, in ms")
    rep_ms: int = option(1000, "how long it is measured, in ms")
    heads: int = option(16, "heads")
    n: int = option(16384, "sequence length in tokens")
    d: int = option(64, "head dimension")


def configs(quick: bool = False) -> list[Config]:
    """Ours as long as the test asks; the others a tenth of that."""
    if quick:
        return [Config("plain", heads=1, n=128, d=16)]
    return [Config("ceiling"), Config("ours", warmup_ms=1000, rep_ms=10_000)] + [
        Config(name) for name in IMPLEMENTATIONS if name != "ours"
    ]


# --8<-- [start:run]
def run(config: Config) -> dict[str, Any]:
    """Samples in ms of the test, what ran, and of each kernel its own name and its
    samples in ms of one call.
    """
    device = timing.default_device()
    if config.implementation == "ceiling":
        return ceiling(device)
    torch.manual_seed(0)
    # As the test makes them: parts of one tensor, which gathers the gradients of all
    # calls.
    q, k, v = torch.randn(
        3,
        config.heads,
        config.n,
        config.d,
        device=device,
        dtype=torch.bfloat16,
        requires_grad=True,
    )
    if config.implementation == "ours":
        compiled = torch.compile(FlashAttentionTriton.apply)

        def ours(q: Tensor, k: Tensor, v: Tensor) -> Any:
            return compiled(q, k, v, True)

        step = forward_backward(ours, q, k, v)
    else:
        attend = attention(
            config.implementation, causal=True, n=config.n, device=device
        )
        # Libraries take (b, h, n, d). The sum needs no way back, which would make a
        # tensor of the expanded gradient.
        step = forward_backward(
            lambda q, k, v: attend(q[None], k[None], v[None]), q, k, v
        )
    with only(config.implementation):
        ran = what_ran(config.implementation, q[None], k[None], v[None], causal=True)
        times = kernel_times_ms(
            step, device, warmup_ms=config.warmup_ms, rep_ms=config.rep_ms
        )
        kernels = kernel_samples_ms(step, PROFILED_CALLS, device)
    return {
        "both_ms": times,
        "ran": ran,
        "kernels": [
            {"name": name, "time_ms": samples} for name, samples in kernels.items()
        ],
    }


def forward_backward(attend: Attention, q: Tensor, k: Tensor, v: Tensor):
    """What the test times. The gradient of a sum is a single one, expanded: all strides
    of do are 0.
    """

    def step() -> None:
        o = attend(q, k, v)
        o.sum().backward()

    return step


# --8<-- [end:run]


def ceiling(device: str) -> dict[str, Any]:
    """The multiprocessors, and on Hopper samples in ms of additions in memory."""
    multiprocessors = (
        torch.cuda.get_device_properties(0).multi_processor_count
        if device == "cuda"
        else 1
    )
    return {
        "multiprocessors": multiprocessors,
        **(
            additions(multiprocessors)
            if device == "cuda" and not missing_here(torch.device(device))
            else {}
        ),
    }


def additions(multiprocessors: int) -> dict[str, Any]:
    """Samples in ms of additions to memory by the copy engines of all multiprocessors,
    and their bytes.
    """
    from systems.attention.hopper.reduce_rate import ROWS, TILE_BYTES, add_ones

    sums = torch.zeros(SUMS // TILE_BYTES, ROWS, 32, device="cuda")
    steps = ADDED // (multiprocessors * TILE_BYTES)
    return {
        "addition_ms": kernel_times_ms(
            lambda: add_ones(sums, multiprocessors, steps), "cuda"
        ),
        "added_bytes": multiprocessors * steps * TILE_BYTES,
    }


if __name__ == "__main__":
    main(Config, run)
