"""Compare FlashAttention in Triton and in PyTorch with attention in float64."""

import itertools

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from systems.attention import FlashAttentionPyTorch, FlashAttentionTriton
from systems.attention.recompute import (
    FlashAttentionFirstRecompute,
    FlashAttentionPyTorchRecompute,
)
from systems.attention.relaunch import shape_and_strides
from systems.attention.triton import configs, launches
from systems.attention.triton.configs import Config
from systems.attention.triton.launches import launch_backward, launch_forward
from systems.attention.triton.primitives import first_step, round_to
from tests import adapters
from tests.attention.checks import (
    DTYPES,
    HEAD_DIMS,
    check_against_reference,
    check_result,
    make_inputs,
    parametrize_pairs,
    run_class,
    run_reference,
)
from tests.needed import compiles_cpp

CAUSAL = [False, True]
MASKS = pytest.mark.parametrize("causal", CAUSAL, ids=["full", "causal"])
CLASSES = [
    adapters.get_flashattention_autograd_function_pytorch(),
    adapters.get_flashattention_autograd_function_triton(),
]
LENGTHS = st.integers(1, 200) | st.sampled_from([1, 63, 64, 65, 128, 191, 257])


@triton.jit
def round_kernel(x_ptr, y_ptr, n: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, n))
    tl.store(y_ptr + tl.arange(0, n), round_to(x, y_ptr.dtype.element_ty))


def launch_passes(
    inputs, causal, forward=None, dkdv=None, dq=None, splits=(None,) * 3, **more
):
    """Launch both passes with these configurations and a scale of 0.25."""
    q, k, v, do = inputs
    of_forward = {"config": forward, "splits": splits[0], **more}
    o, lse = launch_forward(q, k, v, causal, 0.25, **of_forward)
    more |= {"dkdv_config": dkdv, "dq_config": dq}
    more |= {"dkdv_splits": splits[1], "dq_splits": splits[2]}
    return o, lse, *launch_backward(do, q, k, v, o, lse, causal, 0.25, **more)


@parametrize_pairs(cls=CLASSES, dtype=DTYPES, d=HEAD_DIMS, causal=CAUSAL)
def test_dtypes_and_head_dimensions_are_accurate(cls, dtype, d, causal, device):
    check_result(cls, make_inputs(97, 97, d, dtype, device), causal)


@pytest.mark.parametrize("cls", CLASSES)
# Don't shrink failing examples: each takes the interpreter half a second.
@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    n_q=LENGTHS,
    n_k=LENGTHS,
    d=st.integers(1, 48) | st.sampled_from([129, 255]),
    lead=st.sampled_from([(1,), (3,)]),
    causal=st.booleans(),
    scale=st.sampled_from([None, 0.01, 0.25]),
    seed=st.integers(0, 2**31),
)
# One row beyond whole tiles, and the shape of the course's test.
@example(n_q=257, n_k=257, d=16, lead=(1,), causal=True, scale=None, seed=0)
@example(n_q=128, n_k=128, d=64, lead=(4,), causal=True, scale=None, seed=0)
def test_any_shape_is_accurate(cls, device, n_q, n_k, d, lead, causal, scale, seed):
    inputs = make_inputs(n_q, n_k, d, device=device, lead=lead, seed=seed)
    check_result(cls, inputs, causal, scale)


@parametrize_pairs(cls=CLASSES, dtype=DTYPES, sigma=[8.0, 60.0], causal=CAUSAL)
def test_large_scores_are_accurate(cls, dtype, sigma, causal, device):
    check_result(cls, make_inputs(70, 97, 32, dtype, device, sigma=sigma), causal)


@parametrize_pairs(
    tile=[(16, 32), (32, 16), (64, 16), (16, 64), (32, 32)], causal=CAUSAL
)
def test_tiles_of_any_shape_are_accurate(tile, causal, device):
    x = make_inputs(97, 70, 16, device=device)
    t = Config(*tile, warps=4, stages=2)
    check_against_reference(launch_passes(x, causal, t, t, t), *x, causal, 0.25)


@pytest.mark.slow
@parametrize_pairs(
    dtype=DTYPES, splits=[(2, 2, 2), (3, 8, 2), (5, 4, 1), (1, 1, 4)], causal=CAUSAL
)
def test_split_loops_are_accurate(dtype, splits, causal, device):
    """Test fewer, as many and more splits than steps, with grouped heads."""
    shared = {"lead": (2, 2), "lead_k": (2, 1)}
    q, k, v, do = inputs = make_inputs(65, 97, 40, dtype, device, **shared)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    t = Config(32, 32, warps=4, stages=1)
    found = launch_passes((q, k, v, do), causal, t, t, t, splits)
    check_against_reference(found, *inputs, causal, 0.25)


@pytest.mark.parametrize("splits", [1, 2, 3, 16])
def test_splits_differ_by_at_most_one_step(splits):
    for whole, crossed in itertools.product(range(20), range(4)):
        end, found = whole + crossed, []
        for split in range(splits):
            crossing = whole + first_step.fn(split, whole, splits)
            own = [*range(split, whole, splits), *range(crossing, end, splits)]
            found.append(own)
        assert sorted(step for own in found for step in own) == [*range(end)]
        assert max(map(len, found)) - min(map(len, found)) <= 1


def plan_backward(q, k, causal=False, dkdv_splits=None) -> launches.BackwardLaunches:
    """Return backward launches for q and k, with tiles of 32 queries and 16 keys."""
    c, of_q, of_k = Config(32, 16, 4, 1), shape_and_strides(q), shape_and_strides(k)
    return launches.backward_launches(
        "half", q.dtype, q.device, causal, 1.0, of_q, of_k, of_k, of_q, of_q, of_q,
        of_k, of_k, dkdv_config=c, dq_config=c, dkdv_splits=dkdv_splits,
    )  # fmt: skip


@MASKS
def test_splits_share_the_steps_of_grouped_heads_evenly(causal, device):
    """All probabilities are 1, so dv of a split counts its rows."""
    q, k = (torch.zeros(1, h, 96, 16, device=device) for h in (3, 1))
    statistics = torch.zeros(1, 3, 96, 2, device=device)
    dk, dv = torch.empty(2, 4, 1, 1, 96, 16, device=device)
    plan = plan_backward(q, k, causal, dkdv_splits=4)
    plan.dkdv(q, k, k, torch.ones_like(q), statistics, dk, dv)
    # The first key is visible to every row.
    rows = dv[:, 0, 0, 0, 0]
    assert rows.sum() == 3 * 96 and rows.max() - rows.min() == 32


def test_dkdv_splits_count_all_heads_of_a_group(monkeypatch):
    """A KV head's four query heads are split like one head with four times the rows."""
    monkeypatch.setattr(configs, "count_sms", lambda device: 132)

    def count_splits(heads: int, n_q: int) -> int:
        q, k = (torch.empty(1, *x, 16, device="meta") for x in ((heads, n_q), (1, 64)))
        return plan_backward(q, k).dkdv.constants["SPLITS"]

    assert count_splits(4, 512) == count_splits(1, 2048) > count_splits(1, 512) > 1


@pytest.mark.parametrize("head_swizzle", [1, 2, 3, 5, 9])
def test_every_head_swizzle_computes_all_tiles(head_swizzle, device):
    inputs = make_inputs(97, 130, 16, device=device, lead=(5,))
    found = launch_passes(inputs, True, head_swizzle=head_swizzle)
    check_against_reference(found, *inputs, True, 0.25)


@MASKS
@pytest.mark.parametrize("d", [16, 64, 80])
def test_high_precision_keeps_sixteen_bits(set_precision, d, causal, device):
    inputs = make_inputs(97, 130, d, torch.float32, device)
    set_precision("high")
    actual = run_class(FlashAttentionTriton, *inputs, causal)
    set_precision("highest")
    check_against_reference(actual, *inputs, causal, split=True)


@parametrize_pairs(
    setting=["high", "highest"],
    ahead=[(True, True, True), (True, True, False), (False, False, True)],
    splits=[1, 3],
    causal=CAUSAL,
)
def test_float32_limbs_computed_ahead_are_accurate(
    set_precision, setting, ahead, splits, causal, device, monkeypatch
):
    # The reference for "high" does not support grouped heads.
    shared = (1, 1) if setting == "highest" else None
    q, k, v, do = make_inputs(65, 97, 40, device=device, lead=(1, 2), lead_k=shared)
    k, do = k.mT.contiguous().mT, do[..., :1, :].expand_as(do)
    forward, dkdv, dq = (Config(32, 32, 4, 1, ahead=each) for each in ahead)
    set_precision(setting)
    done, as_limbs = [], launches.split_into_limbs
    monkeypatch.setattr(
        launches, "split_into_limbs", lambda *x: done.append(len(x) - 1) or as_limbs(*x)
    )
    found = launch_passes((q, k, v, do), causal, forward, dkdv, dq, (splits,) * 3)
    set_precision("highest")
    # Ahead of forward, three tensors are split into limbs; ahead of backward, four.
    assert done == [3] * ahead[0] + [4]
    split = setting == "high"
    check_against_reference(found, q, k, v, do, causal, 0.25, split=split)


@parametrize_pairs(
    kind=[(torch.bfloat16, False), (torch.float32, False), (torch.float32, True)],
    anew=["addresses", "tiles"],
    splits=[1, 2],
    causal=CAUSAL,
)
def test_recomputation_inside_loops_changes_no_bit(kind, anew, splits, causal, device):
    dtype, ahead = kind
    q, k, v, do = make_inputs(
        65, 50, 20, dtype, device, lead=(1, 2), lead_k=(1, 1), sigma=2.0
    )
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    o, lse = launch_forward(q, k, v, causal, 0.25)
    dq, dkdv = (Config(*tile, 4, 1, ahead=ahead) for tile in ((16, 32), (32, 16)))
    kept, found = (
        launch_backward(
            do, q, k, v, o, lse, causal, 0.25,
            dkdv_config=dkdv._replace(recompute=which), dkdv_splits=splits,
            dq_config=dq._replace(recompute=which), dq_splits=splits,
        )
        for which in ("", anew)
    )  # fmt: skip
    assert all(map(torch.equal, found, kept)) and all(x.any() for x in found)


@MASKS
def test_float64_tiles_are_exact(causal):
    check_result(FlashAttentionPyTorch, make_inputs(130, 97, 24, torch.float64), causal)


@compiles_cpp
@pytest.mark.slow
@parametrize_pairs(
    cls=(FlashAttentionFirstRecompute, FlashAttentionPyTorchRecompute), causal=CAUSAL
)
def test_recompute_backward_has_the_gradients_of_plain_attention(cls, causal, device):
    """Test masked scores whose exponential overflows, and autocast, too."""
    inputs = make_inputs(64, 64, 16, device=device, lead=(2,), sigma=60.0)
    for dtype, bound in ((torch.float32, 1e-4), (torch.float16, 3e-3)):
        given = [x.to(dtype) for x in inputs]
        expected = run_reference(*given, causal, 0.2)
        with torch.autocast(device, torch.float16, enabled=dtype == torch.float16):
            found = run_class(cls, *given, causal, 0.2)
        for name in ("dq", "dk", "dv"):
            error = (found[name] - expected[name]).norm()
            assert error < bound * expected[name].norm(), (name, dtype)
            assert found[name].dtype == dtype


def test_reference_equals_attention_by_hand():
    q, k, v, do = make_inputs(5, 4, 3, torch.float64)
    result = run_reference(q, k, v, do, causal=True)
    for i in range(5):
        p = torch.exp((k[0, : i + 1] @ q[0, i]) / 3**0.5)
        o, lse = p / p.sum() @ v[0, : i + 1], torch.log(p.sum())
        assert torch.allclose(result["o"][0, i], o, atol=1e-12)
        assert torch.allclose(result["lse"][0, i], lse, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rounding_is_to_the_nearest(dtype, device):
    """Ties round to even, as on a GPU. The interpreter itself would truncate."""
    x = torch.randn(512, device=device) * torch.logspace(-6, 4, 512, device=device)
    x[:8] = torch.tensor(
        [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 2 - 2**-9, 0.5, -3.0, 1.0, 65000.0]
    )
    y = torch.empty(512, dtype=dtype, device=device)
    launch = round_kernel[(1,)]
    launch(x, y, n=512, enable_fp_fusion=True)  # pyright: ignore[reportArgumentType]
    assert torch.equal(y, x.to(dtype))
