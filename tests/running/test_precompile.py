"""Compiling ahead: which rows, by how many processes, and that the time it takes is not
lost.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace

import pytest
import typer

from systems import ROOT
from systems.experiments import STEMS, Stem
from systems.records import store
from systems.running import measure, precompile
from tests import fake_stem


@dataclass(frozen=True)
class Config:
    implementation: str
    n: int


CONFIGS = [Config(name, n) for n in range(20) for name in ("ours", "plain")]
NEVER = float("inf")
OURS = [config for config in CONFIGS if config.implementation == "ours"]


@pytest.fixture
def stem(monkeypatch):
    monkeypatch.setitem(
        STEMS,
        "fake",
        Stem("fake_module", full=("cuda",), quick=("cpu",), rehearsed=("ours",)),
    )
    module = SimpleNamespace(
        seen=[], configs=lambda quick: CONFIGS[:2] if quick else CONFIGS
    )
    monkeypatch.setitem(sys.modules, "fake_module", module)
    return module


@pytest.fixture
def started(monkeypatch):
    found = []

    def start(command, env, **_):
        found.append(command)
        return SimpleNamespace(
            wait=lambda timeout=None: 0, kill=lambda: None, terminate=lambda: None
        )

    monkeypatch.setattr(precompile, "cores", lambda: 3)
    monkeypatch.setattr(subprocess, "Popen", start)
    return found


@pytest.mark.parametrize("done", [0, 5])
def test_pending_rows_are_shared_out_among_the_processes(
    stem, started, done, monkeypatch
):
    precompile.rehearse("fake", "full", CONFIGS[done:], NEVER)
    stem.run = stem.seen.append
    limits = []
    monkeypatch.setattr(precompile, "limit_memory", lambda: limits.append(1))
    for command in started:
        assert command[:3] == [sys.executable, "-m", "systems.running.precompile"]
        name, grid, *rows = command[3:]
        precompile.main(name, grid, [int(row) for row in rows])
    assert len(started) == len(limits) == 3
    assert sorted(stem.seen, key=OURS.index) == [
        config for config in CONFIGS[done:] if config in OURS
    ]


def test_each_process_has_its_share_of_each_kind(stem, started, monkeypatch):
    """Also where as many kinds take turns in the grid as there are processes."""
    both = ("ours", "plain")
    monkeypatch.setitem(STEMS, "fake", replace(STEMS["fake"], rehearsed=both))
    monkeypatch.setattr(precompile, "cores", lambda: 2)
    precompile.rehearse("fake", "full", CONFIGS, NEVER)
    assert len(started) == 2
    for command in started:
        names = [CONFIGS[int(row)].implementation for row in command[5:]]
        assert sorted(names) == ["ours"] * 10 + ["plain"] * 10


@pytest.mark.parametrize(
    "name", ["flash_peers", "flash_accuracy", "flash_benchmarking"]
)
def test_what_compiles_much_is_compiled_ahead(name, started):
    configs = precompile.configs_of(name, "full")
    precompile.rehearse(name, "full", configs, NEVER)
    assert len(started) == 3
    rows = {int(row) for command in started for row in command[5:]}
    compiled = {configs[row].implementation for row in rows}
    # PyTorch's own attention comes compiled.
    assert compiled and not {x for x in compiled if x.startswith("sdpa")}


@pytest.mark.parametrize(("room", "count"), [(2**50, 5), (100 * 2**30, 3), (1, 1)])
def test_models_are_compiled_by_as_many_as_cores_and_memory_allow(
    started, monkeypatch, room, count
):
    monkeypatch.setattr(precompile, "cores", lambda: 16)
    monkeypatch.setattr(precompile, "free", lambda: room)
    configs = precompile.configs_of("compile", "full")
    precompile.rehearse("compile", "full", configs, NEVER)
    assert len(started) == count
    rows = {int(row) for command in started for row in command[5:]}
    assert {i for i, c in enumerate(configs) if c.execution == "compiled"} == rows


def test_what_needs_much_waits_for_its_like_and_what_needs_little_is_beside_it():
    needs = {0: 40, 1: 5, 2: 30, 3: 20, 4: 10, 5: 38}
    assert precompile.that_fit(needs, 9, 143) == [[0], [5], [2], [3], [4], [1]]
    assert precompile.that_fit(needs, 3, 80) == [[0, 5], [2, 3], [4, 1]]
    assert precompile.that_fit(needs, 3, 79) == [[0, 5, 2], [3, 4, 1]]
    assert precompile.that_fit(needs, 2, 59) == [[0, 5, 2, 3, 4, 1]]


@pytest.mark.parametrize("deadline", [6, NEVER])
def test_half_of_the_time_or_a_ceiling_ends_it_in_one_line(
    stem, monkeypatch, capsys, deadline
):
    monkeypatch.setattr(precompile, "cores", lambda: 2)
    monkeypatch.setattr(precompile, "LONGEST", 0.2 if deadline == NEVER else 60)
    children, popen = [], subprocess.Popen

    def start(command, **options):
        children.append(
            popen([sys.executable, "-c", "import time; time.sleep(60)"], **options)
        )
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    before = time.time()
    precompile.rehearse("fake", "full", CONFIGS, before + deadline)
    assert time.time() - before < 5
    assert len(children) == 2 and all(child.returncode < 0 for child in children)
    assert '"compiled_in_part", "minutes"' in capsys.readouterr().out


def test_where_not_all_can_be_started_none_goes_on(stem, monkeypatch):
    """As where a container allows no more processes."""
    monkeypatch.setattr(precompile, "cores", lambda: 3)
    children, popen = [], subprocess.Popen

    def start(command, **options):
        if len(children) == 2:
            raise BlockingIOError("no more processes")
        children.append(
            popen([sys.executable, "-c", "import time; time.sleep(60)"], **options)
        )
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(BlockingIOError):
        precompile.rehearse("fake", "full", CONFIGS, NEVER)
    assert [child.poll() for child in children] == 2 * [-signal.SIGTERM]


# A child of a run, told of its parent: it has a temporary folder, and ends when it is
# told to, or not.
CHILD = """
import signal, sys, time
from tempfile import TemporaryDirectory
from systems.running import precompile
from systems.running.reports import exit_when_terminated
kind, parent = sys.argv[1:]
precompile.GRACE = 1
exit_when_terminated()
if kind == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with TemporaryDirectory():
    print(flush=True)
    precompile.end_with(int(parent))
    time.sleep(60)
"""


def test_told_to_end_they_leave_no_folder_and_the_deaf_are_killed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(precompile, "GRACE", 2)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, kind, str(os.getpid())],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
        )
        for kind in ("deaf", "hears", "hears")
    ]
    for child in children:
        assert child.stdout and child.stdout.readline()
        child.stdout.close()
    precompile.end(children)
    assert [child.poll() for child in children] == [-signal.SIGKILL, 143, 143]
    assert len(list(tmp_path.iterdir())) == 1


def test_out_of_time_nothing_is_started_or_said(stem, started, capsys):
    precompile.rehearse("fake", "full", CONFIGS, time.time() - 60)
    assert started == [] and capsys.readouterr().out == ""


def test_few_rows_or_one_core_are_not_worth_it(stem, started, monkeypatch):
    precompile.rehearse("fake", "full", CONFIGS[:14], NEVER)
    precompile.rehearse("warmup", "full", CONFIGS, NEVER)
    monkeypatch.setattr(precompile, "cores", lambda: 1)
    precompile.rehearse("fake", "full", CONFIGS, NEVER)
    assert started == []


def test_cores_that_others_have_are_not_counted(monkeypatch):
    monkeypatch.setattr(precompile.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(
        precompile.os, "sched_getaffinity", lambda process: {3, 5}, raising=False
    )
    assert precompile.cores() == 2
    monkeypatch.delattr(precompile.os, "sched_getaffinity")
    assert precompile.cores() == 64


def test_a_row_that_fails_does_not_keep_the_others(stem):
    def run(config):
        stem.seen.append(config)
        raise RuntimeError("out of shared memory")

    stem.run = run
    precompile.main("fake", "full", [2, 6])
    assert stem.seen == [CONFIGS[2], CONFIGS[6]]


@pytest.mark.parametrize(("kind", "code", "left"), [("hears", 143, 0), ("deaf", 1, 1)])
def test_it_ends_at_work_when_its_parent_is_gone(kind, code, left, tmp_path):
    command = [sys.executable, "-c", CHILD, kind, str(os.getpid() + 1)]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    child = subprocess.run(command, cwd=ROOT, env=environment, timeout=30)
    assert child.returncode == code and len(list(tmp_path.iterdir())) == left


def test_it_looks_for_the_parent_that_it_is_told_of():
    command = [sys.executable, "-m", "systems.running.precompile"]
    environment = os.environ | {precompile.PARENT: str(os.getpid() + 1)}
    rows = ("flash_accuracy", "quick", "0")
    child = subprocess.run([*command, *rows], cwd=ROOT, env=environment, timeout=30)
    assert child.returncode == 128 + signal.SIGTERM


def test_terminated_it_leaves_no_folder(tmp_path):
    code = """
import time
from systems.running.precompile import folder_for_compiled
from systems.running.reports import exit_when_terminated
exit_when_terminated()
with folder_for_compiled():
    print(flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", code]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout and child.stdout.readline()
        assert list(tmp_path.glob("*-compiled-*"))
        child.send_signal(signal.SIGTERM)
    assert child.returncode == 143 and not list(tmp_path.glob("*-compiled-*"))


def test_the_folders_of_runs_that_were_killed_are_removed_and_no_others(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(precompile, "gettempdir", lambda: str(tmp_path))
    names = ("killed", "new", "running", "full")
    killed, new, running, full = (tmp_path / f"{precompile.OWN}{x}" for x in names)
    other = tmp_path / "compiled-by-me"
    for folder in (killed, new, running, full, other):
        (folder / "cache").mkdir(parents=True)
    for folder in (killed, running, other):
        os.utime(folder, (0, 0))
    code = f"""
import os
from pathlib import Path
from systems.running.precompile import locked
with locked(Path({str(full)!r})):
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 9
    os.utime(full, (0, 0))
    (tmp_path / f"{precompile.OWN}link").symlink_to(other)
    with precompile.locked(running):
        os.utime(running, (0, 0))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with precompile.folder_for_compiled():
            own = precompile.ahead("")
            assert own and own.is_dir()
    assert not killed.exists() and not full.exists() and not own.exists()
    assert all((x / "cache").is_dir() for x in (new, running, other))


def test_what_was_not_written_to_the_end_was_not_kept(tmp_path):
    """Where the disk is full; or the process is ended, since its time is."""
    code = f"""
import resource, signal
from pathlib import Path
from systems.running.precompile import keep_samples
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
keep_samples(Path({str(tmp_path)!r}), {{"forward_ms": [1.0, 2.0]}})
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "File too large" in done.stderr
    assert precompile.cold_samples(tmp_path) == {}
    precompile.keep_samples(tmp_path, {"forward_ms": [1.0]})
    assert precompile.cold_samples(tmp_path)["warmup_forward_ms"] == [1.0]


@pytest.mark.slow
def test_the_command_line_is_understood():
    rows = ("flash_accuracy", "quick", "0", "1")
    command = [sys.executable, "-m", "systems.running.precompile", *rows]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0


def test_its_time_counts_with_the_first_row(fake_on_gpu, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        measure, "rehearse", lambda *arguments: asked.append(arguments) or time.sleep(1)
    )
    with pytest.raises(typer.Exit):
        measure.main("fake", tmp_path)
    assert asked == [("fake", "full", fake_stem.configs(), 1e18)]
    rows = store.read(tmp_path / "a-gpu" / "fake.json").rows
    assert [row.config for row in rows] == [
        asdict(config) for config in fake_stem.configs()
    ]
    first, *others = (row.seconds or 0 for row in rows)
    assert first >= 1 > max(others)
