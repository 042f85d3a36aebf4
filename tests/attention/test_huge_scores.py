"""Test scores above 2³¹, whose rounding errors overflow exp2 (PyTorch #121558)."""

import numpy as np
import pytest
import torch
from torch import Tensor

from systems.attention import flash_attention
from systems.precision.dtypes import relative_error
from tests.attention import checks

MASKS = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
BACKENDS = pytest.mark.parametrize(
    "backend", ["triton", pytest.param("hopper", marks=checks.HOPPER)]
)
# Constants for q, k and v: rounding changes their scaled scores by up to 2³², up or
# down.
VALUES = [29952.0, 49920.0, 133120.0, 999424.0, 2.0**30]
# The score of padding keys is zero, so their p overflows if other scores are huge and
# negative. The mask then discards it.
pytestmark = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")


@pytest.fixture
def round_fma_once(monkeypatch, device):
    """Make the interpreter round a multiply-add once, as a GPU does."""
    if device == "cpu":
        from triton.runtime import interpreter

        def create_fma(self, x, y, z):
            # The product of two float32 numbers is exact in float64.
            exact = x.data.astype(np.float64) * y.data + z.data
            return interpreter.TensorHandle(exact.astype(np.float32), z.dtype.scalar)

        builder = interpreter.InterpreterBuilder
        monkeypatch.setattr(builder, "create_fma", create_fma)


def check_equal_scores(q: Tensor, k: Tensor, causal: bool, backend: str) -> None:
    """Check that equal keys get equal p (so o equals v), with finite gradients."""
    q, k, v = (x.clone().requires_grad_() for x in (q, k, q.abs()))
    o = flash_attention(q, k, v, causal, backend=backend)
    assert torch.allclose(o, v, rtol=1e-6, atol=0)
    for x in torch.autograd.grad(o, (q, k, v), torch.ones_like(o)):
        assert x.isfinite().all()


@MASKS
@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
@pytest.mark.parametrize("value", [49920.0, 133120.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_equal_huge_scores_return_v(dtype, value, sign, causal, round_fma_once, device):
    x = torch.full((1, 1, 40, 64), value, dtype=dtype, device=device)
    check_equal_scores(x, sign * x, causal, "triton")


def test_splits_of_equal_huge_scores_give_equal_weights(round_fma_once, device):
    """With one query, the loop over keys is split and partial results are combined."""
    from systems.attention.triton.launches import launch_forward

    k = torch.full((1, 150, 64), 133120.0, device=device)
    o, _ = launch_forward(k[:, :1], k, k, False, 0.125, splits=4)
    assert torch.equal(o, k[:, :1])


@pytest.mark.parametrize("dtype", checks.DTYPES, ids=str)
@MASKS
def test_largest_huge_score_has_probability_one(causal, dtype, round_fma_once, device):
    """Scores grow to huge values and fall again; the largest visible one has p = 1."""
    n, d = 80, 16
    steps = torch.arange(n, device=device) % 40
    for order in (steps, steps.flip(0)):
        k = (2.0 ** (order // 2 - 16)).to(dtype)[:, None].expand(n, d).contiguous()
        q = torch.full((n, d), 2.0**15, dtype=dtype, device=device)
        v = torch.randn(n, d, device=device).to(dtype)
        options = {"scale": 2.0**10, "backend": "triton"}
        o = flash_attention(q[None], k[None], v[None], causal, **options)
        s = (q.double() @ k.double().mT) * 2.0**10
        s = checks.mask_later_keys(s) if causal else s
        expected = torch.softmax(s, -1) @ v.double()
        assert torch.allclose(o[0].double(), expected, rtol=1e-2, atol=1e-2)


def check_rows_near_huge_scores(n: int, d: int, dtype, backend: str, device) -> None:
    """Check that rows with huge scores add nothing to gradients of k and v."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, do = (
        torch.randn(1, 2, n, d, generator=generator).to(device, dtype) for _ in range(4)
    )
    huge = torch.zeros(n, dtype=torch.bool, device=device)
    huge[3::7] = True
    q[:, :, huge] *= 2.0**34 if dtype == torch.bfloat16 else 2.0**40
    inputs = [x.requires_grad_() for x in (q, k, v)]
    o = flash_attention(*inputs, backend=backend)
    assert o.isfinite().all()
    dq, dk, dv = torch.autograd.grad(o, inputs, do)
    assert dq[:, :, huge].eq(0).all()
    expected = checks.run_reference(q[:, :, ~huge], k, v, do[:, :, ~huge], False)
    found = {"dq": dq[:, :, ~huge], "dk": dk, "dv": dv}
    for name, x in found.items():
        error = relative_error(x, expected[name])
        assert error < (1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_near_huge_scores_are_accurate(dtype, round_fma_once, device):
    check_rows_near_huge_scores(70, 32, dtype, "triton", device)


@BACKENDS
def test_nan_key_reaches_dv(backend, device):
    """A NaN in one key makes all gradients of v NaN, as in PyTorch."""
    q, k, v = (torch.randn(1, 1, 70, 64, device=device).bfloat16() for _ in range(3))
    k[:, :, 3] = float("nan")
    o = flash_attention(q, k, v.requires_grad_(), backend=backend)
    assert torch.autograd.grad(o.sum(), v)[0].isnan().all()


@checks.needs_hopper
@MASKS
@pytest.mark.parametrize("n", [1, 300, 4096])
@pytest.mark.parametrize("d", [64, 96, 128])
@pytest.mark.parametrize("value", VALUES)
def test_equal_huge_scores_return_v_on_hopper(value, d, n, causal):
    # The longer length gets enough heads for the one-pass backward.
    heads = 16 if n == 4096 else 1
    x = torch.full((1, heads, n, d), value, dtype=torch.bfloat16, device="cuda")
    check_equal_scores(x, x, causal, "hopper")
    check_equal_scores(x, -x, causal, "hopper")


@checks.needs_hopper
@pytest.mark.parametrize("n", [1000, 4096])
@pytest.mark.parametrize("d", [64, 96, 128])
def test_rows_near_huge_scores_are_accurate_on_hopper(d, n):
    check_rows_near_huge_scores(n, d, torch.bfloat16, "hopper", "cuda")


@checks.needs_hopper
@pytest.mark.parametrize("score", [-float("inf"), -1e12])
def test_a_last_tile_of_hugely_negative_scores_counts_nothing_on_hopper(score):
    q, k, v = (torch.randn(1, 2, 256, 64, device="cuda").bfloat16() for _ in range(3))
    q[..., 0], k[..., 0] = 1, 0
    expected = flash_attention(q, k[..., :128, :], v[..., :128, :], backend="triton")
    k[..., 128:, 0] = score
    o = flash_attention(q, k, v, backend="hopper")
    assert torch.allclose(o, expected, rtol=0, atol=0.02)


@pytest.mark.gpu
@BACKENDS
def test_different_huge_scores_select_one_key(backend):
    """q and k are normal, scaled by a million, so softmax selects one key."""
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(1, 2, 2048, 64, device="cuda", generator=generator).bfloat16()
        for _ in range(3)
    )
    q, k = q * 2**20, k * 2**20
    o = flash_attention(q, k, v, causal=True, backend=backend)
    s = q.double() @ k.double().mT
    chosen = checks.mask_later_keys(s).argmax(-1)
    assert torch.equal(o, v.gather(2, chosen[..., None].expand(v.shape)))
