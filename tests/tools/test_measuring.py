"""Measuring an experiment in a child process: what is said of it is what came of it."""

import json
import os
import signal
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest
from rich.progress import Progress

from systems.records import store
from systems.records.host import Probe
from systems.running import machine
from tests.factories import committed
from tools import measuring
from tools.checks import same_cell
from tools.measuring import (
    Outcome,
    measure_if_stale,
    measure_unsteady,
    run_child,
    take_report,
)


def child_that(monkeypatch, code: str) -> None:
    """Let the child run this instead."""
    real = subprocess.Popen

    def start(command, **options):
        return real([command[0], "-c", code], **options)

    monkeypatch.setattr(
        measuring,
        "subprocess",
        SimpleNamespace(
            Popen=start,
            PIPE=subprocess.PIPE,
            TimeoutExpired=subprocess.TimeoutExpired,
        ),
    )


ROW = {"event": "row", "status": "ok", "config": {"index": 1}, "reason": None}


@pytest.mark.parametrize(
    ("end", "shown"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("raise SystemExit(130)", 130),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit(0)", 0),
        ("1 / 0", 1),
    ],
)
def test_measured_is_said_of_a_child_that_finished_alone(
    monkeypatch, tmp_path, end, shown
):
    """Whatever its exit code: only it knows whether all rows are there."""
    child_that(monkeypatch, f"print({json.dumps(ROW)!r}, flush=True); {end}")
    outcome = run_child("fake", tmp_path)
    again = "run again to go on from the last row"
    assert (outcome.code, outcome.rows) == (1, {"ok": 1})
    assert outcome.message == f"crashed (exit code {shown}); {again}"


def test_a_child_that_finished_is_measured(monkeypatch, tmp_path):
    done = json.dumps({"event": "complete"})
    child_that(monkeypatch, f"print({json.dumps(ROW)!r}); print({done!r})")
    outcome = run_child("fake", tmp_path)
    assert (outcome.code, outcome.message) == (0, "measured")


def test_a_child_that_dies_behind_its_last_word_has_crashed(monkeypatch, tmp_path):
    done = json.dumps({"event": "complete"})
    end = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    child_that(monkeypatch, f"print({done!r}, flush=True); {end}")
    outcome = run_child("fake", tmp_path)
    assert outcome.code == 1 and outcome.message.startswith("crashed (exit code -9)")


def test_told_twice_to_end_it_leaves_no_child(monkeypatch, tmp_path):
    """Ctrl-C again, while a child that is deep in a library is waited for."""
    pid = tmp_path / "pid"
    child_that(
        monkeypatch,
        f"""
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))
print({json.dumps(ROW)!r}, flush=True)
time.sleep(60)
""",
    )

    def interrupt(*_):
        again = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        again.start()
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "take_report", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_child("fake", tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_out_of_time_no_further_child_is_started(monkeypatch, tmp_path):
    child_that(monkeypatch, "raise SystemExit(3)")
    late = time.time() - 1
    outcome = measure_if_stale("model_sizes", tmp_path, False, False, late)
    said = "out of time; run again to go on"
    assert (outcome.code, outcome.message) == (0, said)


def test_a_record_that_can_not_be_read_is_an_outcome_of_its_own(tmp_path):
    """The other experiments are measured all the same."""
    path = tmp_path / "meta" / "model_sizes.json"
    path.parent.mkdir()
    path.write_text("{")
    outcome = measure_if_stale("model_sizes", tmp_path, False, False, 1e18)
    assert outcome.code == 2 and outcome.message.startswith(
        f"error: {path}: is not JSON"
    )


def test_the_unsteady_rows_of_a_record_are_measured_again(monkeypatch, tmp_path):
    record = committed("warmup")
    for row in record.rows:
        row.host = [Probe(1.0)]
        # Steps as long as one another: only the probe tells a slow host.
        for name, samples in row.metrics.items():
            if name.endswith("_ms"):
                row.metrics[name] = len(samples) * [samples[-1]]
    monkeypatch.setattr(machine, "device_for", lambda _: record.device)
    started = []

    def quieter(stem, results, *flags):
        started.append(flags)
        record.rows[1].host = [Probe(1.0)]
        store.write(record, path)
        return Outcome(stem, "measured")

    monkeypatch.setattr(measuring, "run_child", quieter)
    path = tmp_path / "nvidia-h200" / "warmup.json"
    outcome = measure_unsteady("warmup", tmp_path, 1e18)
    said = f"error: {path} does not exist: measure it first"
    assert (outcome.message, outcome.code) == (said, 2)
    store.write(record, path)
    outcome = measure_unsteady("warmup", tmp_path, 1e18)
    assert (outcome.message, outcome.code) == ("no row is unsteady or differs", 0)
    record.rows[1].host, record.rows[3].host = [Probe(1.9)], [Probe(2.0)]
    store.write(record, path)
    outcome = measure_unsteady("warmup", tmp_path, 1e18)
    assert started == [("--again", "1,3", "--deadline", "1e+18")]
    assert outcome.message == "measured; unsteady rows: 1, before 2"
    record.rows[3].host = [Probe(1.0)]
    store.write(record, path)
    longer = [[record.rows[0]], []]
    monkeypatch.setattr(same_cell, "slower_rows", lambda *_: longer.pop(0))
    outcome = measure_unsteady("warmup", tmp_path, 1e18)
    assert started[1:] == [("--again", "0", "--deadline", "1e+18")]
    assert outcome.message == (
        "measured; unsteady rows: 0, before 0; rows that differ: 0, before 1"
    )
    monkeypatch.setattr(machine, "device_for", lambda _: None)
    assert measure_unsteady("warmup", tmp_path, 1e18).code == 2


def test_the_bar_moves_as_rows_of_a_slow_host_settle():
    progress = Progress()
    task = progress.add_task("warmup", total=None, now="starting")
    for event in (
        {"event": "start", "total": 3, "done": 0},
        {"event": "again"},
        {"event": "settled", "done": 2},
    ):
        take_report(event, Outcome("warmup", ""), progress, task)
    assert progress.tasks[0].completed == 2 and progress.tasks[0].total == 3
