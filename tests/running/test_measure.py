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
from systems.records.host import Probe
from systems.records.outcome import Unsupported, measure_row
from systems.records.record import Git, Record
from systems.records.source_hash import source_hash
from systems.running import measure
from tests import fake_stem
from tests.factories import fake_stem_on, make_gpu

FAKE = fake_stem_on("meta")
DRIVER = f"""
import typer
from systems.experiments import STEMS, Stem
STEMS["fake"] = {FAKE}
from systems.running.measure import main
typer.run(main)
"""


class Run:
    """One run in this process: its exit code, its reports and what it said besides."""

    def __init__(self, capsys: pytest.CaptureFixture[str], results: Path, **options):
        capsys.readouterr()
        with pytest.raises(typer.Exit) as ended:
            measure.main("fake", results, **options)
        captured = capsys.readouterr()
        self.code = ended.value.exit_code
        self.events = [json.loads(line) for line in captured.out.splitlines()]
        self.stderr = captured.err
        self.measured = [
            event["config"]["index"] for event in self.events if event["event"] == "row"
        ]

    @property
    def error(self) -> str:
        """The one line of a run that could not start or go on."""
        assert (
            self.code == 2
            and self.events[-1]["event"] == "error"
            and "Traceback" not in self.stderr
        )
        message = self.events[-1]["message"]
        assert "\n" not in message
        return message


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(STEMS, "fake", FAKE)
    # Collecting garbage is slow in a process that has imported as much as this one.
    monkeypatch.setattr(measure, "free_memory", lambda: None)
    return lambda **options: Run(capsys, options.pop("results", tmp_path), **options)


@pytest.fixture
def record_file(tmp_path) -> Path:
    return tmp_path / "meta" / "fake.json"


@pytest.fixture
def partial_file(tmp_path) -> Path:
    return tmp_path / "meta" / "fake.partial.json"


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
        line += os.read(child.stdout.fileno(), 1)
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

    monkeypatch.setattr(measure.metadata, "version", absent)
    monkeypatch.setattr(
        measure, "import_module", lambda name: pytest.fail(f"imports {name}")
    )
    assert "triton" not in measure.versions() and "python" in measure.versions()


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
    assert outcome.events[0] == {"event": "start", "total": 6, "done": 4}
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


def test_a_tree_without_a_commit_says_so(run, monkeypatch, record_file):
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.delenv("GIT_COMMIT", raising=False)
    outcome = run()
    assert "no commit is noted (fatal: not a git repo" in outcome.stderr
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


def test_an_edited_record_is_never_verified(run, stale, record_file):
    text = record_file.read_text()
    record_file.write_text(text.replace("[6.0, 6.0", "[1.0, 6.0"))
    assert (
        run(verify=True).error == f"{record_file} was edited by hand: measure it again"
    )


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
    assert (
        (tmp_path / "file").read_text()
        == (tmp_path / "meta").read_text()
        == "in the way"
    )


def test_it_ends_when_nobody_listens_any_more(tmp_path, partial_file):
    child = start(tmp_path, FAKE_ROWS="1000", FAKE_SLEEP="20")
    assert child.stdout is not None
    reported = [
        json.loads(child.stdout.readline())["config"]["index"] for _ in range(3)
    ]
    child.stdout.close()
    assert child.wait(timeout=10) == 1
    assert (
        indices(partial_file)[:3] == reported == [1000, 999, 998]
        and len(indices(partial_file)) < 1000
    )


def test_rows_may_have_a_process_each(run, monkeypatch, tmp_path, record_file):
    log = tmp_path / "log"
    monkeypatch.setattr(fake_stem, "FRESH_PROCESS", True)
    monkeypatch.setenv("FAKE_ROWS", "3")
    monkeypatch.setenv("FAKE_LOG", str(log))
    assert run().code == 0
    processes = [line.split()[1] for line in log.read_text().splitlines()]
    assert len({*processes, str(os.getpid())}) == 4
    assert [row.metrics["count"] for row in store.read(record_file).rows] == [3, 2, 1]


@pytest.fixture
def turns(monkeypatch):
    """Makes rows of the fake stem turns that differ in their number alone; returns the
    numbers in the order of their turns.
    """
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


def test_rows_in_turns_are_measured_round_by_round(run, turns, partial_file):
    assert run().code == 1
    assert turns == [6, 5, 4, 3, 2, 1] * 2 + [6, 5, 3, 2, 1]
    rows = store.read(partial_file).rows
    assert [row.status for row in rows] == ["ok", "ok", "failed", "ok", "ok", "ok"]
    assert [row.metrics.get("count") for row in rows] == [6, 5, None, 3, 2, 1]
    # Their time counts once.
    assert [row.seconds for row in rows[1:]] == [0, 0, 0, 0, 0]


def test_where_one_row_of_a_round_is_missing_all_are_measured_again(
    run, turns, partial_file
):
    run()
    turns.clear()
    assert run().events[0] == {"event": "start", "total": 6, "done": 0}
    assert turns[:6] == [6, 5, 4, 3, 2, 1] and len(store.read(partial_file).rows) == 6


def probing(monkeypatch, *times: float) -> None:
    """The host takes these times, in ms, one probe after the other, then 1."""
    left = list(times)
    monkeypatch.setattr(
        measure, "probe", lambda launches: Probe(left.pop(0) if left else 1.0)
    )


def test_each_row_knows_the_host_before_and_after_it(run, record_file, monkeypatch):
    """Where nothing is timed there is nothing to know."""
    run()
    assert [row.host for row in store.read(record_file).rows] == [[]] * 6
    monkeypatch.setitem(STEMS, "fake", fake_stem_on("cpu"))
    probing(monkeypatch, 1.0, 2.0, 3.0)
    run()
    rows = store.read(record_file.parents[1] / "cpu" / "fake.json").rows
    times = [[probe.python_ms for probe in row.host] for row in rows]
    assert times == [[1, 2], [2, 3], [3, 1], [1, 1], [1, 1], [1, 1]]


@pytest.mark.usefixtures("fake_on_gpu")
def test_rows_of_a_slow_host_are_measured_again_and_the_quieter_stays(
    run, tmp_path, monkeypatch
):
    measured, real = [], fake_stem.run

    def noting(config):
        measured.append(config.index)
        return real(config)

    monkeypatch.setattr(fake_stem, "run", noting)
    # Slow after rows 5 and 2, so before 4 and 1 too; 2 needs a third try.
    first, again = [1, 1, 3, 1, 1, 2, 1], [1, 1.2, 1, 1, 1, 3, 1, 1, 1, 1.1]
    probing(monkeypatch, *first, *again)
    outcome = run()
    assert outcome.code == 0 and outcome.measured == [6, 5, 4, 3, 2, 1]
    assert [e["event"] for e in outcome.events].count("again") == len(measured) - 6
    assert measured == [6, 5, 4, 3, 2, 1, 5, 4, 2, 1, 2]
    rows = store.read(tmp_path / "a-gpu" / "fake.json").rows
    assert [row.config["index"] for row in rows] == [6, 5, 4, 3, 2, 1]
    slowest = [max(probe.python_ms for probe in row.host) for row in rows]
    assert slowest == [1, 1.2, 1, 1, 1.1, 1]


@pytest.mark.usefixtures("fake_on_gpu")
def test_a_host_that_stays_slow_is_not_waited_for(run, tmp_path, monkeypatch):
    probing(monkeypatch, *[1, 1, 1, 1, 1, 1, 3], *[3] * 10)
    outcome = run()
    assert [e["event"] for e in outcome.events].count("again") == 2
    assert store.read(tmp_path / "a-gpu" / "fake.json").rows[-1].host[1].python_ms == 3


@pytest.mark.usefixtures("fake_on_gpu")
def test_a_row_that_fails_when_measured_again_stays_as_it_was(
    run, tmp_path, monkeypatch
):
    probing(monkeypatch, 1, 1, 1, 1, 1, 1, 3)
    real, measured = fake_stem.run, []

    def once(config):
        measured.append(config.index)
        if measured.count(config.index) > 1:
            raise RuntimeError("CUDA error: an illegal address")
        return real(config)

    monkeypatch.setattr(fake_stem, "run", once)
    assert run().code == 0 and measured == [6, 5, 4, 3, 2, 1, 1]
    assert store.read(tmp_path / "a-gpu" / "fake.json").complete


@pytest.mark.usefixtures("fake_on_gpu")
@pytest.mark.parametrize("error", [Unsupported("not here"), MemoryError()])
def test_a_row_that_has_no_numbers_when_measured_again_stays_as_it_was(
    run, tmp_path, monkeypatch, error
):
    """And what both tries took is what the row took."""
    probing(monkeypatch, 1, 1, 1, 1, 1, 1, 3)
    real, measured = fake_stem.run, []

    def once(config):
        measured.append(config.index)
        if measured.count(config.index) > 1:
            time.sleep(0.2)
            raise error
        return real(config)

    monkeypatch.setattr(fake_stem, "run", once)
    assert run().code == 0 and measured == [6, 5, 4, 3, 2, 1, 1, 1]
    last = store.read(tmp_path / "a-gpu" / "fake.json").rows[-1]
    assert last.status == "ok" and last.seconds >= 0.4


@pytest.mark.usefixtures("fake_on_gpu")
def test_a_record_is_there_before_rows_are_measured_again(run, tmp_path, monkeypatch):
    probing(monkeypatch, 1, 1, 1, 1, 1, 1, 3)
    real, measured = fake_stem.run, []

    def killed(config):
        measured.append(config.index)
        if measured.count(config.index) > 1:
            raise KeyboardInterrupt
        return real(config)

    monkeypatch.setattr(fake_stem, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert store.read(tmp_path / "a-gpu" / "fake.json").complete


def test_a_row_in_turns_is_measured_alone_by_its_command(turns):
    row = measure_row(fake_stem.Config(5), fake_stem.run)
    assert (row.metrics, turns) == ({"count": 5}, [5, 5, 5])


def test_a_process_of_a_row_that_ends_badly_is_a_failed_row(
    run, monkeypatch, tmp_path, partial_file
):
    monkeypatch.setattr(fake_stem, "FRESH_PROCESS", True)
    monkeypatch.setenv("FAKE_ROWS", "1")
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "no folder" / "log"))
    assert run().code == 1
    (row,) = store.read(partial_file).rows
    assert row.status == "failed" and row.reason is not None
    assert row.reason.startswith("exit code 1: FileNotFoundError: ")


@pytest.fixture
def stale(run, record_file) -> Record:
    run()
    record = store.read(record_file)
    record.source_hash = "older"
    store.write(record, record_file)
    return record


def test_verify_stamps_a_stale_record_whose_rows_agree(run, stale, record_file):
    outcome = run(verify=True)
    assert outcome.code == 0 and outcome.measured == [6, 3, 1]
    stale.verified_hashes = [source_hash("tests.fake_stem")]
    assert store.read(record_file) == stale
    assert run(verify=True).code == 0 and store.read(record_file) == stale


def differs(**metrics):
    return lambda config: (
        {"work_ms": [config.index * t for t in (1.0, 1.0, 1.5)], "count": config.index}
        | metrics
    )


def out_of_memory(config):
    raise torch.OutOfMemoryError("CUDA out of memory. It is full.")


DIFFERENCES = {
    "time": (differs(work_ms=[60.0, 60.0, 60.0]), "work_ms (median 6, now median 60)"),
    "count": (differs(count=9), "count (6, now 9)"),
    "metric gone": (
        lambda config: {"count": config.index},
        "work_ms (median 6, now None)",
    ),
    "names": (
        differs(count=["triton_a", "triton_b"]),
        "count (6, now ['triton_a', 'triton_b'])",
    ),
    "table": (
        lambda config: differs()(config) | {"count": [{"n": 1}]},
        "count (6, now 1 entries)",
    ),
    "status": (out_of_memory, "work_ms (median 6, now None), count (6, now None)"),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_verify_refuses_a_record_whose_rows_differ(
    run, monkeypatch, stale, record_file, difference
):
    replaced, named = DIFFERENCES[difference]
    monkeypatch.setattr(fake_stem, "run", replaced)
    where = "fake differs at {'index': 6, 'sleep': 3}"
    assert run(verify=True).error == f"{where} in {named}: measure it again"
    assert store.read(record_file) == stale


def test_verify_refuses_rows_without_samples(run, monkeypatch, stale, record_file):
    monkeypatch.setattr(fake_stem, "run", differs(work_ms=[]))
    _, row, end = run(verify=True).events
    assert row["reason"] == "ValueError: work_ms: has no samples"
    assert end["event"] == "error" and "work_ms (median 6, now None)" in end["message"]
    assert store.read(record_file) == stale


@pytest.mark.parametrize(
    "old, new, same",
    [
        ([10.0, 10.0], [10.4, 10.4], True),
        ([10.0, 10.0], [10.6, 10.6], False),
        ([10.0, 10.0], [9.4, 9.4], False),
        # Noise of three times the spread is allowed, whichever run was the noisier: p80
        # - p20 is 0.6 of 1.
        ([10.0, 11.0], [12.0, 12.0], True),
        ([12.0, 12.0], [10.0, 11.0], True),
        ([10.0, 11.0], [12.5, 12.5], False),
        (3, 3, True),
        (3, 4, False),
        ([1.0], None, False),
        (1.0, [1.0], False),
    ],
)
def test_agreement_is_within_noise(old, new, same):
    assert measure.agrees("forward_ms", old, new) == same


def test_what_is_no_time_must_be_the_same():
    old = [{"dtype": "float32", "bytes": 8}]
    assert measure.agrees("saved", old, [dict(old[0])]) and not measure.agrees(
        "saved", old, [old[0] | {"bytes": 9}]
    )
    assert not measure.agrees("forward_fused", ["triton_a"], ["triton_b"])


def test_reserved_memory_may_differ_by_a_tenth():
    assert measure.agrees("peak_reserved_bytes", 1000, 1100) and measure.agrees(
        "peak_reserved_bytes", 1000, 900
    )
    assert not measure.agrees("peak_reserved_bytes", 1000, 1101) and not measure.agrees(
        "peak_allocated_bytes", 9, 10
    )
    assert not measure.agrees("peak_reserved_bytes", 1000, None)


def test_verify_needs_a_record_with_rows(run, record_file):
    assert run(verify=True).error.startswith(
        f"{record_file} does not exist: there is nothing to verify"
    )
    run()
    record = store.read(record_file)
    for row in record.rows:
        row.status, row.metrics, row.reason = "unsupported", {}, "no kernel"
    store.write(record, record_file)
    assert run(verify=True).error.startswith(
        f"{record_file} has no row to measure again"
    )


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
    monkeypatch.setattr(measure, "find_gpu", lambda: None)
    assert (
        run().error
        == "fake needs a GPU and none was found; --quick runs what a CPU can"
    )
    assert run(verify=True).error == "fake needs a GPU and none was found"
    assert run(grid="quick").code == 0


def test_a_gpu_that_torch_cannot_use_is_no_cpu_measurement(run, monkeypatch, tmp_path):
    monkeypatch.setitem(STEMS, "fake", fake_stem_on("cuda"))
    monkeypatch.setattr(measure, "find_gpu", lambda: make_gpu("NVIDIA X"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run().error.endswith("can't use the NVIDIA X: install a CUDA build of torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA Y")
    assert (
        run().error
        == "torch would use NVIDIA Y, not NVIDIA X: set CUDA_VISIBLE_DEVICES"
    )
    assert not list(tmp_path.rglob("*.json"))
