"""Time code under `torch.compile`: compiler caches start empty, no measured step
compiles, and recompiles are counted. The warm-up steps, which compile, are timed as
separate samples.
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
def compile_work(work: Any, dynamic: bool | None = False) -> Any:
    """Compile a function or module, by default for static shapes, as a single graph."""
    return torch.compile(work, fullgraph=True, dynamic=dynamic, backend=BACKEND)
    # --8<-- [end:graph]


# --8<-- [start:clock]
@contextmanager
def fresh_caches(device: str, folder: Path | None = None) -> Iterator[None]:
    """Run the context with empty compiler caches, or with caches stored in `folder`."""
    warm_up_compiler(device)
    torch.compiler.reset()
    try:
        # Create the folder here: PyTorch would not delete its own folder on an error.
        with (
            TemporaryDirectory(ignore_cleanup_errors=True) as directory,
            fresh_inductor_cache(dir=directory),
            use_disk_caches(folder),
        ):
            yield
    finally:
        # Drop compiled code, because tensors that it keeps alive take memory.
        torch.compiler.reset()


@cache
def warm_up_compiler(device: str) -> None:
    """Once per device, import the compiler, start its workers, and run a matmul in fp32
    and bf16. Otherwise a process's first timed step would include the time of setup.
    """
    for dtype in (torch.float32, torch.bfloat16):
        w = torch.ones(8, 8, device=device, dtype=dtype, requires_grad=True)
        (w @ w).sum().backward()
    x = torch.ones(8, device=device, requires_grad=True)
    torch.compile(lambda x: (x.exp() + 1).sum(), backend=BACKEND)(x).backward()


def count_graphs() -> int:
    """Return how many graphs this process has compiled, including recompiles."""
    return counters["stats"]["unique_graphs"]


def measure(
    step: Step, *, warmup: int, repeats: int, device: str, between: Callable[[], None]
) -> dict[str, list[float] | int]:
    """Time `warmup` steps, which compile, and then `repeats` steps. Return the metrics
    of `timing.measure`, samples of the warm-up steps (`warmup_forward_ms`), the number
    of `graphs`, and `recompiles` (0). Raise RuntimeError if a later step recompiles.
    """
    count_before = count_graphs()
    first = timing.measure(
        step, warmup=0, repeats=warmup, device=device, between=between
    )
    count_warm = count_graphs()
    with torch.compiler.set_stance("fail_on_recompile"):
        metrics = timing.measure(
            step, warmup=0, repeats=repeats, device=device, between=between
        )
    warmup_ms = {
        f"warmup_{name}": samples
        for name, samples in first.items()
        if name.endswith("_ms")
    }
    return {
        **warmup_ms,
        **metrics,
        "graphs": count_warm - count_before,
        "recompiles": count_graphs() - count_warm,
    }
    # --8<-- [end:clock]


@contextmanager
def use_disk_caches(folder: Path | None) -> Iterator[None]:
    """Store the caches of Inductor and Triton in `folder`, if it isn't None. Exclude
    autotuning results: timings made while other processes run are unreliable.
    """
    if folder is None:
        yield
        return
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
    previous = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        with inductor.patch(autotune_local_cache=False):
            yield
    finally:
        for name, value in previous.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
