"""Commands report errors in one line: missing packages, a used port, a full disk."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest
from pygments.lexers.shell import BashSessionLexer
from pygments.token import Generic

from systems import ROOT
from tests.needed import run_python

PACKAGES = {
    "torch": "-m systems.check_setup|-m systems.experiments.warmup|tools/tune_flash.py",
    "typer": "tools/regen_tables.py --only model_sizes|tools/regen_tables.py --list|"
    "-m systems.formulas.fit",
    "nbformat": "tools/run_notebooks.py",
    "msgspec": "tools/submission.py",
}
COMMANDS = {line: name for name in PACKAGES for line in PACKAGES[name].split("|")}


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_copy_button_copies_whole_commands(page):
    """Like the button, leave out what the lexer takes for prompts and output."""
    for block in re.findall(
        r"```console\n(.*?)```", page.read_text("utf-8"), re.DOTALL
    ):
        tokens = BashSessionLexer().get_tokens(block)
        shown = Generic.Output, Generic.Prompt
        shlex.split("".join(text for kind, text in tokens if kind not in shown), True)


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_packages_give_a_one_line_error(command):
    # -S hides all installed packages.
    done = run_python("-S", *command.split(), env={})
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    text = f"error: {COMMANDS[command]} is not installed here: run `make .venv/all`"
    assert done.stderr.startswith(text)


# A line of each command's --help, which computes nothing.
HELPS = {
    "-m systems.formulas.fit": "python -m systems.formulas.fit --size 2.7B --attent",
    "-m systems.experiments.warmup": "python -m systems.experiments.warmup --",
    # With PYTHONOPTIMIZE=2 there are no docstrings.
    "-OO -m systems.formulas.fit": "Usage: ",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", HELPS)
def test_help_shows_an_example(command):
    done = run_python(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ") and "--help" in done.stdout
    lines = [x.strip() for x in done.stdout.splitlines()]
    assert any(x.startswith(HELPS[command]) for x in lines), done.stdout


BROKEN = {"-m systems.check_setup": 1, "tools/tune_flash.py": 1}
BROKEN |= {"tools/regen_tables.py --quick --only norm_precision --results": 2}


@pytest.mark.parametrize("command", BROKEN)
def test_failing_import_names_the_package(tmp_path, command):
    (tmp_path / "torch.py").write_text("raise ValueError('\\nbad\\nsettings')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = run_python(*command.split(), tmp_path, env=environment)
    assert done.returncode == BROKEN[command] and "Traceback" not in done.stderr
    assert done.stderr.endswith("error: torch can't be imported: bad\n")


def test_truncated_pyc_file_is_named(tmp_path):
    """No command works until the damaged file is deleted."""
    (tmp_path / "cut.pyc").write_bytes(MAGIC_NUMBER + bytes(12) + b"\xe3")
    line = "import systems; systems.require(); import cut"
    done = run_python("-c", line, env={"PYTHONPATH": tmp_path})
    assert done.stderr.startswith("error: a full disk") and done.stderr.count("\n") == 1


FULL = (2, "error: No space left on device\n")
SINKS = {">/dev/full": FULL, ">&-": (0, ""), "<&- >&- 2>&-": (0, ""), "| true": (0, "")}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_output_is_an_error_and_closed_output_is_none(tmp_path, sink, unbuffered):
    command = f'"{sys.executable}" tools/regen_tables.py --list --results "$0" {sink}'
    line = ["bash", "-o", "pipefail", "-c", command, tmp_path]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True)
    assert (done.returncode, done.stderr.decode()) == SINKS[sink]


@pytest.mark.parametrize("error", ["'lost'", "30, 'lost', 'x'"])
def test_output_before_an_error_is_printed(error):
    line = f"import systems\ndef main():\n print('said')\n raise OSError({error})\n"
    done = run_python("-c", line + "systems.run_cli(main, '', [])")
    assert (done.returncode, done.stdout) == (2, "said\n")
    where = "can't use x: " if "x" in error else ""
    assert done.stderr == f"error: {where}lost\n"


TERMINATED = """import os, time, weakref
from systems import run_cli
from systems.running.reports import exit_when_terminated
def stop(*_): os.kill(os.getpid(), 15); time.sleep(9)
def main():
    {}; time.sleep(9)
exit_when_terminated(); run_cli(main, "", [])
"""
# Python ignores exceptions in the callback of a weak reference.
CALLBACK = "x = set(); r = weakref.ref(x, stop); del x"
CLOSED_PIPE = "try: raise BrokenPipeError\n    except OSError: stop()"


@pytest.mark.parametrize("place", [CALLBACK, CLOSED_PIPE])
def test_sigterm_is_no_success(place):
    done = run_python("-c", TERMINATED.format(place))
    assert (done.returncode, done.stderr) == (143, "")


@pytest.mark.slow
def test_compiling_rejects_the_interpreter():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    line = "from tools.compile_ahead import check_can_compile; check_can_compile()"
    done = run_python("-c", line, env=environment)
    text = "error: the interpreter compiles nothing: unset TRITON_INTERPRET\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", text)


@pytest.mark.parametrize("module", ["experiments.autocast", "check_setup"])
def test_ctrl_c_during_the_import_of_torch_aborts(tmp_path, module):
    slow = "print(1, flush=True)\nimport time; time.sleep(60)"
    (tmp_path / "torch.py").write_text(slow)
    line, pipe = [sys.executable, "-m", f"systems.{module}"], subprocess.PIPE
    place = {"cwd": ROOT, "env": os.environ | {"PYTHONPATH": str(tmp_path)}}
    with subprocess.Popen(line, **place, stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "1\n"
        child.send_signal(signal.SIGINT)
        _, text = child.communicate(timeout=30)
    assert text == "Aborted!\n" and child.returncode in (130, -signal.SIGINT)


@pytest.mark.skipif(shutil.which("make") is None, reason="without make")
def test_make_serve_checks_the_port_first():
    with socket.create_server(("127.0.0.1", 0)) as server:
        for port in (server.getsockname()[1], "x"):
            options = (f"PORT={port}", f"BIN={Path(sys.executable).parent}")
            line = ["make", "--old-file", ".venv/docs", "serve", *options]
            done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 2 and done.stderr.startswith(f"port {port} is ta")
            assert "mkdocs" not in done.stdout


def test_makefile_works_in_a_moved_clone():
    """Only scripts installed by pip contain the clone's path."""
    recipes = (ROOT / "Makefile").read_text()
    assert set(re.findall(r"\$\(BIN\)/(\w+)", recipes)) == {"python", "uv", "zizmor"}
