"""Test records on disk after success, errors and interruption, and resuming."""

import errno
import gc
import json
import os
import platform
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest
import typer

from systems import ROOT
from systems.experiments import STEMS
from systems.records import store
from systems.records.device import CPU
from systems.records.record import Git, Row
from systems.records.source_hash import source_hash
from systems.running import groups, machine, measure, software
from systems.running.resuming import resume
from tests import fake_stem
from tests.factories import fake_stem_entry, make_gpu
from tests.needed import require_git
from tools.states import read_state

DRIVER = f"""
import typer
from systems.experiments import STEMS, Stem
STEMS["fake"] = {fake_stem_entry("meta")}
from systems.running.measure import main
typer.run(main)
"""
ALL = [6, 5, 4, 3, 2, 1]
COMMIT = "-c user.name=a -c user.email=b commit --no-gpg-sign --allow-empty -nqm c"


def launch(results: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a run in a new process, and wait for its first report."""
    command = [sys.executable, "-c", DRIVER, "fake", str(results)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    environment = {**os.environ, "TMPDIR": str(results), **environment}
    child = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)
    assert child.stdout is not None
    # Read byte by byte, so that `communicate` gets the rest.
    line = b""
    while not line.endswith(b"\n"):
        line += (byte := os.read(child.stdout.fileno(), 1))
        assert byte, f"it ended without a report: exit code {child.wait()}"
    assert json.loads(line)["event"] == "start"
    return child


def read_indices(path: Path) -> list[int]:
    return [row.config["index"] for row in store.read(path).rows]


def fail_row(monkeypatch, index: int, error: Exception) -> None:
    real = fake_stem.run

    def run(config):
        if config.index == index:
            raise error
        return real(config)

    monkeypatch.setattr(fake_stem, "run", run)


def test_run_writes_a_complete_record(run, record_file):
    outcome = run()
    assert outcome.code == 0 and "no commit is noted" not in outcome.stderr
    assert outcome.events[0] == {"event": "start", "total": 6, "done": 0}
    record = store.read(record_file)
    grid = [asdict(config) for config in fake_stem.configs()]
    assert [row.config for row in record.rows] == grid
    assert record.rows[0].metrics == {"work_ms": [6.0, 6.0, 9.0], "count": 6}
    assert record.complete and record.grid == "full"
    assert record.protocol == fake_stem.PROTOCOL
    assert record.source_hash == source_hash("tests.fake_stem")
    # GIT_COMMIT has precedence over git.
    assert record.git == Git("be1169b0c4d5", dirty=False)
    # `flock` holds the lock, so its file may stay.
    assert sorted(os.listdir(record_file.parent)) == [".fake.json.lock", "fake.json"]


def test_garbage_collection_skips_older_objects(run, monkeypatch):
    older, collected, real = [], [], fake_stem.run

    def find_older_object(config):
        collected.append(any(one is older for one in gc.get_objects()))
        return real(config)

    monkeypatch.setattr(fake_stem, "run", find_older_object)
    try:
        run()
    finally:
        gc.unfreeze()
    assert collected == [False] * 6


@pytest.mark.slow
def test_killed_run_loses_only_its_current_row(tmp_path, record_file, partial_file):
    instants, kills, rows = random.Random(20), 20, 400
    log = tmp_path / "log"
    environment = {"FAKE_ROWS": str(rows), "FAKE_LOG": str(log)}
    finished: list[int] = []
    for _ in range(kills):
        child = launch(tmp_path, **environment)
        time.sleep(instants.uniform(0, 0.06))
        child.send_signal(signal.SIGKILL)
        output, _ = child.communicate(timeout=30)
        assert child.returncode == -signal.SIGKILL, "give it more rows"
        rows_told = (json.loads(x) for x in output.splitlines() if '"row"' in x)
        reported = finished + [row["config"]["index"] for row in rows_told]
        assert not record_file.exists()
        if partial_file.exists():
            finished = read_indices(partial_file)
        # Rows are written before they are reported, so one more may be on disk.
        assert finished[: len(reported)] == reported
        assert len(finished) - len(reported) <= 1
    child = launch(tmp_path, **environment)
    child.communicate(timeout=60)
    assert child.returncode == 0 and not partial_file.exists()
    assert read_indices(record_file) == list(range(rows, 0, -1))
    assert store.read(record_file).complete
    times_measured = Counter(line.split()[0] for line in log.read_text().splitlines())
    assert rows <= times_measured.total() <= rows + kills


def test_next_run_measures_only_missing_rows(run, record_file, partial_file):
    run()
    record = store.read(record_file)
    # The partial record is in another order; the finished one has the grid's order.
    record.rows = record.rows[:1:-1]
    store.write(record, partial_file)
    outcome = run()
    first, there = outcome.events[:2]
    assert first == {"event": "start", "total": 6, "done": 4}
    fields = (there["event"], there["rows"], there["since"])
    assert fields == ("there", 4, record.started_utc)
    assert outcome.measured == [6, 5]
    assert read_indices(record_file) == ALL and not partial_file.exists()


OTHER = "was measured with other code, versions or device"
NOT_CONTINUED = {
    "source_hash": ("0123", OTHER),
    "software": ({"python": "3.0"}, OTHER),
    "device": (CPU, OTHER),
    "grid": ("quick", OTHER),
    "expected_rows": (7, OTHER),
    "foreign row": (
        lambda rows: rows[1].config.update(index=9),
        "has a row that is not in the grid, {'index': 9, 'sleep': 3}",
    ),
    "double row": (lambda rows: rows.__setitem__(1, rows[0]), "is that of rows[0]"),
}
# The text of a damaged file, given the text of a valid one.
DAMAGED = {
    "edited by hand": lambda text: text.replace("[6.0, 6.0", "[1.0, 6.0"),
    "is not JSON": lambda text: "",
    "schema is 2": lambda text: '{"schema": 2, "rows": []}',
}


@pytest.mark.parametrize("other", [*NOT_CONTINUED, *DAMAGED])
def test_rows_of_another_setup_are_not_resumed(run, record_file, partial_file, other):
    run()
    record = store.read(record_file)
    record.rows = record.rows[:3]
    change, reason = NOT_CONTINUED.get(other, (lambda rows: None, other))
    change(record.rows) if callable(change) else setattr(record, other, change)
    content = DAMAGED.get(other, str)(store.to_json(record))
    partial_file.write_text(content)
    outcome = run()
    assert outcome.stderr.startswith(f"starting over: {partial_file}")
    assert reason in outcome.stderr and outcome.stderr.count("\n") == 1
    assert outcome.code == 0 and outcome.measured == ALL
    (kept,) = partial_file.parent.glob(f".{partial_file.name}.*")
    assert kept.read_text() == content


def test_unreadable_partial_record_is_kept(run, record_file, partial_file, monkeypatch):
    """The file may be valid, but belong to another user, or be on a failing disk."""
    run()
    fresh = store.read(record_file)
    record_file.rename(partial_file)
    denied = Mock(side_effect=PermissionError(errno.EACCES, "Permission denied"))
    monkeypatch.setattr(store, "open_regular", denied)
    with pytest.raises(store.UnreadableError, match="can't be read: Permission"):
        resume(partial_file, fresh, [])
    with pytest.raises(store.UnreadableError):
        read_state(record_file)


def test_second_concurrent_run_is_rejected(run, tmp_path, record_file):
    first = launch(tmp_path, FAKE_SLEEP="60000")
    try:
        by = f"is being measured by process {first.pid} of {platform.node()}"
        assert run().error == f"{record_file} {by}: wait for it, or stop it"
    finally:
        first.kill()
        first.communicate()
    # The lock was released when the process ended.
    assert run(seen=0).code == 0
    # A run that started before the record existed does not measure it again.
    assert [event["event"] for event in run(seen=0).events] == ["already"]


def test_deadline_stops_between_rows(run, monkeypatch, record_file, partial_file):
    outcome = run(deadline=time.time() - 1)
    assert outcome.code == 0 and not partial_file.exists()
    assert [event["event"] for event in outcome.events] == ["start", "out_of_time"]
    ticks = iter(range(10))
    # The clock is read before each row: 0, 1, 2 and then 3, which is too late.
    clock = SimpleNamespace(time=lambda: next(ticks), monotonic=time.monotonic)
    with monkeypatch.context() as slow:
        slow.setattr(measure, "time", clock)
        outcome = run(deadline=3)
    assert outcome.code == 0 and outcome.events[-1] == {"event": "out_of_time"}
    assert read_indices(partial_file) == outcome.measured == [6, 5, 4]
    assert not record_file.exists()
    assert run(deadline=time.time() + 60).measured == [3, 2, 1] and record_file.exists()


def test_old_record_is_replaced_at_the_end(run, monkeypatch, record_file, partial_file):
    """When the new record replaces the old one, the partial record is gone."""
    run()
    old = store.read(record_file)
    old.command = "an earlier one"
    store.write(old, record_file)
    assert run(deadline=time.time() - 1).code == 0
    with monkeypatch.context() as broken:
        fail_row(broken, 1, RuntimeError("no"))
        assert run().measured == ALL
    assert store.read(record_file) == old and partial_file.exists()
    seen, replaced = [], os.replace

    def list_after_replacing(source, target):
        replaced(source, target)
        seen.append(sorted(path.name for path in record_file.parent.glob("fake*.json")))

    monkeypatch.setattr(os, "replace", list_after_replacing)
    assert run().measured == [1]
    assert store.read(record_file).command != old.command
    assert seen[-1] == ["fake.json"]
    record_file.unlink()
    assert run().measured == ALL


def test_run_ends_when_its_output_is_closed(tmp_path, partial_file):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    child = launch(tmp_path, FAKE_ROWS="1000", FAKE_SLEEP="20", TMPDIR=str(temporary))
    assert child.stdout is not None and list(temporary.glob("compiled-*"))
    lines = (json.loads(child.stdout.readline()) for _ in range(3))
    reported = [line["config"]["index"] for line in lines]
    child.stdout.close()
    assert child.wait(timeout=10) == 1
    finished = read_indices(partial_file)
    assert finished[:3] == reported == [1000, 999, 998] and len(finished) < 1000
    assert not list(temporary.glob("compiled-*"))


def test_failed_rows_are_not_published(run, monkeypatch, record_file, partial_file):
    with monkeypatch.context() as broken:
        fail_row(broken, 4, RuntimeError("no such kernel\nand more"))
        outcome = run()
        failed = {"event": "failed", "failed": 1, "missing": 0}
        assert outcome.code == 1 and outcome.events[-1] == failed
        assert outcome.measured == ALL and "no such kernel" in outcome.stderr
        row = store.read(partial_file).rows[2]
        assert (row.config["index"], row.status) == (4, "failed")
        assert row.reason == "RuntimeError: no such kernel"
        assert run().measured == [4] and not record_file.exists()
    assert run().measured == [4]
    assert store.read(record_file).complete and not partial_file.exists()


@pytest.mark.parametrize("library", ["CUDA error", "Triton Error [CUDA]"])
def test_cuda_error_stops_the_run(run, monkeypatch, library):
    error = f"{library}: an illegal memory access was encountered"
    fail_row(monkeypatch, 4, RuntimeError(error))
    outcome = run()
    assert outcome.code == 1 and outcome.measured == [6, 5, 4]
    assert outcome.events[-1] == {"event": "failed", "failed": 1, "missing": 3}
    # The next runs measure the other rows first, also after one that had no time.
    assert run(deadline=0.0).measured == []
    assert run().measured == [3, 2, 1, 4]


def test_gpu_that_others_filled_fails_rows(monkeypatch):
    """A row that is out of memory for their sake is measured again."""
    for share, status in ((0.2, "out_of_memory"), (0.3, "failed")):
        monkeypatch.setattr(groups, "others_memory_share", lambda own, x=share: x)
        found = [Row({}, "out_of_memory", reason="full"), Row({}, "ok")]
        monkeypatch.setattr(groups, "measure_group", lambda *_, rows=found: rows)
        monkeypatch.setattr(machine, "free_memory", lambda: None)
        record: Any = SimpleNamespace(device=make_gpu("NVIDIA L4"))
        rows = groups.measure_rows(record, fake_stem, [], since=0.0)
        assert [row.status for row in rows] == [status, "ok"]
        assert ("others use" in (rows[0].reason or "")) == (status == "failed")


def test_cpu_records_hold_no_times_of_a_hidden_gpu(monkeypatch):
    """Where torch is not imported yet, it finds no GPU that NVML does not list."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    measure.import_experiment(fake_stem_entry("cpu"), CPU)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_invalid_metrics_fail_their_row(run, monkeypatch, partial_file):
    """Such a metric in a record would prevent later rows from being written."""
    metrics = {
        8: (None, "run must return a dict of metrics, not None"),
        7: ({}, "run must return a dict of metrics, not {}"),
        6: ({"loss": [1.0, float("nan")]}, "loss[1]: is nan, not a finite number"),
        5: ({"work_ms": [-1.0]}, "work_ms[0]: is -1.0, no time in ms above 0"),
        4: ({"count": {1, 2}}, "a metric is not JSON"),
        3: ({"count": "\udfff"}, "a metric is not JSON"),
        2: ({"count": 10**5000}, "a metric is not JSON"),
    }

    def return_strange(config):
        if config.index == 1:
            raise RuntimeError("\ud800 " + "x" * 5000)
        return metrics[config.index][0]

    monkeypatch.setattr(fake_stem, "run", return_strange)
    monkeypatch.setenv("FAKE_ROWS", "8")
    # Under pytest, stderr rejects invalid UTF-8; a user's stderr does not.
    monkeypatch.setattr(groups.traceback, "print_exc", lambda: None)
    assert len(run().measured) == 8
    rows = {row.config["index"]: row for row in store.read(partial_file).rows}
    assert {row.status for row in rows.values()} == {"failed"}
    reasons = {index: row.reason or "" for index, row in rows.items()}
    assert max(map(len, reasons.values())) < 2010
    assert reasons.pop(1).startswith("RuntimeError: \\ud800 x")
    for index, reason in reasons.items():
        assert reason.startswith(f"ValueError: {metrics[index][1]}")


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_lock_must_be_a_regular_file(run, tmp_path, kind):
    lock, other = tmp_path / "meta" / ".fake.json.lock", tmp_path / "other"
    lock.parent.mkdir()
    other.write_text("not ours")
    make = {"link": lambda: lock.symlink_to(other), "fifo": lambda: os.mkfifo(lock)}
    make.get(kind, lock.mkdir)()
    message = run().error
    assert message.startswith(f"can't write {lock}: ") and "remove what" in message
    assert other.read_text() == "not ours"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_full_disk_keeps_finished_rows(run, monkeypatch, partial_file, call):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    effects = [DEFAULT] * 3 + [full] * 9
    monkeypatch.setattr(os, call, Mock(wraps=getattr(os, call), side_effect=effects))
    message = run().error
    assert message.startswith("can't write ")
    broken = "libcublas.so.12: cannot open shared object file"
    assert measure.describe_error(OSError(broken), ROOT) == broken
    assert "No space left on device; free space, " in message
    assert read_indices(partial_file) == [6, 5, 4]
    assert len(os.listdir(partial_file.parent)) == 2


@pytest.mark.parametrize("why", ["fatal: not a git", "fatal: path", "git is not"])
def test_missing_commit_is_reported(run, monkeypatch, record_file, tmp_path, why):
    if why == "git is not":
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        require_git()
    # A copy in another repository is in none of its commits.
    for command in ("init -q", COMMIT) if why == "fatal: path" else ():
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    # In a git hook, GIT_DIR names the hook's repository, which must not be used.
    monkeypatch.setenv("GIT_DIR", str(ROOT / ".git"))
    monkeypatch.setattr(software, "ROOT", tmp_path)
    monkeypatch.delenv("GIT_COMMIT", raising=False)
    outcome = run()
    assert f"no commit is noted ({why}" in outcome.stderr
    assert outcome.stderr.endswith("; set GIT_COMMIT\n") and outcome.code == 0
    assert store.read(record_file).git is None


@pytest.mark.parametrize("name, is_code", [("x.py", True), ("nvidia-l4.json", False)])
def test_only_new_code_makes_a_commit_dirty(monkeypatch, tmp_path, name, is_code):
    require_git()
    (folder := tmp_path / "systems/tuned").mkdir(parents=True)
    (tmp_path / "systems/old.py").touch()
    for command in ("init -q", "add -A", COMMIT):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    monkeypatch.setattr(software, "ROOT", tmp_path)
    monkeypatch.delenv("GIT_COMMIT", raising=False)
    (folder / name).touch()
    assert (git := software.find_commit()) and git.dirty == is_code


@pytest.mark.parametrize("text", ["", "main", "be1169", "be1169b\n", "a" * 65])
def test_invalid_commit_is_rejected(run, monkeypatch, record_file, text):
    monkeypatch.setenv("GIT_COMMIT", text)
    message = run().error
    assert message.startswith("GIT_COMMIT must be a commit, 7 to 64 digits of 0-9 and")
    assert f"got {text!r:.80}: set it right, or unset it" in message
    assert not record_file.exists()


def test_unknown_experiment_or_grid_is_rejected(capsys, tmp_path):
    for stem, grid in (("nosuch", "full"), ("warmup", "huge")):
        with pytest.raises(typer.Exit):
            measure.main(stem, tmp_path, grid)
        event = json.loads(capsys.readouterr().out)
        assert event["event"] == "error" and " is none of " in event["message"]
    assert not list(tmp_path.iterdir())


def test_experiment_without_a_gpu_or_a_protocol_is_refused(run, monkeypatch):
    only_quick_on_cpu = replace(fake_stem_entry("cuda"), quick=("cuda", "cpu"))
    monkeypatch.setitem(STEMS, "fake", only_quick_on_cpu)
    monkeypatch.setattr(machine, "find_gpu", lambda: None)
    needs = "fake needs a GPU and none was found"
    assert run().error == f"{needs}; --quick runs what a CPU can"
    assert run(grid="quick").code == 0
    monkeypatch.delattr(fake_stem, "PROTOCOL")
    assert run(grid="quick").error.endswith("has no PROTOCOL: see README.md")


def test_unusable_gpu_is_not_measured_as_a_cpu(run, monkeypatch, tmp_path):
    monkeypatch.setitem(STEMS, "fake", fake_stem_entry("cuda"))
    monkeypatch.setattr(machine, "find_gpu", make_gpu)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "can't use the A GPU" in run().error and not list(tmp_path.rglob("*.json"))
