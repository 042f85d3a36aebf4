"""Test peers (attention implementations): their results, errors and options."""

import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from systems.attention import dispatch
from systems.attention.hopper import limits
from systems.attention.reference import attention_reference
from systems.benchmarking import compiling, peers
from systems.benchmarking.peers import find_backend, load_peer, use_peer
from systems.benchmarking.workload import random_inputs
from systems.precision.dtypes import relative_error
from systems.records.outcome import NotInstalled, Unsupported
from tests.attention.checks import run_reference


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["ours", "ours_triton", "plain", "sdpa", "sdpa_flash"])
def test_peers_compute_attention(name, causal, device):
    q, k, v, do = random_inputs((1, 2, 40, 16), torch.float32, device)
    if name == "sdpa_flash" and device == "cuda":
        q, k, v, do = random_inputs((1, 2, 40, 16), torch.bfloat16, device)
    with use_peer(name):
        o = load_peer(name, causal, 40, device)(q, k, v)
        gradients = torch.autograd.grad(o, (q, k, v), do)
    expected = run_reference(q, k, v, do, causal)
    bound = 2e-2 if q.dtype == torch.bfloat16 else 1e-5
    for name, found in zip(("o", "dq", "dk", "dv"), (o, *gradients), strict=True):
        assert relative_error(found, expected[name]) < bound


@pytest.mark.parametrize("name", ["sdpa_cudnn", "sdpa_efficient"])
def test_unavailable_backend_is_unsupported(name):
    """On a CPU the backend can't run, and no other backend may replace it."""
    q, k, v, _ = random_inputs((1, 1, 8, 16), torch.float32, "cpu")
    with pytest.raises(Unsupported, match=name.removeprefix("sdpa_")), use_peer(name):
        load_peer(name, True, 8, "cpu")(q, k, v)


def test_missing_library_is_a_row_and_other_errors_raise(monkeypatch):
    with pytest.raises(ValueError, match="no attention is named 'flash9'"):
        load_peer("flash9", True, 8, "cpu")
    with pytest.raises(RuntimeError, match="shapes differ"), use_peer("sdpa_flash"):
        raise RuntimeError("shapes differ")
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(NotInstalled, match="^not installed: .*peers"), use_peer("fa4"):
        load_peer("fa4", True, 8, "cpu")
    # Only "FA4 ... unsupported" raised for sdpa_fa4 means a refused input here.
    refused = RuntimeError("FA4 backward unsupported: head dimension")
    assert peers.unsupported_reason("sdpa_fa4", refused) == str(refused)
    assert peers.unsupported_reason("plain", refused) == ""
    assert peers.unsupported_reason("sdpa_fa4", RuntimeError("shapes differ")) == ""


INSIDE = {"ours_high": "high", "ours": "highest", "sdpa_efficient": "highest"}


@pytest.mark.parametrize("name", INSIDE)
def test_name_of_a_peer_sets_float32_precision(name, set_precision):
    set_precision("medium")
    with pytest.raises(KeyError), use_peer(name):
        assert torch.get_float32_matmul_precision() == INSIDE[name]
        raise KeyError
    assert torch.get_float32_matmul_precision() == "highest"


def test_ours_triton_avoids_the_hopper_kernels(device, monkeypatch):
    """ "ours_triton" runs the Triton kernels in both passes."""
    monkeypatch.setattr(limits, "is_faster", lambda q, k: True)
    monkeypatch.setattr(limits, "unsupported_reason", lambda q, k, v: "")
    q, k, v, do = random_inputs((1, 1, 8, 16), torch.float32, device)
    assert find_backend("ours", q, k, v, True) == "hopper"
    assert find_backend("ours_triton", q, k, v, True) == "triton"
    others = {k: v for k, v in dispatch.LAUNCHERS.items() if k != "hopper"}
    monkeypatch.setattr(dispatch, "LAUNCHERS", others)
    o = load_peer("ours_triton", True, 8, device)(q, k, v)
    torch.autograd.grad(o, (q, k, v), do)


# A stand-in for FlashAttention-4's package, which asserts its inputs in both passes.
FLASH_4 = """
import torch
from torch.nn.functional import scaled_dot_product_attention

asked = []


class Narrow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q):
        return q.clone()

    @staticmethod
    def backward(ctx, dq):
        assert dq.shape[-1] > 8, "head dimension of a backward pass"
        return dq


def flash_attn_func(q, k, v, causal, deterministic):
    asked.append((causal, deterministic))
    assert q.shape[-1] < 32, "head dimension"
    if q.shape[-1] == 17:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried much.")
    if q.shape[-1] == 18:
        raise RuntimeError("CUDA error: an illegal memory access")
    turned = (x.transpose(1, 2) for x in (Narrow.apply(q), k, v))
    o = scaled_dot_product_attention(*turned, is_causal=causal, enable_gqa=True)
    return o.transpose(1, 2), None
"""


@pytest.fixture
def fake_flash_4(monkeypatch):
    """Install a stand-in for FlashAttention-4; return the options of its calls."""
    cute: Any = ModuleType("flash_attn.cute")
    exec(FLASH_4, vars(cute))
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(cute=cute))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    return cute.asked


def test_flash_attention_4_gets_the_deterministic_flag(fake_flash_4):
    q, k, v, _ = random_inputs((2, 4, 8, 16), torch.float32, "cpu")
    k, v = k[:, :2], v[:, :2]
    expected, _ = attention_reference(q, k, v, True)
    for name in ("fa4", "fa4_ordered"):
        with use_peer(name):
            o = load_peer(name, True, 8, "cpu", grouped=True)(q, k, v)
        torch.testing.assert_close(o, expected)
    assert fake_flash_4 == [(True, False), (True, True)]


def test_inputs_that_flash_attention_4_rejects_are_unsupported(fake_flash_4):
    q, k, v, do = random_inputs((1, 1, 8, 32), torch.float32, "cpu")
    with pytest.raises(Unsupported, match="AssertionError: head dim"), use_peer("fa4"):
        load_peer("fa4", True, 8, "cpu")(q, k, v)
    q, k, v, do = (x[..., :8] for x in (q, k, v, do))
    with pytest.raises(Unsupported, match="head dimension of a back"), use_peer("fa4"):
        o = load_peer("fa4", True, 8, "cpu")(q, k, v)
        torch.autograd.grad(o, (q, k, v), do)
    names: dict[str, Any] = {"__name__": "torch.nn.attention._fa4"}
    with pytest.raises(Unsupported, match="too many values"), use_peer("fa4"):
        exec("o, lse = 1, 2, 3", names)


@pytest.mark.parametrize(("d", "said"), [(17, "out of memory"), (18, "CUDA error")])
def test_gpu_errors_do_not_count_as_unsupported(fake_flash_4, d, said):
    q, k, v, _ = random_inputs((1, 1, 8, d), torch.float32, "cpu")
    with pytest.raises(RuntimeError, match=said) as found, use_peer("fa4"):
        load_peer("fa4", True, 8, "cpu")(q, k, v)
    assert not isinstance(found.value, Unsupported)


@pytest.mark.parametrize("error", [TypeError, AssertionError, ValueError])
def test_errors_outside_the_library_are_raised(fake_flash_4, error):
    """An error outside FlashAttention-4's code is raised unchanged."""
    with pytest.raises(error, match="^ours$"), use_peer("fa4"):
        raise error("ours")
    with pytest.raises(RuntimeError, match="No available kernel"), use_peer("fa4"):
        raise RuntimeError("No available kernel")
    _, k, v, _ = random_inputs((1, 1, 8, 16), torch.float32, "cpu")
    no_tensor: Any = "q"
    with pytest.raises(AttributeError, match="'str' object"), use_peer("fa4"):
        load_peer("fa4", True, 8, "cpu")(no_tensor, k, v)


def test_deterministic_sdpa_fills_no_memory():
    how = torch.utils.deterministic
    for name, asked in (("sdpa_flash", False), ("sdpa_flash_ordered", True)):
        with use_peer(name):
            assert torch.are_deterministic_algorithms_enabled() is asked
            assert how.fill_uninitialized_memory is not asked  # pyright: ignore
        assert not torch.are_deterministic_algorithms_enabled()
        assert how.fill_uninitialized_memory  # pyright: ignore


def test_find_backend_names_the_backend_of_sdpa():
    q, k, v, _ = random_inputs((1, 1, 8, 16), torch.float32, "cpu")
    assert find_backend("sdpa", q, k, v, True) == "flash_attention"
    # The context around the call chooses SDPA's backend.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert find_backend("sdpa", q, k, v, True) == "math"
    assert find_backend("plain", q, k, v, True) == "plain"


def test_lengths_share_a_compilation_of_plain_attention(run_uncompiled):
    before, run = compiling.count_graphs(), peers.compile_plain.__wrapped__(True)
    for n in (16, 24, 40):
        q, k, v, do = random_inputs((1, 1, n, 8), torch.float32, "cpu")
        o = run(q, k, v)
        grad = partial(torch.autograd.grad, o, (q, k, v), do, retain_graph=True)
        assert all(map(torch.equal, grad(), grad()))
        torch.testing.assert_close(o, peers.plain_attention(q, k, v, True))
    assert compiling.count_graphs() == before + 1


def test_results_that_vary_between_calls_are_named(monkeypatch):
    made = iter([1.0, 1.0 + 2**-23, 1.0])
    monkeypatch.setattr(
        peers, "compute_results", lambda *_: {"o": torch.tensor(next(made))}
    )
    found = peers.compare_calls(print, (), {"o": torch.tensor(1.0)}, 3)
    assert found == [[], ["o"], []]
