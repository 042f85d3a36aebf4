"""Test compilation ahead of time: its rows, its processes, and how they end."""

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import typer

from systems import ROOT
from systems.experiments import STEMS, Stem
from systems.experiments.compile import precompile_bytes
from systems.records import store
from systems.running import measure, precompile
from tests import fake_stem


@dataclass(frozen=True)
class Config:
    implementation: str
    n: int


CONFIGS = [Config(name, n) for n in range(20) for name in ("ours", "plain")]
NEVER = float("inf")
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def stem(monkeypatch):
    entry = Stem("fake_module", full=("cuda",), quick=("cpu",), precompiled=("ours",))
    monkeypatch.setitem(STEMS, "fake", entry)
    module = SimpleNamespace(seen=[], configs=lambda quick: CONFIGS)
    monkeypatch.setitem(sys.modules, "fake_module", module)
    monkeypatch.setattr(precompile, "available_cores", lambda: 3)
    return module


@pytest.fixture
def shares(monkeypatch):
    rows = []

    def start(command, **_):
        assert command[1:3] == ["-m", "systems.running.precompile"]
        assert command[5] == str(os.getpid())
        rows.append([*map(int, command[6:])])
        return Mock(poll=lambda: 0)

    monkeypatch.setattr(subprocess, "Popen", start)
    return rows


@pytest.mark.parametrize("done", [0, 5])
def test_pending_rows_are_divided_among_processes(stem, shares, done, monkeypatch):
    precompile.compile_ahead("fake", "full", CONFIGS[done:], NEVER)
    monkeypatch.setattr(precompile, "end_with_parent", lambda parent: None)

    def run(config):
        stem.seen.append(config)
        # A failing row does not stop other rows.
        raise RuntimeError("out of shared memory")

    stem.run = run
    for rows in shares:
        precompile.main("fake", "full", 1, rows)
    assert len(shares) == 3
    wanted = [c for c in CONFIGS[done:] if c.implementation == "ours"]
    assert sorted(stem.seen, key=CONFIGS.index) == wanted


@pytest.mark.parametrize(("room", "most"), [(2**50, 5), (100 * 2**30, 5), (1, 1)])
def test_cores_and_memory_limit_the_compiling_processes(monkeypatch, room, most):
    monkeypatch.setattr(precompile, "available_cores", lambda: 16)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (room, room))
    # Each time the parent sleeps, the process that started first ends.
    monkeypatch.setattr(time, "sleep", lambda _: alive.pop(0))
    alive, counts = [], {}
    configs = precompile.grid_configs("compile", "full")

    def start(command, **_):
        config = configs[int(command[6])]
        alive.append(config)
        counts[config] = len(alive)
        assert sum(map(precompile_bytes, alive)) <= room or len(alive) == 1
        return Mock(poll=lambda: None if config in alive else 0)

    monkeypatch.setattr(subprocess, "Popen", start)
    precompile.compile_ahead("compile", "full", configs, NEVER)
    assert max(counts.values()) == most and not alive
    assert {c for c in configs if c.execution == "compiled"} == {*counts}


def test_processes_get_equal_shares_of_each_kind(stem, shares, monkeypatch):
    both = replace(STEMS["fake"], precompiled=("ours", "plain"))
    monkeypatch.setitem(STEMS, "fake", both)
    monkeypatch.setattr(precompile, "available_cores", lambda: 2)
    precompile.compile_ahead("fake", "full", CONFIGS, NEVER)
    assert len(shares) == 2
    for rows in shares:
        names = [CONFIGS[row].implementation for row in rows]
        assert sorted(names) == ["ours"] * 10 + ["plain"] * 10


def test_useless_precompilation_is_skipped(stem, shares, monkeypatch, capsys):
    precompile.compile_ahead("fake", "full", CONFIGS[:14], NEVER)
    precompile.compile_ahead("warmup", "full", CONFIGS, NEVER)
    precompile.compile_ahead("fake", "full", CONFIGS, time.time() - 60)
    monkeypatch.setattr(precompile, "available_cores", lambda: 1)
    precompile.compile_ahead("fake", "full", CONFIGS, NEVER)
    assert shares == [] and capsys.readouterr().out == ""


@pytest.mark.parametrize("started", [2, 3])
def test_deadline_or_limit_ends_all_children(stem, monkeypatch, capsys, started):
    """After `started` processes the system refuses another, as a container may."""
    children, popen = [], subprocess.Popen

    def start(command, **options):
        if len(children) == started:
            raise BlockingIOError("no more processes")
        children.append(popen(SLEEP, **options))
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(precompile, "MAX_SECONDS", 0.2)
    before = time.time()
    with nullcontext() if started == 3 else pytest.raises(BlockingIOError):
        precompile.compile_ahead("fake", "full", CONFIGS, NEVER)
    warned = '"compiled_in_part", "minutes"' in capsys.readouterr().out
    assert warned == (started == 3)
    assert time.time() - before < 5
    assert [child.poll() for child in children] == started * [-signal.SIGTERM]


# A child process that has a temporary folder and, if deaf, ignores SIGTERM.
CHILD = """
import signal, sys, time
from tempfile import TemporaryDirectory
from systems.running import reports
from systems.running.reports import exit_when_terminated
kind, parent = sys.argv[1:]
reports.GRACE = 1
exit_when_terminated()
if kind == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with TemporaryDirectory():
    print(flush=True)
    reports.end_with_parent(int(parent))
    time.sleep(60)
"""


def child_command(kind: str, parent: int, folder: Path) -> dict:
    return {
        "args": [sys.executable, "-c", CHILD, kind, str(parent)],
        "cwd": ROOT,
        "env": os.environ | {"TMPDIR": str(folder)},
        "stdout": subprocess.PIPE,
    }


def test_terminated_child_leaves_no_folder_unless_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(precompile, "GRACE", 2)
    given = (child_command(kind, os.getpid(), tmp_path) for kind in ("deaf", "hears"))
    children = [subprocess.Popen(**each) for each in given]
    for child in children:
        assert child.stdout and child.stdout.readline()
        child.stdout.close()
    precompile.terminate_children(children)
    assert [child.poll() for child in children] == [-signal.SIGKILL, 143]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(("kind", "code", "left"), [("hears", 143, 0), ("deaf", 1, 1)])
def test_children_end_with_their_parent(kind, code, left, tmp_path):
    given = child_command(kind, os.getpid() + 1, tmp_path)
    assert subprocess.run(**given, timeout=30).returncode == code
    assert len(list(tmp_path.iterdir())) == left


HOLDS_FOLDER = """
import time
from systems.running.precompile import code_folder, make_code_folder
from systems.running.reports import exit_when_terminated
exit_when_terminated()
with make_code_folder():
    (code_folder() / "kernel").write_text("compiled")
    print(flush=True)
    time.sleep(60)
"""


def test_folder_of_compiled_code_is_removed(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    piped = {"cwd": ROOT, "env": environment, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDS_FOLDER], **piped) as child:
        assert child.stdout and child.stdout.readline()
        assert list(tmp_path.glob("*/kernel"))
        child.terminate()
    assert not list(tmp_path.iterdir()) and precompile.code_folder() is None


def test_compiling_counts_with_the_first_row(pretend_gpu, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        measure, "compile_ahead", lambda *given: asked.append(given) or time.sleep(1)
    )
    with pytest.raises(typer.Exit):
        measure.main("fake", tmp_path)
    assert asked == [("fake", "full", fake_stem.configs(), 1e18)]
    rows = store.read(tmp_path / "a-gpu" / "fake.json").rows
    first, *others = (row.seconds or 0 for row in rows)
    assert first >= 1 > max(others)
