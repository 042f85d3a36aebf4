"""Activation checkpointing: forget what blocks computed, and compute it again in the
backward pass.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost": of every run of
blocks the input alone is kept; section 4.4 nests that. Korthikanti et al. 2022,
"Reducing Activation Recomputation in Large Transformer Models", section 5: the scores
alone are computed again, which cost much memory and little arithmetic.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from systems.model.transformer import (
    BasicsTransformerLM,
    CausalMultiHeadSelfAttention,
    TransformerBlock,
)

Function = Callable[..., Tensor]


# --8<-- [start:checkpoint]
def checkpoint_blocks(model: BasicsTransformerLM, run: int = 1) -> None:
    """Make `model` keep the input of every run of `run` blocks alone, and compute what
    they need again when their gradients are asked for. Names of parameters stay.
    """
    blocks = list(model.layers)
    for first in range(0, len(blocks), run):
        of_run = blocks[first : first + run]
        replace_by(of_run, forgetting(in_turn(forwards(of_run))))


def forwards(blocks: Sequence[Any]) -> list[Function]:
    return [block.forward for block in blocks]


def replace_by(blocks: Sequence[Any], function: Function) -> None:
    """The first of these blocks does the work of all."""
    for block in blocks:
        block.forward = unchanged
    blocks[0].forward = function


def unchanged(x: Tensor) -> Tensor:
    return x


def in_turn(functions: Sequence[Function]) -> Function:
    """One function that calls each with what the one before returned."""

    def run(x: Tensor) -> Tensor:
        for function in functions:
            x = function(x)
        return x

    return run


def forgetting(function: Function) -> Function:
    """The same function; of what it computes autograd keeps its arguments alone."""

    def call(*arguments: Tensor) -> Tensor:
        # No dropout here, so there is no random state to restore.
        return checkpoint(
            function, *arguments, use_reentrant=False, preserve_rng_state=False
        )

    return call


# --8<-- [end:checkpoint]


# --8<-- [start:parts]
def checkpoint_attention(model: BasicsTransformerLM) -> None:
    """Make every block keep q, k and v in place of the scores and what softmax makes of
    them.
    """
    for module in model.modules():
        if isinstance(module, CausalMultiHeadSelfAttention):
            module.attention = forgetting(module.attention)


def checkpoint_half_blocks(model: BasicsTransformerLM) -> None:
    """Make every block keep its input and the input of its feed-forward half."""

    def halves(block: Any) -> list[Function]:
        return [
            lambda x: x + block.attn(block.ln1(x)),
            lambda x: x + block.ffn(block.ln2(x)),
        ]

    for block in model.layers:
        assert isinstance(block, TransformerBlock)
        block.forward = in_turn([forgetting(half) for half in halves(block)])


# --8<-- [end:parts]


# --8<-- [start:nested]
def checkpoint_halving(model: BasicsTransformerLM) -> None:
    """Nested: of all blocks the input of either half is kept, of a half that is
    computed again the input of either quarter, and so on. Beside one block's own
    tensors that is an input for each halving.
    """
    blocks = list(model.layers)
    replace_by(blocks, halved(forwards(blocks)))


def halved(functions: Sequence[Function]) -> Function:
    if len(functions) == 1:
        return functions[0]
    middle = len(functions) // 2
    halves = (functions[:middle], functions[middle:])
    return in_turn([forgetting(halved(half)) for half in halves])


def checkpoint_chain(model: BasicsTransformerLM) -> None:
    """Nested: of all blocks but the last the input of the first alone is kept, of those
    all but their last, and so on. Beside one block's own tensors that are two inputs,
    however many blocks there are; of N blocks N (N + 3) / 2 are computed.
    """
    blocks = list(model.layers)
    function = forgetting(blocks[0].forward)
    for block in blocks[1:]:
        function = forgetting(in_turn([function, block.forward]))
    replace_by(blocks, function)


# --8<-- [end:nested]


# --8<-- [start:by-hand]
class Again(torch.autograd.Function):
    """What `torch.utils.checkpoint` does, in its first form: forward without a graph,
    backward through a graph that is built then.
    """

    @staticmethod
    def forward(ctx: Any, function: Function, x: Tensor) -> Tensor:
        ctx.function, ctx.device = function, x.device.type
        ctx.autocast = torch.is_autocast_enabled(ctx.device)
        ctx.dtype = torch.get_autocast_dtype(ctx.device)
        ctx.save_for_backward(x)
        # Autograd records nothing in here.
        return function(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        # As autocast was in the forward pass, or other numbers come out.
        autocast = torch.autocast(ctx.device, ctx.dtype, enabled=ctx.autocast)
        with torch.enable_grad(), autocast:
            output = ctx.function(x)
        torch.autograd.backward(output, gradients)
        return None, x.grad


def checkpoint_by_hand(model: BasicsTransformerLM) -> None:
    """As `checkpoint_blocks` with runs of one block, by `Again`."""

    def forgetting_by_hand(function: Function) -> Function:
        return lambda x: Again.apply(function, x)

    for block in model.layers:
        block.forward = forgetting_by_hand(block.forward)


# --8<-- [end:by-hand]
