"""Each row of `triton_versions` gets its own Triton, or says how to get it."""

import re
import sys
from dataclasses import replace

import pytest
import triton

from systems import ROOT
from systems.experiments import flash_peers, triton_versions
from systems.experiments.triton_versions import (
    FOLDER,
    VERSIONS,
    Config,
    configs,
    environment,
)
from systems.records.outcome import measure_row
from systems.running import processes
from systems.running.processes import RowProcess, row_processes
from tests import fake_stem

ANOTHER = next(version for version in VERSIONS if version != triton.__version__)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where another Triton lies than the one that is installed."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    (tmp_path / f"triton-{ANOTHER}" / "triton").mkdir(parents=True)
    return tmp_path


def test_they_are_those_that_make_versions_tries():
    (tried,) = re.findall(r"^TRITONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert tuple(tried.split()) == VERSIONS


def test_the_grid_has_the_first_shapes_of_flash_peers_with_each_version():
    shapes = {(c.batch, c.heads, c.n, c.d, c.causal) for c in configs()}
    peers = flash_peers.configs()
    theirs = dict.fromkeys((c.batch, c.heads, c.n, c.d, c.causal) for c in peers)
    assert shapes == set(list(theirs)[:8]) and len(configs()) == 8 * 2 * len(VERSIONS)
    assert {c.dtype for c in peers[: 8 * 9]} == {"bf16"} == {flash_peers.Config().dtype}
    first = configs()[: len(VERSIONS)]
    assert [c.triton for c in first] == list(VERSIONS)
    assert len({replace(c, triton="") for c in first}) == 1


def test_a_row_of_another_version_imports_it_from_its_folder(folder):
    where = f"{folder}/triton-{ANOTHER}:/theirs"
    assert environment(Config(ANOTHER)) == {"PYTHONPATH": where}
    assert environment(Config(triton.__version__)) == {}
    assert environment(Config("1.0.0")) == {}, "it is not there"


def test_make_versions_leaves_them_where_they_are_looked_for(monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    assert triton_versions.folder_of("3.9.0") == ROOT / "build" / "triton-3.9.0"


def test_a_version_that_is_not_there_is_a_row_that_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(
        flash_peers, "run", lambda _: pytest.fail("another Triton ran") or {}
    )
    row = measure_row(Config("1.0.0"), triton_versions.run)
    assert row.status == "unsupported" and row.reason
    assert row.reason.startswith("not installed: Triton 1.0.0, found 3.")
    assert "`make versions`" in row.reason and f"{FOLDER} may name" in row.reason


def test_the_installed_version_measures_what_flash_peers_does(monkeypatch):
    asked = []

    def run(config):
        asked.append(config)
        yield
        return {"both_ms": [1.0]}

    monkeypatch.setattr(flash_peers, "run", run)
    config = Config(triton.__version__, "ours_triton", 1, 1, 65536, 64, True)
    row = measure_row(config, triton_versions.run)
    assert row.metrics == {"both_ms": [1.0]}
    assert asked == [flash_peers.Config("ours_triton", 1, 1, 65536, 64, True, "bf16")]


def test_the_process_of_a_row_has_what_the_experiment_adds(monkeypatch):
    """To the environment that is there."""
    seen = []

    def start(command, env, **options):
        seen.append(env)

    monkeypatch.setattr(processes.subprocess, "Popen", start)
    monkeypatch.setenv("THERE", "before")
    for module in (triton_versions, fake_stem):
        RowProcess(module, module.Config()).errors.close()
    monkeypatch.setattr(triton_versions, "environment", lambda c: {"ADDED": c.triton})
    RowProcess(triton_versions, Config("3.9.0")).errors.close()
    assert [env.get("ADDED") for env in seen] == [None, None, "3.9.0"]
    assert {env["THERE"] for env in seen} == {"before"}


@pytest.mark.slow
def test_a_process_imports_the_version_of_its_row(tmp_path, monkeypatch):
    """A folder that holds a Triton of another number, which is all that is asked."""
    place = tmp_path / "triton-0.0.1"
    (place / "triton").mkdir(parents=True)
    (place / "triton" / "__init__.py").write_text("print('0.0.1 was imported')\n1 / 0")
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    with row_processes():
        (row,) = processes.turns(triton_versions, Config("0.0.1"))
    assert row and row.status == "failed" and "ZeroDivisionError" in (row.reason or "")
