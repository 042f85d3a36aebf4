"""Test which kernels run on a GPU, with which launch configurations, or why not."""

import re
from functools import cache
from itertools import pairwise, product
from types import SimpleNamespace

import pytest
import torch

from systems.attention import dispatch
from systems.attention.hopper import limits
from systems.attention.relaunch import Layout
from systems.attention.triton import available, chooser, configs, launches
from systems.attention.triton.chooser import choose_config, select_by_mask
from systems.attention.triton.configs import choose_head_swizzle
from systems.attention.triton.primitives import INTERPRETED
from systems.attention.triton.tables import CONFIGS, FEW_ROWS
from systems.attention.triton.tuned import HEAD_DIMS, KERNELS
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
        known = limits.missing_on_device.__wrapped__
        monkeypatch.setattr(limits, "missing_on_device", known)
        look = cache(available.check_device.__wrapped__)
        monkeypatch.setattr(dispatch, "check_device", look)
        monkeypatch.setattr(available, "LOGGED_KINDS", set())
        return look

    return simulate


def auto_backend(*shape: int, **options) -> str:
    x = fake_tensor(*shape, **options)
    return dispatch.choose_backend("auto", x, x, x)


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
        assert dispatch.choose_backend("auto", few, few, few) == "triton"
        assert len(caplog.messages) == (gap == 3)
        assert dispatch.choose_backend("auto", gappy, gappy, gappy) == "triton"
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
    assert available.check_device.__wrapped__(torch.device("cpu")) is None


REASONS = {
    ((9, 0), "3.6.0"): ("runs, for large inputs", "configurations of Hopper"),
    ((9, 0), "3.10.0"): ("needs Triton 3.6, ", "configurations of Hopper"),
    ((8, 0), "3.6.0"): ("needs a GPU of compute capability 9.0", "of the A100"),
    ((8, 6), "3.6.0"): ("needs a GPU of compute capability 9.0", "of GPUs with 99 KiB"),
    ((10, 0), "3.8.0"): ("found 10.0", "of the B200"),
    ((9, 0), "3.6.0", True): ("needs a compiler, found the interp", "runs, in the int"),
    ((8, 0), "3.6.0", False, 7): ("found 8.0", "of the A100, 7 of them timed here"),
}


@pytest.mark.parametrize("machine", REASONS, ids=str)
def test_setup_check_names_kernels_and_reasons(machine, fake_gpu):
    """The setup check and the error of backend="hopper" give the same reason."""
    fake_gpu(*machine)
    status, (hopper_says, triton_says) = attention_status("cuda:0"), REASONS[machine]
    assert list(status) == ["hopper", "triton"]
    assert hopper_says in status["hopper"] and triton_says in status["triton"]
    x = fake_tensor(*LARGE)
    assert status["hopper"].startswith("runs") == (auto_backend(*LARGE) == "hopper")
    if status["hopper"].startswith("needs"):
        with pytest.raises(ValueError, match=re.escape(f"hopper: {status['hopper']}")):
            dispatch.choose_backend("hopper", x, x, x)


def test_setup_check_finds_no_kernels_on_a_cpu(monkeypatch):
    assert "interpreter" in attention_status("cpu")["triton"] or not INTERPRETED.value
    monkeypatch.setattr(available, "INTERPRETED", SimpleNamespace(value=False))
    for text in available.describe_kernels(torch.device("cpu")).values():
        assert text.startswith("needs a CUDA GPU, found cpu")


@pytest.fixture(autouse=True)
def ignore_tuned(monkeypatch):
    """Ignore configurations tuned on this machine."""
    monkeypatch.setattr(chooser, "load_tuned", lambda device: {})


def test_config_table_is_complete():
    for arch, by_arithmetic in CONFIGS.items():
        assert set(by_arithmetic) == set(launches.LIMBS), arch
        for by_kernel in by_arithmetic.values():
            assert set(by_kernel) == set(KERNELS)
            for by_d in by_kernel.values():
                assert set(by_d) == set(HEAD_DIMS)
                for entry in by_d.values():
                    for config in (select_by_mask(entry, c) for c in (True, False)):
                        assert {config.q, config.k} <= {16, 32, 64, 128, 256}
                        assert config.warps in (4, 8) and config.stages >= 1


@pytest.mark.parametrize(
    ("shape", "strides", "unit"),
    [
        ((2, 3, 5, 40), (600, 200, 40, 1), 8),
        # Triton itself checks divisibility by 16.
        ((2, 4, 8, 48), (1536, 384, 48, 1), 1),
        ((2, 3, 5, 40), (3 * 5 * 41, 5 * 41, 41, 1), 1),
        # With a batch of one, the stride of the batch does not matter.
        ((1, 3, 5, 40), (7, 200, 40, 1), 8),
        ((1, 1, 1, 40), (7, 7, 7, 1), 1),
    ],
)
def test_stride_divisor_is_eight_or_one(shape, strides, unit):
    assert launches.find_stride_divisor(Layout(shape, strides)) == unit
    other = Layout((2, 4, 8, 16), (512, 128, 16, 1))
    assert launches.find_stride_divisor(other, Layout(shape, strides)) == unit


def test_every_gpu_has_configurations():
    named = {
        "sm_80": [(8, 0)],
        "sm_86": [(7, 5), (8, 6), (8, 7), (8, 9), (11, 0), (13, 0)],
        "sm_90": [(9, 0)],
        "sm_100": [(10, 0), (10, 3)],
        "sm_120": [(12, 0), (12, 1)],
    }
    for name, capabilities in named.items():
        assert {chooser.table_name(c) for c in capabilities} == {name}
    assert set(CONFIGS) == set(FEW_ROWS) == set(available.TABLES) == set(named)


def test_head_dimensions_are_padded_to_powers_of_two():
    dims = [chooser.pad_head_dim(d) for d in (1, 16, 17, 64, 80, 129, 256)]
    assert dims == [16, 16, 32, 64, 128, 256, 256]


def test_few_rows_use_their_own_configs_if_any(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for kind, tiers in FEW_ROWS["sm_90"].items():
        most = [few.most_rows for few in tiers]
        assert most == sorted(set(most))
        for kernel, d, causal in product(KERNELS, HEAD_DIMS, (False, True)):

            def choose(rows, of=(kernel, d, kind, causal)):
                return choose_config(*of, rows, GPU)

            table = select_by_mask(CONFIGS["sm_90"][kind][kernel][d], causal)
            few = [(f.most_rows, f.configs[kernel]) for f in tiers]
            entries = [(n, select_by_mask(c[d], causal)) for n, c in few if d in c]
            for (rows, config), (_, larger) in pairwise([*entries, (0, table)]):
                assert choose(rows) == config
                assert choose(rows + 1) == larger
                assert causal or larger != config
            assert entries or choose(1) == table
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    many = select_by_mask(CONFIGS["sm_80"]["highest"]["dq"][128], causal=True)
    assert choose_config("dq", 128, "highest", True, 1, GPU) == many
    assert not choose_config("dq", 64, "highest", True, 2048, GPU).ahead
    assert choose_config("dq", 64, "highest", True, 2049, GPU).ahead


def test_loops_of_few_tiles_are_split(monkeypatch):
    """Loops are split until 132 SMs have enough warps, or each split has one step."""
    monkeypatch.setattr(configs, "count_sms", lambda device: 132)

    def set_rules(*of: configs.SplitRule) -> None:
        monkeypatch.setitem(configs.SPLIT_RULES, "half", of)

    set_rules(configs.SplitRule(warps=4, least_rows=100))

    def splits(programs: int, n: int, warps: int = 4, rows: int = 64) -> int:
        return configs.count_splits(programs, warps, n, rows, "half", GPU)

    found = [splits(programs, 4096) for programs in (1, 8, 9, 33, 34, 66, 67, 1024)]
    assert found == [16, 16, 8, 4, 2, 2, 1, 1]
    assert splits(33, 4096, warps=8) == 2 and splits(1, 4096, rows=1024) == 4
    assert splits(1, 400) == 4 > splits(1, 399) == 2
    set_rules(configs.SplitRule(4, 100, least_splits=4))
    assert [splits(programs, 4096) for programs in (9, 33, 34, 66)] == [8, 4, 1, 1]
    assert splits(1, 400) == 4 > splits(1, 399) == 1
    set_rules(configs.SplitRule(4, 100), configs.SplitRule(16, 1000))
    found = [splits(programs, 4000) for programs in (1, 33, 34, 132, 133, 264, 265)]
    assert found == [16, 4, 4, 4, 2, 2, 1]
    assert splits(132, 1999) == 1 < splits(132, 2000) == 2
    monkeypatch.setattr(configs, "MAX_SPLITS", 2)
    assert splits(1, 4096) == 2
    assert configs.count_splits(1, 4, 4096, 64, "half", torch.device("cpu")) == 1


def test_head_swizzle_keeps_keys_and_values_in_cache():
    k = Layout((1, 16, 16384, 64), (2**24, 2**20, 64, 1))
    assert choose_head_swizzle(k, 16, True, "half") == 2
    assert choose_head_swizzle(k, 16, True, "highest") == 4
    assert choose_head_swizzle(k, 16, False, "half") == 1
    long = k._replace(shape=(1, 1, 2**22, 64))
    assert choose_head_swizzle(long, 1, True, "half") == 1
    # A group has at most all heads, because kernels count its tiles with 32 bits.
    assert choose_head_swizzle(k._replace(shape=(1, 1, 1, 1)), 3, True, "half") == 3
