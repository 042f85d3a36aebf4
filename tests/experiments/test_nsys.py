"""One step under both profilers: what a row keeps of each, and what tables say."""

import pytest

from systems.benchmarking.phases import PHASES
from systems.experiments import kernel_profile, nsys
from systems.records.outcome import measure_row
from tools.render.rows import Cell
from tools.render.stems import nsys as rendered

# What each phase takes under an instrument: wall without, wall with, kernels, in ms.
TIMES = {"torch": (2.0, 5.0, 1.0), "nsys": (2.0, 3.0, 1.01)}


def profile_of(config):
    wall, profiled, busy = TIMES[config.profiler]
    kernels = [
        {"phase": f"{phase}/part", "name": "gemm", "calls": 3, "total_ms": busy}
        for phase in PHASES
    ]
    found = {"kernels": kernels}
    for phase in PHASES:
        found |= {f"{phase}_ms": [wall] * 2, f"profiled_{phase}_ms": [profiled] * 2}
        found[f"{phase}_gpu_busy_ms"] = [busy] * 2
    return found


def test_a_row_holds_both_instruments(monkeypatch):
    asked = []

    def profile(config):
        asked.append(config)
        return profile_of(config)

    monkeypatch.setattr(kernel_profile, "run", profile)
    monkeypatch.setattr(nsys.nsys, "is_installed", lambda: True)
    row = measure_row(nsys.Config("medium", precision="bf16"), nsys.run)
    assert [c.profiler for c in asked] == ["torch", "nsys"]
    assert {(c.size, c.context, c.mode, c.precision) for c in asked} == {
        ("medium", 512, "step", "bf16")
    }
    c = Cell(row)
    assert rendered.launched(c, "nsys") == 3 * len(PHASES)
    assert rendered.ratio(c) == pytest.approx(1.01)
    assert rendered.slowdown(c, "torch") == pytest.approx(2.5)
    assert rendered.slowdown(c, "nsys") == pytest.approx(1.5)


def test_without_nsys_the_row_says_what_to_install(monkeypatch):
    monkeypatch.setattr(nsys.nsys, "is_installed", lambda: False)
    row = measure_row(nsys.Config(), nsys.run)
    assert row.status == "unsupported" and "install Nsight Systems" in row.reason
