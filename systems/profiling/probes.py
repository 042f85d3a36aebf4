"""Look at a step instead of timing it: the kernels of each phase, and what stays in
memory for the backward pass.

Each class has a `phase` that a step takes in place of the clock's, so the step that is
looked at is the one that is timed, in a pass of its own.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile

from systems.benchmarking import phases
from systems.benchmarking.timing import Step, synchronize

# How the profiler's trace calls a kernel; copies and fills of memory have categories of
# their own.
KERNEL = "kernel"
# How TorchInductor begins the name of a kernel that it wrote.
FUSED = "triton_"


# --8<-- [start:kernels]
class Kernels:
    """Names of the kernels that each phase launched, in their order on the GPU."""

    def __init__(self, device: str):
        self.device = device
        self.names: dict[str, list[str]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        synchronize(self.device)
        activity = (
            ProfilerActivity.CUDA if self.device == "cuda" else ProfilerActivity.CPU
        )
        with profile(activities=[activity], acc_events=True) as profiler:
            yield
            synchronize(self.device)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            self.names[name] = kernels_of(json.loads(path.read_text(encoding="utf-8")))


def kernels_of(trace: dict[str, Any]) -> list[str]:
    """Names of the kernels in a trace of the profiler, by start."""
    events = [event for event in trace["traceEvents"] if event.get("cat") == KERNEL]
    return [event["name"] for event in sorted(events, key=lambda event: event["ts"])]


# --8<-- [end:kernels]


def kernel_counts(step: Step, device: str) -> dict[str, int | list[str]]:
    """How many kernels each phase launches, and the names of those that the compiler
    wrote. Empty on a CPU.
    """
    if device != "cuda":
        return {}
    kernels = Kernels(device)
    # The first profile of a process may miss kernels while the profiler loads.
    with Kernels(device).phase("load"):
        torch.zeros(1, device=device)
    step(kernels.phase)
    counts: dict[str, int | list[str]] = {
        f"{name}_kernels": len(names) for name, names in kernels.names.items()
    }
    fused = {
        name: [n for n in names if n.startswith(FUSED)]
        for name, names in kernels.names.items()
    }
    return counts | {f"{name}_fused": names for name, names in fused.items() if names}


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
