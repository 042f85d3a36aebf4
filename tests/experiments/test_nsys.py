"""Test profiles of a step by PyTorch and Nsight Systems: metrics and tables."""

import pytest

from systems.benchmarking.phases import PHASES
from systems.experiments import kernel_profile
from systems.experiments import nsys as nsys_experiment
from systems.records.outcome import measure_row
from systems.records.record import Row
from tests.factories import make_record
from tools.render.stems import nsys as rendered

# By profiler: wall-clock time and kernel time of each phase, in ms.
TIMES = {"torch": (5.0, 1.0), "nsys": (3.0, 1.01)}


def fake_profile(config):
    profiled, busy = TIMES[config.profiler]
    kernels = [
        {"phase": f"{phase}/part", "name": "gemm", "calls": 3, "total_ms": busy}
        for phase in PHASES
    ]
    found = {"kernels": kernels}
    for phase in PHASES:
        found[f"profiled_{phase}_ms"] = [profiled] * 2
        found[f"{phase}_gpu_busy_ms"] = [busy] * 2
    return found


def test_row_has_metrics_of_both_profilers(monkeypatch):
    asked = []

    def record_profile(config):
        asked.append(config)
        return fake_profile(config)

    monkeypatch.setattr(kernel_profile, "run", record_profile)
    monkeypatch.setattr(nsys_experiment.nsys, "is_installed", lambda: True)
    row = measure_row(
        nsys_experiment.Config("medium", precision="bf16"), nsys_experiment.run
    )
    assert [c.profiler for c in asked] == ["torch", "nsys"]
    cells = {(c.size, c.context, c.mode, c.precision) for c in asked}
    assert cells == {("medium", 512, "step", "bf16")}
    row.clock = Row({}, "ok", {f"{phase}_ms": [2.0] for phase in PHASES})
    (x,) = rendered.steps(make_record("nsys", row))
    assert rendered.count_kernels(x, "nsys") == 3 * len(PHASES)
    assert x["ratio"] == pytest.approx(1.01)


def test_missing_nsys_is_unsupported(monkeypatch):
    monkeypatch.setattr(nsys_experiment.nsys, "is_installed", lambda: False)
    row = measure_row(nsys_experiment.Config(), nsys_experiment.run)
    assert row.status == "unsupported"
    assert "install Nsight Systems" in (row.reason or "")
