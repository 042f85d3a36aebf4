"""Test sums and spans of a profile with hand-made kernels."""

import pytest

from systems.profiling.digest import gpu_metrics
from systems.profiling.trace import Kernel, Span, TraceError


def span(name, start, end):
    return Span(name, start, end, 1)


def kernel(name, start, end, *marks):
    return Kernel(name, start * 1000, end * 1000, marks)


FIRST, SECOND = span("step", 0, 50), span("step", 60, 110)


def test_digest_has_spans_sums_and_counts_by_pass():
    forward, backward = span("forward", 60, 90), span("backward", 91, 100)
    gemm = "ampere_sgemm_128x64_tn"
    kernels = [
        kernel(gemm, 0, 10, FIRST, forward),
        kernel(gemm, 15, 20, FIRST, forward),
        kernel(gemm, 100, 120, SECOND, forward),
        kernel(gemm, 130, 140, SECOND, backward),
        kernel("stray", 150, 151, SECOND),
        kernel("outside of steps", 160, 161),
    ]
    metrics = gpu_metrics(kernels, 2)
    assert metrics["forward_gpu_span_ms"] == pytest.approx([0.020, 0.020])
    assert metrics["forward_gpu_busy_ms"] == pytest.approx([0.015, 0.020])
    assert metrics["backward_gpu_span_ms"] == pytest.approx([0, 0.010])
    assert "loss_gpu_span_ms" not in metrics
    top = metrics["kernels"][0]
    assert (top["phase"], top["calls"], top["category"]) == ("forward", 1.5, "matmul")
    assert top["total_ms"] == 0.0175
    # Kernels outside of all phases, but in a step, have a row, too.
    rows = [row for row in metrics["kernels"] if row["phase"] == ""]
    assert [(row["name"], row["total_ms"]) for row in rows] == [("stray", 0.0005)]
    with pytest.raises(TraceError, match="has 2 steps with kernels, not 3: profile ag"):
        gpu_metrics(kernels, 3)
