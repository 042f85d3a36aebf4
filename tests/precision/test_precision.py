"""Compare number formats with PyTorch's, stalls with sums, and trace dtypes."""

from fractions import Fraction

import pytest
import torch
from torch import nn

from systems.model.optimizer import AdamW
from systems.precision.dtype_trace import DtypeTrace
from systems.precision.dtypes import relative_error
from systems.precision.number_formats import FORMATS, find_stall

TORCH = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


@pytest.mark.parametrize("name", TORCH)
def test_limits_equal_torch_finfo(name):
    ours, theirs = FORMATS[name], torch.finfo(TORCH[name])
    assert 1 + ours.exponent_bits + ours.fraction_bits == theirs.bits
    assert float(ours.max_finite) == theirs.max
    assert float(ours.smallest_normal) == theirs.smallest_normal
    assert float(ours.smallest_subnormal) == theirs.smallest_normal * theirs.eps
    assert float(ours.spacing(Fraction(1))) == theirs.eps


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_rounding_equals_torch(name):
    generator = torch.Generator().manual_seed(0)
    spread = torch.rand(2000, generator=generator, dtype=torch.float64) * 10.5 - 6
    values = [float(10**x) for x in spread]
    values += [1 + k / 2**p for p in (12, 9) for k in range(64)]
    for value in values:
        found = FORMATS[name].round_to_nearest(Fraction(value))
        assert float(found) == torch.tensor(value, dtype=TORCH[name]).item()


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_find_stall_equals_adding_one_by_one(name):
    """Test terms of many sizes, some of which are ties in rounding."""
    dtype = TORCH[name]
    generator = torch.Generator().manual_seed(1)
    draws = torch.rand(40, generator=generator, dtype=torch.float64).tolist()
    terms = [0.01, 0.001, 1.0, 3.0, 2**-7, 3 * 2**-9, 1 + 2**-7, 1.5, 1.25]
    terms += [10 ** (4 * u - 3) for u in draws]
    for term in terms:
        x = torch.tensor(term, dtype=dtype)
        total, step = x.clone(), 1
        while (following := total + x) != total:
            total, step = following, step + 1
        found = find_stall(FORMATS[name], Fraction(x.item()))
        assert found == (step, Fraction(total.item())), term


def test_relative_error_divides_by_the_exact_norm():
    exact = torch.tensor([3.0, 4.0], dtype=torch.float64)
    found = torch.tensor([3.0, 4.5], dtype=torch.bfloat16)
    assert relative_error(found, exact) == pytest.approx(0.1, rel=1e-12)


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
