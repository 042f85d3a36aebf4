"""Compiling ahead: which rows, by how many processes, and that the time it takes is not lost."""

import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace

import pytest
import typer

from systems import records
from systems.device import Device
from systems.experiments import EVERY_ROW, STEMS, Stem, measure, rehearse
from systems.source_hash import ROOT
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
    monkeypatch.setitem(STEMS, "fake", Stem("fake_module", full=("cuda",), quick=("cpu",), rehearsed=("ours",)))
    module = SimpleNamespace(seen=[], configs=lambda quick: CONFIGS[:2] if quick else CONFIGS)
    monkeypatch.setitem(sys.modules, "fake_module", module)
    return module


@pytest.fixture
def started(monkeypatch):
    found = []

    def start(command, env, **_):
        assert env["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
        found.append(command)
        return SimpleNamespace(wait=lambda timeout=None: 0, kill=lambda: None)

    monkeypatch.setattr(rehearse, "cores", lambda: 3)
    monkeypatch.setattr(subprocess, "Popen", start)
    return found


@pytest.mark.parametrize("done", [0, 5])
def test_pending_rows_are_shared_out_among_the_processes(stem, started, done):
    rehearse.rehearse("fake", "full", CONFIGS[done:], NEVER)
    stem.run = stem.seen.append
    for command in started:
        assert command[:3] == [sys.executable, "-m", "systems.experiments.rehearse"]
        name, grid, *rows = command[3:]
        rehearse.main(name, grid, [int(row) for row in rows])
    assert len(started) == 3
    assert sorted(stem.seen, key=OURS.index) == [config for config in CONFIGS[done:] if config in OURS]


def test_where_a_row_has_all_implementations_every_row_is_compiled(stem, started, monkeypatch):
    monkeypatch.setitem(STEMS, "fake", replace(STEMS["fake"], rehearsed=EVERY_ROW))
    rehearse.rehearse("fake", "full", CONFIGS[1:], NEVER)
    assert sorted(int(row) for command in started for row in command[5:]) == list(range(1, len(CONFIGS)))


@pytest.mark.parametrize("name", ["flash_peers", "flash_accuracy", "flash_benchmarking"])
def test_what_compiles_much_is_compiled_ahead(name, started):
    rehearse.rehearse(name, "full", rehearse.configs_of(name, "full"), NEVER)
    assert len(started) == 3


def test_at_the_deadline_it_ends(stem, monkeypatch):
    monkeypatch.setattr(rehearse, "cores", lambda: 2)
    children, popen = [], subprocess.Popen

    def start(command, **options):
        children.append(popen([sys.executable, "-c", "import time; time.sleep(60)"], **options))
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    rehearse.rehearse("fake", "full", CONFIGS, time.time() + 0.2)
    assert len(children) == 2 and all(child.returncode < 0 for child in children)


def test_few_rows_or_one_core_are_not_worth_it(stem, started, monkeypatch):
    rehearse.rehearse("fake", "full", CONFIGS[:14], NEVER)
    rehearse.rehearse("warmup", "full", CONFIGS, NEVER)
    monkeypatch.setattr(rehearse, "cores", lambda: 1)
    rehearse.rehearse("fake", "full", CONFIGS, NEVER)
    assert started == []


def test_cores_that_others_have_are_not_counted(monkeypatch):
    monkeypatch.setattr(rehearse.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(rehearse.os, "sched_getaffinity", lambda process: {3, 5}, raising=False)
    assert rehearse.cores() == 2
    monkeypatch.delattr(rehearse.os, "sched_getaffinity")
    assert rehearse.cores() == 64


def test_a_row_that_fails_does_not_keep_the_others(stem):
    def run(config):
        stem.seen.append(config)
        raise RuntimeError("out of shared memory")

    stem.run = run
    rehearse.main("fake", "full", [2, 6])
    assert stem.seen == [CONFIGS[2], CONFIGS[6]]


def test_it_ends_when_its_parent_is_gone(stem, monkeypatch):
    parents = iter([7, 7, 1])
    monkeypatch.setattr(rehearse.os, "getppid", lambda: next(parents))
    stem.run = stem.seen.append
    rehearse.main("fake", "full", [0, 2, 4])
    assert stem.seen == [CONFIGS[0]]


def test_the_command_line_is_understood():
    command = [sys.executable, "-m", "systems.experiments.rehearse", "flash_accuracy", "quick", "0", "1"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0


def test_its_time_counts_with_the_first_row(monkeypatch, tmp_path):
    gpu = Device("A GPU", "a-gpu", driver="1")
    monkeypatch.setitem(STEMS, "fake", Stem("tests.fake_stem", full=("cuda",), quick=("cuda",)))
    monkeypatch.setattr(measure, "device_for", lambda allowed: gpu)
    for name in ("check_torch", "free_memory", "sm_clock_mhz"):
        monkeypatch.setattr(measure, name, lambda *_: None)
    asked = []
    monkeypatch.setattr(measure, "rehearse", lambda *arguments: asked.append(arguments) or time.sleep(2))
    with pytest.raises(typer.Exit):
        measure.main("fake", tmp_path)
    assert asked == [("fake", "full", fake_stem.configs(), 1e18)]
    rows = records.read(tmp_path / "a-gpu" / "fake.json").rows
    assert [row.config for row in rows] == [asdict(config) for config in fake_stem.configs()]
    first, *others = (row.seconds for row in rows)
    assert first >= 2 > max(others)
