"""Activation checkpointing: discard activations of blocks, and recompute them in the
backward pass.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost": keep only the input
of every run of consecutive blocks (section 4.4: recursively). Korthikanti et al. 2022,
"Reducing Activation Recomputation in Large Transformer Models": recompute only the
attention scores.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from systems.model.transformer import (
    BasicsTransformerLM,
    Block,
    CausalMultiHeadSelfAttention,
    TransformerBlock,
    run_blocks,
)

Function = Callable[..., Tensor]


# --8<-- [start:checkpoint]
def checkpoint_blocks(model: BasicsTransformerLM, run: int = 1) -> None:
    """Save only the input of every run of `run` consecutive blocks, and recompute the
    run in the backward pass. Raise ValueError for a run of less than one block.
    """
    if run < 1:
        raise ValueError(f"run must be 1 or more, not {run}")
    model.set_run_blocks(partial(checkpoint_runs, run=run))


def checkpoint_runs(blocks: Iterable[Block], x: Tensor, run: int) -> Tensor:
    """Pass x through all blocks, checkpointing each run of `run` blocks."""
    blocks = list(blocks)
    for first in range(0, len(blocks), run):
        x = checkpoint_function(run_blocks)(blocks[first : first + run], x)
    return x


def checkpoint_function(function: Function) -> Function:
    """Wrap a function so that the backward pass recomputes it from saved arguments. It
    must not have dropout, because the random state isn't saved.
    """
    # A closure could not be pickled.
    return partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False)
    # --8<-- [end:checkpoint]


# --8<-- [start:parts]
def checkpoint_attention(model: BasicsTransformerLM) -> None:
    """Recompute each attention function in the backward pass, from saved q, k and v."""
    for module in model.modules():
        if isinstance(module, CausalMultiHeadSelfAttention):
            module.attention = checkpoint_function(module.attention)


def checkpoint_half_blocks(model: BasicsTransformerLM) -> None:
    """Save only the input of every block and the input of its feed-forward half."""
    for block in model.layers:
        assert isinstance(block, TransformerBlock)
        block.__class__ = CheckpointedHalves


class CheckpointedHalves(TransformerBlock):
    """A Transformer block that checkpoints its attention and feed-forward halves."""

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint_function(lambda x: x + self.attn(self.ln1(x)))(x)
        return checkpoint_function(lambda x: x + self.ffn(self.ln2(x)))(x)

    # --8<-- [end:parts]


# --8<-- [start:nested]
def checkpoint_halving(model: BasicsTransformerLM) -> None:
    """Checkpoint by nested halves: save the input of each half of the blocks; while a
    half is recomputed, save the input of each of its halves, and so on.
    """
    model.set_run_blocks(checkpoint_halves)


def checkpoint_halves(blocks: Iterable[Block], x: Tensor) -> Tensor:
    """Pass x through all blocks, recursively checkpointing each half of them."""
    blocks = list(blocks)
    if len(blocks) < 2:
        return run_blocks(blocks, x)
    middle = len(blocks) // 2
    for half in (blocks[:middle], blocks[middle:]):
        x = checkpoint_function(checkpoint_halves)(half, x)
    return x


def checkpoint_chain(model: BasicsTransformerLM) -> None:
    """Save only the input of the first block. For the backward pass of a block, all
    blocks up to it are recomputed: for N blocks, N (N + 3) / 2 block passes in all.
    """
    model.set_run_blocks(checkpoint_function(checkpoint_all_but_last))


def checkpoint_all_but_last(blocks: Iterable[Block], x: Tensor) -> Tensor:
    """Pass x through all blocks; checkpoint the blocks before the last, recursively."""
    *before, last = blocks
    if before:
        x = checkpoint_function(checkpoint_all_but_last)(before, x)
    return last(x)
    # --8<-- [end:nested]


# --8<-- [start:by-hand]
class RecomputeBlock(torch.autograd.Function):
    """Autograd Function that recomputes a block and its graph in the backward pass."""

    @staticmethod
    def forward(ctx: Any, block: Block, x: Tensor, _: Tensor) -> Tensor:
        ctx.block, ctx.autocast = block, current_autocast(x.device.type)
        ctx.save_for_backward(x)
        return block(x)  # Autograd records nothing in `forward`.

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None, None]:
        if torch.is_grad_enabled() or not torch.autograd._is_checkpoint_valid():
            raise ValueError(UNSUPPORTED_BACKWARD)
        x = ctx.saved_tensors[0].detach().requires_grad_(ctx.needs_input_grad[1])
        # Restore autocast as in the forward pass, or the results would differ.
        with torch.enable_grad(), ctx.autocast:
            output = ctx.block(x)
        torch.autograd.backward(output, gradients)
        return None, x.grad, None


def run_recompute_blocks(blocks: Iterable[Any], x: Tensor) -> Tensor:
    for block in blocks:
        # Autograd doesn't see a block's weights. This tensor makes it call `backward`.
        trainable = any(weight.requires_grad for weight in block.parameters())
        x = RecomputeBlock.apply(block, x, torch.empty(0, requires_grad=trainable))
    return x
    # --8<-- [end:by-hand]


def current_autocast(device: str) -> torch.autocast:
    """Return a context that restores the current autocast state."""
    dtype, enabled = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
    return torch.autocast(device, dtype, enabled)


UNSUPPORTED_BACKWARD = (
    "`checkpoint_by_hand` supports only a plain backward(), without `inputs` or "
    "`create_graph`; for those and for torch.autograd.grad use `checkpoint_blocks`"
)


def checkpoint_by_hand(model: BasicsTransformerLM) -> None:
    """Checkpoint every block with `RecomputeBlock`. Backward passes raise ValueError in
    torch.autograd.grad, and in `backward()` with `inputs` or `create_graph`.
    """
    model.set_run_blocks(run_recompute_blocks)
