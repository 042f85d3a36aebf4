"""Record the dtype of every operation, gradient and optimizer state of a model by hooks
and a `TorchDispatchMode`, which runs after autocast and so sees autocast's casts.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from systems.precision.dtypes import DTYPE_NAMES


# --8<-- [start:trace]
class DtypeTrace(TorchDispatchMode):
    """Context that records the dtypes of module outputs, gradients and operations."""

    def __init__(
        self,
        model: nn.Module,
        loss_function: nn.Module,
        optimizer: torch.optim.Optimizer,
    ):
        super().__init__()
        self.outputs: dict[str, str] = {}
        self.parameters: dict[str, str] = {}
        self.gradients: dict[str, str] = {}
        self.output_gradients: dict[str, str] = {}
        self.optimizer_state: dict[str, str] = {}
        # (module or "optimizer", operation, dtype of the result) by order of execution.
        self.operations: list[tuple[str, str, str]] = []
        self.forward_operations = self.forward_casts = 0
        self.scopes: list[str] = []
        for name, module in [*model.named_modules(), ("loss", loss_function)]:
            module.register_forward_pre_hook(partial(self.enter, name))
            module.register_forward_hook(partial(self.leave, name))
        for name, weight in model.named_parameters():
            weight.register_post_accumulate_grad_hook(partial(self.note_gradient, name))
        optimizer.register_step_pre_hook(lambda *_: self.scopes.append("optimizer"))
        optimizer.register_step_post_hook(
            lambda optimizer, *_: self.note_state(optimizer)
        )

    def enter(self, name: str, module: nn.Module, inputs: tuple) -> None:
        self.scopes.append(name)

    def leave(
        self, name: str, module: nn.Module, inputs: tuple, output: Tensor
    ) -> None:
        self.scopes.pop()
        self.outputs[name] = DTYPE_NAMES[output.dtype]
        if dtypes := [DTYPE_NAMES[p.dtype] for p in module.parameters(recurse=False)]:
            self.parameters[name] = join_names(dtypes)
        if output.requires_grad:
            output.register_hook(partial(self.note_output_gradient, name))

    def note_output_gradient(self, name: str, gradient: Tensor) -> None:
        self.output_gradients[name] = DTYPE_NAMES[gradient.dtype]

    def note_gradient(self, name: str, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.gradients[name] = DTYPE_NAMES[parameter.grad.dtype]

    def note_state(self, optimizer: torch.optim.Optimizer) -> None:
        self.scopes.pop()
        for state in optimizer.state.values():
            found = {name: x for name, x in state.items() if isinstance(x, Tensor)}
            self.optimizer_state |= {k: DTYPE_NAMES[x.dtype] for k, x in found.items()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        first = next((x for x in tree_leaves(result) if isinstance(x, Tensor)), None)
        # Skip views, which compute nothing. Integer and bool results count as "other".
        if first is not None and not is_view(func):
            scope = self.scopes[-1] if self.scopes else ""
            dtype = DTYPE_NAMES.get(first.dtype, "other")
            self.operations.append((scope, func.overloadpacket.__name__, dtype))
        return result

    # --8<-- [end:trace]

    def count_forward(self) -> None:
        """After the forward pass, store the numbers of operations and casts."""
        self.forward_operations = len(self.operations)
        self.forward_casts = sum(name == "_to_copy" for _, name, _ in self.operations)

    def result_dtype(self, scope: str, operation: str, last: bool = False) -> str:
        """Return the result dtype of the first (or last) `operation`, such as "bmm", in
        the module `scope`. Raise ValueError if the module ran no such operation.
        """
        dtypes = [
            dtype
            for where, name, dtype in self.operations
            if (where, name) == (scope, operation)
        ]
        if not dtypes:
            operations = sorted({op for at, op, _ in self.operations if at == scope})
            raise ValueError(
                f"no {operation} ran in {scope}, which ran "
                f"{', '.join(operations) or 'nothing'}"
            )
        return dtypes[-1 if last else 0]

    @staticmethod
    def join_dtypes(dtypes: dict[str, str]) -> str:
        """Return the distinct dtypes of a dict's values, sorted, joined by commas."""
        return join_names(dtypes.values())


def join_names(dtypes: Iterable[str]) -> str:
    return ", ".join(sorted(set(dtypes)))


def is_view(func: Any) -> bool:
    """Return whether operation `func` returns a view; in-place ones don't count."""
    aliases = any(
        a.alias_info is not None and not a.alias_info.is_write
        for a in func._schema.arguments
    )
    # `_unsafe_view` is a view although its schema does not say so.
    return aliases or func.overloadpacket.__name__ == "_unsafe_view"
