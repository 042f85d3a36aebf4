"""Rows that a slow host may have touched are measured again."""

import threading

import pytest

from systems.records import store
from systems.records.host import Probe
from systems.running import machine
from tests.factories import committed
from tools import unsteady
from tools.checks import same_cell
from tools.measuring import Lane, Outcome
from tools.unsteady import measure_unsteady

LANE = Lane("0", [], None, threading.Event())


@pytest.fixture
def record(monkeypatch):
    """One of a quiet host."""
    record = committed("warmup")
    for row in record.rows:
        row.host = [Probe(1.0)]
        # Steps as long as one another: only the probe tells a slow host.
        for name, samples in row.metrics.items():
            if name.endswith("_ms"):
                row.metrics[name] = len(samples) * [samples[-1]]
    monkeypatch.setattr(machine, "device_for", lambda _: record.device)
    return record


def test_the_unsteady_rows_of_a_record_are_measured_again(
    record, monkeypatch, tmp_path
):
    started = []

    def quieter(stem, results, *flags, lane=None):
        assert lane == LANE
        started.append(flags)
        record.rows[1].host = [Probe(1.0)]
        store.write(record, path)
        return Outcome(stem, "measured")

    monkeypatch.setattr(unsteady, "run_child", quieter)
    path = tmp_path / "nvidia-h200" / "warmup.json"
    outcome = measure_unsteady("warmup", tmp_path, 1e18, LANE)
    said = f"error: {path} does not exist: measure it first"
    assert (outcome.message, outcome.code) == (said, 2)
    store.write(record, path)
    outcome = measure_unsteady("warmup", tmp_path, 1e18, LANE)
    assert (outcome.message, outcome.code) == ("no row is unsteady or differs", 0)
    record.rows[1].host, record.rows[3].host = [Probe(1.9)], [Probe(2.0)]
    store.write(record, path)
    outcome = measure_unsteady("warmup", tmp_path, 1e18, LANE)
    assert started == [("--again", "1,3", "--deadline", "1e+18")]
    assert outcome.message == "measured; unsteady rows: 1, before 2"
    record.rows[3].host = [Probe(1.0)]
    store.write(record, path)
    longer = [[record.rows[0]], []]
    monkeypatch.setattr(same_cell, "slower_rows", lambda *_: longer.pop(0))
    outcome = measure_unsteady("warmup", tmp_path, 1e18, LANE)
    assert started[1:] == [("--again", "0", "--deadline", "1e+18")]
    assert outcome.message == (
        "measured; unsteady rows: 0, before 0; rows that differ: 0, before 1"
    )
    monkeypatch.setattr(machine, "device_for", lambda _: None)
    assert measure_unsteady("warmup", tmp_path, 1e18, LANE).code == 2
