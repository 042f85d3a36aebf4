"""Test timing: synchronization, warm-up, and the phases of a workload's modes."""

from contextlib import contextmanager
from itertools import count

import pytest
import torch

from systems.benchmarking import timing
from systems.benchmarking.workload import MODES, Workload, random_inputs
from systems.model.sizes import SIZES, ModelSize
from systems.model.train_step import precision_context


def test_clock_keeps_samples_by_phase():
    clock = timing.Clock("cpu")
    with pytest.raises(KeyError, match="gone"), clock.phase("b"):
        raise KeyError("gone")
    assert clock.samples_ms == {}
    with pytest.raises(AssertionError), timing.Clock("cuda:0").phase("b"):
        pass
    for name in ("b", "a", "b"):
        with clock.phase(name):
            pass
    assert list(clock.samples_ms) == ["b_ms", "a_ms"]
    assert [len(samples) for samples in clock.samples_ms.values()] == [2, 1]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_sample_is_the_time_inside_a_phase(monkeypatch, device):
    calls, ticks = [], count(step=0.25)
    names = "synchronize", "reset_peak_memory_stats", "empty_cache"
    peaks = {"max_memory_allocated": 7, "max_memory_reserved": 9}
    for name, answer in (dict.fromkeys(names) | peaks).items():
        monkeypatch.setattr(
            torch.cuda,
            name,
            lambda name=name, answer=answer: calls.append(name) or answer,
        )
    monkeypatch.setattr(timing, "now", lambda: calls.append("now") or next(ticks))

    def step(phase):
        with phase("work"):
            calls.append("work")

    counts, between = {"warmup": 1, "repeats": 2}, lambda: calls.append("between")
    found = timing.measure(step, **counts, device=device, between=between)
    timing.empty_cache(device)
    wait, reset, empty = ([name] if device == "cuda" else [] for name in names)
    timed = ["between", *wait, "now", "work", *wait, "now"]
    peaks = peaks if wait else {}
    assert calls == [*timed, *reset, *timed, *timed, *peaks, *empty]
    of_memory = {f"peak_{name[11:]}_bytes": size for name, size in peaks.items()}
    assert found == {"work_ms": [250.0, 250.0]} | of_memory


@pytest.mark.parametrize(
    "name, rounding", [("fp32", "highest"), ("tf32", "high"), ("bf16", "highest")]
)
def test_a_precision_sets_tf32_and_autocast(set_precision, name, rounding):
    for before in ("highest", "high"):
        set_precision(before)
        context = precision_context(name, "cpu")
        assert torch.get_float32_matmul_precision() == rounding
    for _ in range(2):
        # The same context is entered in every step.
        with context:
            found = (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        assert found == (torch.bfloat16 if name == "bf16" else torch.float32)


@pytest.mark.gpu
@pytest.mark.alone
def test_the_clock_waits_for_the_gpu():
    a = torch.randn(8192, 8192, device="cuda")

    def step(phase):
        with phase("matmul"):
            a @ a

    clocked = timing.measure(step, warmup=3, repeats=5, device="cuda")["matmul_ms"]
    events = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        a @ a
        end.record()
        torch.cuda.synchronize()
        events.append(start.elapsed_time(end))
    # Without synchronizing, the clock would show a hundredth of the events' time.
    assert sorted(clocked)[2] == pytest.approx(sorted(events)[2], rel=0.1)


@pytest.mark.gpu
@pytest.mark.alone
def test_peak_memory_excludes_warm_up_steps():
    size, calls = 2**28, []

    def step(phase):
        calls.append("step")
        with phase("allocate"):
            # The first warm-up step allocates four times as much.
            count = 4 * size if len(calls) == 1 else size
            torch.empty(count, dtype=torch.uint8, device="cuda")

    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    peak = timing.measure(step, warmup=1, repeats=2, device="cuda")
    assert peak["peak_allocated_bytes"] == held + size
    assert peak["peak_reserved_bytes"] >= held + size


PHASES = {
    "forward": ["forward"],
    "forward_graph": ["forward"],
    "forward_two_graphs": ["forward", "second_forward"],
    "forward_backward": ["forward", "loss", "backward"],
    "step": ["forward", "loss", "backward", "optimizer"],
}


@pytest.fixture(autouse=True)
def tiny_size(monkeypatch, set_precision):
    monkeypatch.setitem(SIZES, "small", ModelSize(8, 16, 1, 2))


def make_workload(mode: str, **others) -> Workload:
    return Workload("cpu", "small", 6, mode, batch=2, vocab=50, **others)


@pytest.mark.parametrize("mode", MODES)
def test_workload_runs_the_phases_of_its_mode(mode):
    work, entered, graphs = make_workload(mode), [], []

    @contextmanager
    def record_phase(name):
        entered.append(name)
        yield

    def forward(token_ids):
        logits = work.model(token_ids)
        graphs.append(logits.requires_grad)
        return logits

    work.forward = forward
    before = [p.detach().clone() for p in work.model.parameters()]
    work.step(record_phase)
    assert entered == PHASES[mode]
    assert graphs == [mode != "forward"] * (2 if "two" in mode else 1)
    after = list(work.model.parameters())
    assert all((p.grad is not None) == (mode in ("forward_backward", "step"))
               for p in after)  # fmt: skip
    moved = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert any(moved) == (mode == "step")


def test_workloads_have_equal_weights_and_tokens():
    a, b = make_workload("step"), make_workload("forward")
    assert torch.equal(a.token_ids, b.token_ids) and a.token_ids.shape == (2, 6)
    assert not torch.equal(a.token_ids, a.targets)
    assert Workload("cpu", "small", 6).token_ids.shape == (4, 6)
    pairs = zip(a.model.parameters(), b.model.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_unknown_precision_is_rejected():
    with pytest.raises(ValueError, match="no precision is named 'fp8'"):
        make_workload("step", precision="fp8")


def test_random_inputs_are_reproducible():
    first, second = (random_inputs((1, 2, 3, 4), torch.bfloat16, "cpu") for _ in "ab")
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    assert [x.requires_grad for x in first] == [True, True, True, False]
    assert {(x.dtype, x.shape) for x in first} == {(torch.bfloat16, (1, 2, 3, 4))}
    assert not torch.equal(first[0], first[1])
