"""The clock: what it counts, what it leaves out, and what a training step tells it."""

import time

import pytest
import torch

from systems.benchmarking import timing
from systems.model.train_step import precision_context


def test_phases_are_kept_by_name_in_order_and_an_exception_leaves_no_sample():
    clock = timing.Clock("cpu")
    with pytest.raises(KeyError, match="gone"), clock.phase("b"):
        raise KeyError("gone")
    assert clock.samples_ms == {}
    for name in ("b", "a", "b"):
        with clock.phase(name):
            pass
    assert list(clock.samples_ms) == ["b_ms", "a_ms"]
    assert [len(samples) for samples in clock.samples_ms.values()] == [2, 1]


@pytest.mark.alone
def test_a_sample_is_the_time_inside_the_phase_in_ms():
    clock = timing.Clock("cpu")
    for _ in range(3):
        with clock.phase("sleep"):
            time.sleep(0.02)
        time.sleep(0.01)
    # A sleep is never shorter; a busy machine makes it longer, but hardly each of
    # three.
    assert all(sample >= 20 for sample in clock.samples_ms["sleep_ms"])
    assert min(clock.samples_ms["sleep_ms"]) < 29


def test_the_clock_waits_for_the_device_before_and_after(monkeypatch):
    calls = []

    def wait(device):
        calls.append(f"wait for {device}")

    monkeypatch.setattr(timing, "synchronize", wait)
    monkeypatch.setattr(timing, "now", lambda: calls.append("now") or 0.0)
    with timing.Clock("cuda").phase("work"):
        calls.append("work")
    assert calls == ["wait for cuda", "now", "work", "wait for cuda", "now"]


@pytest.mark.alone
def test_measure_counts_the_repeats_and_neither_warm_ups_nor_what_is_between():
    calls = []

    def step(phase):
        calls.append("step")
        with phase("one"):
            # Slow while warming up: none of it may be seen.
            time.sleep(0.05 if calls.count("step") <= 2 else 0.001)
        with phase("two"):
            pass

    def between():
        calls.append("between")
        time.sleep(0.03)

    samples = timing.measure(step, warmup=2, repeats=3, device="cpu", between=between)
    assert calls == ["between", "step"] * 5
    lengths = {name: len(values) for name, values in samples.items()}
    assert lengths == {"one_ms": 3, "two_ms": 3}
    assert 1 <= min(samples["one_ms"]) and sorted(samples["one_ms"])[1] < 30


@pytest.mark.parametrize(
    "name, rounding", [("fp32", "highest"), ("tf32", "high"), ("bf16", "highest")]
)
def test_a_precision_sets_tf32_and_autocast(precision, name, rounding):
    for before in ("highest", "high"):
        precision(before)
        context = precision_context(name, "cpu")
        assert torch.get_float32_matmul_precision() == rounding
    for _ in range(2):
        # One context wraps every step of a measurement.
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
    # The launch alone takes a hundredth of it.
    assert sorted(clocked)[2] == pytest.approx(sorted(events)[2], rel=0.1)


@pytest.mark.gpu
@pytest.mark.alone
def test_peak_memory_is_that_of_the_measured_steps():
    size, calls = 2**28, []

    def step(phase):
        calls.append("step")
        with phase("allocate"):
            # The first of the warm-ups holds four times as much.
            count = 4 * size if len(calls) == 1 else size
            torch.empty(count, dtype=torch.uint8, device="cuda")

    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    peak = timing.measure(step, warmup=1, repeats=2, device="cuda")
    assert peak["peak_allocated_bytes"] == held + size
    assert peak["peak_reserved_bytes"] >= held + size
