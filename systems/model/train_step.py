"""One training step, divided into phases.

To time the phases, callers pass a clock as `phase`. By default, phases are marked for
profilers.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional

from systems.benchmarking import phases

Phase = Callable[[str], AbstractContextManager[None]]

PRECISIONS = ("fp32", "tf32", "bf16")


def precision_context(precision: str, device: str) -> AbstractContextManager:
    """Return the context for the forward pass and the loss: autocast for bf16, an empty
    context for fp32 and tf32.

    Also set whether fp32 matmuls may round their inputs to TF32 (10 mantissa bits):
    only "tf32" allows it. Raise ValueError for a name that is not in `PRECISIONS`.
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f"no precision is named {precision!r}; there are: {', '.join(PRECISIONS)}"
        )
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    return (
        torch.autocast(device, dtype=torch.bfloat16)
        if precision == "bf16"
        else nullcontext()
    )


# --8<-- [start:step]
def training_step(
    model: nn.Module,
    token_ids: Int[Tensor, "b s"],
    targets: Int[Tensor, "b s"],
    autocast: AbstractContextManager,
    optimizer: torch.optim.Optimizer | None = None,
    phase: Phase = phases.mark,
) -> None:
    """Run forward, loss and backward, and the optimizer's step if `optimizer` is given.
    Gradients must be empty on entry.
    """
    with phase(phases.FORWARD), autocast:
        logits = model(token_ids)
    with phase(phases.LOSS), autocast:
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    # Drop `logits`, which would take memory during the backward pass.
    del logits
    with phase(phases.BACKWARD):
        loss.backward()
    if optimizer is not None:
        with phase(phases.OPTIMIZER):
            optimizer.step()


# --8<-- [end:step]
