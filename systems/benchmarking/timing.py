"""Wall-clock time and peak memory of steps, for all experiments.

A CUDA call returns before the GPU has finished, so the clock synchronizes before it
starts and before it stops.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from systems.benchmarking import phases
from systems.model.train_step import Phase

now = time.perf_counter
DEVICES = ("cpu", "cuda")


class Step(Protocol):
    """Function that runs a step of work, with each phase inside `with phase(name):`."""

    def __call__(self, phase: Phase) -> None: ...


def default_device() -> str:
    """Return "cuda" if torch finds a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def synchronize(device: str) -> None:
    """Wait until the device has finished all work; on a CPU, return at once."""
    assert device in DEVICES, f'{device!r} is neither "cpu" nor "cuda"'
    if device == "cuda":
        torch.cuda.synchronize()


# --8<-- [start:clock]
class Clock:
    """Timer of named phases: `with clock.phase("forward"): ...` adds one sample to
    `samples_ms["forward_ms"]`, unless the work raises.
    """

    def __init__(self, device: str):
        self.device = device
        self.samples_ms: dict[str, list[float]] = {}

    # --8<-- [start:phase]
    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with phases.mark(name):
            synchronize(self.device)
            start = now()
            yield
            synchronize(self.device)
            elapsed_ms = (now() - start) * 1e3
        self.samples_ms.setdefault(f"{name}_ms", []).append(elapsed_ms)

    # --8<-- [end:phase]


def measure(
    step: Step,
    *,
    warmup: int,
    repeats: int,
    device: str,
    between: Callable[[], None] | None = None,
) -> dict[str, list[float] | int]:
    """Run `step` warmup + repeats times. Return the times of the repeats in ms by
    phase, and on a GPU their peak memory in bytes. `device` is "cpu" or "cuda".

    `between` runs before each step and is not timed, for example to clear gradients.
    """
    warm, clock = Clock(device), Clock(device)
    for i in range(warmup + repeats):
        if i == warmup and device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        if between is not None:
            between()
        step((warm if i < warmup else clock).phase)
    return {**clock.samples_ms, **peak_memory(device)}
    # --8<-- [end:clock]


# --8<-- [start:peak]
def peak_memory(device: str) -> dict[str, int]:
    """Return peak bytes since the last reset: allocated for tensors, and reserved from
    the driver by PyTorch's allocator. On a CPU, return {}.
    """
    if device != "cuda":
        return {}
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }
    # --8<-- [end:peak]


def empty_cache(device: str) -> None:
    """Collect garbage, and on a GPU give unused cached memory back to the driver."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
