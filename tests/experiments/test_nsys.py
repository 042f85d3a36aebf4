"""One step under both profilers: what a row keeps of each, and what tables say."""

from itertools import product

import pytest

from systems.benchmarking.phases import PHASES
from systems.experiments import kernel_profile
from systems.experiments import nsys as nsys_experiment
from systems.records.outcome import measure_row
from systems.records.record import Row
from tests.factories import make_record
from tools.render.stems import nsys as rendered

# What each phase takes under an instrument: wall-clock time, kernels, in ms.
TIMES = {"torch": (5.0, 1.0), "nsys": (3.0, 1.01)}


def profile_of(config):
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


def test_a_row_holds_both_instruments(monkeypatch):
    asked = []

    def profile(config):
        asked.append(config)
        return profile_of(config)

    monkeypatch.setattr(kernel_profile, "run", profile)
    monkeypatch.setattr(nsys_experiment.nsys, "is_installed", lambda: True)
    row = measure_row(
        nsys_experiment.Config("medium", precision="bf16"), nsys_experiment.run
    )
    assert [c.profiler for c in asked] == ["torch", "nsys"]
    assert {(c.size, c.context, c.mode, c.precision) for c in asked} == {
        ("medium", 512, "step", "bf16")
    }
    row.clock = Row({}, "ok", {f"{phase}_ms": [2.0] for phase in PHASES})
    (x,) = rendered.steps(make_record("nsys", row))
    assert x["nsys_kernels"] == 3 * len(PHASES)
    times = x["ratio"], x["torch_slowdown"], x["nsys_slowdown"]
    assert times == pytest.approx((1.01, 2.5, 1.5))


def a_step(size, wall, torch=1.0, nsys=1.0):
    """A row whose phases take these ms without a profiler and under each, the kernels
    of one half a millisecond.
    """
    metrics = {}
    for instrument, phase in product(nsys_experiment.INSTRUMENTS, PHASES):
        metrics[f"{instrument}_{phase}_kernels"] = 5
        profiled = {"torch": torch, "nsys": nsys}[instrument]
        metrics[f"{instrument}_profiled_{phase}_ms"] = [profiled]
        metrics[f"{instrument}_{phase}_gpu_busy_ms"] = [0.5]
    config = {"size": size, "context": 512, "precision": "fp32"}
    row = Row(config, "ok", metrics)
    row.clock = Row({}, "ok", {f"{phase}_ms": [wall] for phase in PHASES})
    return row


def test_a_profiler_costs_what_a_step_takes_longer_under_it():
    """Steps that kernels fill stand first."""
    full, slow = a_step("2.7B", 0.5, 0.6, 0.55), a_step("small", 2.0, 4.0, 1.6)
    record = make_record("nsys", slow, full)
    facts = rendered.facts(record)
    assert (facts["slowdown_nsys"], facts["slowdown_torch"]) == ("1.10", "2.00")
    told = facts["filled_size"], facts["filled"], facts["filled_slowdown"]
    assert told == ("2.7B", "100 %", "1.10")
    lines = rendered.cost_table(record).splitlines()
    assert lines[2].startswith("| 2.7B, 512, fp32 | 2.0 |")
    assert lines[3] == "| small, 512, fp32 | 8.0 | 0.80 | 2.00 |"


def test_kernels_are_counted_once_where_both_saw_as_many():
    alike, apart = (a_step(size, 1.0) for size in ("small", "xl"))
    apart.metrics["torch_forward_kernels"] = 7
    shown = rendered.kernels_table(make_record("nsys", alike, apart))
    assert "| small, 512, fp32 | 20 |" in shown
    assert "| xl, 512, fp32 | 20, torch.profiler 22 |" in shown


def test_a_record_without_rows_has_no_numbers():
    assert set(rendered.facts(None).values()) == {"not measured"}


def test_without_nsys_the_row_says_what_to_install(monkeypatch):
    monkeypatch.setattr(nsys_experiment.nsys, "is_installed", lambda: False)
    row = measure_row(nsys_experiment.Config(), nsys_experiment.run)
    assert row.status == "unsupported" and "install Nsight Systems" in (
        row.reason or ""
    )
