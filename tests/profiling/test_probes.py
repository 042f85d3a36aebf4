"""What a look at a step must see: each kernel in its phase, each saved tensor's memory
once.
"""

import pytest
import torch

from systems.profiling import probes
from systems.profiling.probes import Kernels, SavedTensors, kernel_counts, kernels_of


def test_kernels_are_told_from_copies_ranges_and_calls():
    events = [
        {"cat": "kernel", "name": "second", "ts": 7.5},
        {"cat": "gpu_memcpy", "name": "copy", "ts": 1},
        {"cat": "gpu_user_annotation", "name": "forward", "ts": 0},
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2},
        {"cat": "kernel", "name": "first", "ts": 3},
        {"ph": "M", "name": "process_name"},
    ]
    assert kernels_of({"traceEvents": events}) == ["first", "second"]


def test_each_phase_has_its_own_kernels(monkeypatch):
    """On the CPU the profiler's operations stand for kernels: the path from profile to
    names is the same.
    """
    monkeypatch.setattr(probes, "KERNEL", "cpu_op")
    kernels, x = Kernels("cpu"), torch.ones(4, 4)
    with kernels.phase("forward"):
        y = x @ x
    torch.exp(y)
    with kernels.phase("backward"):
        torch.sin(y)
    assert [
        name
        for name in kernels.names["forward"]
        if name in ("aten::mm", "aten::sin", "aten::exp")
    ] == ["aten::mm"]
    assert kernels.names["backward"] == ["aten::sin"]


def test_counts_name_what_the_compiler_wrote(monkeypatch):
    launched = {"forward": ["gemm", "triton_poi_fused_add_0"], "optimizer": ["gemm"]}

    class Fake(Kernels):
        def phase(self, name):
            self.names[name] = launched.get(name, [])
            return torch.no_grad()

    def step(phase):
        for name in launched:
            with phase(name):
                pass

    monkeypatch.setattr(probes, "Kernels", Fake)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    counted = {
        "forward_kernels": 2,
        "optimizer_kernels": 1,
        "forward_fused": ["triton_poi_fused_add_0"],
    }
    assert kernel_counts(step, "cuda") == counted
    assert kernel_counts(step, "cpu") == {}


def test_a_saved_tensor_adds_its_memory_once_and_an_input_never():
    x = torch.randn(5, 3, requires_grad=True)
    saved = SavedTensors([x])
    with saved.phase("forward"):
        # exp saves its result; the product saves x and that result again; the
        # transposed product both operands.
        e = x.exp()
        y = (e * x).T @ e
    with saved.phase("backward"):
        y.sum().backward()
    assert sorted((t["shape"], t["bytes"], t["adds_bytes"]) for t in saved.tensors) == [
        ([3, 5], 60, 60),
        ([5, 3], 60, 0),
        ([5, 3], 60, 0),
        ([5, 3], 60, 0),
        ([5, 3], 60, 60),
    ]
    assert {t["dtype"] for t in saved.tensors} == {"float32"}


@pytest.mark.gpu
def test_a_gpu_names_its_kernels_and_its_memory_before_each_phase():
    memory, x = (
        probes.MemoryInUse("cuda"),
        torch.ones(1024, 1024, device="cuda", requires_grad=True),
    )

    def step(phase):
        with phase("forward"):
            y = x.exp()
        with phase("backward"):
            y.backward(x.detach())

    step(memory.phase)
    assert (
        memory.bytes["before_backward_bytes"] - memory.bytes["before_forward_bytes"]
        == 4 * 2**20
    )
    x.grad = None
    assert kernel_counts(step, "cuda") == {"forward_kernels": 1, "backward_kernels": 1}
