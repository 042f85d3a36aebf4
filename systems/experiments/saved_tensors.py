"""List the tensors that autograd saves for the backward pass of a norm, a block or four
blocks, and the lines of code that save them; eager, compiled, and checkpointed.

`torch.autograd.graph.saved_tensors_hooks` reports every tensor. Storage that tensors
share counts once; parameters don't count. The meta device needs no GPU:

    python -m systems.experiments.saved_tensors --part block --context 2048
"""

import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from systems.model import transformer
from systems.model.checkpointing import checkpoint_function
from systems.model.sizes import SIZES
from systems.running.command import main, option

PROTOCOL = {
    "statistic": "exact counts of one forward pass in fp32",
    "device": "meta",
    "compiler": "torch.compile up to the split into forward and backward graph, which "
    "decides what is saved; no code is generated",
}
PARTS = ("norm", "block", "four_blocks", "four_blocks_by_twos")
# A backend that traces and partitions graphs like Inductor, but runs them uncompiled.
BACKEND = "aot_eager_decomp_partition"


@dataclass(frozen=True)
class Config:
    part: str = option("block", "what runs forward", choices=PARTS)
    context: int = option(2048, "sequence length in tokens")
    heads: int = option(32, "attention heads; the handout's example has 16")
    compiled: bool = option(False, "through torch.compile")
    size: str = option("2.7B", "model size that gives the widths", choices=SIZES)
    batch: int = option(4, "sequences in a batch")


def configs(quick: bool = False) -> list[Config]:
    """Return a block at three contexts, and the handout's example, also compiled."""
    if quick:
        return [Config("norm", 128), Config("block", 128)]
    example = [("norm", 512), ("block", 2048), ("four_blocks", 2048)]
    return [
        *(Config("block", context) for context in (128, 512, 2048)),
        *(Config(*of, 16, compiled) for of in example for compiled in (False, True)),
        *(Config("four_blocks_by_twos", 2048, 16, c) for c in (False, True)),
    ]


# --8<-- [start:run]
def run(config: Config) -> dict[str, Any]:
    """Return the saved tensors, one for each storage, the largest first; the number and
    bytes of all saves; and the bytes of parameter and input gradients.
    """
    c, shape = config, SIZES[config.size]
    if shape.d_model % (2 * c.heads):
        raise ValueError(f"--heads: twice {c.heads} must divide {shape.d_model}")
    with torch.device("meta"):
        rotary = transformer.RotaryEmbedding(c.context, shape.d_model // c.heads)
        attention = transformer.load_attention("eager")
        block = transformer.TransformerBlock(
            shape.d_model, c.heads, shape.d_ff, rotary, attention
        )
        norm = transformer.RMSNorm(shape.d_model)
        x = torch.empty(c.batch, c.context, shape.d_model, requires_grad=True)
    module = norm if c.part == "norm" else block
    layer: Callable[..., Any] = module
    if c.compiled:
        torch.compiler.reset()
        layer = torch.compile(module, fullgraph=True, backend=BACKEND)
    run_blocks = transformer.run_blocks
    run_twice = partial(checkpoint_function(run_blocks), [layer] * 2)
    parts: dict[str, Callable[..., Any]] = {
        "four_blocks": partial(run_blocks, [layer] * 4),
        "four_blocks_by_twos": partial(run_blocks, [run_twice] * 2),
    }
    saved = SavedStorages(module)
    with saved_tensors_hooks(saved.count_save, lambda tensor: tensor):
        parts.get(c.part, layer)(x)
    parameters = sum(p.numel() * p.element_size() for p in module.parameters())
    return {
        "tensors": sorted(saved.tensors.values(), key=lambda x: -x["bytes"]),
        "saved": saved.count,
        "bytes_if_counted_each_time": saved.bytes,
        "parameter_gradient_bytes": parameters,
        "input_gradient_bytes": x.numel() * x.element_size(),
    }


class SavedStorages:
    """Saved `tensors` by storage, with code lines; `count` counts parameters too."""

    def __init__(self, module: nn.Module) -> None:
        self.weights = {p.untyped_storage()._cdata for p in module.parameters()}
        self.tensors: dict[int, dict[str, Any]] = {}
        self.kept: list[Tensor] = []
        self.count = self.bytes = 0

    def count_save(self, tensor: Tensor) -> Tensor:
        self.count += 1
        storage = tensor.untyped_storage()
        if storage._cdata in self.weights:
            return tensor
        self.bytes += tensor.numel() * tensor.element_size()
        # Keep the storage alive, so that no other storage gets its address.
        self.kept.append(tensor.detach())
        entry = {"bytes": storage.nbytes(), "shape": list(tensor.shape)}
        entry |= {"dtype": str(tensor.dtype), "by": []}
        lines = self.tensors.setdefault(storage._cdata, entry)["by"]
        if (line := find_model_line()) not in lines:
            lines.append(line)
        return tensor


def find_model_line() -> str:
    """Return "function: line" of model code that saves a tensor, or "compiled"."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if Path(code.co_filename) == Path(transformer.__file__):
            line = linecache.getline(code.co_filename, frame.f_lineno).strip()
            return f"{code.co_qualname.removesuffix('.forward')}: {line}"
        frame = frame.f_back
    return "compiled"
    # --8<-- [end:run]


if __name__ == "__main__":
    main(Config, run)
