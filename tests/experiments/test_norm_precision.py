"""Stages of norms: right in float64, rounded where they say, and marked where a format
gives out.
"""

import pytest
import torch

from systems.experiments import norm_precision
from systems.experiments.norm_precision import MAGNITUDES, Config, running_mean, stages
from systems.records.outcome import measure_row
from systems.records.record import Row
from tests.factories import make_record
from tools.render.stems import norm_precision as builder

X = torch.randn(
    2, 3, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64
)


pytestmark = pytest.mark.usefixtures("on_cpu")


@pytest.mark.parametrize("running", [True, False])
def test_in_float64_the_output_is_that_of_pytorch(running):
    layer = torch.nn.functional.layer_norm(X, (50,), eps=norm_precision.EPS)
    rms = torch.nn.functional.rms_norm(X, (50,), eps=norm_precision.EPS)
    torch.testing.assert_close(stages(X, "layer", running)["output"], layer)
    torch.testing.assert_close(stages(X, "rms", running)["output"], rms)
    assert "mean" not in stages(X, "rms", running)


@pytest.mark.parametrize("dtype", norm_precision.DTYPES.values(), ids=str)
def test_a_running_mean_rounds_after_each_addition(dtype):
    x = (X + 1).to(dtype)
    total = torch.zeros(2, 3, 1, dtype=dtype)
    for i in range(50):
        total = total + x[..., i : i + 1]
    assert torch.equal(running_mean(x, -1, True), total / 50)
    # A thousand ones in bf16 stall at 256.
    assert running_mean(
        torch.ones(1, 1, 1000, dtype=torch.bfloat16), -1, True
    ).item() == pytest.approx(0.256, rel=4e-3)


@pytest.mark.parametrize(
    "config",
    [*norm_precision.configs()[:11], *norm_precision.configs()[55:66]],
    ids=str,
)
def test_each_stage_is_in_the_dtype_that_the_configuration_says(config):
    x = torch.ones(1, 2, config.width, dtype=norm_precision.DTYPES[config.dtype])
    found = norm_precision.computed(x, config)
    assert found["output"].dtype == x.dtype
    inner = {value.dtype for name, value in found.items() if name != "output"}
    assert inner == {"fused": set(), "upcast": {torch.float32}}.get(
        config.compute, {x.dtype}
    )


def row(norm: str, dtype: str, width: int, compute: str) -> Row:
    return measure_row(Config(norm, dtype, width, compute), norm_precision.run)


def test_in_fp16_the_square_overflows_and_the_root_does_not_underflow():
    fp16 = row("rms", "fp16", 64, "library")
    at = MAGNITUDES.index(1e3)
    assert [
        builder.mark(fp16, stage, at)
        for stage in ("square", "variance", "rsqrt", "output")
    ] == [
        "∞",
        "∞",
        "=0",
        "=0",
    ]
    # The root of the true mean square is about a thousandth, an ordinary number of the
    # format.
    root = torch.rsqrt(torch.tensor(2e6)).half()
    assert root > torch.finfo(torch.float16).smallest_normal
    # Computed in fp32 inside, the same inputs give an output as good as any.
    for compute in ("upcast", "fused"):
        assert builder.mark(row("rms", "fp16", 64, compute), "output", at) == "-4"


def test_at_the_lower_end_eps_hides_what_vanished():
    fp16 = row("rms", "fp16", 64, "library")
    assert (
        builder.mark(fp16, "square", 0) == "=0"
        and fp16.metrics["output_error"][0] < 1e-3
    )


def test_bf16_overflows_nowhere_and_a_sum_in_it_is_wrong():
    errors = {}
    for compute in ("running", "library", "upcast"):
        bf16 = row("layer", "bf16", 1024, compute)
        assert not any(bf16.metrics["square_nonfinite"]) and not any(
            bf16.metrics["output_nonfinite"]
        )
        errors[compute] = builder.error_at_one(bf16, "output")
    assert (
        errors["running"] > 30 * errors["library"] > 30 * errors["upcast"] > 30 * 1e-3
    )


def test_inputs_that_do_not_fit_are_counted():
    fp16 = row("rms", "fp16", 64, "library")
    assert fp16.metrics["input_nonfinite"][-1] > 0.3
    assert {
        builder.mark(fp16, stage, -1)
        for stage in ("square", "variance", "eps", "rsqrt", "output")
    } == {"∞"}
    assert row("rms", "bf16", 64, "library").metrics["input_nonfinite"] == [0] * 10


def test_marks():
    metrics = {
        "x_error": [None, 1.0, 0.02, 0.0],
        "x_nonfinite": [0.1, 0, 0, 0],
        "x_zero": [0, 1.0, 0.4, 0],
        "input_nonfinite": [0, 0, 0, 0],
    }
    assert [builder.mark(Row({}, "ok", metrics), "x", i) for i in range(4)] == [
        "∞",
        "=0",
        "-2",
        "exact",
    ]
    assert (
        builder.darkness("∞")
        == builder.darkness("=0")
        == 1
        == builder.darkness("0")
        > builder.darkness("-3")
        > builder.darkness("exact")
        == 0
    )


def test_the_facts_name_the_first_magnitude_that_fails():
    rows = [row("layer", dtype, builder.WIDTH, "library") for dtype in ("fp16", "bf16")]
    facts = builder.facts(make_record("norm_precision", *rows))
    assert facts["fp16_square_overflows"] == facts["fp16_output_zero"] == "100"
    assert (
        facts["bf16_square_overflows"] == "none"
        and facts["bf16_running"] == "not measured"
    )
