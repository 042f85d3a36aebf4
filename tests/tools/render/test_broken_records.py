"""Files that can't be read, and records that lack what tables ask for: what is missing
is named, everything else is rendered.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.factories import RESULTS
from tools.render import everything
from tools.render.compiled_files import STEPS

pytestmark = pytest.mark.usefixtures("few_figures")

Data = dict[str, Any]


def put(results: Path, name: str, change: Callable[[Data], object] | None = None):
    """Copy the committed record of this name into a folder, changed or as it is."""
    data = json.loads((RESULTS / name).read_text())
    if change:
        change(data)
    path = results / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


# Files of what was compiled -----------------------------------------------------------


def test_a_broken_file_of_compiled_kernels_is_named(tmp_path, monkeypatch):
    path, results = tmp_path / STEPS.path.name, tmp_path / "results"
    monkeypatch.setattr(STEPS, "path", path)
    for stem in ("flash_ablation", "flash_peers"):
        put(results, f"nvidia-h200/{stem}.json")
    path.write_text("null")
    files = everything.render_all(results)
    assert [b.path for b in files.broken] == [path]
    assert files["ladder-needs.md"].startswith("**Missing:**")
    path.unlink()
    files = everything.render_all(results)
    assert files.broken == []
    assert files["ladder-needs.md"].startswith("Not compiled")


def test_a_file_of_compiled_kernels_is_read_whole_or_refused(tmp_path, monkeypatch):
    text, copied = STEPS.path.read_text(), tmp_path / "compiled.json"
    monkeypatch.setattr(STEPS, "path", copied)
    cut = (text[:length] for length in range(0, len(text) - 2, len(text) // 20))
    for damaged in (*cut, "null", "[]", '{"3.6.0": {}}', text.replace("3.6.0", "x")):
        copied.write_text(damaged)
        assert str(STEPS.broken).startswith(f"{copied}: ")
        assert "\n" not in str(STEPS.broken)
    copied.write_text(text)
    assert STEPS.broken is None and STEPS.versions()
