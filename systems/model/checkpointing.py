"""Activation checkpointing: forget what blocks computed, and compute it again in the
backward pass.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost": of every run of
blocks the input alone is kept. Korthikanti et al. 2022, "Reducing Activation
Recomputation in Large Transformer Models", section 5: the scores alone are computed
again, which cost much memory and little arithmetic.
"""

from collections.abc import Callable

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from systems.model.transformer import BasicsTransformerLM, CausalMultiHeadSelfAttention


# --8<-- [start:checkpoint]
def checkpoint_blocks(model: BasicsTransformerLM, run: int = 1) -> None:
    """Make `model` keep the input of every run of `run` blocks alone, and compute what
    they need again when their gradients are asked for. Names of parameters stay.

    `peak_memory` measures runs of one block; by longer ones tests prove the formulas of
    the calculator, which are over any run.
    """
    blocks = list(model.layers)
    for first in range(0, len(blocks), run):
        forwards = [block.forward for block in blocks[first : first + run]]
        # The first block of the run does the work of all.
        for block in blocks[first : first + run]:
            block.forward = unchanged
        blocks[first].forward = forgetting(in_turn(forwards))


def unchanged(x: Tensor) -> Tensor:
    return x


def in_turn(functions: list[Callable[[Tensor], Tensor]]) -> Callable[[Tensor], Tensor]:
    """One function that calls each with what the one before returned."""

    def run(x: Tensor) -> Tensor:
        for function in functions:
            x = function(x)
        return x

    return run


def checkpoint_attention(model: BasicsTransformerLM) -> None:
    """Make every block keep q, k and v in place of the scores and what softmax makes of
    them. No experiment measures it: by it tests prove the formulas of the calculator.
    """
    for module in model.modules():
        if isinstance(module, CausalMultiHeadSelfAttention):
            module.attention = forgetting(module.attention)


def forgetting(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function; of what it computes autograd keeps its arguments alone."""

    def call(*arguments: Tensor) -> Tensor:
        # No dropout here, so there is no random state to restore.
        return checkpoint(
            function, *arguments, use_reentrant=False, preserve_rng_state=False
        )

    return call


# --8<-- [end:checkpoint]
