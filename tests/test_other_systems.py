"""Test commands without Triton, as on macOS, and without fcntl, as on Windows."""

import os
import shutil
import subprocess
import sys

import pytest

from systems import REMEDIES, ROOT
from systems.experiments import STEMS
from tests.factories import RESULTS, file_contents

# Code that hides modules and attributes of `os`.
BLOCK = """
import os, sys

for name in {blocked!r}:
    if hasattr(os, name):
        delattr(os, name)
    else:
        sys.modules[name] = None
"""
MACOS = ("triton",)
OF_OS = ("O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW", "getuid", "killpg")
WINDOWS = ("triton", "fcntl", "resource", "sched_getaffinity", *OF_OS)
NO_TRITON = f"error: {REMEDIES['triton']}\n"
SKIPPED = "nothing was measured: weighted_sum can't be measured: "


@pytest.fixture
def run_blocked(tmp_path):
    def run(blocked: tuple[str, ...], *line: str) -> subprocess.CompletedProcess[str]:
        code = BLOCK.format(blocked=blocked)
        (tmp_path / "sitecustomize.py").write_text(code, encoding="utf-8")
        known = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        paths = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        # Windows has the variable USERNAME.
        named = {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "300", "USERNAME": "reader"}
        environment = known | paths | named
        command = [sys.executable, *line]
        options = {"cwd": ROOT, "env": environment, "text": True, "encoding": "utf-8"}
        return subprocess.run(command, capture_output=True, **options)

    return run


WITHOUT_TRITON = [
    "tools/tune_flash.py --help",
    "-m systems.experiments.flash_benchmarking --n 128",
    "-m systems.experiments.weighted_sum",
]


@pytest.mark.parametrize("line", WITHOUT_TRITON)
def test_commands_that_need_triton_say_so(line, run_blocked):
    done = run_blocked(MACOS, *line.split())
    assert (done.returncode, done.stdout, done.stderr) == (2, "", NO_TRITON)


@pytest.mark.slow
def test_commands_run_without_triton_and_fcntl(run_blocked):
    listed = run_blocked(WINDOWS, "tools/regen_tables.py", "--list")
    assert listed.returncode == 0 and "nvidia-h200" in listed.stdout, listed.stderr
    found = run_blocked(WINDOWS, "-m", "systems.check_setup")
    assert found.returncode == 0 and "Triton is not installed" in found.stdout
    counted = run_blocked(WINDOWS, "-m", "systems.experiments.model_sizes")
    assert counted.returncode == 0, counted.stderr


CALLS = """
import torch
from systems.attention import flash_attention

x = torch.ones(1, 4, 16)
assert flash_attention(x, x, x, backend="torch").shape == x.shape
for backend in ("auto", "triton", "hopper"):
    try:
        flash_attention(x, x, x, backend=backend)
    except ModuleNotFoundError as error:
        print(error.name, error)
"""


@pytest.mark.slow
def test_flash_attention_without_triton_gives_a_remedy(run_blocked):
    done = run_blocked(MACOS, "-c", CALLS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == 3 * [f"triton {REMEDIES['triton']}"]


UNMEASURED = [(MACOS, "weighted_sum", SKIPPED + REMEDIES["triton"])]
UNMEASURED += [(WINDOWS, "model_sizes", REMEDIES["fcntl"])]


@pytest.mark.parametrize(("blocked", "stem", "why"), UNMEASURED)
def test_measuring_names_what_is_missing(run_blocked, tmp_path, blocked, stem, why):
    line = f"tools/regen_tables.py --quick --only {stem} --results".split()
    done = run_blocked(blocked, *line, str(tmp_path))
    assert (done.returncode, done.stderr) == (2, f"error: {why}\n")


@pytest.mark.slow
def test_site_is_built_without_triton_and_fcntl(run_blocked, tmp_path):
    site, command = tmp_path / "site", "tools/regen_tables.py"
    generated, few = tmp_path / "generated", tmp_path / "results"
    shutil.copytree(RESULTS / "meta", few / "meta")
    folders = "--results", str(few), "--generated", str(generated)
    done = run_blocked(WINDOWS, command, "--render", *folders)
    assert done.returncode == 0, done.stderr
    assert len(file_contents(generated)) > 90
    check = run_blocked(WINDOWS, command, "--check", *folders)
    assert check.returncode == 0, check.stdout
    built = run_blocked(WINDOWS, "-m", "mkdocs", "build", "--strict", "-d", str(site))
    assert built.returncode == 0 and (site / "setup.html").exists(), built.stderr


@pytest.mark.slow
def test_experiments_declare_their_need_of_triton(run_blocked):
    code = """
import importlib
from systems.experiments import STEMS

for name, stem in STEMS.items():
    try:
        importlib.import_module(stem.module)
    except ModuleNotFoundError as error:
        assert error.name == "triton", error
        print(name)
"""
    done = run_blocked(MACOS, "-c", code)
    assert done.returncode == 0, done.stderr
    needing = [name for name, stem in STEMS.items() if "triton" in stem.needs]
    assert done.stdout.split() == needing


@pytest.mark.slow
@pytest.mark.parametrize("ci", [None, "1"])
def test_kernel_tests_without_triton_skip_or_fail_in_ci(ci, run_blocked, monkeypatch):
    monkeypatch.setenv("CI", ci or "")
    options = "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"
    done = run_blocked(MACOS, *options, "tests/attention/test_relaunch.py")
    assert done.returncode == (2 if ci else 5), done.stdout
    assert ("needs Triton, which is there for Linux alone" in done.stdout) == (not ci)
