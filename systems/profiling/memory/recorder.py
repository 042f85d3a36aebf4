"""Record the allocator's history of one pass of a model on the GPU. Marks separate the
phases; each mark lists the tensors of the model and the optimizer at that point.

    with Recorder(model, optimizer) as recorder:
        training_step(model, token_ids, targets, autocast, optimizer, recorder.phase)
    recorded = recorder.history()
"""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from systems.benchmarking import phases
from systems.model.transformer import Linear
from systems.profiling.memory import snapshot
from systems.profiling.memory.snapshot import History, Mark, SnapshotError

# Limit of recorded events; a step of the largest model has about 12,000.
MAX_ENTRIES = 300_000


def storage_address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


# --8<-- [start:recorder]
class Recorder:
    """Context that records allocations of a pass; run it as `step(recorder.phase)`."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None):
        self.model, self.optimizer = model, optimizer
        self.device = next(model.parameters()).device
        self.marks: list[Mark] = []
        self.snapshot: dict[str, Any] = {}
        self.peak_requested_bytes = 0

    def __enter__(self) -> "Recorder":
        torch.cuda.synchronize()
        self.hook = self.model.register_forward_hook(self.mark_weight_copies)
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.memory._record_memory_history(
            "all", context="alloc", stacks="python", max_entries=MAX_ENTRIES
        )
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        try:
            if failed is None:
                torch.cuda.synchronize()
                self.peak_requested_bytes = torch.cuda.memory_stats()[
                    "requested_bytes.all.peak"
                ]
                self.snapshot = torch.cuda.memory._snapshot()
        finally:
            torch.cuda.memory._record_memory_history(None)
            self.hook.remove()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.add_mark(Mark(name, "begin", self.find_owners()))
        with phases.mark(name):
            yield
        self.add_mark(Mark(name, "end", self.find_owners()))

    def add_mark(self, mark: Mark) -> None:
        """Mark a point in the history by allocating a byte inside this method."""
        self.marks.append(mark)
        torch.empty(1, dtype=torch.uint8, device=self.device)

    def find_owners(self) -> dict[int, tuple[str, str]]:
        """Return {address: (category, name)} of tensors of the model and optimizer."""
        owners: dict[int, tuple[str, str]] = {}
        for name, x in [*self.model.named_parameters(), *self.model.named_buffers()]:
            owners[storage_address(x)] = ("weights", name)
            if x.grad is not None:
                owners[storage_address(x.grad)] = ("gradients", name)
            for key, state in (
                self.optimizer.state.get(x, {}).items() if self.optimizer else ()
            ):
                if isinstance(state, Tensor):
                    owners[storage_address(state)] = "optimizer state", f"{name}, {key}"
        return owners

    def mark_weight_copies(self, *_: object) -> None:
        """Forward hook of the model: mark autocast's 16-bit copies of weights. The
        history counts no other allocation of this method as an event.
        """
        if torch.is_autocast_enabled(self.device.type):
            self.add_mark(Mark("forward", "inside", find_weight_copies(self.model)))

    def history(self) -> History:
        """Return the history. Raise SnapshotError if its peak isn't the allocator's."""
        history = snapshot.build_history(
            self.snapshot, self.marks, torch.cuda.current_device()
        )
        peak = max(snapshot.bytes_in_use(history))
        if peak != self.peak_requested_bytes:
            raise SnapshotError(
                f"the history peaks at {peak} bytes, the allocator at "
                f"{self.peak_requested_bytes}: blocks are missing; record again with "
                "nothing else on this GPU's allocator"
            )
        return history

    def save(self, path: Path) -> None:
        """Write the snapshot as a pickle for pytorch.org/memory_viz."""
        path.parent.mkdir(parents=True, exist_ok=True)
        # The viewer supports protocols up to 4.
        path.write_bytes(pickle.dumps(self.snapshot, protocol=4))

    # --8<-- [end:recorder]


def find_weight_copies(model: nn.Module) -> dict[int, tuple[str, str]]:
    """Return {address: (category, name)} of the low-precision copies of weights in
    autocast's cache. Run each linear layer once to get the copy: autograd saves it.
    """
    owners: dict[int, tuple[str, str]] = {}
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            weight = module.weight
            dtype = torch.get_autocast_dtype(weight.device.type)
            x = torch.zeros(
                weight.shape[1], dtype=dtype, device=weight.device, requires_grad=True
            )

            def record(
                saved: Tensor, name: str = name, weight: Tensor = weight
            ) -> Tensor:
                if saved.numel() == weight.numel() and saved.dtype != weight.dtype:
                    owners[storage_address(saved)] = "weight copies", f"{name}.weight"
                return saved

            with torch.enable_grad(), saved_tensors_hooks(record, lambda saved: saved):
                module(x)
    return owners
