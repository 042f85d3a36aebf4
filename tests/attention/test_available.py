"""Test which kernels run on a GPU, and how setup check and log give the reason."""

import re
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from systems.attention import dispatch
from systems.attention.dispatch import choose_backend
from systems.attention.hopper import limits
from systems.attention.triton import available
from systems.attention.triton.available import check_device, describe_kernels
from systems.attention.triton.primitives import INTERPRETED
from systems.check_setup import attention_status
from tests.attention.checks import FakeGpuTensor, fake_tensor

LARGE = (1, 16, 16384, 64)
GPU = torch.device("cuda:0")


@pytest.fixture
def fake_gpu(monkeypatch):
    """Return a function that simulates a GPU and a Triton version, without caches."""

    def simulate(
        capability: tuple[int, int],
        version: str,
        interpreted: bool = False,
        timed: int = 0,
    ):
        device = torch.cuda
        monkeypatch.setattr(device, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(limits.triton, "__version__", version)
        monkeypatch.setattr(limits.knobs.runtime, "interpret", interpreted)
        flag = SimpleNamespace(value=interpreted)
        monkeypatch.setattr(available, "INTERPRETED", flag)
        owned = dict.fromkeys(range(timed))
        monkeypatch.setattr(available, "load_tuned", lambda _: owned)
        for name in ("missing_on_device", "required_triton"):
            known = getattr(limits, name).__wrapped__
            monkeypatch.setattr(limits, name, known)
        look = cache(check_device.__wrapped__)
        monkeypatch.setattr(dispatch, "check_device", look)
        monkeypatch.setattr(available, "LOGGED_KINDS", set())
        return look

    return simulate


def auto_backend(*shape: int, **options) -> str:
    x = fake_tensor(*shape, **options)
    return choose_backend("auto", x, x, x)


def test_slower_backend_is_logged_once(fake_gpu, caplog):
    fake_gpu((9, 0), "3.10.0")
    auto_backend(*LARGE, dtype=torch.float32)
    auto_backend(1, 16, 16384, 32)
    auto_backend(1, 1, 64, 64)
    assert not caplog.messages, "other kernels would not run there anyway"
    assert auto_backend(*LARGE) == auto_backend(1, 16, 16384, 128) == "triton"
    (text,) = caplog.messages
    assert "slower than this GPU allows: hopper needs Triton 3.6, " in text
    assert text.endswith("found 3.10.0")


def test_inputs_unreadable_by_tma_are_logged_once(fake_gpu, caplog):
    """Small inputs cause no message: they never run on the Hopper kernels."""
    fake_gpu((9, 0), "3.6.0")
    for gap in (1, 3):
        wide = torch.empty(1, 16, 16384, 64 + gap, dtype=torch.bfloat16, device="meta")
        gappy = FakeGpuTensor(wide[..., :64])
        few = FakeGpuTensor(wide[:, :1, :8, :64])
        assert choose_backend("auto", few, few, few) == "triton"
        assert len(caplog.messages) == (gap == 3)
        assert choose_backend("auto", gappy, gappy, gappy) == "triton"
    (text,) = caplog.messages
    assert "hopper needs rows without gaps" in text and "(17039360, " in text


@pytest.mark.parametrize(
    ("capability", "version", "best"),
    [((9, 0), "3.6.0", "hopper"), ((8, 0), "3.8.0", "triton")],
)
def test_fastest_backend_logs_nothing(capability, version, best, fake_gpu, caplog):
    look = fake_gpu(capability, version, timed=3)
    look(GPU)
    assert auto_backend(*LARGE) == best and not caplog.messages


def test_untimed_config_table_is_logged_once(fake_gpu, caplog):
    look = fake_gpu((8, 0), "3.8.0")
    for _ in range(2):
        look(GPU)
        look(torch.device("cuda:1"))
    (text,) = caplog.messages
    assert "the A100, compiled and not timed: python tools/tune_flash.py" in text


@pytest.mark.parametrize("capability", [(7, 5), (7, 0)])
def test_gpus_older_than_the_a100_are_rejected(capability, fake_gpu):
    look, found = fake_gpu(capability, "3.8.0"), ".".join(map(str, capability))
    text = f"needs a GPU of compute capability 8.0 or later, found {found}"
    assert attention_status("cuda:0")["triton"] == text
    for _ in range(2):
        with pytest.raises(ValueError, match=f"^triton: {re.escape(text)}$"):
            look(GPU)


def test_both_launch_paths_check_the_device(device, monkeypatch):
    looked = []
    monkeypatch.setattr(dispatch, "check_device", looked.append)
    x = torch.zeros(1, 16, 16, device=device)
    dispatch.attention(x, x, x)
    dispatch.attention(x.requires_grad_(), x, x)
    dispatch.attention(x.mT.contiguous().mT.detach(), x.detach(), x.detach())
    assert looked == [x.device] * 3
    assert check_device.__wrapped__(torch.device("cpu")) is None


KERNELS = {
    ((9, 0), "3.6.0"): ("runs, for large inputs", "configurations of Hopper"),
    ((9, 0), "3.10.0"): ("needs Triton 3.6, ", "configurations of Hopper"),
    ((8, 0), "3.6.0"): ("needs a GPU of compute capability 9.0", "of the A100"),
    ((8, 6), "3.6.0"): ("needs a GPU of compute capability 9.0", "of GPUs with 99 KiB"),
    ((10, 0), "3.8.0"): ("found 10.0", "of the B200"),
    ((9, 0), "3.6.0", True): ("needs a compiler, found the interp", "runs, in the int"),
    ((8, 0), "3.6.0", False, 7): ("found 8.0", "of the A100, 7 of them timed here"),
}


@pytest.mark.parametrize("machine", KERNELS, ids=str)
def test_setup_check_names_kernels_and_reasons(machine, fake_gpu):
    """The setup check and the error of backend="hopper" give the same reason."""
    fake_gpu(*machine)
    status, (hopper_says, triton_says) = attention_status("cuda:0"), KERNELS[machine]
    assert list(status) == ["hopper", "triton"]
    assert hopper_says in status["hopper"] and triton_says in status["triton"]
    x = fake_tensor(*LARGE)
    assert status["hopper"].startswith("runs") == (auto_backend(*LARGE) == "hopper")
    if status["hopper"].startswith("needs"):
        with pytest.raises(ValueError, match=re.escape(f"hopper: {status['hopper']}")):
            choose_backend("hopper", x, x, x)


def test_setup_check_finds_no_kernels_on_a_cpu(monkeypatch):
    assert "interpreter" in attention_status("cpu")["triton"] or not INTERPRETED.value
    monkeypatch.setattr(available, "INTERPRETED", SimpleNamespace(value=False))
    for text in describe_kernels(torch.device("cpu")).values():
        assert text.startswith("needs a CUDA GPU, found cpu")
