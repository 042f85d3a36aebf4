"""Inspect a step instead of timing it: kernels of each phase, time of each kernel, and
memory in use or saved for backward. A step calls `phase(name)` around each phase: the
`phase` of a clock times the work, the `phase` of a probe records it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from systems.benchmarking import phases
from systems.benchmarking.timing import DEVICES, Step
from systems.profiling.torch_trace import profile_kernels
from systems.profiling.trace import Kernel, TraceError

# Prefix of kernels that TorchInductor generated.
INDUCTOR_PREFIX = "triton_"
# Name of the mark around a profiled pass.
PASS = "pass"


def phase_kernels(
    step: Step,
    device: str,
    *,
    passes: int = 1,
    between: Callable[[], None] | None = None,
    cold: bool = False,
) -> dict[str, list[list[Kernel]]]:
    """Profile a few passes, and return {phase: [kernels of each pass]}; {} on a CPU.

    `between` runs before each pass. `cold` empties the L2 cache before each phase. If
    passes launch different kernels, profile once more, then raise TraceError.
    """
    assert device in DEVICES, device
    if device != "cuda":
        return {}
    # The first pass adds the names of its phases, which then select marks in the trace.
    names = {PASS: None}
    buffer = make_l2_filler(device) if cold else None

    def phase(name: str) -> AbstractContextManager[None]:
        names[name] = None
        if buffer is not None:
            buffer.zero_()
        return phases.mark(name)

    def work() -> None:
        for _ in range(passes):
            if between is not None:
                between()
            with phases.mark(PASS):
                step(phase)

    def profile_passes() -> dict[str, list[list[Kernel]]]:
        _, kernels = profile_kernels(work, device, marks=names.keys())
        return split_by_phase(kernels, [name for name in names if name != PASS], passes)

    with suppress(TraceError):
        return profile_passes()
    return profile_passes()


def make_l2_filler(device: str) -> Tensor:
    """Return a tensor larger than any L2 cache; writing it evicts everything else."""
    return torch.empty(2**28, dtype=torch.int8, device=device)


def split_by_phase(
    kernels: Iterable[Kernel], names: list[str], passes: int
) -> dict[str, list[list[Kernel]]]:
    """Return {phase: [kernels of each pass]}. Raise TraceError if passes differ."""
    pass_kernels = [kernel for kernel in kernels if kernel.path[:1] == (PASS,)]
    starts = sorted({kernel.marks[0].start for kernel in pass_kernels})
    runs: dict[str, list[list[Kernel]]] = {name: [[] for _ in starts] for name in names}
    for kernel in pass_kernels:
        if len(kernel.path) > 1:
            index = starts.index(kernel.marks[0].start)
            runs[kernel.path[1]][index].append(kernel)
    counts = {name: [*map(len, of_passes)] for name, of_passes in runs.items()}
    if len(starts) != passes or any(len({*row}) > 1 for row in counts.values()):
        raise TraceError(
            f"{passes} passes launched {counts} kernels: the profile lost some, or "
            "passes differ; profile again"
        )
    return runs


def kernel_counts(found: dict[str, list[list[Kernel]]]) -> dict[str, int | list[str]]:
    """Return, from a result of `phase_kernels`, each phase's number of kernels without
    copies (`forward_kernels`) and names of TorchInductor's kernels (`forward_fused`).
    """
    names = {
        phase: [kernel.name for kernel in of_passes[0] if not kernel.is_copy]
        for phase, of_passes in found.items()
    }
    counts = {f"{phase}_kernels": len(group) for phase, group in names.items()}
    fused = {
        f"{phase}_fused": written
        for phase, each in names.items()
        if (written := [name for name in each if name.startswith(INDUCTOR_PREFIX)])
    }
    return counts | fused


def kernel_samples_ms(
    work: Callable[[], object], calls: int, device: str
) -> dict[str, list[float]]:
    """Return GPU times in ms by kernel name, a sample for each of `calls` calls, with a
    warm L2 cache; {} on a CPU. A profile can lose a kernel, so if calls differ, profile
    once more, then raise TraceError.
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
    """Return {kernel name: ms of each call}; TraceError if launches % calls isn't 0."""
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
    """Recorder of the tensors that autograd saves in the forward phase, as dicts. Their
    `adds_bytes` is the storage's size, 0 if `inputs` or earlier tensors share it.
    """

    def __init__(self, inputs: Iterable[Tensor]):
        self.tensors: list[dict[str, Any]] = []
        self.known = {tensor.untyped_storage().data_ptr() for tensor in inputs}

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        is_new = storage.data_ptr() not in self.known
        self.known.add(storage.data_ptr())
        self.tensors.append(
            {
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "bytes": tensor.numel() * tensor.itemsize,
                "adds_bytes": storage.nbytes() if is_new else 0,
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
    """Recorder of bytes allocated before phases: `bytes["before_backward_bytes"]`."""

    def __init__(self, device: str):
        self.device = device
        self.bytes: dict[str, int] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self.device == "cuda":
            self.bytes[f"before_{name}_bytes"] = torch.cuda.memory_allocated()
        yield

    # --8<-- [end:saved]
