"""Compiling ahead: which rows, by how many processes, and that the time it takes is not
lost.
"""

import subprocess
import sys
import time
from dataclasses import asdict, dataclass
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
        assert env["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
        found.append(command)
        return SimpleNamespace(wait=lambda timeout=None: 0, kill=lambda: None)

    monkeypatch.setattr(precompile, "cores", lambda: 3)
    monkeypatch.setattr(subprocess, "Popen", start)
    return found


@pytest.mark.parametrize("done", [0, 5])
def test_pending_rows_are_shared_out_among_the_processes(stem, started, done):
    precompile.rehearse("fake", "full", CONFIGS[done:], NEVER)
    stem.run = stem.seen.append
    for command in started:
        assert command[:3] == [sys.executable, "-m", "systems.running.precompile"]
        name, grid, *rows = command[3:]
        precompile.main(name, grid, [int(row) for row in rows])
    assert len(started) == 3
    assert sorted(stem.seen, key=OURS.index) == [
        config for config in CONFIGS[done:] if config in OURS
    ]


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


def test_at_the_deadline_it_ends(stem, monkeypatch):
    monkeypatch.setattr(precompile, "cores", lambda: 2)
    children, popen = [], subprocess.Popen

    def start(command, **options):
        children.append(
            popen([sys.executable, "-c", "import time; time.sleep(60)"], **options)
        )
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    precompile.rehearse("fake", "full", CONFIGS, time.time() + 0.2)
    assert len(children) == 2 and all(child.returncode < 0 for child in children)


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


def test_it_ends_when_its_parent_is_gone(stem, monkeypatch):
    parents = iter([7, 7, 1])
    monkeypatch.setattr(precompile.os, "getppid", lambda: next(parents))
    stem.run = stem.seen.append
    precompile.main("fake", "full", [0, 2, 4])
    assert stem.seen == [CONFIGS[0]]


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
    first, *others = (row.seconds for row in rows)
    assert first >= 1 > max(others)
