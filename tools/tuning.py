"""What the search for launch configurations tries, checks and times: one candidate at a
time, each checked against attention in float64 before it is timed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

import torch

from systems.attention.reference import attention_reference
from systems.attention.triton.chooser import for_mask
from systems.attention.triton.configs import Config
from systems.attention.triton.launches import launch_backward, launch_forward
from systems.attention.triton.tables import CONFIGS
from systems.benchmarking.timing import default_device
from systems.benchmarking.workload import random_inputs
from systems.precision.dtypes import relative_error
from tools.compile_ahead import DTYPES

# What a candidate may err, relative to the norm of the exact result: far more than
# rounding, far less than a mistake.
TOLERANCE = {"half": 2e-2, "high": 1e-4, "highest": 1e-5}
# Accumulators in registers of one thread, of 255 in all: more would spill, fewer leave
# the matrix units idle.
MOST_ACCUMULATORS, LEAST_ACCUMULATORS = 200, 12
# Limits of a thread's registers with which a third and a fourth program of four warps
# fit on a multiprocessor, and what a thread needs beside its accumulators.
LIMITS, BESIDE = (168, 128), 40
SMALL = 512


@dataclass(frozen=True)
class Search:
    """What one configuration is looked for."""

    arithmetic: str
    kernel: str
    d: int
    causal: bool

    @property
    def key(self) -> tuple[str, str, int, bool]:
        return self.arithmetic, self.kernel, self.d, self.causal


@dataclass(frozen=True)
class Candidate:
    """One kernel with one launch configuration."""

    kernel: str
    arithmetic: str
    d: int
    config: Config
    causal: bool = True


def accumulators(kernel: str, d: int, c: Config) -> float:
    """Of each thread: o, dq, or dk and dv of a tile, with what its products give."""
    held = 2 * c.k * d if kernel == "dkdv" else c.q * d
    return (held + (1 if kernel == "forward" else 2) * c.q * c.k) / (32 * c.warps)


def candidates(kernel: str, arithmetic: str, d: int) -> list[Candidate]:
    """All tiles whose accumulators fit into the registers."""
    rows = (32, 64, 128, 256) if arithmetic == "half" else (16, 32, 64, 128)
    columns = (32, 64, 128) if arithmetic == "half" else (16, 32, 64)
    stages = (2, 3, 4) if arithmetic == "half" else (1, 2, 3)
    # dk and dv are held for a tile of keys, o or dq for one of queries: that side is
    # the longer one, unless rows are few.
    sides = [(b, a) if kernel == "dkdv" else (a, b) for a, b in product(rows, columns)]
    found = []
    for (q, k), warps, depth in product(sides, (4, 8), stages):
        own = accumulators(kernel, d, Config(q, k, warps, depth))
        if LEAST_ACCUMULATORS <= own <= MOST_ACCUMULATORS:
            # Products of limbs need so many registers that a limit only makes them
            # spill.
            half = arithmetic == "half"
            limits = [limit for limit in LIMITS if half and own + BESIDE <= limit]
            configs = [
                Config(q, k, warps, depth, registers, ahead)
                for registers in (None, *limits)
                for ahead in ((False,) if half else (False, True))
            ]
            found += [Candidate(kernel, arithmetic, d, config) for config in configs]
    return found


def shortlist(search: Search, gpu: str) -> list[Config]:
    """Ours for this GPU first; those of all other GPUs; and what differs from ours in
    one number, where its accumulators fit.
    """
    kind, kernel, d, causal = search.key
    ours = for_mask(CONFIGS[gpu][kind][kernel][d], causal)
    others = (
        for_mask(table[kind][kernel][d], mask)
        for table in CONFIGS.values()
        for mask in (causal, not causal)
    )
    near = (
        c
        for c in neighbours(ours)
        if LEAST_ACCUMULATORS / 2 <= accumulators(kernel, d, c) <= MOST_ACCUMULATORS
    )
    return list(dict.fromkeys((ours, *others, *near)))


def neighbours(c: Config) -> Iterator[Config]:
    """Tiles of twice or half as many rows, other warps, a stage more or less."""
    for side in ("q", "k"):
        for rows in (2 * getattr(c, side), getattr(c, side) // 2):
            if 16 <= rows <= 256:
                yield c._replace(**{side: rows})
    yield c._replace(warps=12 - c.warps)
    yield from (c._replace(stages=s) for s in (c.stages - 1, c.stages + 1) if s)


def inputs(heads: int, n: int, candidate: Candidate) -> list[torch.Tensor]:
    """Normal q, k, v, do: (1, heads, n, d)."""
    shape, dtype = (1, heads, n, candidate.d), DTYPES[candidate.arithmetic]
    return [x.detach() for x in random_inputs(shape, dtype, default_device())]


def prepare(
    candidate: Candidate, heads: int, n: int
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """A call that launches the kernel's pass, the kernel with its tile: the forward
    kernel alone, but for dq and for dkdv the whole backward pass, in which the other
    has its own.
    """
    torch.set_float32_matmul_precision(
        "high" if candidate.arithmetic == "high" else "highest"
    )
    q, k, v, do = inputs(heads, n, candidate)
    scale, config, causal = candidate.d**-0.5, candidate.config, candidate.causal
    # Few heads would have their loops split, by other kernels than those to be timed.
    if candidate.kernel == "forward":
        return lambda: launch_forward(q, k, v, causal, scale, config, splits=1)[:1]
    o, lse = launch_forward(q, k, v, causal, scale, splits=1)
    options: Any = {f"{candidate.kernel}_config": config}
    options |= {"dkdv_splits": 1, "dq_splits": 1}
    return lambda: launch_backward(do, q, k, v, o, lse, causal, scale, **options)


def verdict(candidate: Candidate) -> str:
    """What is wrong with a candidate, or nothing. Runs in another process, which leaves
    the kernel in the cache.
    """
    try:
        found = prepare(candidate, 1, SMALL)()
        q, k, v, do = (x.double() for x in inputs(1, SMALL, candidate))
        for leaf in (q, k, v):
            leaf.requires_grad_()
        o, _ = attention_reference(q, k, v, candidate.causal)
        exact = (
            (o,)
            if candidate.kernel == "forward"
            else torch.autograd.grad(o, (q, k, v), do)
        )
        errors = [relative_error(*pair) for pair in zip(found, exact, strict=True)]
    except Exception as error:
        # A tile that does not fit is an answer; the message of the compiler's error is
        # long.
        return f"{type(error).__name__}: {error}".splitlines()[0][:100]
    return (
        ""
        if max(errors) <= TOLERANCE[candidate.arithmetic]
        else f"wrong: relative error {max(errors):.1e}"
    )


def milliseconds(call: Callable[[], object]) -> float:
    """Median time of a call: of a pass, be it one kernel or more."""
    from triton.testing import do_bench

    times = do_bench(call, warmup=5, rep=25, return_mode="all")
    assert isinstance(times, list)
    return median(times)
