"""The one command: what it says, what it leaves alone, and that a check finds every difference.

What writes does so in a scratch copy of the tree: rendering replaces docs/generated of the tree that it stands in.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from systems import records
from systems.experiments import STEMS
from systems.experiments.measure import versions
from systems.source_hash import ROOT, source_hash
from tools import check_pages, regen_tables, render

# Two stems that need no torch: one that works and one that kills its own process at its second row.
STEMS_OF_TESTS = """
STEMS = {
    name: Stem(f"systems.experiments.{name}", full=("meta",), quick=("meta",)) for name in ("crash", "fake")
} | {"gpu_only": Stem("systems.experiments.fake", full=("cuda",), quick=("cuda", "cpu"))}
"""
BUILDER = """
def fragments(records):
    return {"table.md": "".join(f"{len(record.rows)} rows" for record in records)}


def facts(record):
    return {"rows": str(len(record.rows)) if record else "not measured"}
"""


def copy_tree(target: Path) -> Path:
    """The code and the configuration, without records, pages and fragments."""
    for folder in ("systems", "tools"):
        shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", target)
    (target / "docs").mkdir()
    return target


def command(tree: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in this tree, on a machine that shows no GPU."""
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"}
    line = [sys.executable, str(tree / "tools" / "regen_tables.py"), *options]
    return subprocess.run(line, env=hidden | environment, capture_output=True, text=True, timeout=120)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def tree(tmp_path) -> Path:
    """A tree whose only experiments are those of the tests."""
    root = copy_tree(tmp_path / "tree")
    package = root / "systems" / "experiments"
    with open(package / "__init__.py", "a") as file:
        file.write(STEMS_OF_TESTS)
    source = (ROOT / "tests" / "fake_stem.py").read_text()
    (package / "fake.py").write_text(source)
    fatal = "    if config.index == 5 and not os.environ.get('FAKE_MENDED'):\n        os.kill(os.getpid(), 9)\n"
    (package / "crash.py").write_text(source.replace("    time.sleep", fatal + "    time.sleep"))
    for stem in ("crash", "fake", "gpu_only"):
        (root / "tools" / "render" / f"{stem}.py").write_text(BUILDER)
    return root


@pytest.mark.alone
def test_help_is_quick_and_imports_no_torch():
    took = []
    for _ in range(3):
        started = time.perf_counter()
        done = command(ROOT, "--help", COLUMNS="80")
        took.append(time.perf_counter() - started)
        assert (
            done.returncode == 0
            and "--time-limit" in done.stdout
            and "python tools/regen_tables.py --list" in done.stdout
        )
    assert min(took) < 0.5
    listed = [sys.executable, "-X", "importtime", "tools/regen_tables.py", "--help"]
    imported = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True).stderr
    names = {line.split("|")[-1].strip().split(".")[0] for line in imported.splitlines()}
    assert "typer" in names and not names & {"torch", "matplotlib", "numpy"}


BAD = {
    ("--only", "nope"): f"error: no experiment is named 'nope'; there are: {', '.join(STEMS)}\n",
    ("--verify", "nope"): f"error: no experiment is named 'nope'; there are: {', '.join(STEMS)}\n",
    ("--time-limit", "-1"): "error: --time-limit must be a number of minutes, not -1\n",
}


@pytest.mark.parametrize("options", BAD, ids=" ".join)
def test_a_wrong_option_is_one_line(options, tmp_path):
    done = command(ROOT, *options, "--results", str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", BAD[options])


def test_a_run_measures_renders_and_says_what_it_skipped(tree):
    done = command(tree, "--only", "fake", "--only", "gpu_only")
    assert done.returncode == 0, done.stderr
    assert "skipped: needs a GPU and none was found; --quick runs it on a CPU" in done.stdout
    assert "measured" in done.stdout and "6 ok" in done.stdout
    rendered = len(contents(tree / "docs/generated"))
    assert f"rendered {rendered} files, {rendered} changed" in done.stdout
    assert records.read(tree / "docs/results/meta/fake.json").complete
    assert (tree / "docs/generated/fake-table.md").read_text() == "6 rows"
    facts = (tree / "docs/generated/facts.yml").read_text()
    # Strings of JSON are strings of YAML; names of facts exist for stems that nobody measured, too.
    assert facts.endswith('crash:\n  rows: "not measured"\nfake:\n  rows: "6"\ngpu_only:\n  rows: "not measured"\n')
    log = tree / "log"
    again = command(tree, "--only", "fake", FAKE_LOG=str(log))
    assert "fresh already (--force measures again)" in again.stdout and not log.exists()
    assert command(tree, "--only", "fake", "--force", FAKE_LOG=str(log)).returncode == 0
    assert len(log.read_text().splitlines()) == 6


def test_a_stem_that_crashes_leaves_the_others(tree):
    done = command(tree)
    assert done.returncode == 1 and "crashed (exit code -9); run again to go on from the last row" in done.stdout
    assert records.read(tree / "docs/results/meta/fake.json").complete
    partial = tree / "docs/results/meta/crash.partial.json"
    assert [row.config["index"] for row in records.read(partial).rows] == [6]
    # Work in progress is never shown.
    assert not (tree / "docs/generated/crash-table.md").read_text()
    listed = command(tree, "--list").stdout
    assert [line.split()[5] for line in listed.splitlines() if "crash" in line] == ["partial"]
    assert command(tree, FAKE_MENDED="1").returncode == 0 and not partial.exists()
    assert [row.config["index"] for row in records.read(partial.with_name("crash.json")).rows] == [6, 5, 4, 3, 2, 1]


def test_a_reduced_grid_is_neither_published_nor_rendered(tree):
    done = command(tree, "--quick", "--only", "fake", "--only", "gpu_only")
    assert done.returncode == 0 and "are not rendered" in done.stdout
    # On a CPU the quick grid runs what the full one skips.
    assert sorted(contents(tree / "docs")) == [
        "results/quick/cpu/.gpu_only.json.lock",
        "results/quick/cpu/gpu_only.json",
        "results/quick/meta/.fake.json.lock",
        "results/quick/meta/fake.json",
    ]
    # A reduced record in a place of full ones is refused.
    shutil.copytree(tree / "docs/results/quick/meta", tree / "docs/results/meta")
    done = command(tree, "--render")
    path = tree / "docs/results/meta/fake.json"
    assert (done.returncode, done.stderr) == (2, f"error: {path}: is a quick record of meta, misplaced here\n")


def test_out_of_time_it_stops_and_the_next_run_goes_on(tree):
    first = command(tree, "--only", "fake", "--time-limit", "0.012", FAKE_ROWS="8", FAKE_SLEEP="400")
    assert first.returncode == 0 and "out of time; run again to go on" in first.stdout
    partial = tree / "docs/results/meta/fake.partial.json"
    done = len(records.read(partial).rows) if partial.exists() else 0
    assert done < 8
    log = tree / "log"
    command(tree, "--only", "fake", FAKE_ROWS="8", FAKE_SLEEP="400", FAKE_LOG=str(log))
    assert len(log.read_text().splitlines()) == 8 - done


def test_verify_makes_a_stale_record_fresh(tree):
    command(tree, "--only", "fake")
    with open(tree / "systems/experiments/fake.py", "a") as file:
        file.write("EXTRA = 1\n")

    def state() -> str:
        listed = command(tree, "--list").stdout
        return next(line.split()[5] for line in listed.splitlines() if "fake" in line)

    assert state() == "stale"
    done = command(tree, "--verify", "fake")
    assert done.returncode == 0 and "rows measured again agree, the record is fresh" in done.stdout
    assert state() == "fresh"
    done = command(tree, "--verify", "crash")
    assert done.returncode == 2 and "does not exist: there is nothing to verify" in done.stdout


def test_list_works_on_an_empty_and_on_an_absent_folder(tmp_path):
    for results in (tmp_path, tmp_path / "absent"):
        done = command(ROOT, "--list", "--results", str(results))
        assert done.returncode == 0, done.stderr
        for stem, entry in STEMS.items():
            (line,) = [line for line in done.stdout.splitlines() if f" {stem} " in line]
            assert ("missing (needs a GPU)" in line) == ("meta" not in entry.full) and "missing" in line
    assert not (tmp_path / "absent").exists()


def whole_record(**changes: object) -> str:
    device = {"name": "m", "slug": "meta"}
    data = {"schema": 1, "stem": "fake", "kind": "measured", "device": device, "rows": [], "expected_rows": 0}
    return json.dumps(data | changes)


BROKEN = {
    "cut off": (whole_record()[:-9], "is not JSON ("),
    "foreign": ('{"name": "package.json"}', "schema is None, this version reads 1; measure again"),
    "edited": (whole_record(expected_rows="six"), "expected_rows: is 'six', not int"),
    "unknown field": (whole_record(colour=1), "has the unknown field 'colour'"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_record_that_cannot_be_read_is_one_line_and_nothing_changes(tree, broken):
    text, message = BROKEN[broken]
    path = tree / "docs/results/meta/fake.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (tree / "docs/generated").mkdir()
    (tree / "docs/generated/fake-table.md").write_text("as it was")
    before = contents(tree / "docs")
    for options in ((), ("--render",), ("--check",), ("--list",)):
        # Without --only it would go on to measure the first stem, which is whole.
        done = command(tree, *options, *(("--only", "fake") if not options else ()))
        assert done.returncode == 2 and done.stderr.startswith(f"error: {path}: {message}"), options
        assert done.stderr.count("\n") == 1 and contents(tree / "docs") == before


def test_a_record_of_another_stem_is_refused(tree):
    path = tree / "docs/results/meta/crash.json"
    path.parent.mkdir(parents=True)
    path.write_text(whole_record())
    done = command(tree, "--render")
    assert done.returncode == 2
    assert done.stderr == f"error: {path}: stem is 'fake', which is not this file's experiment\n"


def test_a_folder_that_cannot_be_written_is_told(tree, tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = command(tree, "--only", "fake", "--results", str(tmp_path / "file"))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"error: can't write {tmp_path / 'file'}" in done.stdout
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.fixture(scope="module")
def model_sizes(tmp_path_factory) -> Path:
    """A copy of the tree in which the stem that needs no hardware was measured and rendered.

    Its counts are exact wherever they are made, so that all but two of the committed rows pass as work in progress.
    """
    tree = copy_tree(tmp_path_factory.mktemp("model_sizes"))
    record = records.read(ROOT / "docs/results/meta/model_sizes.json")
    record.software, record.source_hash = versions(), source_hash(STEMS["model_sizes"].module)
    record.rows = [row for row in record.rows if row.config["size"] != "small" or row.config["context"] > 256]
    records.write(record, tree / "docs/results/meta/model_sizes.partial.json")
    done = command(tree, "--only", "model_sizes", "--results", str(tree / "docs/results"))
    assert done.returncode == 0 and "starting over" not in done.stderr and "2 ok" in done.stdout, done
    return tree


def test_model_sizes_needs_no_hardware(model_sizes):
    record = records.read(model_sizes / "docs/results/meta/model_sizes.json")
    # Measured here or there, the rows are the same.
    committed = records.read(ROOT / "docs/results/meta/model_sizes.json").rows
    assert [(row.config, row.metrics) for row in record.rows] == [(row.config, row.metrics) for row in committed]
    assert record.complete and len(record.rows) == 20 and record.device.slug == "meta"
    generated = contents(model_sizes / "docs/generated")
    assert b"3,406,809,600" in generated["model_sizes-table.md"] and "model_sizes-parts-dark.svg" in generated


@pytest.fixture
def invoke(model_sizes, tmp_path, monkeypatch):
    """The command in this process, on copies of the rendered files and the records, with pages that are in order."""
    monkeypatch.setattr(render, "GENERATED", tmp_path / "generated")
    monkeypatch.setattr(check_pages, "check_pages", lambda root: [])
    shutil.copytree(model_sizes / "docs/generated", tmp_path / "generated")
    shutil.copytree(model_sizes / "docs/results", tmp_path / "results")
    return lambda *options: CliRunner().invoke(regen_tables.app, [*options, "--results", str(tmp_path / "results")])


def test_a_tree_in_order_passes(invoke):
    done = invoke("--check", "--fresh")
    assert done.exit_code == 0 and done.stdout.endswith("generated files, all as the records give them\n")


def edit(path: Path) -> None:
    path.write_text(path.read_text().replace("3,406,809,600", "3,406,809,601"))


FAULTS = {
    "edited table": ("model_sizes-table.md", edit, "differs from what the records give; run --render"),
    "edited figure": ("model_sizes-parts.svg", lambda p: p.write_text(p.read_text() + "\n"), "differs from what"),
    "edited fact": ("facts.yml", lambda p: p.write_text(p.read_text().replace("%", "percent")), "differs from what"),
    "missing": ("model_sizes-parts.md", Path.unlink, "missing; run --render"),
    "extra": ("old-table.md", lambda p: p.write_text("left"), "no record gives this file; run --render"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_check_fails_where_a_generated_file_is_not_what_the_records_give(invoke, tmp_path, fault):
    name, break_it, message = FAULTS[fault]
    before = contents(tmp_path / "generated")
    break_it(tmp_path / "generated" / name)
    assert contents(tmp_path / "generated") != before
    done = invoke("--check")
    lines = done.stdout.splitlines()
    assert (
        done.exit_code == 1 and lines[0].startswith(f"docs/generated/{name}: {message}") and lines[1:] == ["1 findings"]
    )
    assert invoke("--render").stdout.endswith(", 1 changed\n")
    assert contents(tmp_path / "generated") == before


def test_check_fails_where_a_page_is_not_in_order(invoke, monkeypatch):
    monkeypatch.setattr(check_pages, "check_pages", lambda root: [f"{root.name}/a.md:1: typed"])
    done = invoke("--check")
    assert done.exit_code == 1 and done.stdout == f"{ROOT.name}/a.md:1: typed\n1 findings\n"


def test_a_stale_record_is_a_warning_and_with_fresh_an_error(invoke, tmp_path):
    path = tmp_path / "results/meta/model_sizes.json"
    record = records.read(path)
    record.source_hash = "older"
    records.write(record, path)
    # The pages show it, too.
    assert invoke("--check").exit_code == 1
    assert invoke("--render").exit_code == 0
    assert "**Stale:**" in (tmp_path / "generated/model_sizes-table.md").read_text()
    message = "results/meta/model_sizes.json is stale: its source has changed since; measure or --verify model_sizes"
    done = invoke("--check")
    assert done.exit_code == 0 and done.stdout.startswith(f"warning: {message}\n")
    done = invoke("--check", "--fresh")
    assert done.exit_code == 1 and done.stdout == f"{message}\n1 findings\n"


def test_the_bar_says_that_kernels_are_compiled():
    shown = []
    bar = SimpleNamespace(update=lambda task, **fields: shown.append(fields))
    regen_tables.follow({"event": "compiling"}, regen_tables.Outcome("flash_accuracy", "measured"), bar, None)
    assert shown == [{"now": "compiling"}]
