"""Test rows that are measured in new processes."""

import os
from types import SimpleNamespace

import pytest

from systems.records import store
from systems.running import processes, resuming
from tests import fake_stem

CUDA_ERROR = "exit code 1: RuntimeError: CUDA error: an illegal memory access"


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
    assert rows[1].reason == CUDA_ERROR


def test_row_of_edited_code_is_not_kept(run, monkeypatch, partial_file):
    monkeypatch.setattr(fake_stem, "FRESH_PROCESS", True)
    hashes = iter("aab")
    monkeypatch.setattr(resuming, "source_hash", lambda *_: next(hashes))
    assert run().code == 2 and len(store.read(partial_file).rows) == 1


@pytest.mark.parametrize("ends", ["", "import os; os.kill(os.getpid(), 9)"])
def test_printed_text_is_not_read_as_a_row(monkeypatch, tmp_path, ends):
    (tmp_path / "talking.py").write_text(f"""
from tests.fake_stem import Config
def run(config):
    print('{{"config": {{}}, "status": "ok", "metrics": {{"n": 2}}}}', flush=True)
    {ends}
    return {{"n": 1}}
""")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.getcwd()}")
    module = SimpleNamespace(__name__="talking", FRESH_PROCESS=True)
    (row,) = processes.measure_config(module, fake_stem.Config(1))
    assert row is not None and row.metrics == ({} if ends else {"n": 1})
    assert (row.reason or "").startswith("exit code -9: " if ends else "")
