"""`torch.compile`, measured honestly: nothing cached from before, no compile in a timed
step, recompiles counted.

Compiling happens in the first calls. So warm-up steps are timed as well, in samples of
their own: what they take beyond as many settled steps is the price of compiling. The
timed steps then run where a recompile is an error.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch._inductor.utils import fresh_inductor_cache

from systems.benchmarking import timing
from systems.benchmarking.timing import Step

BACKEND = "inductor"


# --8<-- [start:graph]
def compiled(work: Any, dynamic: bool | None = False) -> Any:
    """`work` compiled as one graph (a break in it is an error), for the shapes that it
    meets unless `dynamic`.
    """
    return torch.compile(work, fullgraph=True, dynamic=dynamic, backend=BACKEND)


# --8<-- [end:graph]


# --8<-- [start:clock]
@contextmanager
def fresh(device: str, folder: Path | None = None) -> Iterator[None]:
    """The compiler as a new process has it: nothing compiled, no cache on disk; its own
    loading is done before. With a `folder`, its cache is there, and stays.
    """
    load(device)
    torch.compiler.reset()
    try:
        # PyTorch keeps its folder where something goes wrong inside.
        with (
            TemporaryDirectory(ignore_cleanup_errors=True) as empty,
            fresh_inductor_cache(dir=empty),
            kept_in(folder),
        ):
            yield
    finally:
        # What was compiled may hold on to tensors, which the next configuration would
        # count as its own.
        torch.compiler.reset()


@cache
def load(device: str) -> None:
    """Import the compiler and start its worker processes, and multiply matrices in both
    dtypes, forward and backward: the first step of a process would pay for it.
    """
    for dtype in (torch.float32, torch.bfloat16):
        w = torch.ones(8, 8, device=device, dtype=dtype, requires_grad=True)
        (w @ w).sum().backward()
    x = torch.ones(8, device=device, requires_grad=True)
    torch.compile(lambda x: (x.exp() + 1).sum(), backend=BACKEND)(x).backward()


def graphs() -> int:
    """How many graphs this process has compiled, recompiled ones included."""
    return counters["stats"]["unique_graphs"]


def measure(
    step: Step, *, warmup: int, repeats: int, device: str, between: Callable[[], None]
) -> dict[str, list[float] | int]:
    """As `timing.measure`, with the warm-up steps as samples too (`warmup_..._ms`), and
    a count of the graphs compiled.

    RuntimeError where a measured step would compile again.
    """
    before = graphs()
    first = timing.measure(
        step, warmup=0, repeats=warmup, device=device, between=between
    )
    settled = graphs()
    with torch.compiler.set_stance("fail_on_recompile"):
        timed = timing.measure(
            step, warmup=0, repeats=repeats, device=device, between=between
        )
    warmup_ms = {
        f"warmup_{name}": samples
        for name, samples in first.items()
        if name.endswith("_ms")
    }
    return {
        **warmup_ms,
        **timed,
        "graphs": settled - before,
        "recompiles": graphs() - settled,
    }


# --8<-- [end:clock]


@contextmanager
def kept_in(folder: Path | None) -> Iterator[None]:
    """Inductor's cache and Triton's in this folder. Which of a kernel's configurations
    is fastest is not kept: beside other processes none can tell.
    """
    if folder is None:
        yield
        return
    places = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
    before = {name: os.environ.get(name) for name in places}
    os.environ |= places
    try:
        with inductor.patch(autotune_local_cache=False):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
