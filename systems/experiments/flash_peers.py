"""Compare flash attention with libraries: GPU time, error and bitwise reproducibility
of our kernels, SDPA, FlexAttention and FlashAttention-4 at each shape. All
implementations of a shape alternate: `run` ends each turn with a `yield`.

    python -m systems.experiments.flash_peers --implementation ours --n 4096 --d 128
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from systems.benchmarking import gpu_time, timing
from systems.benchmarking.peers import (
    Attention,
    compare_calls,
    compute_results,
    find_backend,
    load_peer,
    use_peer,
)
from systems.benchmarking.workload import random_inputs
from systems.precision.dtypes import DTYPES, relative_error
from systems.records.outcome import AlternatingRun
from systems.running.command import main, option

IN_TURNS = "implementation"
PROTOCOL = gpu_time.COLD_CLOCK | {
    "order": "every implementation in turn, five rounds",
    "calls": "wall time; a hundred rounds of a hundred calls of every implementation "
    "in turn",
    "inputs": "standard normal, seed 0",
    "error": "norm of the difference from float64 over the norm of float64, "
    "first batch, two heads of keys",
    "repeats": "all results of eleven calls compared bit by bit",
    "fp32": "products in full precision but for what is named high",
}
# In fp32 SDPA's fused kernel is memory-efficient attention.
IMPLEMENTATIONS = {
    "bf16": (
        "ours",
        "ours_triton",
        "fa4",
        "fa4_ordered",
        "sdpa_fa4",
        "sdpa_fa4_ordered",
        "sdpa_flash",
        "sdpa_flash_ordered",
        "sdpa_cudnn",
        "sdpa_efficient",
        "flex",
    ),
    "fp32": ("ours", "ours_high", "sdpa_efficient"),
}
# Number of KV heads (each with its query heads) that are compared with float64.
CHECKED_HEADS = 2
RESULTS = ("o", "dq", "dk", "dv")
# Number of repeated calls that are compared bitwise with the first call.
CALLS_COMPARED = 10
# Queries per block of exact attention. At 65,536 keys a block has 1 GiB of scores.
EXACT_ROWS = 2048
# Calls of up to this length are launch-bound, so their time depends on the CPU.
SHORT = 128
# Time many short rounds of calls, because a host's speed changes within a second.
ROUNDS_OF_CALLS = 100
CALLS = 100


@dataclass(frozen=True)
class Config:
    implementation: str = option(
        "ours",
        "ours, FlashAttention-4, a backend of SDPA or FlexAttention",
        sorted({*IMPLEMENTATIONS["bf16"], *IMPLEMENTATIONS["fp32"]}),
    )
    batch: int = option(4, "sequences in a batch")
    heads: int = option(16, "heads")
    n: int = option(4096, "sequence length in tokens")
    d: int = option(128, "head dimension")
    causal: bool = option(True, "causal mask")
    dtype: str = option("bf16", "dtype of q, k, v and the gradient", IMPLEMENTATIONS)
    group: int = option(1, "heads of q that share one of k and v")
    layout: str = option(
        "bhnd", "which dimension is stored inside which", ("bhnd", "bnhd")
    )


def configs(quick: bool = False) -> list[Config]:
    """Return IMPLEMENTATIONS at 18 shapes in bf16, some irregular, and at 4 in fp32."""
    shapes: list[tuple] = [
        (1, 16, 16384, 64, True, "bf16"),
        (1, 16, 16384, 128, True, "bf16"),
        (4, 16, 4096, 128, True, "bf16"),
        (4, 16, 4096, 128, False, "bf16"),
        (4, 32, 4096, 64, True, "bf16"),
        (4, 32, 4096, 64, False, "bf16"),
        (16, 32, 1024, 64, True, "bf16"),
        (1, 1, 65536, 64, True, "bf16"),
        (2, 32, 8192, 128, True, "bf16"),
        (2, 16, 8192, 96, True, "bf16"),
        (8, 16, 2048, 128, False, "bf16"),
        (8, 16, 512, 64, True, "bf16"),
        # Irregular: shared KV heads, incomplete tiles, d = 80, long sequence, layout.
        (2, 64, 8192, 128, True, "bf16", 8),
        (8, 16, 2000, 128, True, "bf16"),
        (4, 16, 4096, 80, True, "bf16"),
        (1, 16, 32768, 128, True, "bf16"),
        (2, 64, 8192, 128, True, "bf16", 8, "bnhd"),
        (1, 16, SHORT, 64, True, "bf16"),
    ]
    shapes += [(1, 16, n, d, True, "fp32") for n in (2048, 4096) for d in (64, 128)]
    if quick:
        shapes = [(1, 1, SHORT, 16, True, "fp32")]
    return [Config(name, *s) for s in shapes for name in IMPLEMENTATIONS[s[5]]]


def run(config: Config) -> AlternatingRun:
    """Measure errors, bitwise reproducibility and backend in the first turn, then GPU
    ms of forward, backward and both, and for short sequences wall-clock ms of calls.
    """
    name, causal = config.implementation, config.causal
    device = timing.default_device()
    q, k, v, do, expected = make_problem(replace(config, implementation="ours"), device)
    metrics: dict[str, Any] = {}
    # --8<-- [start:turns]
    with use_peer(name):
        attend = load_peer(name, causal, config.n, device, config.group > 1)
        first = compute_results(attend, q, k, v, do)
        for of, x in expected.items():
            # Exact results are of the first heads only.
            heads = x.shape[1]
            metrics[f"{of}_relative_error"] = relative_error(first[of][:1, :heads], x)
        differing = compare_calls(attend, (q, k, v, do), first, CALLS_COMPARED)
        varying = set().union(*differing)
        metrics["repeats"] = not varying
        metrics["varies"] = ", ".join(x for x in RESULTS if x in varying)
        metrics["ran"] = find_backend(name, q, k, v, causal)
    del first
    yield
    # Time calls before profiling, which makes launches slower.
    for _ in range(ROUNDS_OF_CALLS if config.n <= SHORT else 0):
        with use_peer(name):
            time = call_ms(attend, q, k, v, device)
        metrics.setdefault("call_ms", []).append(time)
        yield
    step = gpu_time.make_attention_step(attend, q, k, v, do)
    for _ in range(gpu_time.ROUNDS):
        with use_peer(name):
            gpu_time.add_round(metrics, step, device)
        yield
    # --8<-- [end:turns]
    return metrics


@lru_cache(maxsize=1)
def make_problem(
    config: Config, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Return q, k, v, do, and {name: float64 result} of o, dq, dk, dv for the first
    heads of batch entry 0. Cache one call: give all configs the same `implementation`.
    """
    assert config.heads % config.group == 0, "--heads must be a multiple of --group"
    # Reset dynamo, or a change of shape would trigger dynamic-shape compilation.
    torch.compiler.reset()
    shape = config.batch, config.heads, config.n, config.d
    inputs = random_inputs(shape, DTYPES[config.dtype], device)
    q, k, v, do = (x.detach() for x in inputs)
    keys = config.heads // config.group
    q, k, v, do = (
        convert_layout(config.layout, x) for x in (q, k[:, :keys], v[:, :keys], do)
    )
    checked = CHECKED_HEADS if config.group == 1 else 1
    q1, do1 = (x[:1, : checked * config.group].double() for x in (q, do))
    k1, v1 = (x[:1, :checked].double() for x in (k, v))
    expected = exact_attention(q1, k1, v1, do1, causal=config.causal)
    for x in (q, k, v):
        x.requires_grad_()
    return q, k, v, do, expected


def convert_layout(layout: str, x: Tensor) -> Tensor:
    """Return x (b, h, n, d), contiguous ("bhnd") or stored as (b, n, h, d) ("bnhd")."""
    if layout == "bhnd":
        return x.contiguous()
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def exact_attention(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, causal: bool
) -> dict[str, Tensor]:
    """Return o, dq, dk and dv of plain attention in the inputs' dtype, for q and do
    (b, h, n, d), k and v (b, h_kv, n, d). Blocks of queries keep the scores small.
    """
    q, k, v = inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    scale, group, blocks = q.shape[-1] ** -0.5, q.shape[1] // k.shape[1], []
    for start in range(0, q.shape[-2], EXACT_ROWS):
        rows = slice(start, start + EXACT_ROWS)
        keys, values = (x.repeat_interleave(group, 1) for x in (k, v))
        s = q[..., rows, :] @ keys.mT * scale
        if causal:
            hidden = s.new_ones(s.shape[-2:], dtype=torch.bool).triu(start + 1)
            s.masked_fill_(hidden, float("-inf"))
        o = torch.softmax(s, -1) @ values
        o.backward(do[..., rows, :])
        blocks.append(o.detach())
    gradients: Any = (x.grad for x in inputs)
    return dict(zip(RESULTS, (torch.cat(blocks, -2), *gradients), strict=True))


def call_ms(attend: Attention, q: Tensor, k: Tensor, v: Tensor, device: str) -> float:
    """Return the mean wall-clock ms of CALLS forward calls, synchronized once."""
    calls = CALLS if device == "cuda" else 1
    clock = timing.Clock(device)
    with clock.phase("calls"):
        for _ in range(calls):
            attend(q, k, v)
    return clock.samples_ms["calls_ms"][0] / calls


if __name__ == "__main__":
    main(Config, run)
