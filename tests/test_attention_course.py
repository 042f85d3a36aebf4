"""Repeat the course's checks: (4, 128, 64) in float32, one saved LSE."""

import einops  # noqa: F401, the course's file imports it
import pytest
import torch

from tests import adapters
from tests.attention.checks import check_against_reference, make_inputs, run_class


@pytest.fixture(params=["pytorch", "triton"])
def graded_class(request, device):
    """Return the class that a grader imports, and its device."""
    if request.param == "pytorch":
        return adapters.get_flashattention_autograd_function_pytorch(), "cpu"
    return adapters.get_flashattention_autograd_function_triton(), device


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_graded_class_equals_the_reference(graded_class, causal):
    cls, where = graded_class
    inputs = make_inputs(128, 128, 64, device=where, lead=(4,))
    # `run_class` raises unless one saved tensor has the shape of lse.
    check_against_reference(run_class(cls, *inputs, causal), *inputs, causal)


def test_causal_mask_is_off_by_default(graded_class):
    cls, where = graded_class
    leaf = {"device": where, "requires_grad": True}
    q, k, v = (torch.randn(2, 20, 16, **leaf) for _ in range(3))
    o = cls.apply(q, k, v)
    full, causal = (cls.apply(q, k, v, masked) for masked in (False, True))
    assert torch.equal(o, full) and not torch.equal(o, causal)
    assert torch.autograd.grad(o.sum(), q)[0].abs().max() > 0
