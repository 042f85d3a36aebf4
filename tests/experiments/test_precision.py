"""Test dtypes under autocast, and compare running sums with exact sums of integers."""

from dataclasses import asdict
from fractions import Fraction

import pytest
import torch

from systems.benchmarking import timing
from systems.experiments import accumulation, autocast
from systems.experiments.autocast import Config
from systems.precision.number_formats import FORMATS, find_stall
from systems.records.outcome import measure_row
from tests.cpu_allocator import cuda_autocast
from tests.factories import make_gpu, make_record, read_record
from tools.render.stems import accumulation as builder

LOW = "the dtype of autocast"


def expected_dtypes(low: str, fp32: str) -> dict[str, str]:
    return dict.fromkeys(low.split(), LOW) | dict.fromkeys(fp32.split(), "fp32")


TOY = expected_dtypes(
    low="fc1 relu logits logits_gradient fc1_output_gradient",
    fp32="parameters ln loss gradients optimizer_state optimizer_update",
)
TRANSFORMER = expected_dtypes(
    low=(
        "q_projection scores softmax_max softmax_subtract weighted_values attention "
        "swiglu_gate swiglu_sigmoid swiglu_product swiglu logits logits_gradient"
    ),
    fp32=(
        "parameters embedding rmsnorm_square rmsnorm_rsqrt rmsnorm rotary softmax_exp "
        "softmax_sum softmax_divide residual loss gradients optimizer_state "
        "optimizer_update"
    ),
)
# On a CPU, autocast runs fewer operations in fp32: these keep their input's dtype.
CPU_LEAVES = {"ln", "softmax_exp", "softmax_sum", "softmax_divide"}


# Test the CPU, the H200's record and, if there is one, this machine's GPU.
EVERYWHERE = pytest.mark.parametrize(
    "device", ["cpu", "record", pytest.param("cuda", marks=pytest.mark.gpu)]
)


def measured_dtypes(config: Config, device: str, monkeypatch) -> dict:
    if device == "record":
        row = read_record("autocast").row(asdict(config))
        assert row is not None and row.status == "ok"
        return row.metrics
    monkeypatch.setattr(timing, "default_device", lambda: device)
    return autocast.run(config)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("part", ["toy", "transformer"])
@EVERYWHERE
def test_model_parts_have_the_expected_dtypes(part, dtype, device, monkeypatch):
    found = measured_dtypes(Config(part, dtype), device, monkeypatch)
    expected = {"toy": TOY, "transformer": TRANSFORMER}[part]
    for name, text in expected.items():
        low = text == LOW or (device == "cpu" and name in CPU_LEAVES)
        assert found[name] == (dtype if low else text), name
    assert found.keys() - expected.keys() <= {"forward_operations", "forward_casts"}


# Operations by list in PyTorch's documentation of autocast on CUDA.
LISTS = {
    "lower": "matmul bmm addmm einsum linear scaled_dot_product_attention",
    "wide": "exp log pow rsqrt reciprocal softmax log_softmax sum cumsum norm softplus "
    "layer_norm cross_entropy mse_loss",
    "promote": "addcmul atan2 dot cross scatter_add",
}


def test_operations_follow_autocast_lists_of_pytorch(monkeypatch):
    found = measured_dtypes(Config("operations", "bf16"), "record", monkeypatch)
    wanted = {"lower": ["bf16"] * 3, "wide": ["fp32"] * 3}
    wanted["promote"] = ["bf16", "fp32", "fp32"]
    for kind, names in LISTS.items():
        for name in names.split():
            assert found[name][:3] == wanted[kind], name


def test_autocast_adds_only_casts(use_cpu):
    plain, cast = (autocast.run(Config("transformer", t)) for t in ("fp32", "bf16"))
    assert plain["forward_casts"] == 0
    others = cast["forward_operations"] - cast["forward_casts"]
    assert others == plain["forward_operations"]
    # Each layer casts seven matrices and most of their inputs; the head casts one.
    assert cast["forward_casts"] >= 12 * 7 + 1


def test_cuda_autocast_fixture_equals_a_gpu(use_cpu, monkeypatch):
    config = Config("transformer", "bf16")
    row = read_record("autocast").row(asdict(config))
    assert row is not None
    with cuda_autocast(monkeypatch):
        assert autocast.run(config) == row.metrics
    assert autocast.run(config) != row.metrics


def rounded_sums(config: accumulation.Config) -> list[Fraction]:
    """Return the accumulator after every step, rounded in rational arithmetic."""
    add_to = FORMATS[config.accumulator]
    term = FORMATS[config.value].round_to_nearest(Fraction(str(config.term)))
    sums = [term]
    while len(sums) < config.steps:
        sums.append(add_to.round_to_nearest(sums[-1] + term))
    return sums


@pytest.mark.parametrize("config", accumulation.configs(), ids=str)
def test_every_sum_is_exact_and_stalls_where_predicted(config):
    expected = rounded_sums(config)
    found = [Fraction(s) for s in accumulation.running_sums(config, "cpu").tolist()]
    assert found == expected
    step, total = find_stall(FORMATS[config.accumulator], expected[0])
    last = max(i + 1 for i, x in enumerate(expected) if not i or x != expected[i - 1])
    sums = torch.tensor([float(s) for s in expected])
    assert accumulation.last_changing_step(sums) == last == min(step, config.steps)
    if step <= config.steps:
        assert expected[-1] == total


def test_record_of_the_h200_agrees_bitwise():
    measured = read_record("accumulation")
    for config in accumulation.configs():
        row = measured.row(asdict(config))
        assert row is not None and row.metrics["device"] == "cuda"
        assert row.metrics["differing_steps"] == 0
        assert Fraction(row.metrics["device_result"]) == rounded_sums(config)[-1]


def test_short_sums_on_a_cpu_decide_no_claim_and_no_answer():
    record = read_record("accumulation")
    for row in record.rows:
        row.metrics["device"], row.config["steps"] = "cpu", 500
    assert builder.sums_follow_from_formats.judge(record) == []
    assert builder.facts(record)["agreeing"] == "not measured"
    assert builder.facts(record)["fp16_in_fp16"] == "not measured"


def test_a_difference_between_devices_is_counted(monkeypatch):
    sums = {"cpu": [1.0, 2.0, 3.0], "other": [1.0, 2.5, 3.0]}
    monkeypatch.setattr(
        accumulation, "running_sums", lambda _, d: torch.tensor(sums[d])
    )
    monkeypatch.setattr(timing, "default_device", lambda: "other")
    row = accumulation.run(accumulation.Config(steps=3))
    assert row["differing_steps"] == 1 and row["last_change"] == 3


def test_errors_of_term_and_addition_add_up():
    rows = [measure_row(c, accumulation.run) for c in accumulation.configs()]
    found = builder.sums(make_record("accumulation", *rows, device=make_gpu()))
    for x in found:
        total = Fraction(x["device_result"])
        assert x["of_term"] + x["of_adding"] == x["error"]
        assert total - Fraction(str(x["term"])) * x["steps"] == x["error"]
    # In fp32, these sums of 16-bit terms are exact.
    assert found.one(name="fp16_in_fp32")["of_adding"] == 0
    assert found.one(name="bf16_in_fp32")["of_adding"] == 0
    assert found.one(name="fp32_in_fp32")["of_adding"] != 0
