"""Test the GPU's fields in records, with a stand-in for NVML whose calls may fail."""

import sys
from contextlib import suppress
from importlib import metadata
from types import SimpleNamespace

import pytest
from msgspec import structs

from systems import check_setup
from systems.records import device, store
from tests.factories import make_record, make_row

UUID = "MIG-6d0e1f6c-0000-5555-aaaa-111122223333"
GPU = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
ANSWERS = {
    "nvmlDeviceGetName": "NVIDIA Stub",
    "nvmlDeviceGetCudaComputeCapability": (9, 0),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=2**37),
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlSystemGetDriverVersion": "580.1",
    "nvmlSystemGetCudaDriverVersion": 13010,
    "nvmlDeviceGetComputeRunningProcesses": [],
}


class NVMLError(Exception):
    pass


@pytest.fixture
def fake_nvml(monkeypatch):
    """Return a stand-in for pynvml: GPU 0 and a MIG slice; calls in `refused` fail."""
    stub = SimpleNamespace(
        NVMLError=NVMLError, NVML_CLOCK_SM=1, nvmlMemory_v2=2, refused=set()
    )

    def make_query(name, answer):
        def query(*arguments):
            if name in stub.refused:
                raise NVMLError("Not Supported")
            return answer(*arguments)

        return query

    def get_by_uuid(uuid):
        if uuid != UUID:
            raise NVMLError("Not Found")
        return "part"

    def get_by_index(index):
        if index != 0:
            raise NVMLError("Invalid Argument")
        return "whole"

    known = {name: lambda *_, a=answer: a for name, answer in ANSWERS.items()}
    known |= {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetClockInfo": lambda handle, clock: {1: 1980}[clock],
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetUUID": lambda handle: GPU,
        "nvmlDeviceGetHandleByIndex": get_by_index,
        "nvmlDeviceGetHandleByUUID": get_by_uuid,
    }
    for name, answer in known.items():
        setattr(stub, name, make_query(name, answer))
    monkeypatch.setitem(sys.modules, "pynvml", stub)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return stub


WHOLE = device.Device("NVIDIA Stub", "nvidia-stub", "9.0", 2**37, "580.1", 700.0)
# Fields that are None if NVML doesn't support a call, by the name of the call.
LESS = {
    "nvmlDeviceGetCudaComputeCapability": "capability",
    "nvmlDeviceGetMemoryInfo": "memory_bytes",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_w",
    "nvmlSystemGetDriverVersion": "driver",
}
# Calls without which no GPU is found.
NEEDED = ("nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName")


def test_visible_gpus_follow_cuda_visible_devices(fake_nvml, monkeypatch):
    fake_nvml.nvmlDeviceGetCount = lambda: 3
    assert device.visible_gpus() == ["0", "1", "2"]
    assert device.find_gpu("0") == WHOLE and device.find_gpu("1") is None
    assert WHOLE.is_gpu and not device.CPU.is_gpu and not device.META.is_gpu
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"2, {UUID}")
    assert device.visible_gpus() == ["2", UUID]
    assert device.find_gpu() is None and device.find_gpu(UUID) == WHOLE
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device.visible_gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    fake_nvml.refused = {"nvmlInit"}
    assert device.visible_gpus() == []


def test_newest_cuda_comes_from_the_driver(fake_nvml):
    assert device.newest_cuda() == (13, 1)
    for refused in ("nvmlSystemGetCudaDriverVersion", "nvmlInit"):
        fake_nvml.refused = {refused}
        assert device.newest_cuda() is None


@pytest.mark.parametrize("refused", [*LESS, *NEEDED])
def test_unsupported_nvml_calls_give_none(fake_nvml, refused):
    fake_nvml.refused = {refused}
    less = structs.replace(WHOLE, **{LESS.get(refused, "name"): None})
    assert device.find_gpu() == (less if refused in LESS else None)


@pytest.mark.parametrize(
    ("used", "pids", "shared"), [(2**29, [], False), (2**35, [], True), (0, [7], True)]
)
def test_others_on_the_gpu_are_seen(fake_nvml, used, pids, shared):
    memory = SimpleNamespace(total=2**37, used=used)
    fake_nvml.nvmlDeviceGetMemoryInfo = lambda handle: memory
    fake_nvml.nvmlDeviceGetComputeRunningProcesses = lambda handle: pids
    assert device.is_gpu_shared() == shared
    assert device.others_memory_share(2**29) == (used - 2**29) / 2**37
    fake_nvml.refused = {"nvmlInit"}
    assert not device.is_gpu_shared() and device.others_memory_share(0) == 0


FOUND = {UUID: True, f"{UUID},GPU-1": True, "0": True, " 0 ": True}
FOUND |= dict.fromkeys(("1", "MIG-other", "GPU-other", "", "-1", "word", "²"), False)


@pytest.mark.parametrize("visible", FOUND)
def test_find_gpu_by_index_uuid_or_mig_slice(fake_nvml, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert (device.find_gpu() is not None) == FOUND[visible]
    assert device.sm_clock_mhz() == (1980 if FOUND[visible] else None)


def test_driver_without_nvml_is_reported(fake_nvml, monkeypatch):
    """A container may have what torch needs of the driver, but no NVML."""
    text = "needs a GPU and none was found"
    fake_nvml.refused = {"nvmlInit"}
    monkeypatch.setattr(device, "DRIVERS", ["/nowhere"])
    assert device.why_no_gpu() == text
    monkeypatch.setattr(device, "DRIVERS", ["/nowhere", "/dev/null"])
    assert device.why_no_gpu() == f"{text}: NVML does not start (Not Supported)"
    fake_nvml.refused = set()
    assert device.why_no_gpu() == text


def test_setup_is_not_ready_without_nvml(fake_nvml, monkeypatch, capsys):
    """Without NVML, records could not name the GPU."""
    fake_nvml.refused = {"nvmlInit"}
    monkeypatch.setattr(device, "DRIVERS", ["/dev/null"])
    monkeypatch.setattr(check_setup, "default_device", lambda: "cuda")
    monkeypatch.setattr(check_setup.torch.cuda, "get_device_name", lambda: "A GPU")
    for name in ("attention_status", "time_small_model"):
        monkeypatch.setattr(check_setup, name, lambda on: {})
    with pytest.raises(SystemExit) as ended:
        check_setup.main()
    text = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 2 and "ready" not in text
    assert text.endswith("none was found: NVML does not start (Not Supported)")
    fake_nvml.refused = set()
    check_setup.main()
    assert capsys.readouterr().out.endswith("ready\n")


@pytest.mark.parametrize(
    ("version", "fits"),
    [("2.9.1+cu128", False), ("2.15.0a0+git1", True), ("2.16.0", False)],
)
def test_setup_check_rejects_unsupported_torch(monkeypatch, capsys, version, fits):
    monkeypatch.setattr(check_setup, "time_small_model", lambda device: {})
    monkeypatch.setattr(metadata, "version", lambda name: version)
    with suppress(SystemExit):
        check_setup.main()
    text = " ".join(capsys.readouterr().out.split())
    assert ("ready" in text) == fits
    assert fits or f"torch {version} is not <2.16,>=2.11: run pip" in text


def test_setup_check_prints_findings_before_failing(monkeypatch, capsys):
    def fail(device):
        raise RuntimeError("CUDA error: out of memory\nmore")

    monkeypatch.setattr(check_setup, "time_small_model", fail)
    with pytest.raises(SystemExit) as ended:
        check_setup.main()
    text = capsys.readouterr().out
    assert ended.value.code == 2 and "torch runs on" in text
    assert text.endswith("the first pass failed: CUDA error: out of memory\n")


SHOWN = {"A <b>\nGPU": "A  b  GPU", "GPU \ud800": "GPU  ", "x" * 5000: "x" * 2000}
SHOWN[""] = "a GPU without a name"


@pytest.mark.parametrize(("name", "shown"), SHOWN.items())
def test_records_accept_any_gpu_name(fake_nvml, tmp_path, name, shown):
    fake_nvml.nvmlDeviceGetName = fake_nvml.nvmlSystemGetDriverVersion = lambda *_: name
    gpu = device.find_gpu()
    assert gpu is not None and gpu.name == shown
    assert gpu.driver == (shown if name else None)
    record = make_record("warmup", make_row({}, a_ms=[1.0]), device=gpu)
    store.write(record, tmp_path / "r.json")
    assert store.read(tmp_path / "r.json").device == gpu


@pytest.mark.parametrize("name", ["🔥🔥", "...", "quick", "Meta", "CPU"])
def test_slugs_avoid_reserved_folder_names(name):
    slug = device.gpu_slug(name)
    assert slug.startswith("gpu") and slug not in ("cpu", "meta", "quick")
