"""Test GPU time: sums of kernel times, and samples of Triton's benchmark."""

from statistics import median
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from systems.benchmarking import gpu_time, phases, timing
from systems.benchmarking.gpu_time import bench_passes, do_bench_ms
from systems.benchmarking.graphs import capture
from systems.benchmarking.workload import Workload
from systems.profiling import probes
from systems.profiling.trace import Kernel, TraceError
from systems.running.machine import detach_cupti


def test_gpu_time_of_a_phase_is_its_busy_time(monkeypatch):
    """Gaps don't count, overlaps count once; phases without kernels have no time."""
    assert gpu_time.measure(print, "cpu") == {}
    first = [Kernel("k", 0, 1_000_000), Kernel("k", 5_000_000, 7_000_000)]
    second = [Kernel("k", 0, 2_000_000), Kernel("k", 1_000_000, 4_000_000)]
    found = {"forward": [first, second], "loss": [[], []]}
    monkeypatch.setattr(probes, "phase_kernels", lambda *_, **__: found)
    assert gpu_time.measure(print, "cuda") == {"forward_gpu_ms": [3.0, 4.0]}
    counted = gpu_time.measure(print, "cuda", counted=True)
    assert (counted["forward_kernels"], counted["loss_kernels"]) == (2, 0)


@pytest.mark.parametrize(
    "error", [TraceError("no kernel\nof a GPU"), torch.OutOfMemoryError("no kernel\n")]
)
def test_row_without_a_profile_gives_the_reason(error, monkeypatch):
    """An error of the profiler is not raised: its first line is the reason."""
    monkeypatch.setattr(probes, "phase_kernels", Mock(side_effect=error))
    assert gpu_time.measure(print, "cuda") == {"no_gpu_time": "no kernel"}


def test_rounds_append_samples_after_a_warm_up(monkeypatch):
    calls, samples = [], iter([[3.0, 1.0, 2.0], [5.0, 4.0, 9.0]])

    def fake_measure(step, device, **asked):
        calls.append(asked)
        return {"both_gpu_ms": next(samples)}

    monkeypatch.setattr(gpu_time, "measure", fake_measure)
    metrics: dict[str, Any] = {"ran": "ours"}
    for _ in range(2):
        gpu_time.add_round(metrics, lambda _: calls.append("step"), "cuda", passes=3)
    rounds = {"both_gpu_ms": [3.0, 1.0, 2.0, 5.0, 4.0, 9.0]}
    rounds["both_rounds_ms"] = [2.0, 5.0]
    assert metrics == {"ran": "ours"} | rounds
    asked = {"passes": 3, "between": None, "cold": True, "counted": False}
    assert calls == ["step", asked] * 2


@pytest.mark.parametrize("count", [1, 29, 30, 31, 1000])
def test_kept_samples_span_the_run(count, monkeypatch):
    do_bench = Mock(return_value=[i + 1e-9 for i in range(count)])
    monkeypatch.setattr("triton.testing.do_bench", do_bench)
    kept = do_bench_ms(print, "cuda", warmup_ms=7, rep_ms=9)
    most = gpu_time.SAMPLES_KEPT
    do_bench.assert_called_once_with(print, warmup=7, rep=9, return_mode="all")
    assert min(count, most // 2) <= len(kept) <= most
    # Samples are evenly spaced.
    steps = {b - a for a, b in zip(kept, kept[1:], strict=False)}
    assert len(steps) <= 1 and kept[0] == 0.0
    assert count - kept[-1] <= max(steps, default=1)


class PassLog(torch.autograd.Function):
    """An autograd function that appends the name of each pass to `done`."""

    done: list = []

    @staticmethod
    def forward(ctx, q, k, v):
        PassLog.done.append("forward")
        return q * 1

    @staticmethod
    def backward(ctx, do):  # pyright: ignore[reportIncompatibleMethodOverride]
        PassLog.done.append("backward")
        return do, do, do


@pytest.fixture
def ones_inputs(monkeypatch):
    monkeypatch.setattr(PassLog, "done", [])
    return *(torch.ones(2, requires_grad=True) for _ in range(3)), torch.ones(2)


def test_passes_are_timed_separately(ones_inputs):
    times, calls = bench_passes(PassLog.apply, *ones_inputs), gpu_time.CPU_CALLS
    assert [len(samples) for samples in times.values()] == [calls] * 3
    alone, both = ["forward"] * calls, ["forward", "backward"] * calls
    assert PassLog.done == [*alone, *both, "forward", *["backward"] * calls]
    assert ones_inputs[0].grad is None


def test_a_step_of_attention_is_forward_backward_and_both(ones_inputs):
    clock = timing.Clock("cpu")
    gpu_time.make_attention_step(PassLog.apply, *ones_inputs)(clock.phase)
    assert list(clock.samples_ms) == ["forward_ms", "backward_ms", "both_ms"]
    assert PassLog.done == ["forward", "backward"] * 2 and ones_inputs[0].grad is None


@pytest.mark.gpu
@pytest.mark.alone
def test_kernel_sums_and_graphs_agree_on_gpu_time():
    """The sum of kernel times is at most the wall-clock time, and near a graph's."""
    work = Workload("cuda", "medium", 512, "step", "fp32")
    clear = work.model.zero_grad
    wall = timing.measure(work.step, warmup=3, repeats=5, device="cuda", between=clear)
    with capture(work.step, clear, "cuda") as replay:
        graph = timing.measure(replay, warmup=1, repeats=5, device="cuda")
    found = gpu_time.measure(work.step, "cuda", between=clear, counted=True)
    detach_cupti()
    for phase in phases.PHASES:
        kernels = median(found[f"{phase}_gpu_ms"])
        assert found[f"{phase}_kernels"] > 0 and len(found[f"{phase}_gpu_ms"]) == 2
        for clocked in (wall, graph):
            assert kernels <= 1.02 * median(clocked[f"{phase}_ms"])  # pyright: ignore
    whole = sum(median(found[f"{p}_gpu_ms"]) for p in phases.PHASES)
    replayed = sum(median(graph[f"{p}_ms"]) for p in phases.PHASES)  # pyright: ignore
    assert whole == pytest.approx(replayed, rel=0.07)
