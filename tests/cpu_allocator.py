"""Imitate the CUDA allocator's history on a CPU: each storage of a fake tensor is a
block. On a GPU, test_recorder.py checks the same sums with the real allocator.
"""

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from systems.model import transformer
from systems.profiling.memory import recorder
from tests.cuda_autocast import cuda_autocast

# The unit to which the allocator rounds sizes.
BLOCK_BYTES = 512


class Allocator(TorchDispatchMode):
    """Record bytes in use and a history as `torch.cuda.memory` would."""

    def __init__(self):
        super().__init__()
        self.live: dict[int, tuple[int, list]] = {}
        self.trace: list[dict[str, Any]] = []
        self.recording = False
        self.used = self.peak = 0
        self.rounded = self.rounded_peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, result)):
            if isinstance(leaf, Tensor):
                self.allocate(leaf.untyped_storage())
        return result

    def allocate(self, storage: torch.UntypedStorage) -> None:
        address, size = storage._cdata, storage.nbytes()
        if address in self.live or not size:
            return
        frames = python_frames() if self.recording else []
        self.live[address] = (size, frames)
        weakref.finalize(storage, self.free, address)
        self.add_entry("alloc", address, size, frames)
        self.used += size
        self.rounded += round_up(size)
        self.peak = max(self.peak, self.used)
        self.rounded_peak = max(self.rounded_peak, self.rounded)

    def free(self, address: int) -> None:
        size, _ = self.live.pop(address)
        self.add_entry("free_requested", address, size, [])
        self.add_entry("free_completed", address, size, [])
        self.used -= size
        self.rounded -= round_up(size)

    def add_entry(self, action: str, address: int, size: int, frames: list) -> None:
        if self.recording:
            self.trace.append(
                {"action": action, "addr": address, "size": size, "frames": frames}
            )

    def record(self, enabled: str | None = "all", **_: Any) -> None:
        self.recording = enabled is not None
        self.trace = []

    def reset_peak(self) -> None:
        self.peak, self.rounded_peak = self.used, self.rounded

    def snapshot(self) -> dict[str, Any]:
        segments = [
            {
                "device": 0,
                "address": address,
                "blocks": [
                    {"state": "active_allocated", "size": size, "frames": frames}
                ],
            }
            for address, (size, frames) in self.live.items()
        ]
        return {"segments": segments, "device_traces": [self.trace]}


def round_up(size: int) -> int:
    """Return the size of the block for `size` bytes, with expandable segments."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def python_frames() -> list[dict[str, Any]]:
    """Return the operation's Python stack, without frames of the dispatch mode."""
    frames, frame = [], sys._getframe(3)
    while frame is not None and len(frames) < 30:
        code = frame.f_code
        where = {"filename": code.co_filename, "line": frame.f_lineno}
        if "torch/utils/_" not in code.co_filename:
            frames.append({"name": code.co_name, **where})
        frame = frame.f_back
    return frames


@contextmanager
def allocator(monkeypatch) -> Iterator[Allocator]:
    """Use fake tensors, CUDA's autocast, and this allocator instead of CUDA's."""
    made = Allocator()

    def empty_parameter(shape, std):
        return torch.nn.Parameter(torch.empty(shape))

    def storage_address(tensor):
        return tensor.untyped_storage()._cdata

    monkeypatch.setattr(transformer, "truncated_normal", empty_parameter)
    monkeypatch.setattr(recorder, "storage_address", storage_address)
    for name, function in {
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "current_device": lambda: 0,
        "reset_peak_memory_stats": made.reset_peak,
        "memory_stats": lambda: {"requested_bytes.all.peak": made.peak},
        "max_memory_allocated": lambda: made.rounded_peak,
        "memory._record_memory_history": made.record,
        "memory._snapshot": made.snapshot,
    }.items():
        monkeypatch.setattr(f"torch.cuda.{name}", function)
    with cuda_autocast(monkeypatch), FakeTensorMode(), made:
        yield made
