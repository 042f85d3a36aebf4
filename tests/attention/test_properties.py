"""Compare attention and its gradients with float64, on random inputs."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from systems.attention import FlashAttentionPyTorch, FlashAttentionTriton
from tests.attention.checks import check_against_reference, make_inputs, run_class

lengths = st.integers(1, 90)


@pytest.mark.parametrize("cls", [FlashAttentionPyTorch, FlashAttentionTriton])
# Don't shrink failing examples: each takes the interpreter half a second.
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    n_q=lengths,
    n_k=lengths,
    d=st.integers(1, 48) | st.sampled_from([129, 255]),
    lead=st.sampled_from([(1,), (3,)]),
    causal=st.booleans(),
    scale=st.sampled_from([None, 0.01, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_any_shape_is_accurate(cls, device, n_q, n_k, d, lead, causal, scale, seed):
    inputs = make_inputs(n_q, n_k, d, device=device, lead=lead, seed=seed)
    results = run_class(cls, *inputs, causal, scale)
    check_against_reference(results, *inputs, causal, scale)
