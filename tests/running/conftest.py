"""Fixtures that measure an experiment in this process, and the paths of its files."""

import json
from pathlib import Path

import pytest
import typer

from systems.experiments import STEMS
from systems.running import machine, measure
from tests.factories import fake_stem_entry


class Run:
    """A run in this process: exit code, reports, and other output."""

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
        """Return the one-line error of a run that could not start or continue."""
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
    monkeypatch.setitem(STEMS, "fake", fake_stem_entry("meta"))
    # Skip garbage collection, which is slow with this many imported modules.
    monkeypatch.setattr(machine, "free_memory", lambda: None)
    # In an unpacked archive, runs would warn that there is no commit.
    monkeypatch.setenv("GIT_COMMIT", "be1169b0c4d5")
    # Measuring sets these variables: make monkeypatch restore them.
    for name in ("TRITON_CACHE_DIR", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return lambda **options: Run(capsys, options.pop("results", tmp_path), **options)


@pytest.fixture
def record_file(tmp_path) -> Path:
    return tmp_path / "meta" / "fake.json"


@pytest.fixture
def partial_file(tmp_path) -> Path:
    return tmp_path / "meta" / "fake.partial.json"
