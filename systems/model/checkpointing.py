"""Activation checkpointing by block: keep the input of each block, run the block again
in the backward pass.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", with one segment per
block.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from systems.model.transformer import TransformerBlock


# --8<-- [start:checkpoint]
def checkpoint_blocks(model: nn.Module) -> None:
    """Make every block of `model` forget what it computed and compute it again when its
    gradient is asked for.
    """
    for module in model.modules():
        if isinstance(module, TransformerBlock):
            module.forward = forgetting(module.forward)


def forgetting(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function; of what it computes autograd keeps its argument alone."""

    def run(x: Tensor) -> Tensor:
        # No dropout here, so there is no random state to restore.
        return checkpoint(forward, x, use_reentrant=False, preserve_rng_state=False)

    return run


# --8<-- [end:checkpoint]
