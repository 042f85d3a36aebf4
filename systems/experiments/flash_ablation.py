"""Measure the speedup from each technique of the attention kernels. Most techniques are
added one at a time, first to online softmax in tiles, at the leaderboard's shape.

Splitting a loop among programs is measured at one head, which has few tiles. The order
of tiles (head swizzle) and float32 matmuls in bfloat16 parts (limbs) are measured in
float32 at shorter sequences. Kernels of this module require contiguous (heads, n, d)
that fill whole tiles. Two backward kernels have five matmuls instead of seven: this
module's adds dq by atomics in no fixed order, the Hopper kernel by TMA in a fixed one.

    python -m systems.experiments.flash_ablation --step skip
"""

# The type checker can't check launches of `triton.jit` kernels.
# pyright: reportCallIssue=false, reportArgumentType=false

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from systems.attention.dispatch import choose_backend, run_backward, run_forward
from systems.attention.first import first_attention
from systems.attention.hopper import launches
from systems.attention.hopper.configs import CONFIGS
from systems.attention.hopper.limits import TILE_DIMS
from systems.attention.reference import attention_reference
from systems.attention.triton.configs import Config as LaunchConfig
from systems.attention.triton.launches import launch_backward, launch_forward
from systems.attention.triton.primitives import INTERPRETED, LOG2E, dot, round_to
from systems.benchmarking import gpu_time, timing
from systems.benchmarking.workload import random_inputs
from systems.model.train_step import Phase
from systems.precision.dtypes import DTYPES, relative_error
from systems.profiling.compiled_kernels import record_kernels
from systems.records.outcome import AlternatingRun
from systems.running.command import main, option

IN_TURNS = "step"
PROTOCOL = gpu_time.COLD_CLOCK | {
    "inputs": "standard normal, seed 0; causal",
    "error": "norm of the difference from float64 over the norm of float64, "
    "first head, first rows",
}
ROWS = 2048


@dataclass(frozen=True)
class Switches:
    """Kernel options. `skip`: leave out masked tiles; `split`: mask in a separate loop;
    `exp2`: use it for exp; `heavy_first`: begin with the queries that have most keys.
    """

    config: LaunchConfig = LaunchConfig(128, 64, 8, 1)
    skip: bool = False
    split: bool = False
    exp2: bool = False
    heavy_first: bool = False


# --8<-- [start:steps]
FORWARD = {
    "tiles": Switches(),
    "skip": Switches(skip=True),
    "split": Switches(skip=True, split=True),
    "exp2": Switches(skip=True, split=True, exp2=True),
    "pipeline": Switches(LaunchConfig(128, 64, 8, 3), skip=True, split=True, exp2=True),
    "heavy_first": Switches(
        LaunchConfig(128, 64, 8, 3), skip=True, split=True, exp2=True, heavy_first=True
    ),
    "small_tiles": Switches(
        LaunchConfig(64, 128, 4, 3), skip=True, split=True, exp2=True, heavy_first=True
    ),
}
# --8<-- [end:steps]
# Arguments that override the Triton launchers' choices, for (forward, backward).
OVERRIDES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "unshared": ({"splits": 1}, {"dkdv_splits": 1, "dq_splits": 1}),
    "shared": ({}, {}),
    "in_turn": ({"head_swizzle": 1}, {"head_swizzle": 1}),
    "together": ({}, {}),
    # Fastest configurations on Hopper (d = 64) with float32 split inside the loop.
    "cut_in_steps": (
        {"config": LaunchConfig(128, 64, 4, 1)},
        {
            "dkdv_config": LaunchConfig(64, 128, 8, 1),
            "dq_config": LaunchConfig(64, 64, 4, 1),
        },
    ),
    "cut_ahead": ({}, {}),
}
# For other GPUs: float32 is split inside the loop, and registers don't spill.
OTHER_GPU_OVERRIDES: tuple[dict[str, Any], dict[str, Any]] = (
    {"config": LaunchConfig(64, 32, 4, 2)},
    {
        "dkdv_config": LaunchConfig(32, 32, 4, 1),
        "dq_config": LaunchConfig(32, 32, 4, 1),
    },
)
PASSES = ("forward", "backward")
# Steps that use the Hopper kernels; on other GPUs they repeat earlier steps.
HOPPER_STEPS = ("one_item_forward", "forward", "two_passes_backward", "backward")
STEPS = (
    *("first_forward", *FORWARD, "plain_forward", "one_item_forward", "forward"),
    *("first_backward", "atomic_backward", "plain_backward", "two_passes_backward"),
    "backward",
    *(f"{how}_{of}" for how in OVERRIDES for of in PASSES),
)


@dataclass(frozen=True)
class Config:
    step: str = option(
        "tiles", "technique that was added last, or a kernel of the package", STEPS
    )
    heads: int = option(16, "heads")
    n: int = option(16384, "sequence length in tokens, a multiple of 128")
    d: int = option(64, "head dimension, a power of two from 16 on")
    dtype: str = option("bf16", "dtype of q, k, v and the gradient", ("fp32", "bf16"))


def configs(quick: bool = False) -> list[Config]:
    if quick:
        return [Config("tiles", 1, 128, 16), Config("split", 1, 128, 16)]
    one, short, long = (1, 4096), (16, 2048, 128, "fp32"), (16, 4096, 64, "fp32")
    shapes = dict(zip(OVERRIDES, (one, one, short, short, long, long), strict=True))
    return [Config(step, *shapes.get(step.rpartition("_")[0], ())) for step in STEPS]


# --8<-- [start:loop]
@triton.jit
def attend_keys(
    acc, m, l, q, k_ptr, v_ptr, rows, columns, first, last, scale,
    BK: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr, EXP2: tl.constexpr,
):  # fmt: skip
    """Return (acc, m, l) after online softmax over keys first to last - 1."""
    for start in range(first, last, BK):
        keys = start + tl.arange(0, BK)
        # [BK, D]
        k = tl.load(k_ptr + keys[:, None] * D + columns[None, :])
        v = tl.load(v_ptr + keys[:, None] * D + columns[None, :])
        # [BQ, BK]
        s = dot(q, tl.trans(k), tl.zeros([q.shape[0], BK], tl.float32), "ieee")
        if MASKED:
            s = tl.where(rows[:, None] >= keys[None, :], s, -float("inf"))
        if EXP2:
            m_new = tl.maximum(m, tl.max(s, 1) * scale)
            p = tl.exp2(s * scale - m_new[:, None])
            rescale = tl.exp2(m - m_new)
        else:
            s = s * scale
            m_new = tl.maximum(m, tl.max(s, 1))
            p = tl.exp(s - m_new[:, None])
            rescale = tl.exp(m - m_new)
        l = l * rescale + tl.sum(p, 1)
        acc = dot(round_to(p, v.dtype), v, acc * rescale[:, None], "ieee")
        m = m_new
    return acc, m, l
    # --8<-- [end:loop]


@triton.jit
def switched_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, n, scale,
    BQ: tl.constexpr, BK: tl.constexpr, D: tl.constexpr,
    SKIP: tl.constexpr, SPLIT: tl.constexpr, EXP2: tl.constexpr,
    HEAVY_FIRST: tl.constexpr,
):  # fmt: skip
    """Compute causal o of a tile of queries of one head, with options of `Switches`."""
    tile = tl.program_id(0)
    if HEAVY_FIRST:
        tile = tl.num_programs(0) - 1 - tile
    head = tl.program_id(1).to(tl.int64) * n * D
    rows, columns = tile * BQ + tl.arange(0, BQ), tl.arange(0, D)
    # [BQ, D]
    q = tl.load(q_ptr + head + rows[:, None] * D + columns[None, :])
    acc = tl.zeros([BQ, D], tl.float32)
    m = tl.full([BQ], -float("inf"), tl.float32)
    l = tl.zeros([BQ], tl.float32)
    end, middle = n, 0
    if SKIP:
        end = tile * BQ + BQ
    if SPLIT:
        middle = tile * BQ // BK * BK
        acc, m, l = attend_keys(
            acc, m, l, q, k_ptr + head, v_ptr + head, rows, columns, 0, middle, scale,
            BK, D, False, EXP2,
        )  # fmt: skip
    acc, m, l = attend_keys(
        acc, m, l, q, k_ptr + head, v_ptr + head, rows, columns, middle, end, scale,
        BK, D, True, EXP2,
    )  # fmt: skip
    o = round_to(acc / l[:, None], o_ptr.dtype.element_ty)
    tl.store(o_ptr + head + rows[:, None] * D + columns[None, :], o)


def ladder_forward(q: Tensor, k: Tensor, v: Tensor, switches: Switches) -> Tensor:
    """Return causal attention of (heads, n, d) tensors; tile sizes must divide n."""
    heads, n, d = q.shape
    c, o = switches.config, torch.empty_like(q)
    scale = d**-0.5 * (LOG2E.value if switches.exp2 else 1.0)
    switched_kernel[(n // c.q, heads)](
        q, k, v, o, n, scale, BQ=c.q, BK=c.k, D=d, SKIP=switches.skip,
        SPLIT=switches.split, EXP2=switches.exp2,
        HEAVY_FIRST=switches.heavy_first, num_warps=c.warps, num_stages=c.stages,
        enable_fp_fusion=True,
    )  # fmt: skip
    return o


@triton.jit
def atomic_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr, n,
    scale_log2, scale,
    BQ: tl.constexpr, BK: tl.constexpr, D: tl.constexpr, LOG2: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of a tile of keys; add to dq by atomics, in no fixed order."""
    head = tl.program_id(1).to(tl.int64)
    q_ptr += head * n * D
    do_ptr += head * n * D
    dq_ptr += head * n * D
    keys, columns = tl.program_id(0) * BK + tl.arange(0, BK), tl.arange(0, D)
    key_offsets = head * n * D + keys[:, None] * D + columns[None, :]
    # [BK, D]
    k, v = tl.load(k_ptr + key_offsets), tl.load(v_ptr + key_offsets)
    dk = tl.zeros([BK, D], tl.float32)
    dv = tl.zeros([BK, D], tl.float32)
    for start in range(tl.program_id(0) * BK // BQ * BQ, n, BQ):
        rows = start + tl.arange(0, BQ)
        q_offsets = rows[:, None] * D + columns[None, :]
        # [BQ, D]
        q, do = tl.load(q_ptr + q_offsets), tl.load(do_ptr + q_offsets)
        lse, delta = (
            tl.load(lse_ptr + head * n + rows),
            tl.load(delta_ptr + head * n + rows),
        )
        zeros = tl.zeros([BK, BQ], tl.float32)
        # [BK, BQ]
        s = dot(k, tl.trans(q), zeros, "ieee")
        p = tl.exp2(s * scale_log2 - (lse * LOG2)[None, :])
        p = tl.where(rows[None, :] >= keys[:, None], p, 0.0)
        dv = dot(round_to(p, do.dtype), do, dv, "ieee")
        dp = dot(v, tl.trans(do), zeros, "ieee")
        ds = round_to(p * (dp - delta[None, :]), q.dtype)
        dk = dot(ds, q, dk, "ieee")
        dq = dot(tl.trans(ds), k, tl.zeros([BQ, D], tl.float32), "ieee")
        tl.atomic_add(dq_ptr + q_offsets, dq * scale, sem="relaxed")
    tl.store(dk_ptr + key_offsets, round_to(dk * scale, k.dtype))
    tl.store(dv_ptr + key_offsets, round_to(dv, v.dtype))


def atomic_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor
) -> tuple[Tensor, ...]:
    """Return causal (dq, dk, dv) of (heads, n, d). dq is not bitwise reproducible."""
    heads, n, d = q.shape
    delta = (o.float() * do.float()).sum(-1)
    dq = torch.zeros(q.shape, device=q.device)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    scale = d**-0.5
    atomic_kernel[(n // 64, heads)](
        q, k, v, do, lse, delta, dq, dk, dv, n, scale * LOG2E.value, scale, BQ=64,
        BK=64, D=d, LOG2=LOG2E.value,
        num_warps=4, num_stages=2, enable_fp_fusion=True,
    )  # fmt: skip
    return dq.to(q.dtype), dk, dv


# --8<-- [start:run]
def run(config: Config) -> AlternatingRun:
    """Return a step's GPU times in ms, its relative error in the first rows of head 0,
    whether two calls are bitwise equal (`repeats`), the backend and the resources of
    its kernels. Raise ValueError without a GPU or Triton's interpreter.
    """
    device = timing.default_device()
    if device == "cpu" and not INTERPRETED.value:
        raise ValueError(
            "its kernels need a CUDA GPU, and torch sees none here; "
            "TRITON_INTERPRET=1 runs them on the CPU, slowly"
        )
    shape, dtype = (config.heads, config.n, config.d), DTYPES[config.dtype]
    q, k, v, do = (x.detach() for x in random_inputs(shape, dtype, device))
    work = prepare_step(config.step, q, k, v, do)
    (first, kernels), second = record_kernels(work), work()
    rows, exact = first[0][0, :ROWS], exact_result(config.step, q, k, v, do)
    on_hopper = config.step in HOPPER_STEPS
    metrics = {
        "relative_error": relative_error(rows, exact),
        "repeats": int(all(map(torch.equal, first, second))),
        "ran": choose_backend("auto", q, k, v) if on_hopper else "triton",
        **kernels,
    }
    del first, second, rows, exact
    yield

    def step(phase: Phase) -> None:
        with phase("time"):
            work()

    for _ in range(gpu_time.ROUNDS):
        gpu_time.add_round(metrics, step, device)
        yield
    return metrics
    # --8<-- [end:run]


def launch_overrides(technique: str, of: str, q: Tensor) -> dict[str, Any]:
    """Return keyword arguments for the launcher of pass `of` that apply `technique`."""
    overrides = OVERRIDES[technique]
    hopper = q.is_cuda and torch.cuda.get_device_capability(q.device)[0] == 9
    if technique == "cut_in_steps" and not hopper:
        overrides = OTHER_GPU_OVERRIDES
    return overrides[PASSES.index(of)]


def prepare_step(
    step: str, q: Tensor, k: Tensor, v: Tensor, do: Tensor
) -> Callable[[], tuple[Tensor, ...]]:
    """Return the function to time for a step in STEPS: () -> (o,) or (dq, dk, dv)."""
    scale = q.shape[-1] ** -0.5
    technique, _, direction = step.rpartition("_")
    overridden = technique in OVERRIDES
    overrides = launch_overrides(technique, direction, q) if overridden else {}
    if step == "plain_forward" or overridden and direction == "forward":
        return lambda: launch_forward(q, k, v, True, scale, **overrides)[:1]
    if step == "first_forward":
        return lambda: (first_attention(q, k, v, True),)
    if step == "first_backward":
        inputs = [x.requires_grad_() for x in (q, k, v)]
        o = first_attention(q, k, v, True)
        return lambda: torch.autograd.grad(o, inputs, do, retain_graph=True)
    if step in FORWARD:
        return lambda: (ladder_forward(q, k, v, FORWARD[step]),)
    hopper = choose_backend("auto", q, k, v) == "hopper"
    if step == "forward" or step == "one_item_forward" and not hopper:
        return lambda: run_forward(q, k, v, True, scale)[:1]
    if step == "one_item_forward":
        # One program per query tile; last_items=0 keeps the usual head swizzle.
        config = CONFIGS["forward"][TILE_DIMS[q.shape[-1]]]
        one_item = config._replace(programs=q.shape[0] * q.shape[1], last_items=0)
        return lambda: launches.launch_forward(q, k, v, True, scale, one_item)[:1]
    o, lse = launch_forward(q, k, v, True, scale)
    if step == "atomic_backward":
        return lambda: atomic_backward(do, q, k, v, o, lse)
    if step == "backward":
        return lambda: run_backward(do, q, k, v, o, lse, True, scale)
    if step == "two_passes_backward" and hopper:
        return lambda: launches.launch_two_passes(do, q, k, v, o, lse, True, scale)
    return lambda: launch_backward(do, q, k, v, o, lse, True, scale, **overrides)


def exact_result(step: str, q: Tensor, k: Tensor, v: Tensor, do: Tensor) -> Tensor:
    """Return, in float64, the first ROWS rows of dq (backward steps) or o of head 0."""
    q, k, v, do = (x[:1, :ROWS].double().requires_grad_() for x in (q, k, v, do))
    o, _ = attention_reference(q, k, v, True)
    backward = step.endswith("backward")
    return (torch.autograd.grad(o, q, do)[0] if backward else o.detach())[0]


if __name__ == "__main__":
    main(Config, run)
