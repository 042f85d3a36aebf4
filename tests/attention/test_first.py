"""Test the guide's first attention kernel: results against float64, and errors."""

import pytest
import torch

from systems.attention import FlashAttentionTriton
from systems.attention.first import HEAD_DIMS, FlashAttentionFirst, first_attention
from systems.attention.recompute import FlashAttentionFirstRecompute
from tests.attention import checks

# bfloat16 needs a GPU: Triton's interpreter multiplies its bit patterns as integers.
DTYPES = [torch.float, torch.half, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
MASKS = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


@MASKS
@pytest.mark.parametrize(
    ("d", "sigma"), [*((d, 1.0) for d in HEAD_DIMS), (32, 60.0)], ids=str
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_and_large_scores_are_accurate(dtype, d, sigma, causal, device):
    """With sigma 60, the exponential of the largest score overflows in every dtype."""
    inputs = checks.make_inputs(128, 128, d, dtype, device, sigma=sigma)
    checks.check_result(FlashAttentionFirst, inputs, causal)


@MASKS
@pytest.mark.parametrize("n", [64, 192, 320])
def test_lengths_heads_and_scales_are_accurate(n, causal, device):
    inputs = checks.make_inputs(n, n, 16, device=device, lead=(3,))
    checks.check_result(FlashAttentionFirst, inputs, causal, 0.7)


def test_expanded_output_gradient_is_accurate(device):
    q, k, v, _ = checks.make_inputs(64, 64, 16, device=device)
    do = torch.ones((), device=device).expand_as(q)
    checks.check_result(FlashAttentionFirst, (q, k, v, do), False)


@pytest.mark.gpu
def test_tiles_may_exceed_the_limit_of_other_grid_axes(device):
    n = 65_536 * 64
    q, k, v, do = checks.make_inputs(n, n, 16, torch.bfloat16, device)
    expected = checks.run_class(FlashAttentionTriton, q, k, v, do, True)
    actual = checks.run_class(FlashAttentionFirst, q, k, v, do, True)
    for name in checks.NAMES:
        close = {"rtol": 0.02, "atol": 0.02, "msg": name}
        torch.testing.assert_close(actual[name], expected[name], **close)


def test_invalid_inputs_are_rejected(device):
    q = torch.zeros(2, 64, 16, device=device)
    batch = torch.empty(65_536, 64, 16, device="meta")
    for x in (q[0], q[:, :63].contiguous(), q[..., :8].contiguous(), batch):
        with pytest.raises(ValueError, match="multiple of 64.* 'triton' takes any"):
            first_attention(x, x, x)
    with pytest.raises(ValueError, match="k must have the shape of q"):
        first_attention(torch.cat([q, q], 1), q, q)
    with pytest.raises(ValueError, match=r"v must be contiguous: call v\.contiguous"):
        first_attention(q, q, q.mT.contiguous().mT)
    with pytest.raises(TypeError, match="q must be one of float32"):
        first_attention(q.double(), q.double(), q.double())
    with pytest.raises(ValueError, match="q must be on a CUDA device, got meta"):
        first_attention(x := q.to("meta"), x, x)
    # With a GPU, kernels are not interpreted, and CPU tensors are rejected.
    with pytest.raises((TypeError, ValueError), match="multiply bfloat16|CUDA device"):
        first_attention(x := q.cpu().bfloat16(), x, x)
    o = first_attention(q.requires_grad_(), q, q)
    with pytest.raises(ValueError, match="can't be differentiated again"):
        torch.autograd.grad(o.sum(), q, create_graph=True)


@pytest.mark.parametrize("way", checks.BATCHED)
@pytest.mark.parametrize("f", [first_attention, FlashAttentionFirstRecompute.apply])
def test_batched_gradients_raise_a_clear_error(f, way, device):
    q = torch.zeros(2, 64, 16, device=device, requires_grad=True)
    with pytest.raises(NotImplementedError, match="call backward once for each"):
        checks.check_batched_gradients(way, f(q, q, q), (q,))
