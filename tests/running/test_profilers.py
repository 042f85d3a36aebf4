"""CUPTI is detached from the process after a profile."""

import os
import time

import pytest
import torch

from systems.profiling import torch_trace
from systems.running import groups, machine, profilers
from systems.running.profilers import DETACH_VARIABLE, detach_cupti
from tests.factories import make_record


@pytest.fixture
def detach_log(monkeypatch):
    """Simulate a GPU; list DETACH_VARIABLE at a profile, and synchronizations."""
    found = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: found.append("call"))
    monkeypatch.setattr(profilers, "PAUSE", 0)

    def run_profiled(work, device):
        found.append(os.environ[DETACH_VARIABLE])

    monkeypatch.setattr(torch_trace, "run_profiled", run_profiled)
    return found


@pytest.mark.parametrize("before", [None, "0"])
def test_detaching_cupti_restores_the_environment(detach_log, monkeypatch, before):
    monkeypatch.delenv(DETACH_VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(DETACH_VARIABLE, before)
    detach_cupti()
    assert detach_log == ["1", *["call"] * profilers.CALLS]
    assert os.environ.get(DETACH_VARIABLE) == before


def test_detaching_ignores_cuda_errors(detach_log, monkeypatch):
    def fail(work, device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.delenv(DETACH_VARIABLE, raising=False)
    monkeypatch.setattr(torch_trace, "run_profiled", fail)
    detach_cupti()
    assert detach_log == [] and DETACH_VARIABLE not in os.environ


def test_cupti_is_detached_after_each_group(monkeypatch):
    order = []
    monkeypatch.setattr(machine, "free_memory", lambda: None)
    monkeypatch.setattr(profilers, "detach_cupti", lambda: order.append("let go"))
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
    detach_cupti()
    assert least_launch_ms() < 0.5 * (before + attached)
    # A later profile still records kernels.
    _, kernels = torch_trace.profile_kernels(
        lambda: torch.ones(9, device="cuda") + 1, "cuda"
    )
    assert len(kernels) == 2
