"""Repeat the course's checks: seed 0, (4, 128, 64) in float32, one saved LSE."""

import einops  # noqa: F401, the course's file imports it
import pytest
import torch

from tests import adapters
from tests.attention.checks import NAMES, find_saved_lse, run_reference


@pytest.fixture(params=["pytorch", "triton"])
def graded_class(request, device):
    """Return the class that a grader imports, and its device."""
    if request.param == "pytorch":
        return adapters.get_flashattention_autograd_function_pytorch(), "cpu"
    return adapters.get_flashattention_autograd_function_triton(), device


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_graded_class_equals_the_reference(graded_class, causal):
    cls, where = graded_class
    torch.manual_seed(0)
    q, k, v, do = (torch.randn(4, 128, 64, device=where) for _ in range(4))
    expected = run_reference(q, k, v, do, causal, dtype=torch.float32)
    for x in (q, k, v):
        x.requires_grad_()
    o = cls.apply(q, k, v, causal)
    # `find_saved_lse` raises unless one saved tensor has this shape.
    lse = find_saved_lse(o, (4, 128))
    o.backward(do)
    for name, actual in zip(NAMES, (o, lse, q.grad, k.grad, v.grad), strict=True):
        bounds = {"rtol": 1e-2, "atol": 1e-2}
        torch.testing.assert_close(actual, expected[name], **bounds, msg=name)


def test_causal_mask_is_off_by_default(graded_class):
    cls, where = graded_class
    leaf = {"device": where, "requires_grad": True}
    q, k, v = (torch.randn(2, 20, 16, **leaf) for _ in range(3))
    o = cls.apply(q, k, v)
    full, causal = (cls.apply(q, k, v, masked) for masked in (False, True))
    assert torch.equal(o, full) and not torch.equal(o, causal)
    assert torch.autograd.grad(o.sum(), q)[0].abs().max() > 0
