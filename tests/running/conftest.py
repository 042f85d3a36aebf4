"""What the tests of a run share: the run itself, in this process, and its files."""

import json
from pathlib import Path

import pytest
import typer

from systems.experiments import STEMS
from systems.running import machine, measure
from tests.factories import fake_stem_on


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
    monkeypatch.setitem(STEMS, "fake", fake_stem_on("meta"))
    # Collecting garbage is slow in a process that has imported as much as this one.
    monkeypatch.setattr(machine, "free_memory", lambda: None)
    # Where the archive is unpacked, runs would say that there is none.
    monkeypatch.setenv("GIT_COMMIT", "be1169b0c4d5")
    # What is measured as on a GPU names it. Set first, or it would not be taken back.
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.delenv("TRITON_CACHE_DIR")
    return lambda **options: Run(capsys, options.pop("results", tmp_path), **options)


@pytest.fixture
def record_file(tmp_path) -> Path:
    return tmp_path / "meta" / "fake.json"


@pytest.fixture
def partial_file(tmp_path) -> Path:
    return tmp_path / "meta" / "fake.partial.json"
