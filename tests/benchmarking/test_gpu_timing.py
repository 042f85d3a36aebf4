"""The kernels' clock: what it asks of Triton's benchmark."""

from types import SimpleNamespace

import pytest
import torch
from triton.runtime import driver

from systems.benchmarking import gpu_timing
from systems.benchmarking.gpu_timing import (
    kernel_times_ms,
    pass_times_ms,
    product_times_ms,
)


@pytest.fixture
def do_bench(monkeypatch):
    """Stands in for Triton's benchmark: keeps its options, answers with `times`."""
    import triton.testing

    calls, times = [], [1.0]
    monkeypatch.setattr(
        triton.testing,
        "do_bench",
        lambda work, **options: calls.append(options) or times,
    )
    return calls, times


def test_samples_are_those_of_do_bench(do_bench):
    calls, times = do_bench
    times[:] = [0.123456789, 2.0]
    assert kernel_times_ms(lambda: None, "cuda", warmup_ms=7, rep_ms=9) == [
        0.123457,
        2.0,
    ]
    assert calls == [
        {"warmup": 7, "rep": 9, "grad_to_none": None, "return_mode": "all"}
    ]


@pytest.mark.parametrize("overwritten", [1, 3])
def test_the_triton_that_is_installed_empties_the_cache_before_each_call(
    monkeypatch, overwritten
):
    """Its own do_bench, whose GPU is none: nothing runs, and no time passes. What it
    writes itself right before a call, and what is written beside, is all before the
    event that starts the clock.
    """
    done = []

    def event(**_):
        return SimpleNamespace(
            record=lambda: done.append("event"), elapsed_time=lambda end: 1.0
        )

    device = SimpleNamespace(synchronize=lambda: None, Event=event)
    active = SimpleNamespace(
        get_device_interface=lambda: device,
        get_empty_cache_for_benchmark=lambda: "buffer",
        clear_cache=lambda buffer: done.append("write"),
    )
    buffer = SimpleNamespace(zero_=lambda: done.append("write"))
    monkeypatch.setattr(driver, "_active", active)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: buffer)
    kernel_times_ms(
        lambda: done.append("call"), "cuda", overwritten=overwritten, rep_ms=2
    )
    writes = ["write"] * overwritten
    # Of the last calls, which are measured, each one.
    measured = [*writes, "event", "call", "event"]
    assert done[-2 * len(measured) :] == measured * 2
    # As many where a call's time is estimated, so that the time asked for is kept.
    estimated = ["event", *(writes + ["call"]) * 5, "event"]
    at = done.index("event")
    assert sorted(done[at:][: len(estimated)]) == sorted(estimated)


@pytest.mark.parametrize("count", [1, 29, 30, 31, 1000])
def test_few_samples_are_kept_and_they_span_the_run(do_bench, count):
    do_bench[1][:] = [float(i) for i in range(count)]
    kept = kernel_times_ms(lambda: None, "cuda")
    assert len(kept) <= gpu_timing.SAMPLES_KEPT and len(kept) >= min(
        count, gpu_timing.SAMPLES_KEPT // 2
    )
    # Evenly: the largest gap is the step between any two.
    steps = {b - a for a, b in zip(kept, kept[1:], strict=False)}
    assert (
        len(steps) <= 1 and kept[0] == 0.0 and count - kept[-1] <= max(steps, default=1)
    )


def test_passes_are_told_apart():
    """Forward alone makes no gradients; the backward passes share one graph; gradients
    are not accumulated.
    """
    forwards, grads = [], []

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            forwards.append(torch.is_grad_enabled())
            return q * 1

        @staticmethod
        def backward(ctx, do):  # pyright: ignore[reportIncompatibleMethodOverride]
            grads.append(len(forwards))
            return do, do, do

    q, k, v = (torch.ones(2, requires_grad=True) for _ in range(3))
    times = pass_times_ms(Product.apply, q, k, v, torch.ones(2))
    calls = gpu_timing.CPU_CALLS
    assert [len(samples) for samples in times.values()] == [calls] * 3
    assert len(forwards) == calls + calls + 1
    assert grads == [calls + 1 + i for i in range(calls)] + [2 * calls + 1] * calls
    assert q.grad is None


def test_a_product_leaves_the_precision_as_it_was(precision):
    precision("medium")
    assert len(product_times_ms("tf32", 4, 2, "cpu")) == gpu_timing.CPU_CALLS
    assert torch.get_float32_matmul_precision() == "medium"


@pytest.mark.gpu
def test_a_product_takes_time():
    a = torch.randn(1024, 1024, device="cuda")
    # No GPU does 10^16 operations in a second.
    assert min(kernel_times_ms(lambda: a @ a, "cuda")) > 2e3 * 1024**3 / 1e16
