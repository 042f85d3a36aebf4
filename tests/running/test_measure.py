"""Measuring a stem: what is on disk whatever happens, and what the next run makes of
it.
"""

import errno
import gc
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer

from systems import ROOT
from systems.experiments import STEMS
from systems.records import store
from systems.records.device import CPU
from systems.records.record import Git
from systems.records.source_hash import source_hash
from systems.running import groups, machine, measure, software
from tests import fake_stem
from tests.factories import fake_stem_on, make_gpu
from tests.needed import needs_git

FAKE = fake_stem_on("meta")
DRIVER = f"""
import typer
from systems.experiments import STEMS, Stem
STEMS["fake"] = {FAKE}
from systems.running.measure import main
typer.run(main)
"""


def start(results: Path, **environment: str) -> subprocess.Popen[str]:
    """A run in a process of its own, which has reported that it starts."""
    command = [sys.executable, "-c", DRIVER, "fake", str(results)]
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    # Byte by byte: what a buffer took beyond this line, `communicate` would not see.
    line = b""
    while not line.endswith(b"\n"):
        # Nothing comes from one that has ended.
        line += (byte := os.read(child.stdout.fileno(), 1))
        assert byte, f"it ended without a report: exit code {child.wait()}"
    assert json.loads(line)["event"] == "start"
    return child


def indices(path: Path) -> list[int]:
    return [row.config["index"] for row in store.read(path).rows]


def fail_at(monkeypatch, index: int, error: Exception) -> None:
    real = fake_stem.run

    def run(config):
        if config.index == index:
            raise error
        return real(config)

    monkeypatch.setattr(fake_stem, "run", run)


def test_what_is_not_installed_has_no_version_and_imports_nothing(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(software.metadata, "version", absent)
    monkeypatch.delitem(sys.modules, "torch")
    assert "triton" not in software.versions() and "python" in software.versions()
    assert "torch" not in sys.modules


def test_no_row_looks_for_garbage_in_what_was_there_before(run, monkeypatch):
    older, collected, real = [], [], fake_stem.run

    def look(config):
        collected.append(any(one is older for one in gc.get_objects()))
        return real(config)

    monkeypatch.setattr(fake_stem, "run", look)
    try:
        run()
    finally:
        gc.unfreeze()
    assert collected == [False] * 6


def test_on_a_gpu_the_compiler_is_there_before(run, fake_on_gpu, monkeypatch):
    real, order = measure.import_module, []
    monkeypatch.setattr(
        measure, "import_module", lambda name: order.append(name) or real(name)
    )
    monkeypatch.setattr(gc, "freeze", lambda: order.append("freeze"))
    assert run().code == 0
    assert order.index("torch._inductor.compile_fx") < order.index("freeze")


def test_a_whole_run(run, record_file):
    outcome = run()
    assert outcome.code == 0
    assert outcome.events[0] == {"event": "start", "total": 6, "done": 0}
    record = store.read(record_file)
    assert [row.config for row in record.rows] == [
        asdict(config) for config in fake_stem.configs()
    ]
    assert (
        record.rows[0].metrics == {"work_ms": [6.0, 6.0, 9.0], "count": 6}
        and record.rows[0].status == "ok"
    )
    assert (
        record.complete
        and record.grid == "full"
        and record.protocol == fake_stem.PROTOCOL
    )
    assert record.source_hash == source_hash("tests.fake_stem")
    # The lock is held by flock, so its file may stay.
    assert sorted(os.listdir(record_file.parent)) == [".fake.json.lock", "fake.json"]


def test_a_reduced_run_is_kept_apart(run, tmp_path, record_file):
    assert run(grid="quick").code == 0
    record = store.read(tmp_path / "quick" / "meta" / "fake.json")
    assert record.grid == "quick" and len(record.rows) == record.expected_rows == 2
    assert not record_file.exists()


@pytest.mark.slow
def test_killed_at_any_instant_it_loses_only_the_row_in_flight(
    tmp_path, record_file, partial_file
):
    instants, kills, rows = random.Random(20), 20, 400
    log = tmp_path / "log"
    environment = {"FAKE_ROWS": str(rows), "FAKE_LOG": str(log)}
    finished: list[int] = []
    for _ in range(kills):
        child = start(tmp_path, **environment)
        time.sleep(instants.uniform(0, 0.06))
        child.send_signal(signal.SIGKILL)
        output, _ = child.communicate(timeout=30)
        assert child.returncode == -signal.SIGKILL, (
            "it must be killed at work: give it more rows"
        )
        reported = finished + [
            json.loads(line)["config"]["index"]
            for line in output.splitlines()
            if '"row"' in line
        ]
        assert not record_file.exists()
        if partial_file.exists():
            finished = indices(partial_file)
        # Written before it is reported, and at most one further row is written and not
        # reported.
        assert (
            finished[: len(reported)] == reported and len(finished) - len(reported) <= 1
        )
    child = start(tmp_path, **environment)
    child.communicate(timeout=60)
    assert child.returncode == 0 and not partial_file.exists()
    assert (
        indices(record_file) == list(range(rows, 0, -1))
        and store.read(record_file).complete
    )
    times_measured = Counter(line.split()[0] for line in log.read_text().splitlines())
    assert rows <= times_measured.total() <= rows + kills


def test_the_next_run_measures_only_what_is_missing(run, record_file, partial_file):
    run()
    record = store.read(record_file)
    # In another order than the grid's, which the finished record has again.
    record.rows = record.rows[:1:-1]
    store.write(record, partial_file)
    outcome = run()
    start, there = outcome.events[:2]
    assert start == {"event": "start", "total": 6, "done": 4}
    assert (there["event"], there["rows"], there["since"]) == (
        "there",
        4,
        record.started_utc,
    )
    assert outcome.measured == [6, 5]
    assert indices(record_file) == [6, 5, 4, 3, 2, 1] and not partial_file.exists()


OTHERS = {
    "code": {"source_hash": "0123"},
    "versions": {"software": {"python": "3.0"}},
    "device": {"device": CPU},
    "grid": {"grid": "quick"},
    "number of rows": {"expected_rows": 7},
}


@pytest.mark.parametrize("other", OTHERS)
def test_rows_of_something_else_are_never_mixed_in(
    run, record_file, partial_file, other
):
    run()
    record = store.read(record_file)
    for name, value in OTHERS[other].items():
        setattr(record, name, value)
    record.rows = record.rows[:3]
    store.write(record, partial_file)
    outcome = run()
    reason = "was measured with other code, versions or device"
    assert outcome.stderr == f"starting over: {partial_file} {reason}\n"
    assert outcome.code == 0 and len(outcome.measured) == 6


@pytest.mark.parametrize(
    "content", ["", "{", '{"schema": 2, "rows": []}', '{"schema": 1}']
)
def test_work_in_progress_that_cannot_be_read_is_started_over(
    run, partial_file, content
):
    partial_file.parent.mkdir()
    partial_file.write_text(content)
    outcome = run()
    assert (
        outcome.stderr.startswith(f"starting over: {partial_file}: ")
        and outcome.stderr.count("\n") == 1
    )
    assert outcome.code == 0 and len(outcome.measured) == 6


def test_of_two_runs_at_once_the_second_is_refused_by_name(run, tmp_path, record_file):
    first = start(tmp_path, FAKE_SLEEP="60000")
    try:
        message = "is being measured by another run: wait for it, or stop it"
        assert run().error == f"{record_file} {message}"
    finally:
        first.kill()
        first.communicate()
    # The lock went with the process, however it ended.
    assert run().code == 0


def test_out_of_time_it_stops_between_rows_and_keeps_them(
    run, monkeypatch, record_file, partial_file
):
    outcome = run(deadline=time.time() - 1)
    assert outcome.code == 0 and [event["event"] for event in outcome.events] == [
        "start",
        "out_of_time",
    ]
    assert not partial_file.exists()
    ticks = iter(range(10))
    with monkeypatch.context() as slow:
        slow.setattr(
            measure,
            "time",
            SimpleNamespace(time=lambda: next(ticks), monotonic=time.monotonic),
        )
        outcome = run(deadline=3)
    # Asked before each row, at 0, 1, 2 and, too late, at 3.
    assert outcome.code == 0 and outcome.events[-1] == {"event": "out_of_time"}
    assert (
        indices(partial_file) == outcome.measured == [6, 5, 4]
        and not record_file.exists()
    )
    assert run(deadline=time.time() + 60).measured == [3, 2, 1] and record_file.exists()


def test_a_failed_row_is_tried_again_and_never_published(
    run, monkeypatch, record_file, partial_file
):
    with monkeypatch.context() as broken:
        fail_at(broken, 4, RuntimeError("no such kernel\nand more"))
        outcome = run()
        failed = {"event": "failed", "failed": 1, "missing": 0}
        assert outcome.code == 1 and outcome.events[-1] == failed
        assert len(outcome.measured) == 6 and "no such kernel" in outcome.stderr
        row = store.read(partial_file).find(index=4)
        assert row is not None and (row.status, row.reason) == (
            "failed",
            "RuntimeError: no such kernel",
        )
        assert run().measured == [4] and not record_file.exists()
    assert run().measured == [4]
    assert store.read(record_file).complete and not partial_file.exists()


def test_after_a_cuda_error_no_further_row_is_trusted(run, monkeypatch, partial_file):
    fail_at(
        monkeypatch,
        4,
        RuntimeError("CUDA error: an illegal memory access was encountered"),
    )
    outcome = run()
    assert outcome.code == 1 and outcome.measured == [6, 5, 4]
    assert outcome.events[-1] == {"event": "failed", "failed": 1, "missing": 3}


def test_out_of_memory_is_a_result(run, monkeypatch, record_file):
    reason = "CUDA out of memory. Tried to allocate 2.50 GiB"
    error = torch.OutOfMemoryError(f"{reason}. GPU 0 has a total capacity of 139 GiB.")
    fail_at(monkeypatch, 4, error)
    assert run().code == 0
    row = store.read(record_file).find(index=4)
    assert row is not None and (row.status, row.metrics) == ("out_of_memory", {})
    assert row.reason == reason


def test_measured_again_the_old_record_stands_until_all_rows_are_there(
    run, monkeypatch, record_file, partial_file
):
    """What is done goes on where it was stopped, as if nothing had been measured."""
    run()
    old = store.read(record_file)
    old.command = "an earlier one"
    store.write(old, record_file)
    assert run(deadline=time.time() - 1).code == 0
    with monkeypatch.context() as broken:
        fail_at(broken, 1, RuntimeError("no"))
        assert len(run().measured) == 6
    assert store.read(record_file) == old and partial_file.exists()
    assert run().measured == [1]
    assert store.read(record_file).command != old.command and not partial_file.exists()
    assert len(run().measured) == 6


def test_a_metric_that_is_not_finite_is_a_failed_row_that_names_it(
    run, monkeypatch, partial_file
):
    """The rows after it are measured, and the next run tries it again."""
    real = fake_stem.run
    with monkeypatch.context() as diverged:
        diverged.setattr(
            fake_stem,
            "run",
            lambda config: (
                real(config)
                | ({"loss": [1.0, float("nan")]} if config.index == 4 else {})
            ),
        )
        outcome = run()
    assert outcome.code == 1 and outcome.measured == [6, 5, 4, 3, 2, 1]
    row = store.read(partial_file).find(index=4)
    assert row is not None and row.status == "failed"
    assert row.reason == "ValueError: loss[1]: is nan, not a finite number"
    assert run().measured == [4] and not partial_file.exists()


def test_what_no_record_can_hold_is_a_failed_row(run, monkeypatch, partial_file):
    """Written as it is, it would be in the way of all later rows."""

    def strange(config):
        if config.index == 1:
            raise RuntimeError("\ud800 " + "x" * 5000)
        odd = {2: {1, 2}, 3: b"x", 4: "\udfff", 5: 10**5000}
        return {"count": odd.get(config.index, 6)}

    monkeypatch.setattr(fake_stem, "run", strange)
    # A user's stderr takes what is no UTF-8, that of the tests does not.
    monkeypatch.setattr(groups.traceback, "print_exc", lambda: None)
    assert run().measured == [6, 5, 4, 3, 2, 1]
    rows = {row.config["index"]: row for row in store.read(partial_file).rows}
    assert rows.pop(6).status == "ok"
    for row in rows.values():
        assert row.status == "failed" and row.reason and len(row.reason) < 2010
    assert (rows[1].reason or "").startswith("RuntimeError: \\ud800 x")
    named = {index: (rows[index].reason or "") for index in (2, 3, 4, 5)}
    assert all("ValueError: a metric is not JSON" in told for told in named.values())


def test_a_time_that_can_not_be_is_a_failed_row(run, monkeypatch, partial_file):
    monkeypatch.setattr(fake_stem, "run", lambda config: {"work_ms": [-1.0]})
    assert run().code == 1
    reasons = {row.reason for row in store.read(partial_file).rows}
    assert reasons == {"ValueError: work_ms[0]: is -1.0, no time in ms above 0"}


def test_work_in_progress_with_foreign_or_double_rows_is_started_over(
    run, record_file, partial_file
):
    run()
    record = store.read(record_file)
    record.rows = record.rows[:2]
    record.rows[1].config = {"index": 9, "sleep": 3}
    store.write(record, partial_file)
    outcome = run()
    assert "has a row that is not in the grid, {'index': 9" in outcome.stderr
    assert outcome.code == 0 and len(outcome.measured) == 6
    record.rows[1] = record.rows[0]
    partial_file.write_text(store.to_json(record))
    outcome = run()
    assert "rows[1].config: is that of rows[0]" in outcome.stderr
    assert outcome.code == 0 and len(outcome.measured) == 6


def test_work_in_progress_that_was_edited_is_started_over(
    run, record_file, partial_file
):
    run()
    partial_file.write_text(record_file.read_text().replace("[6.0, 6.0", "[1.0, 6.0"))
    outcome = run()
    assert outcome.stderr.endswith("was edited by hand\n")
    assert len(outcome.measured) == 6


def test_complete_work_never_lies_beside_its_record(run, monkeypatch, partial_file):
    """A record that is deleted to measure again is measured again."""
    run()
    seen, replaced = [], os.replace

    def replace_and_look(source, target):
        replaced(source, target)
        names = sorted(path.name for path in partial_file.parent.glob("fake*.json"))
        seen.append((Path(target).name, names))

    monkeypatch.setattr(os, "replace", replace_and_look)
    run()
    assert seen[-1] == ("fake.json", ["fake.json"])
    partial_file.with_name("fake.json").unlink()
    assert len(run().measured) == 6


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_a_lock_that_is_no_file_is_refused_and_not_followed(run, tmp_path, kind):
    lock, other = tmp_path / "meta" / ".fake.json.lock", tmp_path / "other"
    lock.parent.mkdir()
    other.write_text("not ours")
    {
        "link": lambda: lock.symlink_to(other),
        "fifo": lambda: os.mkfifo(lock),
        "folder": lock.mkdir,
    }[kind]()
    message = run().error
    assert message.startswith(f"can't write {lock}: ") and "remove it" in message
    assert other.read_text() == "not ours"


def test_a_folder_where_rows_would_be_kept_is_the_one_that_is_named(run, partial_file):
    """Not the file that was to take its place, which is gone by then."""
    partial_file.mkdir(parents=True)
    where = f"can't write {partial_file}: Is a directory"
    assert run().error == f"{where}; remove it, or give another --results"
    assert sorted(os.listdir(partial_file.parent)) == [
        ".fake.json.lock",
        "fake.partial.json",
    ]


@pytest.mark.parametrize("installed", [True, False])
def test_a_tree_without_a_commit_says_so(
    run, monkeypatch, record_file, tmp_path, installed
):
    if installed:
        needs_git()
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.delenv("GIT_COMMIT", raising=False)
    if not installed:
        monkeypatch.setenv("PATH", str(tmp_path))
    outcome = run()
    why = "fatal: not a git repo" if installed else "git is not installed"
    assert f"no commit is noted ({why}" in outcome.stderr
    assert outcome.stderr.endswith("; set GIT_COMMIT\n") and outcome.code == 0
    assert store.read(record_file).git is None


@pytest.mark.parametrize("repository", [None, "/nonexistent"])
def test_a_commit_that_is_named_comes_before_what_git_says(
    run, monkeypatch, record_file, repository
):
    """In a repository of another commit, and without any."""
    if repository:
        monkeypatch.setenv("GIT_DIR", repository)
    monkeypatch.setenv("GIT_COMMIT", "be1169b0c4d5")
    outcome = run()
    assert outcome.code == 0 and "no commit is noted" not in outcome.stderr
    assert store.read(record_file).git == Git("be1169b0c4d5", dirty=False)


@pytest.mark.parametrize(
    "text", ["", "main", "be1169", "be1169b\n", "a" * 65, "be1169bg"]
)
def test_what_is_no_commit_is_refused_in_one_line(run, monkeypatch, record_file, text):
    monkeypatch.setenv("GIT_COMMIT", text)
    message = run().error
    assert message.startswith("GIT_COMMIT must be a commit, 7 to 64 digits of 0-9 and")
    assert f"got {text!r:.80}: set it right, or unset it" in message
    assert not record_file.exists()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_one_line_and_costs_no_finished_row(
    run, monkeypatch, partial_file, call
):
    calls, real = [], getattr(os, call)

    def full(*arguments):
        calls.append(arguments)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    monkeypatch.setattr(os, call, full)
    message = run().error
    assert (
        message.startswith("can't write ")
        and "No space left on device; free space or give another" in message
    )
    assert (
        indices(partial_file) == [6, 5, 4] and len(os.listdir(partial_file.parent)) == 2
    )


def test_a_folder_that_cannot_be_written_is_one_line(run, tmp_path):
    (tmp_path / "file").write_text("in the way")
    message = run(results=tmp_path / "file").error
    assert (
        message.startswith(f"can't write {tmp_path}/file")
        and "; remove it, or give another --results" in message
    )
    (tmp_path / "meta").write_text("in the way")
    assert run().error.startswith(f"can't write {tmp_path}/meta")
    # What is not there is not to be removed.
    message = run(results=Path("/proc/nowhere")).error
    assert message.endswith("No such file or directory; give another --results")
    assert (
        (tmp_path / "file").read_text()
        == (tmp_path / "meta").read_text()
        == "in the way"
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"),
            "can't go on: No usable temporary directory found in ['/tmp']",
        ),
        (
            OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), sys.executable),
            f"can't use {sys.executable}: Cannot allocate memory",
        ),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/compiled-x"),
            "can't use /tmp/compiled-x: No space left on device; free space there",
        ),
    ],
    ids=["no temporary folder", "no process starts", "temporary files fill the disk"],
)
def test_what_another_folder_would_not_help_is_not_said_to(
    run, monkeypatch, error, said
):
    def fails():
        raise error

    monkeypatch.setattr(measure, "folder_for_compiled", fails)
    assert run().error == said


def test_it_ends_when_nobody_listens_any_more(tmp_path, partial_file):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    child = start(tmp_path, FAKE_ROWS="1000", FAKE_SLEEP="20", TMPDIR=str(temporary))
    assert child.stdout is not None and list(temporary.glob("*-compiled-*"))
    reported = [
        json.loads(child.stdout.readline())["config"]["index"] for _ in range(3)
    ]
    child.stdout.close()
    assert child.wait(timeout=10) == 1
    assert (
        indices(partial_file)[:3] == reported == [1000, 999, 998]
        and len(indices(partial_file)) < 1000
    )
    assert not list(temporary.glob("*-compiled-*"))


def test_a_name_or_a_grid_that_is_none_is_one_line(capsys, tmp_path):
    for stem, grid in (("nosuch", "full"), ("warmup", "huge")):
        with pytest.raises(typer.Exit):
            measure.main(stem, tmp_path, grid)
        event = json.loads(capsys.readouterr().out)
        assert event["event"] == "error" and " is none of " in event["message"]
    assert not list(tmp_path.iterdir())


def test_a_stem_that_needs_a_gpu_says_so(run, monkeypatch):
    only_quick_on_cpu = replace(fake_stem_on("cuda"), quick=("cuda", "cpu"))
    monkeypatch.setitem(STEMS, "fake", only_quick_on_cpu)
    monkeypatch.setattr(machine, "find_gpu", lambda: None)
    assert (
        run().error
        == "fake needs a GPU and none was found; --quick runs what a CPU can"
    )
    assert run(verify=True).error == "fake needs a GPU and none was found"
    assert run(grid="quick").code == 0


def test_a_gpu_that_torch_cannot_use_is_no_cpu_measurement(run, monkeypatch, tmp_path):
    monkeypatch.setitem(STEMS, "fake", fake_stem_on("cuda"))
    monkeypatch.setattr(machine, "find_gpu", lambda: make_gpu("NVIDIA X"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "can't use the NVIDIA X" in run().error
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA Y")
    assert "would use NVIDIA Y, not NVIDIA X: set CUDA_VISIBLE_DEVICES" in run().error
    assert not list(tmp_path.rglob("*.json"))
