"""Rows in processes of their own: a fresh one each, or one for all of a kind."""

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from systems.records import store
from systems.running import processes
from systems.running.processes import RUNNING, row_processes
from tests import fake_stem

CUDA_ERROR = "exit code 1: RuntimeError: CUDA error: an illegal memory access"


def test_rows_may_have_a_fresh_process_each(run, monkeypatch, tmp_path, record_file):
    log = tmp_path / "log"
    monkeypatch.setattr(fake_stem, "FRESH_PROCESS", True)
    monkeypatch.setenv("FAKE_ROWS", "3")
    monkeypatch.setenv("FAKE_LOG", str(log))
    assert run().code == 0
    by = [line.split()[1] for line in log.read_text().splitlines()]
    assert len({*by, str(os.getpid())}) == 4
    assert [row.metrics["count"] for row in store.read(record_file).rows] == [3, 2, 1]


def test_a_gpu_that_fails_one_process_measures_the_others(
    run, monkeypatch, partial_file
):
    monkeypatch.setattr(fake_stem, "FRESH_PROCESS", True)
    monkeypatch.setenv("FAKE_ROWS", "3")
    monkeypatch.setenv("FAKE_CUDA_ERROR", "2")
    assert run().code == 1
    rows = store.read(partial_file).rows
    assert [row.status for row in rows] == ["ok", "failed", "ok"]
    assert rows[1].reason == CUDA_ERROR


@pytest.fixture
def by_parity(monkeypatch, tmp_path):
    """Rows of the fake stem with odd numbers have a process in common, and those with
    even ones. Call it for the process of each row.
    """
    log = tmp_path / "log"
    monkeypatch.setenv("FAKE_LOG", str(log))
    monkeypatch.setattr(fake_stem, "PROCESS_OF", "odd", raising=False)
    monkeypatch.setattr(
        fake_stem.Config, "odd", property(lambda self: self.index % 2), raising=False
    )
    with row_processes():
        yield lambda: dict(line.split() for line in log.read_text().splitlines())
    assert not RUNNING


def test_rows_that_agree_have_a_process_in_common(
    run, by_parity, monkeypatch, record_file
):
    monkeypatch.setenv("FAKE_ROWS", "4")
    assert run().code == 0
    by = by_parity()
    assert by["1"] == by["3"] != by["2"] == by["4"]
    assert str(os.getpid()) not in by.values()
    assert [r.metrics["count"] for r in store.read(record_file).rows] == [4, 3, 2, 1]


def test_one_that_ends_badly_is_a_failed_row_and_the_next_row_has_another(
    run, by_parity, monkeypatch, partial_file
):
    monkeypatch.setenv("FAKE_ROWS", "5")
    monkeypatch.setenv("FAKE_CUDA_ERROR", "3")
    assert run().code == 1
    rows = store.read(partial_file).rows
    assert [row.status for row in rows] == ["ok", "ok", "failed", "ok", "ok"]
    assert rows[2].reason == CUDA_ERROR
    by = by_parity()
    assert by["5"] == by["3"] != by["1"] and by["2"] == by["4"]


def measure_one():
    list(processes.turns(fake_stem, fake_stem.Config(1)))
    (started,) = RUNNING.values()
    return started.process


def test_they_end_with_their_input(by_parity):
    process = measure_one()
    assert process.poll() is None
    with row_processes():
        pass
    assert process.returncode == 0 and not RUNNING


def test_after_an_error_nobody_waits_for_them(by_parity):
    process = measure_one()
    with pytest.raises(KeyboardInterrupt), row_processes():
        assert process.stdin is not None
        print('{"index": 1, "sleep": 600000}', file=process.stdin, flush=True)
        raise KeyboardInterrupt
    assert process.returncode == -signal.SIGTERM and not RUNNING


def test_one_that_was_killed_is_a_failed_row(by_parity):
    process = measure_one()
    process.kill()
    process.wait()
    (row,) = processes.turns(fake_stem, fake_stem.Config(1))
    assert row is not None and row.status == "failed"
    assert row.reason == "exit code -9: no message"


def test_what_an_experiment_prints_is_no_row(monkeypatch, tmp_path):
    (tmp_path / "talking.py").write_text(
        "from tests.fake_stem import Config\n"
        """def run(config):
            print('{"config": {}, "status": "ok", "metrics": {"n": 2}}', flush=True)
            return {"n": 1}
        """
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = SimpleNamespace(
        __name__="talking",
        PROCESS_OF="index",
        environment=lambda config: {"PYTHONPATH": f"{tmp_path}:{os.getcwd()}"},
    )
    with row_processes():
        (row,) = processes.turns(module, fake_stem.Config(1))
    assert row is not None and row.metrics == {"n": 1} and "talking" not in sys.modules
