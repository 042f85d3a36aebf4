"""Look at a step instead of timing it: the kernels of each phase, the time of each
kernel, and what stays in memory for the backward pass.

A step takes a probe's `phase` in place of the clock's, so the step that is looked at is
the one that is timed, in a pass of its own.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from systems.benchmarking import phases
from systems.benchmarking.timing import Step
from systems.profiling.torch_trace import profile_kernels
from systems.profiling.trace import Kernel, TraceError

# How TorchInductor begins the name of a kernel that it wrote.
INDUCTOR_PREFIX = "triton_"


# --8<-- [start:kernels]
def kernel_counts(step: Step, device: str) -> dict[str, int | list[str]]:
    """How many kernels each phase launches, and the names of those that the compiler
    wrote. Copies and fills of memory don't count. Empty on a CPU.
    """
    if device != "cuda":
        return {}
    names: dict[str, list[str]] = {}

    def phase(name: str) -> AbstractContextManager[None]:
        names[name] = []
        return phases.mark(name)

    # The names of the marks are there when they are looked for: after the step.
    _, kernels = profile_kernels(lambda: step(phase), device, marks=names.keys())
    for kernel in kernels:
        if kernel.path and not kernel.is_copy:
            names[kernel.path[0]].append(kernel.name)
    counts = {f"{name}_kernels": len(launched) for name, launched in names.items()}
    fused = {
        f"{name}_fused": fused_names
        for name, launched in names.items()
        if (
            fused_names := [
                kernel_name
                for kernel_name in launched
                if kernel_name.startswith(INDUCTOR_PREFIX)
            ]
        )
    }
    return counts | fused


# --8<-- [end:kernels]


def kernel_samples_ms(
    work: Callable[[], object], calls: int, device: str
) -> dict[str, list[float]]:
    """Time on the GPU in ms by kernel name, one sample for each of `calls` calls; the
    launches of a call add up. Empty on a CPU, which runs no kernels.

    The L2 cache is not emptied between calls. TraceError where calls differ in what
    they launch, twice: a profile may lose a kernel.
    """
    work()
    if device != "cuda":
        return {}

    def profile_calls() -> dict[str, list[float]]:
        _, kernels = profile_kernels(lambda: [work() for _ in range(calls)], device)
        return split_by_call(kernels, calls)

    with suppress(TraceError):
        return profile_calls()
    return profile_calls()


def split_by_call(kernels: Iterable[Kernel], calls: int) -> dict[str, list[float]]:
    """The durations of each name's kernels, in order, shared out among the calls."""
    by_name: dict[str, list[float]] = {}
    for kernel in kernels:
        by_name.setdefault(kernel.name, []).append(kernel.ms)
    samples = {}
    for name, times in by_name.items():
        launches, remainder = divmod(len(times), calls)
        if remainder:
            raise TraceError(
                f"{len(times)} launches of {name} in {calls} calls: the profile lost "
                "some, or calls differ; profile again"
            )
        per_call = (times[i * launches : (i + 1) * launches] for i in range(calls))
        samples[name] = [round(sum(call), 6) for call in per_call]
    return samples


# --8<-- [start:saved]
class SavedTensors:
    """Each tensor that autograd saves in the forward phase; `adds_bytes` counts its
    memory once, the inputs' never.
    """

    def __init__(self, inputs: Iterable[Tensor]):
        self.tensors: list[dict[str, Any]] = []
        self.known = {tensor.untyped_storage().data_ptr() for tensor in inputs}

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        new = storage.data_ptr() not in self.known
        self.known.add(storage.data_ptr())
        self.tensors.append(
            {
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "bytes": tensor.numel() * tensor.itemsize,
                "adds_bytes": storage.nbytes() if new else 0,
            }
        )
        return tensor

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if name != phases.FORWARD:
            yield
            return
        with saved_tensors_hooks(self.pack, lambda tensor: tensor):
            yield


class MemoryInUse:
    """Bytes that tensors hold on the GPU just before each phase
    (`before_backward_bytes`, say). Absent on a CPU.
    """

    def __init__(self, device: str):
        self.device = device
        self.bytes: dict[str, int] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self.device == "cuda":
            self.bytes[f"before_{name}_bytes"] = torch.cuda.memory_allocated()
        yield


# --8<-- [end:saved]
