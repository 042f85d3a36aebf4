"""A call whose like was made before is not worked out again, and computes the same."""

from typing import Any

import pytest
import torch

from systems.attention import FlashAttentionTriton, dispatch, flash_attention, prepared
from systems.attention.prepared import prepare_call, prepare_call_cached
from tests.attention.checks import make_inputs


def leaves_of(*tensors):
    return tuple(x.detach().requires_grad_() for x in tensors)


def test_the_second_call_checks_chooses_and_prepares_nothing(device, monkeypatch):
    """With gradients and without; the gradient may lie as the result or be expanded."""
    q, k, v, do = make_inputs(20, 33, 16, device=device, lead=(1, 2))
    one = torch.ones((), device=device).expand_as(q)

    def run():
        leaves = leaves_of(q.clone(), k.clone(), v.clone())
        o = flash_attention(*leaves, causal=True)
        gradients = [
            x
            for by in (do, one)
            for x in torch.autograd.grad(o, leaves, by, retain_graph=True)
        ]
        return flash_attention(q, k, v, causal=True), o, *gradients

    first = run()
    for module, name in [
        (dispatch, "check_call"),
        (dispatch, "choose_backend"),
        (prepared, "check_properties"),
        (prepared, "forward_launches"),
        (prepared, "backward_launches"),
    ]:
        monkeypatch.setattr(module, name, lambda *_, name=name: pytest.fail(name))
    assert all(torch.equal(a, b) for a, b in zip(run(), first, strict=True))


def test_the_backward_pass_asks_anew_how_float32_is_multiplied(
    device, monkeypatch, precision
):
    q, k, v, do = make_inputs(20, 20, 16, device=device, lead=(1, 2))
    prepare_call_cached.cache_clear()
    asked, launches_for = [], prepared.backward_launches

    def noted(arithmetic, *rest):
        asked.append(arithmetic)
        return launches_for(arithmetic, *rest)

    monkeypatch.setattr(prepared, "backward_launches", noted)
    leaves = leaves_of(q, k, v)
    precision("highest")
    o = flash_attention(*leaves)
    for setting in ("highest", "high", "highest"):
        precision(setting)
        torch.autograd.grad(o, leaves, do, retain_graph=True)
    # Each once.
    assert asked == ["highest", "high"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"causal": 1}, "causal must be True or False, got 1"),
        ({"causal": True, "scale": True}, "scale must be an int, a float or None"),
        ({"causal": True, "scale": 0.0}, "scale must be positive"),
        ({"causal": True, "backend": "none"}, "backend must be one of"),
    ],
    ids=str,
)
@pytest.mark.parametrize("recorded", [False, True])
def test_what_equals_a_known_option_and_is_none_is_refused(
    options: dict[str, Any], said, recorded, device
):
    """1 equals True, and was no mask before a call with True either."""
    q, k, v, _ = make_inputs(20, 20, 16, device=device)
    if recorded:
        q, k, v = leaves_of(q, k, v)
    flash_attention(q, k, v, causal=True, scale=1.0)
    with pytest.raises((TypeError, ValueError), match=said):
        flash_attention(q, k, v, **options)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_has_no_strides_is_refused_by_name(which, device):
    tensors = list(make_inputs(20, 20, 16, device=device)[:3])
    tensors[which] = tensors[which].to_sparse()
    q, k, v = tensors
    assert prepare_call(q, k, v, True, None, "auto") is None
    with pytest.raises(TypeError, match="qkv"[which] + " must be a strided tensor"):
        FlashAttentionTriton.apply(q, k, v, True)


def laid_out_anew(x):
    """As `save_on_cpu(pin_memory=True)` packs."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x)


def with_gaps(x):
    """The same numbers, every other one in memory."""
    return torch.stack((x, torch.full_like(x, float("nan"))), -1)[..., 0]


@pytest.mark.parametrize("lies", ["heads beside tokens", "one tensor of three"])
def test_what_hooks_lay_out_anew_gives_the_same_gradients(lies, device):
    q, k, v, do = make_inputs(20, 20, 16, device=device, lead=(1, 2))
    if lies == "heads beside tokens":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    else:
        q, k, v = torch.stack((q, k, v), 3).unbind(3)
    leaves = leaves_of(q, k, v)
    expected = torch.autograd.grad(flash_attention(*leaves, causal=True), leaves, do)
    hooks = torch.autograd.graph.saved_tensors_hooks(laid_out_anew, lambda x: x)
    with hooks:
        o = flash_attention(*leaves, causal=True)
    for a, b in zip(torch.autograd.grad(o, leaves, do), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["auto", "first", "torch"])
def test_saved_tensors_may_come_back_with_gaps(backend, device):
    """All of them, lse too, which kernels read as if it had none."""
    q, k, v, do = make_inputs(64, 64, 16, device=device, lead=(2,))
    leaves = leaves_of(q, k, v)
    with torch.autograd.graph.saved_tensors_hooks(with_gaps, lambda x: x):
        o = flash_attention(*leaves, causal=True, backend=backend)
    ours = torch.autograd.grad(o, leaves, do)
    o = flash_attention(*leaves, causal=True, backend=backend)
    for a, b in zip(ours, torch.autograd.grad(o, leaves, do), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_number_is_refused_as_keys(device):
    q, k, v, _ = make_inputs(20, 20, 16, device=device)
    with pytest.raises(ValueError, match="k must have two or more dimensions"):
        flash_attention(q, k[0, 0, 0], v)
