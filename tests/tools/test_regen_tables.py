"""Test regen_tables.py, the command that measures, renders and checks."""

import gc
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import time
from errno import EACCES, ENOSPC
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import DEFAULT, Mock

import pytest
import torch
import yaml

from systems import ROOT
from systems.experiments import STEMS
from systems.records import store
from systems.records.outcome import measure_row
from systems.records.source_hash import source_hash
from tests.factories import (
    RESULTS,
    file_contents,
    make_record,
    read_record,
    regen_tables,
    wait_until,
)
from tests.factories import regen_command as regen_command
from tests.needed import compiles_cpp, run_python
from tools import regen_tables as command
from tools import rendering
from tools.checks import pages
from tools.regen_tables import main
from tools.render import everything, load


@pytest.fixture
def run_regen(monkeypatch, tmp_path, capsys):
    """Return a function that runs the command without a GPU, on temporary folders."""
    monkeypatch.setattr(load, "GENERATED", tmp_path / "generated")
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(pages, "check_pages", lambda root: [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run_regen(*options: str) -> SimpleNamespace:
        code = main(options)
        output = capsys.readouterr()
        return SimpleNamespace(code=code, out=output.out, err=output.err)

    return run_regen


def listed_state(listed: str, stem: str) -> str:
    lines = (line.split() for line in listed.splitlines())
    return next(cells[2] for cells in lines if cells[0] == stem)


def test_help_imports_no_slow_modules():
    done = run_python("-X", "importtime", "tools/regen_tables.py", "--help")
    assert done.returncode == 0 and "--time-limit MIN" in done.stdout
    assert "\n      python tools/regen_tables.py --list" in done.stdout
    imported = re.findall(r"\| +(\w+)\S*$", done.stderr, re.MULTILINE)
    assert "typer" in imported
    assert not {"torch", "matplotlib", "numpy", "rich"} & {*imported}


UNKNOWN = f"no experiment is named 'nope'; there are: {', '.join(STEMS)}"
INVALID = "Invalid value for"
WANTED = "nothing was measured: warmup needs a GPU and none was found"
WRONG = {
    "--only nope": f"{INVALID} '--only': {UNKNOWN}",
    "--only ''": f"{INVALID} '--only': {UNKNOWN.replace('nope', '')}",
    "--time-limit 0": f"{INVALID} '--time-limit': Input should be greater",
    "--at-once 2": "--at-once 2 needs a GPU and none was found: leave it out",
    "--colour": "No such option: --colour",
    "--list --render": "--render does not go with --list",
    "--list --generated x": "--generated does not go with --list",
    "--quick --generated x": "--generated goes with rendering, not with --quick",
    "--render --only warmup": "--only goes with measuring, not with --render",
    "--check --no-render": "--no-render goes with measuring, not with --check",
    # An unset shell variable gives an empty argument.
    "--results ''": f"{INVALID} '--results': ",
    "--only warmup --only compile": f"{WANTED}; --quick runs it on a CPU, compile need",
    # A repeated name counts once.
    "--only warmup --only warmup": f"{WANTED}; --quick runs it on a CPU\n",
}


@pytest.mark.parametrize("options", WRONG)
def test_wrong_or_ignored_options_give_a_one_line_error(run_regen, options):
    done = run_regen(*shlex.split(options))
    assert (done.code, done.out.strip()) == (2, "")
    assert done.err.startswith(f"error: {WRONG[options]}")
    assert done.err.count("\n") == 1


@pytest.mark.slow
def test_run_measures_renders_and_names_skipped_experiments(tree):
    done = regen_tables(tree, "--only", "fake", "--only", "gpu_only")
    assert done.returncode == 0, done.stderr
    skipped = "skipped: needs a GPU and none was found; --quick runs it on a CPU"
    assert skipped in done.stdout
    assert "fake: measured\n" in done.stdout and "6 ok" in done.stdout
    rendered = len(file_contents(tree / "docs/generated"))
    assert f"rendered {rendered} files, {rendered} changed" in done.stdout
    assert store.read(tree / "docs/results/meta/fake.json").complete
    assert (tree / "docs/generated/fake-table.md").read_text() == "6 rows"
    facts = yaml.safe_load((tree / "docs/generated/facts.yml").read_text())["facts"]
    # Stems without records have facts, too.
    rows = [facts[stem]["rows"] for stem in ("crash", "fake", "gpu_only")]
    assert rows == ["not measured", "6", "not measured"]
    log, before = tree / "log", file_contents(tree / "docs/generated")
    again = regen_tables(tree, "--only", "fake", FAKE_LOG=str(log))
    assert "fresh already (--force measures again)" in again.stdout and not log.exists()
    (tree / "docs/generated/fake-table.md").write_text("as it was")
    flags = "--only", "fake", "--force", "--no-render"
    assert regen_tables(tree, *flags, FAKE_LOG=str(log)).returncode == 0
    assert len(log.read_text().splitlines()) == 6
    # The page must not suggest --force: after a stop, it would repeat finished work.
    assert "--force" not in (ROOT / "docs/hand_in.md").read_text(encoding="utf-8")
    after = file_contents(tree / "docs/generated")
    assert after == before | {"fake-table.md": b"as it was"}


@pytest.mark.slow
def test_crashing_experiment_does_not_stop_the_others(tree):
    done = regen_tables(tree)
    message = "crashed (exit code -9); run again to go on from the last row"
    assert done.returncode == 1 and message in done.stdout
    assert store.read(tree / "docs/results/meta/fake.json").complete
    partial = tree / "docs/results/meta/crash.partial.json"
    assert [row.config["index"] for row in store.read(partial).rows] == [6]
    # Partial records are not rendered.
    assert not (tree / "docs/generated/crash-table.md").read_text()
    listed = regen_tables(tree, "--list").stdout
    assert listed_state(listed, "crash") == "partial" and " 16 %" in listed
    assert regen_tables(tree, FAKE_MENDED="1").returncode == 0 and not partial.exists()
    whole = store.read(partial.with_name("crash.json"))
    assert [row.config["index"] for row in whole.rows] == [6, 5, 4, 3, 2, 1]


@pytest.mark.slow
def test_reduced_grid_has_its_own_records_and_tables(tree, tmp_path):
    results, shown = tmp_path / "my results", tmp_path / "shown"
    flags = "--only", "fake", "--only", "gpu_only", "--results", str(results)
    done = regen_tables(tree, "--quick", *flags)
    assert done.returncode == 0, done.stderr
    # On a CPU the quick grid of gpu_only is measured, unlike its full grid.
    assert sorted(file_contents(results)) == [
        "quick/cpu/.gpu_only.json.lock",
        "quick/cpu/gpu_only.json",
        "quick/meta/.fake.json.lock",
        "quick/meta/fake.json",
    ]
    assert not (tree / "docs/generated").exists()
    given = shlex.split(done.stdout.split("`")[1].replace("FOLDER", str(shown)))
    done = regen_tables(tree, *given)
    assert done.returncode == 0, done.stderr
    assert (shown / "gpu_only-table.md").read_text() == "2 rows"
    # A record of a reduced grid among full ones is rejected.
    shutil.copytree(results / "quick/meta", tree / "docs/results/meta")
    done = regen_tables(tree, "--render")
    path = tree / "docs/results/meta/fake.json"
    message = f"error: {path}: is a quick record of fake on meta, misplaced here\n"
    assert (done.returncode, done.stderr) == (2, message)


@pytest.mark.parametrize("options", ["", "--quick"])
def test_folder_of_reduced_grids_is_rejected(run_regen, tmp_path, options):
    """In such a folder, records of full grids would be rejected."""
    (quick := tmp_path / "results/quick").mkdir(parents=True)
    done = run_regen(*options.split(), "--results", str(quick))
    assert done.code == 2 and not file_contents(quick)
    parent = f"--quick --results {quick.parent} measures into it"
    assert done.err.endswith(f"{parent}\n") and done.err.count("\n") == 1


@pytest.mark.slow
def test_record_of_changed_code_is_measured_again(tree):
    regen_tables(tree, "--only", "fake")
    with open(tree / "systems/experiments/fake.py", "a") as file:
        file.write("EXTRA = 1\n")
    assert listed_state(regen_tables(tree, "--list").stdout, "fake") == "stale"
    assert "fake: measured\n" in regen_tables(tree, "--only", "fake").stdout
    assert listed_state(regen_tables(tree, "--list").stdout, "fake") == "fresh"


ENDS = (
    (signal.SIGINT, 2, "error: stopped; every finished"),
    *((signal.SIGTERM, 143, ""), (signal.SIGKILL, -9, "")),
)


@pytest.mark.slow
@pytest.mark.parametrize(("told", "code", "said"), ENDS)
def test_signals_end_the_process_of_a_row(tree, tmp_path, told, code, said):
    log = tmp_path / "log"
    settings = {"FAKE_FRESH_PROCESS": "1", "FAKE_SLEEP": "600000", "FAKE_LOG": str(log)}
    given = regen_command(tree, "--only", "fake", TMPDIR=str(tmp_path), **settings)
    with subprocess.Popen(**given, stderr=subprocess.PIPE) as running:
        wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
        row = int(log.read_text().split()[1])
        os.kill(row, 0)
        running.send_signal(told)
        assert running.stderr and said in running.stderr.read()
    assert running.returncode == code
    # A process that has ended is gone, or a zombie with an empty command line.
    line = Path(f"/proc/{row}/cmdline")
    wait_until(lambda: not line.exists() or not line.read_bytes())


# Maximum CPU seconds of a reduced grid. On an idle machine the longest takes 40.
QUICK_SECONDS = 120
REDUCED = [stem for stem in STEMS if "cuda" != STEMS[stem].quick[-1]]
# Experiments whose reduced grids the tests measure with `regen_tables.py --quick`. The
# other reduced grids are measured in the process of the tests.
BY_COMMAND = ("warmup", "flash_ablation", "end_to_end")
MARKS = {"compile": compiles_cpp, "attention": compiles_cpp}
MARKS["weighted_sum"] = pytest.mark.interpreted


@pytest.mark.slow
def test_reduced_grids_by_command_are_fast(tmp_path):
    """All rows succeed, with kernels in the interpreter."""
    only = [part for stem in BY_COMMAND for part in ("--only", stem)]
    options = ("--quick", *only, "--results", str(tmp_path))
    given = regen_command(ROOT, *options, TRITON_INTERPRET="0")
    # The CPU limit kills the command if it computes longer; waiting doesn't count.
    limit = (resource.RLIMIT_CPU, (QUICK_SECONDS, QUICK_SECONDS))
    done = subprocess.run(
        **given, capture_output=True, preexec_fn=lambda: resource.setrlimit(*limit)
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr
    for stem in BY_COMMAND:
        (path,) = tmp_path.glob(f"quick/*/{stem}.json")
        record = load.read_record(path)
        rows = len(import_module(STEMS[stem].module).configs(quick=True))
        assert [row.status for row in record.rows] == ["ok"] * rows
        # Tables also render without the numbers that only a GPU gives.
        everything.render_stem(stem, [record])


@pytest.mark.slow
@pytest.mark.parametrize(
    "stem",
    [
        pytest.param(stem, marks=[MARKS[stem]] if stem in MARKS else [])
        for stem in REDUCED
        if stem not in BY_COMMAND
    ],
)
@pytest.mark.usefixtures("use_cpu", "skip_shape_checks")
def test_reduced_grids_are_fast_and_render(stem, monkeypatch):
    # Initialize models fast, because that takes half of the time.
    monkeypatch.setattr(
        torch.nn.init, "trunc_normal_", lambda x, std, **_: x.uniform_(-std, std)
    )
    module, begun = import_module(STEMS[stem].module), time.process_time()
    rows = [measure_row(config, module.run) for config in module.configs(quick=True)]
    assert {row.status for row in rows} == {"ok"}
    assert time.process_time() - begun < QUICK_SECONDS
    everything.render_stem(stem, [make_record(stem, *rows, grid="quick")])


def test_list_makes_no_folder(run_regen, tmp_path):
    done = run_regen("--list")
    assert done.code == 0 and not (tmp_path / "results").exists()
    for stem, entry in STEMS.items():
        state = "no" if entry.full == ("cuda",) else "missing"
        assert listed_state(done.out, stem) == state


@pytest.mark.parametrize("action", ["--list", "--render"])
def test_unlistable_folder_is_an_error(rerun, tmp_path, monkeypatch, action):
    """Rendering would delete the tables of records that it takes for missing."""
    scandir, before = os.scandir, file_contents(tmp_path)
    folder = tmp_path / "results/meta"

    def refuse(path=".", **more):
        if Path(os.fsdecode(path)) == folder:
            raise PermissionError(EACCES, os.strerror(EACCES), os.fsdecode(path))
        return scandir(path, **more)

    monkeypatch.setattr(os, "scandir", refuse)
    done = rerun(action)
    line = f"error: can't use {folder}: Permission denied\n"
    assert (done.code, done.out, done.err) == (2, "", line)
    monkeypatch.undo()
    assert file_contents(tmp_path) == before


@pytest.mark.slow
def test_list_fits_in_eighty_columns():
    done = regen_tables(ROOT, "--list", COLUMNS="80")
    words = done.stdout.split()
    slugs = {path.parent.name for path in RESULTS.glob("*/*.json")}
    assert {*STEMS, *slugs} <= set(words)
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


@pytest.mark.parametrize("options", ["--only model_sizes", "--list", "--check"])
def test_unreadable_record_is_named_in_one_line(run_regen, tmp_path, options):
    """With --only, the error begins with the name of the experiment."""
    path = tmp_path / "results/meta/model_sizes.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"schema": 3')
    before = file_contents(tmp_path)
    done = run_regen(*options.split())
    whose = "model_sizes: " if "--only" in options else ""
    assert done.code == 2 and done.err.startswith(f"{whose}error: {path}: is not JSON")
    assert done.err.count("\n") == 1 and file_contents(tmp_path) == before


@pytest.mark.parametrize("begin", ["import {}.zz", "from {} import zz"])
def test_missing_builder_is_named_in_one_line(run_regen, monkeypatch, begin):
    code = begin.format("tools.render.stems")
    monkeypatch.setattr(everything, "import_spanning", lambda name: exec(code))
    done, text = run_regen("--check"), "error: tools/render/stems/zz.py is missing: "
    assert done.code == 2 and done.err.startswith(text) and done.err.count("\n") == 1


def test_list_shows_other_records_beside_a_broken_link(run_regen, tmp_path):
    (folder := tmp_path / "results/meta").mkdir(parents=True)
    (folder / "model_sizes.json").symlink_to("nowhere")
    measured, done = run_regen("--only", "model_sizes"), run_regen("--list")
    assert measured.code == 2 and measured.err.startswith("model_sizes: error: ")
    assert done.code == 2 and "model_sizes.json: No such file" in done.err
    assert listed_state(done.out, "model_sizes") == "unreadable"


def make_stale(path: Path) -> None:
    record = store.read(path)
    record.source_hash = "older"
    store.write(record, path)


@pytest.mark.parametrize("name", ["typo", "two\nlines", "file", "gpu"])
def test_invalid_results_folder_is_rejected(rerun, tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu/warmup.json").touch()
    before, other = file_contents(tmp_path), tmp_path / name
    done = rerun("--render", "--results", str(other))
    held = "contains records; give its parent folder"
    text = held if name == "gpu" else "no such folder"
    shown = str(other).replace("\n", r"\n")
    assert (done.code, done.out) == (2, "") and file_contents(tmp_path) == before
    assert done.err == f"error: --results {shown}: {text}\n"


def test_results_elsewhere_keep_the_guide_s_tables(rerun, tmp_path):
    other, shown = tmp_path / "other", tmp_path / "shown"
    other.mkdir()
    before = file_contents(tmp_path / "generated")
    for action in ("--render", "--check"):
        done = rerun(action, "--results", str(other))
        assert done.code == 2 and "add --generated FOLDER" in done.err
        assert done.err.count("\n") == 1 and not done.out
    # With --generated, records of another folder and of this one are rendered.
    flags = "--render", "--generated", str(shown), "--results"
    for name in ("nowhere.txt", "meta/warmup.partial.json"):
        (other / name).parent.mkdir(exist_ok=True)
        (other / name).touch()
        done = rerun(*flags, str(other))
        text = f"{other}: no folder in it has a complete record"
        assert done.err == f"error: --results {text}\n"
        assert (done.code, done.out, shown.exists()) == (2, "", False)
    shutil.copytree(tmp_path / "results", other, dirs_exist_ok=True)
    make_stale(other / "meta/model_sizes.json")
    for results in (other, tmp_path / "results"):
        assert not rerun(*flags, str(results)).code
        assert (file_contents(shown) == before) == (results != other)
    assert file_contents(tmp_path / "generated") == before


def test_rendering_rejects_folders_of_other_files(rerun, tmp_path):
    (home := tmp_path / "home").mkdir()
    (home / "thesis.tex").touch()
    before, held = file_contents(tmp_path), "holds files that were not rendered"
    for name, text in {"home": held, "results": held, "home/thesis.tex": "use"}.items():
        # Measuring does not begin.
        for action in ("--render", "--only model_sizes --force"):
            done = rerun(*action.split(), "--generated", str(tmp_path / name))
            assert done.code == 2 and text in done.err and not done.out
    (home / "facts.yml").touch()
    done = rerun("--render", "--generated", str(home))
    assert done.code == 2 and "holds thesis.tex, which was not rendered" in done.err
    assert file_contents(tmp_path) == before | {"home/facts.yml": b""}


def test_no_signal_is_lost_in_a_garbage_collection(monkeypatch):
    monkeypatch.setattr("tools.render.everything.render", lambda _: gc.isenabled())
    assert rendering.render_texts({}) is False and gc.isenabled()


def test_interrupted_rendering_can_be_repeated(rerun, tmp_path, monkeypatch):
    """Rendering continues in a folder that contains only rendered files."""
    shown, options = tmp_path / "shown", ("--render", "--generated")
    write = rendering.write_atomically
    write_once = Mock(wraps=write, side_effect=[DEFAULT, KeyboardInterrupt])
    monkeypatch.setattr(rendering, "write_atomically", write_once)
    done = rerun(*options, str(shown))
    assert done.code == 2 and done.err.strip().endswith("error: stopped")
    assert len(file_contents(shown)) == 1
    monkeypatch.setattr(rendering, "write_atomically", write)
    for name in ("end_to_end-of-another-day.md", ".end_to_end-10B.md.tmp"):
        (shown / name).touch()
    assert not rerun(*options, str(shown)).code
    assert file_contents(shown) == file_contents(tmp_path / "generated")


@pytest.fixture(scope="session")
def model_sizes(tmp_path_factory) -> Path:
    """Return a folder with one current record, and its rendered files."""
    folder = tmp_path_factory.mktemp("model_sizes")
    record = read_record("model_sizes", "meta")
    record.source_hash = source_hash(STEMS["model_sizes"].module)
    store.write(record, folder / "results/meta/model_sizes.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "GENERATED", folder / "generated")
        patch.setattr(command, "RESULTS", folder / "results")
        assert main(("--render",)) == 0
    return folder


@pytest.fixture
def rerun(run_regen, model_sizes, tmp_path):
    for name in ("generated", "results"):
        shutil.copytree(model_sizes / name, tmp_path / name)
    return run_regen


def test_findings_fail_the_check(rerun, monkeypatch):
    monkeypatch.setattr(pages, "check_pages", lambda root: [f"{root.name}/a.md:1: b"])
    done = rerun("--check")
    assert (done.code, done.out) == (1, f"{ROOT.name}/a.md:1: b\n1 findings\n")


def edit_file(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


TABLE = "model_sizes-table.md"
DIFFERS = "differs from what the records give; run --render"
FAULTS = {
    "edited table": (TABLE, lambda path: edit_file(path, "3,406,", "3,407,"), DIFFERS),
    "edited fact": ("facts.yml", lambda path: edit_file(path, "%", "percent"), DIFFERS),
    "missing": (TABLE, Path.unlink, "missing; run --render"),
    "extra": ("warmup-old.md", Path.touch, "no record gives this file; run --render"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_outdated_generated_file_fails_the_check(rerun, tmp_path, fault):
    name, break_it, message = FAULTS[fault]
    before = file_contents(tmp_path / "generated")
    break_it(tmp_path / "generated" / name)
    assert file_contents(tmp_path / "generated") != before
    done = rerun("--check")
    assert done.code == 1
    assert done.out == f"docs/generated/{name}: {message}\n1 findings\n"
    done = rerun("--render").out
    assert done.endswith(", 1 changed\n") and ("deleted" in done) == (fault == "extra")
    assert file_contents(tmp_path / "generated") == before
    assert rerun("--check").code == 0


@pytest.mark.slow
def test_stale_record_is_a_warning(rerun, tmp_path):
    make_stale(tmp_path / "results/meta/model_sizes.json")
    # The record's age is rendered, so rendered files are outdated as well.
    assert rerun("--check").code == 1
    assert rerun("--render").code == 0
    assert "**stale**" in (tmp_path / "generated/model_sizes-table.md").read_text()
    message = "meta/model_sizes.json is stale: its source has changed since"
    done = rerun("--check")
    assert done.code == 0 and done.out.startswith(f"warning: {message}; measure it")


def test_full_disk_names_the_file(rerun, tmp_path, monkeypatch):
    full = OSError(ENOSPC, "No space left on device")
    path = tmp_path / "generated/facts.yml"
    path.unlink()
    monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    done = rerun("--render")
    message = f"error: can't use {path}: No space left on device\n"
    assert (done.code, done.err) == (2, message)
