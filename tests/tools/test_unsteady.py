"""Rows that a slow host may have touched are measured again."""

import threading
import time

import pytest

from systems.records import store
from systems.records.host import Probe
from systems.records.record import Row
from systems.running import machine
from tests.factories import committed
from tools import at_once, regen_tables, unsteady
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


def test_out_of_time_none_is_started(record, monkeypatch, tmp_path):
    record.rows[1].host = [Probe(1.9)]
    store.write(record, tmp_path / "nvidia-h200" / "warmup.json")
    monkeypatch.setattr(unsteady, "run_child", lambda *_, **__: pytest.fail("started"))
    outcome = measure_unsteady("warmup", tmp_path, time.time() - 1)
    assert outcome.message == "out of time; run again to go on"


def test_a_row_is_measured_again_for_a_phase_alone(record, monkeypatch, tmp_path):
    """No check of same cells sees it any more."""
    alone = record.rows[2].config
    monkeypatch.setattr(Row, "in_doubt", property(lambda row: row.config == alone))
    store.write(record, tmp_path / "nvidia-h200" / "warmup.json")
    started = []

    def note(stem, results, *flags, **_):
        started.append(flags)
        return Outcome(stem, "measured")

    monkeypatch.setattr(unsteady, "run_child", note)
    measure_unsteady("warmup", tmp_path, 1e18)
    assert started == [("--again", "2", "--deadline", "1e+18")]


# Several ------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """What is asked to be measured again, in which lane; "compile" fails."""
    found = []

    def measured(stem, results, deadline, lane=None):
        found.append((stem, lane))
        if stem == "compile":
            return Outcome(stem, "error: its record", 2)
        return Outcome(stem, "settled", skipped=stem == "nsys")

    monkeypatch.setattr(regen_tables, "measure_unsteady", measured)
    monkeypatch.setattr(regen_tables, "render_if_told", lambda *_: found.append("all"))
    return found


def test_one_that_fails_takes_nothing_from_the_others(asked, tmp_path, capsys):
    given = ["--results", str(tmp_path), "--again", "warmup"]
    assert regen_tables.main([*given, "--again", "compile", "--again", "warmup"]) == 2
    assert asked == [("warmup", None), ("compile", None), "all"]
    said = capsys.readouterr()
    assert (
        said.out == "warmup: settled\n" and said.err == "error: compile: its record\n"
    )


def test_where_nothing_was_measured_nothing_is_rendered(asked, tmp_path):
    assert regen_tables.main(["--results", str(tmp_path), "--again", "nsys"]) == 0
    assert asked == [("nsys", None)]


def test_each_has_its_lane(asked, monkeypatch, tmp_path):
    def lanes(stems, count, results, measure):
        assert count == 2
        return [measure(stem, LANE) for stem in stems]

    monkeypatch.setattr(at_once, "measure_at_once", lanes)
    given = ["--results", str(tmp_path), "--again", "warmup", "--again", "attention"]
    assert regen_tables.main([*given, "--at-once", "2"]) == 0
    assert asked == [("warmup", LANE), ("attention", LANE), "all"]
