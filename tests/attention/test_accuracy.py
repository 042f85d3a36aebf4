"""Every output of both flash attentions against float64: dtypes, masks, head
dimensions, lengths, sizes of scores.
"""

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from systems.attention import FlashAttentionPyTorch, FlashAttentionTriton
from systems.attention.recompute import recompute_backward
from systems.attention.relaunch import shape_and_strides
from systems.attention.triton import configs, launches
from systems.attention.triton.configs import Config
from systems.attention.triton.launches import launch_backward, launch_forward
from systems.attention.triton.primitives import (
    first_step,
    round_to,
    sum_limbs,
    to_limbs,
)
from tests.attention.checks import (
    DTYPES,
    HEAD_DIMS,
    NAMES,
    check_against_reference,
    make_inputs,
    parametrize_pairs,
    run_class,
    run_reference,
    worst,
)
from tests.needed import compiles_cpp

MASKS = [False, True]
CLASSES = [FlashAttentionPyTorch, FlashAttentionTriton]
LENGTHS = [1, 17, 63, 64, 97, 128, 130, 191, 257]
PAIRS = [(1, 130), (130, 1), (65, 191), (191, 65), (63, 64)]


@triton.jit
def narrow_kernel(x_ptr, y_ptr, n: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, n))
    tl.store(y_ptr + tl.arange(0, n), round_to(x, y_ptr.dtype.element_ty))


@triton.jit
def limbs_kernel(x_ptr, limbs_ptr, whole_ptr, n: tl.constexpr, LIMBS: tl.constexpr):
    at = tl.arange(0, n)
    limbs = to_limbs(tl.load(x_ptr + at), tl.bfloat16, LIMBS)
    for i in tl.static_range(LIMBS):
        tl.store(limbs_ptr + i * n + at, limbs[i].to(tl.float32))
    tl.store(whole_ptr + at, sum_limbs(limbs))


def check(
    cls,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    causal: bool,
    scale: float | None = None,
):
    check_against_reference(
        run_class(cls, *inputs, causal, scale), *inputs, causal, scale
    )


@parametrize_pairs(cls=CLASSES, dtype=DTYPES, d=HEAD_DIMS, causal=MASKS)
def test_dtypes_and_head_dimensions(cls, dtype, d, causal, device):
    check(cls, make_inputs(97, 97, d, dtype, device), causal)


@parametrize_pairs(cls=CLASSES, n=LENGTHS, causal=MASKS)
def test_lengths(cls, n, causal, device):
    check(cls, make_inputs(n, n, 16, device=device), causal)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("n_q", "n_k"), PAIRS)
@pytest.mark.parametrize("cls", CLASSES)
def test_causal_starts_at_the_top_left_where_lengths_differ(
    cls, n_q, n_k, causal, device
):
    inputs = make_inputs(n_q, n_k, 32, torch.float16, device)
    check(cls, inputs, causal)
    q, k, v = (x.double() for x in inputs[:3])
    sdpa = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert worst(run_class(cls, *inputs, causal)["o"], sdpa) < 0.01


@pytest.mark.parametrize("gap", [0, 8, 1], ids=lambda gap: f"rows {gap} apart")
def test_rows_that_8_divides_and_rows_that_it_does_not(gap, device):
    """24 numbers, and then a gap: strides of 24 and 32 are said to be what they are,
    others are left alone.
    """
    whole = make_inputs(33, 40, 24 + gap, torch.float16, device, lead=(1, 2))
    q, k, v, do = (x[..., :24] for x in whole)
    check(FlashAttentionTriton, (q, k, v, do), True)


@parametrize_pairs(cls=CLASSES, dtype=DTYPES, sigma=[8.0, 60.0], causal=MASKS)
def test_large_scores(cls, dtype, sigma, causal, device):
    check(cls, make_inputs(70, 97, 32, dtype, device, sigma=sigma), causal)


@pytest.mark.parametrize("scale", [0.01, 1.0])
@pytest.mark.parametrize("cls", CLASSES)
def test_a_scale_of_ones_own(cls, scale, device):
    check(cls, make_inputs(33, 70, 16, device=device), True, scale)


@parametrize_pairs(
    tile=[(16, 32), (32, 16), (64, 16), (16, 64), (32, 32)], causal=MASKS
)
def test_tiles_of_any_shape(tile, causal, device):
    """The causal loops split where the diagonal enters a tile, which depends on both
    sides of the tile.
    """
    q, k, v, do = inputs = make_inputs(97, 70, 16, device=device)
    t = Config(*tile, warps=4, stages=2)
    o, lse = launch_forward(q, k, v, causal, 0.25, t)
    outputs = (o, lse, *launch_backward(do, q, k, v, o, lse, causal, 0.25, t, t))
    check_against_reference(
        dict(zip(NAMES, outputs, strict=True)), *inputs, causal, 0.25
    )


@pytest.mark.slow
@parametrize_pairs(
    dtype=DTYPES, splits=[(2, 2, 2), (3, 8, 2), (5, 4, 1), (1, 1, 4)], causal=MASKS
)
def test_loops_that_are_split(dtype, splits, causal, device):
    """As many splits as steps and more (four over keys, three over queries): one
    without a step adds nothing. Grouped heads, strided outputs. One kernel sums the
    splits of dq, dk and dv, of which some may be whole.
    """
    q, k, v, do = inputs = make_inputs(
        65, 97, 40, dtype, device, lead=(2, 2), lead_k=(2, 1)
    )
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    t = Config(32, 32, warps=4, stages=1)
    o, lse = launch_forward(q, k, v, causal, 0.25, t, splits[0])
    outputs = (
        o,
        lse,
        *launch_backward(do, q, k, v, o, lse, causal, 0.25, t, t, *splits[1:]),
    )
    check_against_reference(
        dict(zip(NAMES, outputs, strict=True)), *inputs, causal, 0.25
    )


@pytest.mark.parametrize("splits", [1, 2, 3, 16])
def test_no_split_has_more_than_one_step_more_than_another(splits):
    """Over both loops of a tile, each step once."""
    for whole in range(20):
        for crossed in range(4):
            steps = [
                [
                    *range(split, whole, splits),
                    *range(
                        whole + first_step.fn(split, whole, splits),
                        whole + crossed,
                        splits,
                    ),
                ]
                for split in range(splits)
            ]
            assert sorted(step for own in steps for step in own) == list(
                range(whole + crossed)
            )
            assert max(map(len, steps)) - min(map(len, steps)) <= 1


def backward_plan(q, k, causal=False, dkdv_splits=None) -> launches.Backward:
    """The launches for q and k of these layouts, in tiles of 32 queries and 16 keys."""
    c, of_q, of_k = Config(32, 16, 4, 1), shape_and_strides(q), shape_and_strides(k)
    return launches.backward_launches(
        "half", q.dtype, q.device, c, c, dkdv_splits, None, None, causal, 1.0,
        of_q, of_k, of_k, of_q, of_q, of_q, of_k, of_k,
    )  # fmt: skip


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_steps_are_dealt_to_splits_on_from_head_to_head(causal, device):
    """Three heads of three steps each for four splits: with each probability one, dv of
    a split counts its rows.
    """
    q, k = (torch.zeros(1, h, 96, 16, device=device) for h in (3, 1))
    statistics = torch.zeros(1, 3, 96, 2, device=device)
    dk, dv = torch.empty(2, 4, 1, 1, 96, 16, device=device)
    plan = backward_plan(q, k, causal, dkdv_splits=4)
    plan.dkdv(q, k, k, torch.ones_like(q), statistics, dk, dv)
    # Of the first key, which every row sees.
    rows = dv[:, 0, 0, 0, 0]
    assert rows.sum() == 3 * 96 and rows.max() - rows.min() == 32


def test_the_loop_of_dk_and_dv_is_as_long_as_all_heads_of_a_group(monkeypatch):
    """Four heads on one of k and v are split as one head that is four times as long."""
    monkeypatch.setattr(configs, "count_sms", lambda device: 132)

    def splits(heads: int, n_q: int) -> int:
        q, k = (
            torch.empty(1, h, n, 16, device="meta") for h, n in ((heads, n_q), (1, 64))
        )
        return backward_plan(q, k).dkdv.constants["SPLITS"]

    assert splits(4, 512) == splits(1, 2048) > splits(1, 512) > 1


@pytest.mark.parametrize("head_swizzle", [1, 2, 3, 5, 9])
def test_each_head_has_all_its_tiles_in_any_order(head_swizzle, device):
    """Groups of heads that run together, the last of them smaller, and more than there
    are.
    """
    q, k, v, do = inputs = make_inputs(97, 130, 16, device=device, lead=(5,))
    o, lse = launch_forward(q, k, v, True, 0.25, head_swizzle=head_swizzle)
    outputs = (
        o,
        lse,
        *launch_backward(do, q, k, v, o, lse, True, 0.25, head_swizzle=head_swizzle),
    )
    check_against_reference(dict(zip(NAMES, outputs, strict=True)), *inputs, True, 0.25)


def test_float32_is_as_exact_as_torch_is_told(precision, device):
    inputs = make_inputs(97, 97, 64, torch.float32, device)
    exact = run_reference(*inputs, True)
    errors = {}
    for setting in ("highest", "high", "medium"):
        precision(setting)
        actual = run_class(FlashAttentionTriton, *inputs, True)
        errors[setting] = max(worst(actual[name], exact[name]) for name in NAMES)
    assert errors["highest"] < 1e-5 and errors["high"] == errors["medium"] < 2e-4
    # The interpreter multiplies as float32 whatever it is told.
    assert device == "cpu" or errors["highest"] < errors["high"]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d", [16, 64, 80])
def test_high_precision_keeps_sixteen_bits(precision, d, causal, device):
    inputs = make_inputs(97, 130, d, torch.float32, device)
    precision("high")
    actual = run_class(FlashAttentionTriton, *inputs, causal)
    precision("highest")
    check_against_reference(actual, *inputs, causal, split=True)


@pytest.mark.parametrize("limbs", [2, 3])
def test_limbs_are_the_nearest_to_what_is_left(limbs, device):
    """Three are all of a float32."""
    x = torch.randn(512, device=device) * torch.logspace(-6, 4, 512, device=device)
    found, whole = (
        torch.empty(limbs, 512, device=device),
        torch.empty(512, device=device),
    )
    options = {"LIMBS": limbs, "enable_fp_fusion": True}
    limbs_kernel[(1,)](x, found, whole, n=512, **options)  # pyright: ignore
    left = x
    for limb in found:
        assert torch.equal(limb, left.bfloat16().float())
        left = left - limb
    assert torch.equal(whole, x - left)
    assert (
        left.abs().max() == 0
        if limbs == 3
        else ((left.abs() <= 2**-17 * x.abs()).all() and left.any())
    )


@parametrize_pairs(
    setting=["high", "highest"],
    ahead=[(True, True, True), (True, True, False), (False, False, True)],
    splits=[1, 3],
    causal=MASKS,
)
def test_float32_split_ahead(
    precision, setting, ahead, splits, causal, device, monkeypatch
):
    """By each kernel or only by some; heads that share keys, in rows that lie apart,
    with padded columns.
    """
    # The measure of "high" knows no heads that share keys.
    shared = (1, 1) if setting == "highest" else None
    q, k, v, do = make_inputs(65, 97, 40, device=device, lead=(1, 2), lead_k=shared)
    k, do = k.mT.contiguous().mT, do[..., :1, :].expand_as(do)
    forward, dkdv, dq = (Config(32, 32, 4, 1, ahead=each) for each in ahead)
    precision(setting)
    done, as_limbs = [], launches.split_into_limbs
    monkeypatch.setattr(
        launches, "split_into_limbs", lambda *x: done.append(len(x) - 1) or as_limbs(*x)
    )
    o, lse = launch_forward(q, k, v, causal, 0.25, forward, splits)
    outputs = (
        o,
        lse,
        *launch_backward(do, q, k, v, o, lse, causal, 0.25, dkdv, dq, splits, splits),
    )
    precision("highest")
    # q, k and v once for the forward kernel; with do once for the backward kernels, one
    # or both.
    assert done == [3] * ahead[0] + [4]
    actual = dict(zip(NAMES, outputs, strict=True))
    check_against_reference(actual, q, k, v, do, causal, 0.25, split=setting == "high")


@parametrize_pairs(
    kind=[(torch.bfloat16, False), (torch.float32, False), (torch.float32, True)],
    anew=["addresses", "tiles"],
    splits=[1, 2],
    causal=MASKS,
)
def test_what_a_step_works_out_anew_is_what_it_would_keep(
    kind, anew, splits, causal, device
):
    """Bit by bit: heads that share keys, rows of q and do that lie differently far
    apart, a ragged end, padded columns.
    """
    dtype, ahead = kind
    q, k, v, do = make_inputs(
        65, 50, 20, dtype, device, lead=(1, 2), lead_k=(1, 1), sigma=2.0
    )
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    o, lse = launch_forward(q, k, v, causal, 0.25)
    dq, dkdv = (Config(*tile, 4, 1, ahead=ahead) for tile in ((16, 32), (32, 16)))
    kept, found = (
        launch_backward(
            do, q, k, v, o, lse, causal, 0.25, dkdv._replace(recompute=which),
            dq._replace(recompute=which), splits, splits,
        )
        for which in ("", anew)
    )  # fmt: skip
    assert all(map(torch.equal, found, kept)) and all(x.any() for x in found)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_float64_tiles_are_exact(causal):
    check(FlashAttentionPyTorch, make_inputs(130, 97, 24, torch.float64), causal)


@compiles_cpp
@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_compiled_recomputation_is_right(causal):
    """With scores so large that exp of a masked one overflows."""
    inputs = make_inputs(33, 33, 16, lead=(2,), sigma=60.0)
    expected = run_reference(*inputs, causal, dtype=torch.float32)
    q, k, v, do = inputs
    found = recompute_backward(q, k, v, expected["o"], expected["lse"], do, causal)
    for name, gradient in zip(("dq", "dk", "dv"), found, strict=True):
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-3)
    half = [x.bfloat16() for x in (q, k, v, expected["o"], do)]
    found = recompute_backward(*half[:4], expected["lse"], half[4], causal)
    assert all(gradient.dtype == torch.bfloat16 for gradient in found)


def test_the_oracle_is_plain_attention():
    """The oracle itself, row by row from the definition."""
    q, k, v, do = make_inputs(5, 4, 3, torch.float64)
    result = run_reference(q, k, v, do, causal=True)
    for i in range(5):
        scores = (k[0, : i + 1] @ q[0, i]) / 3**0.5
        weights = torch.exp(scores) / torch.exp(scores).sum()
        assert torch.allclose(result["o"][0, i], weights @ v[0, : i + 1], atol=1e-12)
        assert torch.allclose(
            result["lse"][0, i], torch.log(torch.exp(scores).sum()), atol=1e-12
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rounding_is_to_the_nearest(dtype, device):
    """Ties go to even, as on a GPU: the interpreter alone would truncate bfloat16."""
    x = torch.randn(512, device=device) * torch.logspace(-6, 4, 512, device=device)
    x[:8] = torch.tensor(
        [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 2 - 2**-9, 0.5, -3.0, 1.0, 65000.0]
    )
    y = torch.empty(512, dtype=dtype, device=device)
    launch = narrow_kernel[(1,)]
    launch(x, y, n=512, enable_fp_fusion=True)  # pyright: ignore[reportArgumentType]
    assert torch.equal(y, x.to(dtype))
