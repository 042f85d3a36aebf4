"""Test groups of rows that are interleaved, and rows measured in new processes."""

import os
import sys
from types import SimpleNamespace

import pytest

from systems.records import store
from systems.running import groups, resuming
from tests import fake_stem


@pytest.fixture
def order(monkeypatch):
    """Interleave the rows of the fake experiment; list the order of their numbers."""
    seen = []

    def run(config):
        for turn in range(3):
            seen.append(config.index)
            if config.index == 4 and turn == 1:
                raise RuntimeError("no such kernel")
            yield
        return {"count": config.index}

    monkeypatch.setattr(fake_stem, "IN_TURNS", "index", raising=False)
    monkeypatch.setattr(fake_stem, "run", run)
    return seen


def test_interleaved_rows_are_measured_in_rounds(run, order, partial_file):
    assert run().code == 1
    assert order == [6, 5, 4, 3, 2, 1] * 2 + [6, 5, 3, 2, 1]
    rows = store.read(partial_file).rows
    assert [row.status for row in rows] == ["ok", "ok", "failed", "ok", "ok", "ok"]
    assert [row.metrics.get("count") for row in rows] == [6, 5, None, 3, 2, 1]
    # The time of a group of rows counts once.
    assert [row.seconds for row in rows[1:]] == [0, 0, 0, 0, 0]


def test_incomplete_groups_are_measured_again(run, order, partial_file):
    run()
    order.clear()
    assert run().events[0] == {"event": "start", "total": 6, "done": 0}
    assert order[:6] == [6, 5, 4, 3, 2, 1] and len(store.read(partial_file).rows) == 6


def test_each_row_runs_in_its_own_process(run, monkeypatch, tmp_path, record_file):
    log = tmp_path / "log"
    monkeypatch.setattr(fake_stem, "FRESH_PROCESS", True)
    monkeypatch.setenv("FAKE_ROWS", "3")
    monkeypatch.setenv("FAKE_LOG", str(log))
    assert run().code == 0
    by = [line.split()[1] for line in log.read_text().splitlines()]
    assert len({*by, str(os.getpid())}) == 4
    assert [row.metrics["count"] for row in store.read(record_file).rows] == [3, 2, 1]


def test_cuda_error_fails_only_its_process(run, monkeypatch, partial_file):
    monkeypatch.setattr(fake_stem, "FRESH_PROCESS", True)
    monkeypatch.setenv("FAKE_ROWS", "3")
    monkeypatch.setenv("FAKE_CUDA_ERROR", "2")
    assert run().code == 1
    rows = store.read(partial_file).rows
    assert [row.status for row in rows] == ["ok", "failed", "ok"]
    reason = "exit code 1: RuntimeError: CUDA error: an illegal memory access"
    assert rows[1].reason == reason


def test_row_of_edited_code_is_not_kept(run, monkeypatch, partial_file):
    monkeypatch.setattr(fake_stem, "FRESH_PROCESS", True)
    hashes = iter("aab")
    monkeypatch.setattr(resuming, "source_hash", lambda *_: next(hashes))
    assert run().code == 2 and len(store.read(partial_file).rows) == 1


@pytest.mark.parametrize("ends", ["", "import os; os.kill(os.getpid(), 9)"])
def test_printed_text_is_not_read_as_a_row(monkeypatch, tmp_path, ends):
    noise = b"a line\n" if ends else b"half a line"
    (tmp_path / "sitecustomize.py").write_text(f"import os; os.write(1, {noise})")
    (tmp_path / "talking.py").write_text(f"""
from tests.fake_stem import Config
def run(config):
    print('{{"config": {{}}, "status": "ok", "metrics": {{"n": 2}}}}', flush=True)
    {ends}
    return {{"n": 1}}
""")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    module = SimpleNamespace(__name__="talking", FRESH_PROCESS=True)
    (row,) = groups.measure_config(module, fake_stem.Config(1))
    assert row is not None and row.metrics == ({} if ends else {"n": 1})
    assert (row.reason or "").startswith("exit code -9: " if ends else "")
