"""Measuring an experiment in a child process: what is said of it is what came of it."""

import json
import os
import signal
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest

from tools import measuring
from tools.measuring import (
    measure_if_stale,
    run_child,
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
