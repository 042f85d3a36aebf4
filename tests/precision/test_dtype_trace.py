"""Test the traced dtypes of modules, gradients and optimizer states."""

import pytest
import torch
from torch import nn

from systems.model.optimizer import AdamW
from systems.precision.dtype_trace import DtypeTrace


class MixedModel(nn.Module):
    """A model whose second half is in fp16."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(4, 4, bias=False)
        self.narrow = nn.Linear(4, 4, bias=False).half()

    def forward(self, x):
        return self.narrow(self.wide(x).half())


def test_dtype_trace_names_dtypes_of_modules_gradients_and_states():
    model, loss = MixedModel(), nn.CrossEntropyLoss()
    optimizer = AdamW(model.parameters())
    with DtypeTrace(model, loss, optimizer) as trace:
        logits = model(torch.randn(3, 4))
        trace.count_forward()
        loss(logits.float(), torch.tensor([0, 1, 2])).backward()
        optimizer.step()
    own = {"wide": "fp32", "narrow": "fp16"}
    assert trace.outputs == own | {"": "fp16", "loss": "fp32"}
    assert trace.parameters == own
    assert trace.gradients == {f"{name}.weight": own[name] for name in own}
    assert {name: trace.output_gradients[name] for name in own} == own
    assert trace.join_dtypes(trace.gradients) == "fp16, fp32"
    # The forward pass has one cast, to fp16; the last cast of the step is to fp32.
    assert trace.forward_casts == 1 and trace.result_dtype("", "_to_copy") == "fp16"
    assert trace.result_dtype("", "_to_copy", last=True) == "fp32"
    # The trace keeps the states of the last parameter, by name.
    assert trace.optimizer_state == {"m": "fp16", "v": "fp16"}
    with pytest.raises(ValueError, match="no exp ran in narrow, which ran"):
        trace.result_dtype("narrow", "exp")
