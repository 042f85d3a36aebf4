"""The work that experiments measure: a pass of the model, and inputs of attention."""

import torch
from torch import Tensor

from systems.benchmarking import phases
from systems.model.optimizer import AdamW
from systems.model.sizes import VOCAB_SIZE
from systems.model.train_step import Phase, precision_context, training_step
from systems.model.transformer import build_model

MODES = {
    "forward": "no gradients recorded",
    "forward_graph": "graph built, freed before the next pass",
    "forward_two_graphs": "forward twice, the first graph still alive",
    "forward_backward": "forward, loss and backward",
    "step": "forward, loss, backward and AdamW",
}
SECOND_FORWARD = "second_forward"


# --8<-- [start:workload]
class Workload:
    """A model of a size in SIZES, with random tokens and targets (seed 0). Clocks and
    probes call the method `step`, which runs one pass of a mode in MODES.

    `forward` is the model, or a compiled model assigned to it. Only mode "step" has an
    optimizer. Raise ValueError for an unknown precision (PRECISIONS) or attention.
    """

    def __init__(
        self,
        device: str,
        size: str,
        context: int,
        mode: str = "step",
        precision: str = "fp32",
        batch: int = 4,
        vocab: int = VOCAB_SIZE,
        attention: str = "eager",
    ):
        assert mode in MODES, mode
        torch.manual_seed(0)
        with torch.device(device):
            self.model = build_model(size, context, vocab, attention)
            self.token_ids, self.targets = torch.randint(vocab, (2, batch, context))
        self.mode, self.forward = mode, self.model
        self.autocast = precision_context(precision, device)
        self.optimizer = AdamW(self.model.parameters()) if mode == "step" else None

    def step(self, phase: Phase) -> None:
        """Run a pass, each phase in `phase(name)`. Gradients must be empty on entry."""
        if self.mode == "forward":
            with phase(phases.FORWARD), torch.no_grad(), self.autocast:
                self.forward(self.token_ids)
        elif self.mode == "forward_graph":
            with phase(phases.FORWARD), self.autocast:
                logits = self.forward(self.token_ids)
            # Free the graph outside of the timed phase, before the next pass.
            del logits
        elif self.mode == "forward_two_graphs":
            with phase(phases.FORWARD), self.autocast:
                logits = self.forward(self.token_ids)
            # The first graph is freed only after the second is built, as in a training
            # loop that keeps its logits.
            with phase(SECOND_FORWARD), self.autocast:
                logits = self.forward(self.token_ids)
            del logits
        else:
            batch = (self.token_ids, self.targets)
            training_step(self.forward, *batch, self.autocast, self.optimizer, phase)

    # --8<-- [end:workload]


def random_inputs(
    shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, k, v that require gradients, and the output gradient do: standard
    normal, seed 0, equal in every dtype up to rounding.
    """
    generator = torch.Generator(device).manual_seed(0)
    q, k, v, do = (
        torch.randn(shape, generator=generator, device=device).to(dtype)
        for _ in range(4)
    )
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), do
