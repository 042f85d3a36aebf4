"""One step under both profilers: what a row keeps of each, and what tables say."""

from itertools import product

import pytest

from systems.benchmarking.phases import PHASES
from systems.experiments import kernel_profile, nsys
from systems.records.outcome import measure_row
from systems.records.record import Row
from tests.factories import make_record
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


def a_step(size, **times):
    """A row whose steps take these ms in each phase, its kernels half of one."""
    metrics = {}
    for instrument, phase in product(nsys.INSTRUMENTS, PHASES):
        wall, profiled = times[instrument]
        metrics[f"{instrument}_{phase}_kernels"] = 5
        metrics[f"{instrument}_{phase}_ms"] = [wall]
        metrics[f"{instrument}_profiled_{phase}_ms"] = [profiled]
        metrics[f"{instrument}_{phase}_gpu_busy_ms"] = [0.5]
    return Row({"size": size, "precision": "fp32"}, "ok", metrics)


def test_a_profiler_costs_what_a_step_takes_longer_under_it():
    full = a_step("2.7B", torch=(0.5, 0.6), nsys=(0.5, 0.55))
    # The second time without a profiler counts for nothing: one has run by then.
    slow = a_step("small", torch=(2.0, 4.0), nsys=(2.5, 1.6))
    facts = rendered.facts(make_record("nsys", full, slow))
    assert facts["noise"] == "1.00 to 1.25"
    assert (facts["slowdown_nsys"], facts["slowdown_torch"]) == ("1.10", "2.00")
    told = facts["filled_size"], facts["filled"], facts["filled_slowdown"]
    assert told == ("2.7B", "100 %", "1.10")
    files = rendered.fragments([make_record("nsys", full, slow)])
    assert "| small, fp32 | 8.0 | 1.25 | 0.80 | 2.00 |" in files["cost.md"]


def test_what_kernels_fill_stands_first():
    small = a_step("small", torch=(2.0, 4.0), nsys=(2.0, 3.0))
    full = a_step("2.7B", torch=(0.5, 0.6), nsys=(0.5, 0.55))
    lines = rendered.cost_table(make_record("nsys", small, full)).splitlines()
    assert lines[2].startswith("| 2.7B, fp32 | 2.0 |")
    assert lines[3].startswith("| small, fp32 | 8.0 |")


def test_kernels_are_counted_once_where_both_saw_as_many():
    alike, apart = (a_step(s, torch=(1, 1), nsys=(1, 1)) for s in ("small", "xl"))
    apart.metrics["torch_forward_kernels"] = 7
    shown = rendered.kernels_table(make_record("nsys", alike, apart))
    assert "| small, fp32 | 20 |" in shown
    assert "| xl, fp32 | 20, torch.profiler 22 |" in shown


def test_a_record_without_rows_has_no_numbers():
    assert set(rendered.facts(None).values()) == {"not measured"}


def test_without_nsys_the_row_says_what_to_install(monkeypatch):
    monkeypatch.setattr(nsys.nsys, "is_installed", lambda: False)
    row = measure_row(nsys.Config(), nsys.run)
    assert row.status == "unsupported" and "install Nsight Systems" in (
        row.reason or ""
    )
