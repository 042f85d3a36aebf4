"""Make devices, records, a test experiment and a copy of the project."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from systems import ROOT
from systems.experiments import Stem
from systems.records import store
from systems.records.device import CPU, Device, gpu_slug
from systems.records.record import Record, Row

RESULTS = ROOT / "docs" / "results"
# List committed records only, because partial records may lie beside them.
RECORDS = sorted(
    path
    for path in RESULTS.glob("*/*.json")
    if not path.name.endswith(store.PARTIAL_SUFFIX)
)


def make_gpu(name: str = "A GPU", **fields: Any) -> Device:
    """Return the `Device` of a GPU, with these fields."""
    return Device(name, gpu_slug(name), **{"driver": "1"} | fields)


def make_row(config: Any, **metrics: Any) -> Row:
    """Return a measured row of a configuration (dataclass or dictionary)."""
    return Row(asdict(config) if is_dataclass(config) else config, "ok", metrics)


def make_record(stem: str, *rows: Row, device: Device = CPU, **fields: Any) -> Record:
    """Return a complete record of these rows."""
    return Record(stem, "measured", device, [*rows], expected_rows=len(rows), **fields)


def read_record(stem: str, device: str = "nvidia-h200") -> Record:
    """Return a record in docs/results."""
    return store.read(RESULTS / device / f"{stem}.json")


def fake_stem_entry(*kinds: str) -> Stem:
    """Return an entry for STEMS: tests/fake_stem.py on these kinds of device."""
    return Stem("tests.fake_stem", full=kinds, quick=kinds)


# Experiments in copies of the project: one that works, one whose second row kills its
# process, and one whose full grid needs a GPU. None needs torch.
STEMS_OF_A_TREE = """
from dataclasses import replace

STEMS = {
    name: Stem(f"systems.experiments.{name}", full=("meta",), quick=("meta",))
    for name in ("crash", "fake")
}
STEMS["gpu_only"] = replace(STEMS["fake"], full=("cuda",), quick=("cuda", "cpu"))
"""
# Skip parts that span experiments: they need pages, and their figures take most time.
NO_SPANNING_PARTS = """
FROM_RECORDS = WITH_FACTS = ()
"""
KILL = """\
    if config.index == 5 and not os.environ.get("FAKE_MENDED"):
        os.kill(os.getpid(), 9)
"""
BUILDER = """
def fragments(records):
    return {"table.md": "".join(f"{len(record.rows)} rows" for record in records)}


def facts(record):
    return {"rows": str(len(record.rows)) if record else "not measured"}
"""


def copy_tree(root: Path) -> Path:
    """Copy code to `root`, with the tests' experiments, but no pages and no records."""
    for folder in ("systems", "tools"):
        # Copy compiled files too, except those being written.
        ignored = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
    for name in ("mkdocs.yml", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    experiments = root / "systems" / "experiments"
    with open(experiments / "__init__.py", "a") as file:
        file.write(STEMS_OF_A_TREE)
    source = (ROOT / "tests" / "fake_stem.py").read_text()
    (experiments / "fake.py").write_text(source)
    work = "    time.sleep"
    (experiments / "crash.py").write_text(source.replace(work, KILL + work))
    with open(root / "tools/render/everything.py", "a") as file:
        file.write(NO_SPANNING_PARTS)
    for stem in ("crash", "fake", "gpu_only"):
        (root / "tools" / "render" / "stems" / f"{stem}.py").write_text(BUILDER)
    return root


def regen_command(tree: Path, *options: str, **environment: str) -> dict[str, Any]:
    """Return `subprocess` arguments to run a tree's regen_tables.py without a GPU."""
    fixed = {"CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    return {
        "args": [sys.executable, str(tree / "tools" / "regen_tables.py"), *options],
        "env": os.environ | fixed | environment,
        "text": True,
    }


def regen_tables(
    tree: Path, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run tools/regen_tables.py and wait for it."""
    given = regen_command(tree, *options, **environment)
    return subprocess.run(**given, capture_output=True, timeout=120)


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait until the condition is true, or fail."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def file_contents(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
