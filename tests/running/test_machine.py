"""Test the reasons why a GPU or a cache folder is unusable, and detaching CUPTI."""

import os
import time

import pytest
import torch

from systems import check_setup
from systems.experiments import STEMS
from systems.profiling import torch_trace
from systems.records import device
from systems.running import groups, machine, measure
from systems.running.machine import triton_cache_folder, why_unwritable
from systems.running.reports import CannotStart
from tests import fake_stem
from tests.factories import fake_stem_entry, make_gpu, make_record
from tools import measuring

A100 = make_gpu("NVIDIA A100-SXM4-80GB", driver="535.54")


# By the CUDA version that torch is built for, and the newest that the driver runs.
WHY = {
    (None, (12, 2)): "install a CUDA build of torch",
    ("13.0", (12, 2)): "it is built for CUDA 13.0, and driver 535.54 runs CUDA 12.2 at "
    "most: update the driver, or install a torch for CUDA 12",
    # A driver supports later CUDA versions of its own major version.
    ("12.8", (12, 2)): "though it is built for CUDA 12.8: torch.cuda.init() says why",
    ("13.0", None): "though it is built for CUDA 13.0: torch.cuda.init() says why",
}


@pytest.mark.parametrize(("built", "runs"), WHY)
def test_unusable_gpu_gives_the_reason(built, runs, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(machine, "newest_cuda", lambda: runs)
    with pytest.raises(CannotStart) as refused:
        machine.check_torch(A100)
    line = str(refused.value)
    assert line.startswith(f"torch {torch.__version__} can't use the {A100.name}")
    assert line.endswith(WHY[built, runs]) and "\n" not in line
    monkeypatch.setattr(check_setup, "find_gpu", lambda: A100)
    monkeypatch.setattr(check_setup, "default_device", lambda: "cpu")
    with pytest.raises(SystemExit) as ended:
        check_setup.main()
    assert ended.value.code == 2 and capsys.readouterr().out.endswith(f"\n{line}\n")


KINDS = {"NVIDIA A100-SXM4-80GB MIG 3g.40gb": "MIG device", "NVIDIA H200": "GPU"}


@pytest.mark.parametrize(("used", "kind"), KINDS.items())
def test_unexpected_gpu_gives_a_remedy(used, kind, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: used)
    with pytest.raises(CannotStart, match=f"would use {used}, not {A100.name}: ") as no:
        machine.check_torch(A100)
    remedy = f"set CUDA_VISIBLE_DEVICES to the UUID of the {kind}, which nvidia-smi -L"
    assert f"{remedy} lists" in str(no.value)


@pytest.fixture
def detach_log(monkeypatch):
    """Simulate a GPU; list DETACH_VARIABLE at a profile, and synchronizations."""
    found = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: found.append("call"))
    monkeypatch.setattr(machine, "PAUSE", 0)

    def run_profiled(work, device):
        found.append(os.environ[machine.DETACH_VARIABLE])

    monkeypatch.setattr(torch_trace, "run_profiled", run_profiled)
    return found


@pytest.mark.parametrize("before", [None, "0"])
def test_detaching_cupti_restores_the_environment(detach_log, monkeypatch, before):
    monkeypatch.delenv(machine.DETACH_VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(machine.DETACH_VARIABLE, before)
    machine.detach_cupti()
    assert detach_log == ["1", *["call"] * machine.CALLS]
    assert os.environ.get(machine.DETACH_VARIABLE) == before


def test_detaching_ignores_cuda_errors(detach_log, monkeypatch):
    def fail(work, device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.delenv(machine.DETACH_VARIABLE, raising=False)
    monkeypatch.setattr(torch_trace, "run_profiled", fail)
    machine.detach_cupti()
    assert detach_log == [] and machine.DETACH_VARIABLE not in os.environ


def test_cupti_is_detached_after_each_group(monkeypatch):
    order = []
    monkeypatch.setattr(machine, "free_memory", lambda: None)
    monkeypatch.setattr(machine, "detach_cupti", lambda: order.append("let go"))
    monkeypatch.setattr(groups, "measure_group", lambda _, x: order.append(x) or [])
    record = make_record("nsys")
    for group in ("first", "second"):
        assert groups.measure_rows(record, object(), [group], since=0.0) == []
    assert order == [["first"], "let go", ["second"], "let go"]


@pytest.mark.gpu
def test_launches_after_a_profile_are_not_slower():
    one = torch.ones(1, device="cuda")

    def least_launch_ms() -> float:
        """Return the least time in ms in which the CPU launches 500 additions."""
        times = []
        for _ in range(15):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(500):
                one + one
            times.append((time.perf_counter() - start) * 1e3)
        return min(times)

    before = least_launch_ms()
    torch_trace.profile_kernels(lambda: torch.ones(1, device="cuda") + 1, "cuda")
    attached = least_launch_ms()
    machine.detach_cupti()
    assert least_launch_ms() < 0.5 * (before + attached)
    # A later profile still records kernels.
    _, kernels = torch_trace.profile_kernels(
        lambda: torch.ones(9, device="cuda") + 1, "cuda"
    )
    assert len(kernels) == 2


VARIABLES = ("TRITON_CACHE_DIR", "TRITON_HOME", "HOME")


@pytest.fixture
def set_environment(monkeypatch):
    """Return a function that sets variables and unsets all others that name folders."""

    def set_variables(**variables: str) -> None:
        for name in VARIABLES:
            # Set the variable first, so that monkeypatch restores it.
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_variables


def test_cache_folder_equals_that_of_triton(set_environment):
    from triton import knobs

    # Triton's import reads HOME.
    home = os.environ["HOME"]
    for given in ({}, {"TRITON_HOME": "/b"}, {"TRITON_CACHE_DIR": "/c"}):
        set_environment(HOME=home, **given)
        assert str(triton_cache_folder()) == knobs.cache.dir


@pytest.mark.parametrize("name", ["HOME", "TRITON_CACHE_DIR"])
def test_unwritable_cache_folder_gives_a_remedy(
    name, set_environment, monkeypatch, tmp_path, capsys, run
):
    set_environment(**{"HOME": str(tmp_path), name: "/dev/null/x"})
    text = why_unwritable(triton_cache_folder())
    assert text.startswith("can't keep compiled kernels in /dev/null/")
    assert text.endswith("set TRITON_CACHE_DIR to a folder on a disk of this machine")
    gpu = make_gpu()
    monkeypatch.setitem(STEMS, "fake", fake_stem_entry("cuda"))
    monkeypatch.setattr(machine, "find_gpu", lambda: gpu)
    monkeypatch.setattr(device, "find_gpu", lambda: gpu)
    # Measuring reports the error; regen_tables reports it before it measures.
    assert run().error == text
    with pytest.raises(SystemExit) as ended:
        measuring.measure_all(["fake"], tmp_path)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {text}\n"


@pytest.mark.usefixtures("pretend_gpu")
def test_rows_use_the_cache_of_precompiled_kernels(run, set_environment, monkeypatch):
    """By default PyTorch's compiler would use another folder."""
    seen, real = [], fake_stem.run

    def record_cache_folder(config):
        seen.append(os.environ.get("TRITON_CACHE_DIR"))
        return real(config)

    monkeypatch.setattr(fake_stem, "run", record_cache_folder)
    set_environment(HOME=os.environ["HOME"])
    assert run().code == 0 and set(seen) == {str(triton_cache_folder())}
    set_environment(TRITON_CACHE_DIR="/of/mine")
    monkeypatch.setattr(machine, "why_unwritable", lambda folder: "")
    assert run().code == 0 and seen[-1] == "/of/mine"
    monkeypatch.setattr(measure, "is_gpu_shared", lambda: True)
    assert run().events[0] == {"event": "shared"}
