"""The CUDA allocator's history without a GPU: storages of fake tensors, which hold no memory, as blocks of a pool.

Fake tensors go through every operation of a pass at full size in seconds. A dispatch mode sees each new storage, a weak
reference its end. Autocast for the CPU is taught what autocast for CUDA does, so a test on any machine asks about bf16.
"""

import sys
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from systems import memory_recorder, model

aten = torch.ops.aten

# What the allocator rounds to.
BLOCK_BYTES = 512


class Allocator(TorchDispatchMode):
    """What `torch.cuda.memory` would have recorded."""

    def __init__(self):
        super().__init__()
        self.live: dict[int, tuple[int, list]] = {}
        self.watched: dict[int, Any] = {}
        self.trace: list[dict[str, Any]] = []
        self.recording = False
        self.used = self.peak = 0
        self.rounded = self.rounded_peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.see(leaf)
        return result

    def see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self.live or not storage.nbytes():
            return
        frames = python_frames() if self.recording else []
        self.live[address] = (storage.nbytes(), frames)
        self.watched[address] = weakref.ref(storage, lambda _: self.free(address))
        self.note("alloc", address, storage.nbytes(), frames)
        self.used += storage.nbytes()
        self.peak = max(self.peak, self.used)
        self.rounded += rounded(storage.nbytes())
        self.rounded_peak = max(self.rounded_peak, self.rounded)

    def free(self, address: int) -> None:
        size, _ = self.live.pop(address)
        self.note("free_requested", address, size, [])
        self.note("free_completed", address, size, [])
        self.used -= size
        self.rounded -= rounded(size)

    def note(self, action: str, address: int, size: int, frames: list) -> None:
        if self.recording:
            self.trace.append({"action": action, "addr": address, "size": size, "frames": frames})

    def record(self, enabled: str | None = "all", **_: Any) -> None:
        self.recording = enabled is not None
        self.trace = []

    def reset_peak(self) -> None:
        self.peak, self.rounded_peak = self.used, self.rounded

    def snapshot(self) -> dict[str, Any]:
        segments = [
            {"device": 0, "address": address, "blocks": [{"state": "active_allocated", "size": size, "frames": frames}]}
            for address, (size, frames) in self.live.items()
        ]
        return {"segments": segments, "device_traces": [self.trace]}


def rounded(size: int) -> int:
    """The block that holds `size` bytes where any rest can be split off, as with expandable segments."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def python_frames() -> list[dict[str, Any]]:
    """The stack of the operation, without the dispatch mode's own frames."""
    found, frame = [], sys._getframe(3)
    while frame is not None and len(found) < 30:
        code = frame.f_code
        if "torch/utils/_" not in code.co_filename:
            found.append({"name": code.co_name, "filename": code.co_filename, "line": frame.f_lineno})
        frame = frame.f_back
    return found


@contextmanager
def allocator(monkeypatch) -> Iterator[Allocator]:
    """Fake tensors inside, an allocator that the recorder takes for the GPU's, and CUDA's autocast."""
    found = Allocator()
    monkeypatch.setattr(model, "truncated_normal", lambda shape, std: torch.nn.Parameter(torch.empty(shape)))
    monkeypatch.setattr(memory_recorder, "address_of", lambda tensor: tensor.untyped_storage()._cdata)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", found.reset_peak)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"requested_bytes.all.peak": found.peak})
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: found.rounded_peak)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", found.record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", found.snapshot)
    with cuda_autocast(monkeypatch), FakeTensorMode(), found:
        yield found


# Autocast as CUDA has it ------------------------------------------------------------------------------------------


@contextmanager
def cuda_autocast(monkeypatch) -> Iterator[None]:
    """`torch.autocast("cpu", torch.bfloat16)` gets the operations and the cache that CUDA's has.

    The lists are those of PyTorch's documentation, "CUDA Ops that can autocast to float16 / float32", as far as the
    model needs them.
    """
    cache: dict[int, Tensor] = {}
    monkeypatch.setattr(torch, "clear_autocast_cache", cache.clear)

    def narrow(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            return x
        # What the cache keeps: copies of leaves that need a gradient.
        if not (x.is_leaf and x.requires_grad):
            return x.to(torch.bfloat16)
        if id(x) not in cache:
            cache[id(x)] = x.to(torch.bfloat16)
        return cache[id(x)]

    def einsum(equation, tensors, *, path=None):
        with below():
            return aten.einsum(equation, [narrow(tensor) for tensor in tensors], path=path)

    def wide(operation):
        def run(x, *arguments):
            with below():
                return operation(x.float(), *arguments)

        return run

    def summed(x, *arguments, dtype=None, **options):
        with below():
            return aten.sum.dim_IntList(x, *arguments, dtype=dtype or torch.float32, **options)

    # As a whole it is on the CPU's list and not on CUDA's, where it asks for a log-softmax in the dtype of the logits.
    def cross_entropy(logits, targets, *_):
        with below():
            return aten.nll_loss_nd(aten.log_softmax.int(logits, 1, logits.dtype).float(), targets)

    library = torch.library.Library("aten", "IMPL")
    for name, function in {
        "einsum": einsum,
        "pow.Tensor_Scalar": wide(aten.pow.Tensor_Scalar),
        "rsqrt": wide(aten.rsqrt.default),
        "exp": wide(aten.exp.default),
        "sum.dim_IntList": summed,
        "cross_entropy_loss": cross_entropy,
    }.items():
        with warnings.catch_warnings():
            # The CPU's own cast of the loss is overridden on purpose.
            warnings.filterwarnings("ignore", message="Warning only once for all operators")
            library.impl(name, function, "AutocastCPU")
    try:
        yield
    finally:
        library._destroy()


def below():
    """Inside, autocast is past."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))
