"""Test profiles by phase and by call, and the memory of saved tensors."""

from contextlib import nullcontext

import pytest
import torch

from systems.profiling import probes, torch_trace
from systems.profiling.trace import Kernel, TraceError


@pytest.fixture
def trace_operations(monkeypatch):
    monkeypatch.setattr(torch_trace, "GPU_CATEGORIES", {"cpu_op"})
    monkeypatch.setattr(
        probes, "profile_kernels", lambda work, _, marks=(): profile(work, "cpu", marks)
    )


profile = torch_trace.profile_kernels


def test_each_phase_of_each_pass_has_its_own_kernels(trace_operations, monkeypatch):
    monkeypatch.setattr(probes, "INDUCTOR_PREFIX", "aten::s")
    monkeypatch.setattr(probes, "make_l2_filler", lambda device: torch.empty(4))
    x, cleared = torch.ones(4, 4), []

    def step(phase):
        with phase("forward"):
            y = x.cos().sin()
        torch.exp(y)
        with phase("optimizer"):
            pass
        with phase("backward"):
            y.sqrt().sin().exp()

    found = probes.phase_kernels(
        step, "cuda", passes=2, between=lambda: cleared.append(1), cold=True
    )
    names = {phase: [[k.name for k in of] for of in p] for phase, p in found.items()}
    assert names == {
        "forward": [["aten::cos", "aten::sin"]] * 2,
        "optimizer": [[]] * 2,
        "backward": [["aten::sqrt", "aten::sin", "aten::exp"]] * 2,
    }
    assert cleared == [1, 1]
    assert probes.kernel_counts(found) == {
        "forward_kernels": 2,
        "optimizer_kernels": 0,
        "backward_kernels": 3,
        "forward_fused": ["aten::sin"],
        "backward_fused": ["aten::sqrt", "aten::sin"],
    }
    assert probes.phase_kernels(step, "cpu") == {}


@pytest.mark.parametrize("losses", [1, 2])
def test_incomplete_profiles_are_repeated(monkeypatch, losses):
    passes = [torch_trace.Span(probes.PASS, start, start + 9, 0) for start in (0, 10)]
    inside = torch_trace.Span("forward", 1, 2, 0)
    full = [Kernel("k", 1, 2, (each, inside)) for each in passes]
    looks = iter([full[:1]] * losses + [full])

    def step(phase):
        with phase("forward"):
            pass

    monkeypatch.setattr(
        probes, "profile_kernels", lambda work, _, marks: (work(), next(looks))
    )
    with nullcontext() if losses == 1 else pytest.raises(TraceError, match="2 passes"):
        found = probes.phase_kernels(step, "cuda", passes=2)
        assert found == {"forward": [[k] for k in full]}


def make_kernels(*runs: tuple[str, int]) -> list[Kernel]:
    """Return consecutive kernels of these names and durations in us."""
    return [Kernel(name, 0, 1000 * us) for name, us in runs]


def test_split_by_call_sums_launches():
    found = make_kernels(("a", 1), ("a", 2), ("b", 5), ("a", 3), ("a", 4), ("b", 7))
    assert probes.split_by_call(found, 2) == {"a": [0.003, 0.007], "b": [0.005, 0.007]}
    # One of four launches in two calls is missing, so they can't be divided by call.
    with pytest.raises(TraceError, match="3 launches of a in 2 calls: .*again$"):
        probes.split_by_call(found[1:], 2)
    # Copies don't count as kernels.
    copies = make_kernels(("Memcpy DtoD (Device -> Device)", 1), ("Memset (Device)", 1))
    counts = probes.kernel_counts({"forward": [copies + found[:1]]})
    assert counts == {"forward_kernels": 1}


@pytest.mark.parametrize("losses", [1, 2])
def test_profile_with_lost_kernels_is_repeated(monkeypatch, losses):
    full, calls = make_kernels(("gemm", 1), ("gemm", 2)), []
    looks = iter([full[:1]] * losses + [full])

    def fake_profile(work, device):
        return work(), next(looks)

    monkeypatch.setattr(probes, "profile_kernels", fake_profile)
    with nullcontext() if losses == 1 else pytest.raises(TraceError, match="1 launch"):
        found = probes.kernel_samples_ms(lambda: calls.append(1), 2, "cuda")
        assert found == {"gemm": [0.001, 0.002]}
    assert len(calls) == 1 + 2 * 2


def test_first_call_is_not_profiled(trace_operations):
    calls, x = [], torch.ones(4, 4)

    def multiply():
        calls.append(x @ x)

    assert probes.kernel_samples_ms(multiply, 3, "cpu") == {} and len(calls) == 1
    calls.clear()
    times = probes.kernel_samples_ms(multiply, 3, "cuda")["aten::mm"]
    assert len(times) == 3 and min(times) > 0 and len(calls) == 4


def test_saved_tensors_count_memory_once():
    x = torch.randn(5, 3, requires_grad=True)
    saved = probes.SavedTensors([x])
    with saved.phase("forward"):
        # exp saves its result, e; the multiplication saves e and x; the matmul saves
        # both operands.
        e = x.exp()
        y = (e * x).T @ e
    with saved.phase("backward"):
        y.sum().backward()
    found = sorted((t["shape"], t["bytes"], t["adds_bytes"]) for t in saved.tensors)
    again, new = ([5, 3], 60, 0), ([5, 3], 60, 60)
    assert found == [([3, 5], 60, 60), again, again, again, new]
    assert {t["dtype"] for t in saved.tensors} == {"float32"}


@pytest.mark.gpu
def test_probes_split_kernels_and_memory_by_phase():
    memory = probes.MemoryInUse("cuda")
    x = torch.ones(1024, 1024, device="cuda", requires_grad=True)

    def step(phase):
        with phase("forward"):
            y = x.exp()
        with phase("backward"):
            y.backward(x.detach())

    step(memory.phase)
    before = (memory.bytes[f"before_{of}_bytes"] for of in ("forward", "backward"))
    forward, backward = before
    assert backward - forward == 4 * 2**20
    x.grad = None
    found = probes.phase_kernels(step, "cuda", cold=True)
    assert probes.kernel_counts(found) == {"forward_kernels": 1, "backward_kernels": 1}
