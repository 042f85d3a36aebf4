"""Test CUDA graphs of a pass: one per phase, which free all memory at the end."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from systems.benchmarking import graphs, phases
from systems.benchmarking.timing import measure
from systems.benchmarking.workload import Workload
from systems.records.outcome import Unsupported


@pytest.fixture
def fake_graphs(monkeypatch):
    """Replace CUDA graphs by stand-ins; return the list of their events."""
    events: list[str] = []

    class Graph(list):
        def replay(self):
            events.extend(f"replay {name}" for name in self)

        def reset(self):
            events.append("reset")

    @contextmanager
    def capture(graph, pool, stream):
        assert (pool, stream) == ("pool", side)
        before = len(events)
        yield
        graph.extend(events[before:])
        events.append("captured")

    side = SimpleNamespace(wait_stream=lambda other: None)
    for name, value in {
        "graph_pool_handle": lambda: "pool",
        "current_stream": lambda: None,
        "stream": lambda stream: nullcontext(),
        "synchronize": lambda: None,
        "CUDAGraph": Graph,
        "graph": capture,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(graphs, "shared_stream", lambda: side)
    free = ("_cuda_clearCublasWorkspaces", lambda: events.append("workspaces"))
    monkeypatch.setattr(torch._C, *free, raising=False)
    return events


def test_each_phase_is_captured_and_replayed_in_order(fake_graphs):
    def step(phase):
        for name in ("forward", "backward"):
            with phase(name):
                fake_graphs.append(f"launch {name}")

    with graphs.capture(step, lambda: fake_graphs.append("clear"), "cuda") as replay:
        launches = "launch forward", "launch backward"
        captures = "launch forward", "captured", "launch backward", "captured"
        assert fake_graphs == ["clear", *launches, "clear", *captures]
        fake_graphs.clear()
        found = measure(replay, warmup=1, repeats=2, device="cpu")
        assert fake_graphs == 3 * ["replay launch forward", "replay launch backward"]
        lengths = {n: len(v) for n, v in found.items() if isinstance(v, list)}
        assert lengths == {"forward_ms": 2, "backward_ms": 2}
        fake_graphs.clear()
    assert fake_graphs == ["reset", "reset", "clear", "workspaces"]


def test_failed_capture_is_unsupported_and_frees_memory(fake_graphs):
    def step(phase):
        if phase is not phases.mark:
            raise RuntimeError("operation not permitted when stream is capturing\nat x")

    captured = graphs.capture(step, lambda: fake_graphs.append("clear"), "cuda")
    text = "be a CUDA graph: .* is capturing$"
    with pytest.raises(Unsupported, match=text), captured:
        pass
    assert fake_graphs[-2:] == ["clear", "workspaces"]
    nothing = graphs.capture(step, lambda: None, "cpu")
    with pytest.raises(Unsupported, match="no CUDA graphs"), nothing:
        pass


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_graph_replays_equal_eager_steps(precision):
    """Replays overwrite gradients instead of adding to them."""
    work = Workload("cuda", "small", 64, "forward_backward", precision, 2, 1000)
    work.step(phases.mark)
    expected = [p.grad.clone() for p in work.model.parameters() if p.grad is not None]
    with graphs.capture(work.step, work.model.zero_grad, "cuda") as replay:
        for _ in range(2):
            replay(phases.mark)
            torch.cuda.synchronize()
            for p, grad in zip(work.model.parameters(), expected, strict=True):
                # With another workspace cuBLAS may choose another algorithm.
                torch.testing.assert_close(p.grad, grad, rtol=0.02, atol=1e-3)
    assert all(p.grad is None for p in work.model.parameters())
    whole = Workload("cuda", "small", 64, "step", precision, 2, 1000)
    with graphs.capture(whole.step, whole.model.zero_grad, "cuda") as replay:
        found = measure(replay, warmup=1, repeats=2, device="cuda")
    assert {n for n in found if n.endswith("_ms")} == {f"{p}_ms" for p in phases.PHASES}


@pytest.mark.gpu
def test_captures_leave_no_memory_behind():
    work, left = Workload("cuda", "small", 64, "forward_backward", "bf16", 2, 1000), []
    work.step(phases.mark)
    for _ in range(3):
        with graphs.capture(work.step, work.model.zero_grad, "cuda") as replay:
            replay(phases.mark)
        left.append(torch.cuda.memory_allocated())
    assert len(set(left)) == 1
