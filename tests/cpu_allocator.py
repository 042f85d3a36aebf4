"""Imitate a GPU on a CPU: the history of CUDA's allocator, in which each storage of a
fake tensor is a block, and CUDA's autocast. On a GPU, test_recorder.py checks the same
sums with the real allocator; test_precision.py compares the dtypes with a GPU's record.
"""

import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from systems.formulas.memory_costs import Pass
from systems.model import transformer
from systems.model.checkpointing import checkpoint_attention, checkpoint_blocks
from systems.model.optimizer import AdamW
from systems.model.train_step import precision_context, training_step
from systems.model.transformer import BasicsTransformerLM
from systems.profiling.memory import recorder

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
                "blocks": [{"state": "active", "size": size, "frames": frames}],
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

    monkeypatch.setattr(transformer, "truncated_normal", empty_parameter)
    name = "storage_address"
    monkeypatch.setattr(recorder, name, lambda x: x.untyped_storage()._cdata)
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


def build_pass(p: Pass) -> tuple[BasicsTransformerLM, Callable[[], None]]:
    """Return a model and a function that runs `p`, if its mode keeps no graph."""
    shape = {**asdict(p.shape), "attention": p.attention}
    if p.precision == "pure_bf16":
        torch.set_default_dtype(torch.bfloat16)
    model = BasicsTransformerLM(p.vocab, p.context, **shape)
    torch.set_default_dtype(torch.float32)
    token_ids, targets = torch.randint(p.vocab, (2, p.batch, p.context))
    if p.embeddings == 1:
        model.lm_head.weight = model.token_embeddings.weight
    if p.checkpoint:
        checkpoint_blocks(model, p.checkpoint)
    if p.recompute_attention:
        checkpoint_attention(model)
    optimizer = AdamW(model.parameters()) if p.mode == "step" else None

    def run_pass() -> None:
        autocast = precision_context("bf16" if p.autocast else "fp32", "cpu")
        if p.mode != "forward":
            return training_step(model, token_ids, targets, autocast, optimizer)
        with torch.no_grad(), autocast:
            model(token_ids)

    return model, run_pass


aten = torch.ops.aten


@contextmanager
def cuda_autocast(monkeypatch) -> Iterator[None]:
    copies: dict[int, Tensor] = {}
    monkeypatch.setattr(torch, "clear_autocast_cache", copies.clear)

    def cast_to_bf16(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            return x
        # Autocast caches copies only of leaves that require gradients.
        if not (x.is_leaf and x.requires_grad):
            return x.to(torch.bfloat16)
        if id(x) not in copies:
            copies[id(x)] = x.to(torch.bfloat16)
        return copies[id(x)]

    def einsum(equation, tensors, *, path=None):
        return aten.einsum(equation, [cast_to_bf16(x) for x in tensors], path=path)

    def sum_in_fp32(x, *arguments, dtype=None, **options):
        wide = dtype or torch.float32
        return aten.sum.dim_IntList(x, *arguments, dtype=wide, **options)

    def cross_entropy(logits, targets, *_):
        # The CPU runs cross-entropy in fp32 as a whole, CUDA only its `nll_loss`.
        logarithms = aten.log_softmax.int(logits, 1, logits.dtype)
        return aten.nll_loss_nd(logarithms.float(), targets)

    def run_in_fp32(operation):
        return lambda x, *arguments: operation(x.float(), *arguments)

    library = torch.library.Library("aten", "IMPL")
    for name, function in {
        "einsum": einsum,
        "pow.Tensor_Scalar": run_in_fp32(aten.pow.Tensor_Scalar),
        "rsqrt": run_in_fp32(aten.rsqrt.default),
        "exp": run_in_fp32(aten.exp.default),
        "sum.dim_IntList": sum_in_fp32,
        "cross_entropy_loss": cross_entropy,
    }.items():
        with warnings.catch_warnings():
            # Overriding the CPU's cast of the loss is intended.
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            library.impl(name, disable_autocast(function), "AutocastCPU")
    try:
        yield
    finally:
        library._destroy()


def disable_autocast(function):
    """Return the function, with autocast disabled inside."""
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def run(*arguments, **options):
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            return function(*arguments, **options)

    return run
