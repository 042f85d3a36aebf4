"""Test a norm's intermediate results: values, rounding and marks of overflow."""

import pytest
import torch

from systems.experiments import norm_precision
from systems.experiments.norm_precision import MAGNITUDES, Config, running_mean, stages
from systems.records.outcome import measure_row
from tools.render.frame import Line
from tools.render.stems import norm_precision as builder

SEED = torch.Generator().manual_seed(0)
X = torch.randn(2, 3, 50, generator=SEED, dtype=torch.float64)

pytestmark = pytest.mark.usefixtures("use_cpu")


@pytest.mark.parametrize("running", [True, False])
def test_float64_output_equals_pytorch(running):
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
    # In bf16, a sum of ones stalls at 256.
    ones = torch.ones(1, 1, 1000, dtype=torch.bfloat16)
    assert running_mean(ones, -1, True).item() == pytest.approx(0.256, rel=4e-3)


@pytest.mark.parametrize(
    "config",
    [*norm_precision.configs()[:11], *norm_precision.configs()[55:66]],
    ids=str,
)
def test_intermediate_dtypes_follow_the_configuration(config):
    x = torch.ones(1, 2, config.width, dtype=norm_precision.DTYPES[config.dtype])
    found = norm_precision.apply_norm(x, config)
    assert found["output"].dtype == x.dtype
    inner = {value.dtype for name, value in found.items() if name != "output"}
    expected = {"fused": set(), "upcast": {torch.float32}}
    assert inner == expected.get(config.compute, {x.dtype})


def measure_norm(norm: str, dtype: str, width: int, compute: str) -> Line:
    config = Config(norm, dtype, width, compute)
    return Line.from_row(measure_row(config, norm_precision.run))


def test_fp16_squares_overflow():
    fp16 = measure_norm("rms", "fp16", 64, "library")
    at = MAGNITUDES.index(1e3)
    stages = ("square", "variance", "rsqrt", "output")
    found = [builder.error_labels(fp16, stage)[at] for stage in stages]
    assert found == ["∞", "∞", "=0", "=0"]
    # The inverse root of the exact mean square is a normal fp16 number.
    root = torch.rsqrt(torch.tensor(2e6)).half()
    assert root > torch.finfo(torch.float16).smallest_normal
    # Norms that compute in fp32 internally give an accurate output.
    for compute in ("upcast", "fused"):
        found = builder.error_labels(measure_norm("rms", "fp16", 64, compute), "output")
        assert found[at] == "-4"


def test_eps_hides_underflow_of_fp16_squares():
    fp16 = measure_norm("rms", "fp16", 64, "library")
    assert builder.error_labels(fp16, "square")[0] == "=0"
    assert fp16["output_error"][0] < 1e-3


def test_bf16_never_overflows_but_sums_are_inexact():
    errors = {}
    for compute in ("running", "library", "upcast"):
        bf16 = measure_norm("layer", "bf16", 1024, compute)
        assert not any(bf16["square_nonfinite"]) and not any(bf16["output_nonfinite"])
        errors[compute] = builder.output_error(bf16)
    assert errors["running"] > 30 * errors["library"]
    assert errors["library"] > errors["upcast"] > 1e-3


def test_inputs_that_overflow_are_counted():
    fp16 = measure_norm("rms", "fp16", 64, "library")
    assert fp16["input_nonfinite"][-1] > 0.3
    stages = ("square", "variance", "eps", "rsqrt", "output")
    assert {builder.error_labels(fp16, stage)[-1] for stage in stages} == {"∞"}
    assert measure_norm("rms", "bf16", 64, "library")["input_nonfinite"] == [0] * 10
