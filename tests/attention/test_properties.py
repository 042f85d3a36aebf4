"""What attention must satisfy whatever the numbers are, on random lengths, head
dimensions, masks and seeds.
"""

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from systems.attention import flash_attention
from tests.attention.checks import make_inputs

BACKENDS = ["torch", "triton"]
lengths = st.integers(1, 90)
seeds = st.integers(0, 2**31)
# The interpreter takes half a second for an example: looking for a smaller one would
# take minutes.
few = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 3e-6) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("backend", BACKENDS)
@few
@given(n_q=lengths, n_k=lengths, d=st.integers(1, 48), seed=seeds)
def test_the_order_of_keys_does_not_matter_without_a_mask(
    backend, device, n_q, n_k, d, seed
):
    q, k, v, _ = make_inputs(n_q, n_k, d, device=device, seed=seed)
    order = torch.randperm(n_k, generator=torch.Generator().manual_seed(seed)).to(
        device
    )
    close(
        flash_attention(q, k[:, order], v[:, order], backend=backend),
        flash_attention(q, k, v, backend=backend),
        1e-5,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@few
@given(n_q=lengths, n_k=lengths, d=st.integers(1, 48), causal=st.booleans(), seed=seeds)
def test_weights_sum_to_one(backend, device, n_q, n_k, d, causal, seed):
    q, k, v, _ = make_inputs(n_q, n_k, d, device=device, seed=seed)
    o = flash_attention(q, k, torch.ones_like(v), causal, backend=backend)
    close(o, torch.ones_like(o))


@pytest.mark.parametrize("backend", BACKENDS)
@few
@given(n=st.integers(2, 90), d=st.integers(1, 48), seed=seeds, data=st.data())
def test_later_keys_do_not_reach_earlier_queries(backend, device, n, d, seed, data):
    q, k, v, _ = make_inputs(n, n, d, device=device, seed=seed)
    cut = data.draw(st.integers(1, n - 1))
    whole = flash_attention(q, k, v, True, backend=backend)
    part = flash_attention(q[:, :cut], k[:, :cut], v[:, :cut], True, backend=backend)
    close(whole[:, :cut], part)
    k, v = k.clone(), v.clone()
    k[:, cut:] = v[:, cut:] = 1e4
    assert torch.equal(
        flash_attention(q, k, v, True, backend=backend)[:, :cut], whole[:, :cut]
    )


@pytest.mark.parametrize("backend", BACKENDS)
@few
@given(n_q=lengths, n_k=lengths, d=st.integers(1, 48), causal=st.booleans(), seed=seeds)
def test_linear_in_v(backend, device, n_q, n_k, d, causal, seed):
    q, k, v, _ = make_inputs(n_q, n_k, d, device=device, seed=seed)
    w = v.flip(-1).cos()

    def attend(values):
        return flash_attention(q, k, values, causal, backend=backend)

    close(attend(2 * v - 3 * w), 2 * attend(v) - 3 * attend(w), 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@few
@given(n_q=lengths, n_k=lengths, d=st.integers(1, 48), causal=st.booleans(), seed=seeds)
def test_what_is_added_to_every_key_does_not_matter(
    backend, device, n_q, n_k, d, causal, seed
):
    """A row of scores moves by one number, which softmax takes out again."""
    q, k, v, _ = make_inputs(n_q, n_k, d, device=device, seed=seed)
    moved = k + v.mean(-2, keepdim=True) * 3
    close(
        flash_attention(q, moved, v, causal, backend=backend),
        flash_attention(q, k, v, causal, backend=backend),
        5e-5,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@few
@given(n=lengths, d=st.integers(1, 48), causal=st.booleans(), seed=seeds)
def test_gradients_of_the_scores_sum_to_zero(backend, device, n, d, causal, seed):
    """Moving all keys together changes nothing, so dk sums to zero over the keys."""
    q, k, v, do = make_inputs(n, n, d, device=device, seed=seed)
    k.requires_grad_()
    (dk,) = torch.autograd.grad(
        flash_attention(q, k, v, causal, backend=backend), k, do
    )
    close(dk.sum(-2), torch.zeros_like(dk[:, 0]), 1e-4)
