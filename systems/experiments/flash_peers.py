"""Flash attention beside the libraries: time and error of ours and of PyTorch's fused
attentions, shape by shape.

All implementations of a shape are measured in turns, so that their ratios don't depend
on when each ran: `run` ends each turn with a `yield`.

    python -m systems.experiments.flash_peers --implementation ours --n 4096 --d 128
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from systems.benchmarking import timing
from systems.benchmarking.gpu_timing import OVERWRITTEN, pass_times_ms
from systems.benchmarking.peers import Attention, attention, only, what_ran
from systems.benchmarking.workload import random_inputs
from systems.precision.dtypes import DTYPES, relative_error
from systems.records.outcome import Turns
from systems.running.command import main, option

# The rows that differ in this field alone are measured in turns.
IN_TURNS = "implementation"
PROTOCOL = {
    "clock": "triton.testing.do_bench, 5 ms of warm-up, 20 ms of calls with the "
    "emptying of the L2 cache before each",
    "middling lengths": "L2 cache emptied eight times over",
    "order": "every implementation in turn, three rounds, ten where the host decides",
    "calls": "a hundred rounds of a hundred calls of every implementation in turn",
    "inputs": "standard normal, seed 0",
    "error": "norm of the difference from float64 over the norm of float64, "
    "first batch, two heads",
    "fp32": "products in full precision but for what is named high",
}
# Memory-efficient attention is what SDPA has in fp32.
IMPLEMENTATIONS = {
    "bf16": (
        "ours",
        "ours_triton",
        "sdpa_flash",
        "sdpa_cudnn",
        "sdpa_efficient",
        "flex",
    ),
    "fp32": ("ours", "ours_high", "sdpa_efficient"),
}
ROUNDS = 3
# The host may have something else to do for seconds.
ROUNDS_OF_HOST = 10
CHECKED_HEADS = 2
# Queries of the exact attention that are in memory at once: 1 GiB of scores in float64
# at 65536 keys.
EXACT_ROWS = 2048
# Up to this length launching takes longer than computing, so that calls in a row time
# the host.
SHORT = 128
# Up to this length a slow host may take longer to issue both passes than the GPU to
# compute them.
MIDDLING = 2048
# The host is now fast, now slow, for parts of a second: rounds this short lie in one or
# the other.
ROUNDS_OF_CALLS = 100
CALLS = 100


@dataclass(frozen=True)
class Config:
    implementation: str = option(
        "ours",
        "ours, a backend of SDPA or FlexAttention",
        sorted({*IMPLEMENTATIONS["bf16"], *IMPLEMENTATIONS["fp32"]}),
    )
    batch: int = option(4, "sequences in a batch")
    heads: int = option(16, "heads")
    n: int = option(4096, "sequence length in tokens")
    d: int = option(128, "head dimension")
    causal: bool = option(True, "causal mask")
    dtype: str = option("bf16", "dtype of q, k, v and the gradient", IMPLEMENTATIONS)


def configs(quick: bool = False) -> list[Config]:
    """Long, middling and short sequences in bf16, four shapes in fp32, and one so short
    that the host decides.
    """
    shapes = [
        (1, 16, 16384, 64, True, "bf16"),
        (1, 16, 16384, 128, True, "bf16"),
        (4, 16, 4096, 128, True, "bf16"),
        (4, 16, 4096, 128, False, "bf16"),
        (4, 32, 4096, 64, True, "bf16"),
        (4, 32, 4096, 64, False, "bf16"),
        (16, 32, 1024, 64, True, "bf16"),
        (1, 1, 65536, 64, True, "bf16"),
        (1, 16, SHORT, 64, True, "bf16"),
    ]
    shapes += [(1, 16, n, d, True, "fp32") for n in (2048, 4096) for d in (64, 128)]
    if quick:
        shapes = [(1, 1, SHORT, 16, True, "fp32")]
    return [
        Config(name, *shape) for shape in shapes for name in IMPLEMENTATIONS[shape[-1]]
    ]


# --8<-- [start:run]
def run(config: Config) -> Turns:
    """Samples in ms of the passes, and errors. The first turn checks, others time."""
    name, causal = config.implementation, config.causal
    device = timing.default_device()
    shape = config.batch, config.heads, config.n, config.d
    q, k, v, do, expected = problem(shape, config.dtype, causal, device)
    with only(name):
        attend = attention(name, causal, config.n, device)
        metrics = errors(attend, q, k, v, do, expected)
        metrics |= {"ran": what_ran(name, q, k, v, causal)}
    yield
    overwritten = OVERWRITTEN if SHORT < config.n <= MIDDLING else 1
    for _ in range(ROUNDS if config.n > SHORT else ROUNDS_OF_HOST):
        with only(name):
            times = pass_times_ms(attend, q, k, v, do, overwritten=overwritten)
        for key, samples in times.items():
            metrics.setdefault(key, []).extend(samples)
        yield
    for _ in range(ROUNDS_OF_CALLS if config.n <= SHORT else 0):
        with only(name):
            time = call_ms(attend, q, k, v, device)
        metrics.setdefault("call_ms", []).append(time)
        yield
    return metrics


# --8<-- [end:run]


@lru_cache(maxsize=1)
def problem(
    shape: tuple[int, int, int, int], dtype: str, causal: bool, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    """q, k, v, do and the exact results of their first heads: made once for all
    implementations of a shape.
    """
    # What an earlier shape compiled must not make this one compile for any shape.
    torch.compiler.reset()
    q, k, v, do = random_inputs(shape, DTYPES[dtype], device)
    first = (x.detach()[:1, :CHECKED_HEADS].double() for x in (q, k, v, do))
    return q, k, v, do, exact(*first, causal=causal)


def errors(
    attend: Attention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    expected: tuple[Tensor, ...],
) -> dict[str, Any]:
    """Relative error of o, dq, dk and dv on the heads that were computed exactly."""
    o = attend(q, k, v)
    found = (o.detach(), *torch.autograd.grad(o, (q, k, v), do))
    relative = {}
    for name, value, exactly in zip(
        ("o", "dq", "dk", "dv"), found, expected, strict=True
    ):
        first = value[:1, :CHECKED_HEADS]
        relative[f"{name}_relative_error"] = relative_error(first, exactly)
    return relative


# --8<-- [start:exact]
def exact(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """o, dq, dk and dv by the formulas, a few thousand queries at a time: all scores at
    once would not fit.
    """
    scale, (o, dq) = q.shape[-1] ** -0.5, (torch.empty_like(q) for _ in range(2))
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    for start in range(0, q.shape[-2], EXACT_ROWS):
        rows = slice(start, start + EXACT_ROWS)
        s = q[..., rows, :] @ k.mT * scale
        if causal:
            s.masked_fill_(
                s.new_ones(s.shape[-2:], dtype=torch.bool).triu(start + 1),
                float("-inf"),
            )
        p = torch.softmax(s, -1)
        o[..., rows, :] = p @ v
        dp = do[..., rows, :] @ v.mT
        ds = p * (dp - (o * do)[..., rows, :].sum(-1, keepdim=True))
        dq[..., rows, :] = ds @ k * scale
        dk += ds.mT @ q[..., rows, :] * scale
        dv += p.mT @ do[..., rows, :]
    return o, dq, dk, dv


# --8<-- [end:exact]


# --8<-- [start:call]
def call_ms(attend: Attention, q: Tensor, k: Tensor, v: Tensor, device: str) -> float:
    """Wall time in ms of one forward call, as the mean of many that the host issues
    without waiting for the GPU.
    """
    calls = CALLS if device == "cuda" else 1
    clock = timing.Clock(device)
    with clock.phase("calls"):
        for _ in range(calls):
            attend(q, k, v)
    return clock.samples_ms["calls_ms"][0] / calls


# --8<-- [end:call]

if __name__ == "__main__":
    main(Config, run)
