"""Test that kernel launches are prepared once per layout, then reused."""

from typing import Any

import pytest
import torch

from systems.attention import dispatch, flash_attention, prepared
from systems.attention.prepared import prepare_call_cached
from tests.attention.checks import make_inputs


def make_leaves(*tensors):
    return tuple(x.detach().requires_grad_() for x in tensors)


def test_second_call_reuses_prepared_launches(device, monkeypatch):
    q, k, v, do = make_inputs(20, 33, 16, device=device, lead=(1, 2))
    one = torch.ones((), device=device).expand_as(q)

    def run_passes():
        leaves = make_leaves(q.clone(), k.clone(), v.clone())
        o = flash_attention(*leaves, causal=True)
        by = [torch.autograd.grad(o, leaves, x, retain_graph=True) for x in (do, one)]
        return flash_attention(q, k, v, causal=True), o, *by[0], *by[1]

    first = run_passes()
    for module, names in (
        (dispatch, "check_arguments choose_backend"),
        (prepared, "check_properties forward_launches backward_launches"),
    ):
        for name in names.split():
            monkeypatch.setattr(module, name, lambda *_, name=name: pytest.fail(name))
    assert all(torch.equal(a, b) for a, b in zip(run_passes(), first, strict=True))


def test_backward_rereads_float32_precision(device, monkeypatch, set_precision):
    q, k, v, do = make_inputs(20, 20, 16, device=device, lead=(1, 2))
    prepare_call_cached.cache_clear()
    asked, launches_for = [], prepared.backward_launches

    def record_arithmetic(arithmetic, *rest):
        asked.append(arithmetic)
        return launches_for(arithmetic, *rest)

    monkeypatch.setattr(prepared, "backward_launches", record_arithmetic)
    leaves = make_leaves(q, k, v)
    set_precision("highest")
    o = flash_attention(*leaves)
    for setting in ("highest", "high", "highest"):
        set_precision(setting)
        torch.autograd.grad(o, leaves, do, retain_graph=True)
    # Each arithmetic was prepared once.
    assert asked == ["highest", "high"]


WRONG: dict[str, dict[str, Any]] = {
    "causal must be True or False, got 1": {"causal": 1},
    "scale must be an int, a float or None": {"causal": True, "scale": True},
    "scale must be positive": {"causal": True, "scale": 0.0},
    "backend must be one of": {"causal": True, "backend": "none"},
}


@pytest.mark.parametrize("said", WRONG)
@pytest.mark.parametrize("recorded", [False, True])
def test_invalid_options_that_equal_cached_ones_are_rejected(said, recorded, device):
    """Test causal=1 after causal=True: both are equal as keys of a cache."""
    q, k, v, _ = make_inputs(20, 20, 16, device=device)
    if recorded:
        q, k, v = make_leaves(q, k, v)
    flash_attention(q, k, v, causal=True, scale=1.0)
    with pytest.raises((TypeError, ValueError), match=said):
        flash_attention(q, k, v, **WRONG[said])


def make_contiguous(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x)


def interleave_nan(x):
    return torch.stack((x, torch.full_like(x, float("nan"))), -1)[..., 0]


LIES = {
    "without a batch": lambda *tensors: tuple(x[0] for x in tensors),
    "heads beside tokens": lambda *tensors: tuple(
        x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors
    ),
    "one tensor of three": lambda *tensors: torch.stack(tensors, 3).unbind(3),
}


@pytest.mark.parametrize(
    ("backend", "lies", "pack"),
    [
        *(("auto", lies, make_contiguous) for lies in list(LIES)[1:]),
        *(
            (backend, "without a batch", interleave_nan)
            for backend in ("auto", "first", "torch")
        ),
    ],
)
def test_hooks_may_change_layouts_of_saved_tensors(backend, lies, pack, device):
    q, k, v, do = make_inputs(64, 64, 16, device=device, lead=(1, 2))
    leaves = make_leaves(*LIES[lies](q, k, v))
    options = {"causal": True, "backend": backend}
    do = do.view(leaves[0].shape)
    expected = torch.autograd.grad(flash_attention(*leaves, **options), leaves, do)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        o = flash_attention(*leaves, **options)
    for a, b in zip(torch.autograd.grad(o, leaves, do), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
