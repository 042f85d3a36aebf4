"""Test every dtype that `autocast` records, on a GPU and on a CPU."""

from dataclasses import asdict

import pytest

from systems.benchmarking import timing
from systems.experiments import autocast
from systems.experiments.autocast import Config
from tests.cpu_allocator import cuda_autocast
from tests.factories import read_record

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
