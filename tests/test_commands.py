"""What a newcomer meets first: commands without their packages, a port that is taken, a
clone that was moved.
"""

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from systems import ROOT

COMMANDS = {
    "python -m systems.check_setup": "torch is not installed here: "
    "run `make .venv/all`",
    "python -m systems.experiments.warmup": "torch is not installed here: run `make",
    "python tools/regen_tables.py --only model_sizes": " is not installed for ",
    "python tools/regen_tables.py --verify model_sizes": " is not installed for ",
    "python tools/regen_tables.py --list": " is not installed for ",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_its_packages_is_one_line(command):
    # -S hides every package that was installed.
    line = [sys.executable, "-S", *command.split()[1:]]
    done = subprocess.run(line, cwd=ROOT, env={}, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert COMMANDS[command] in done.stderr


def test_formulas_need_no_torch():
    line = [sys.executable, "-S", "-m", "systems.formulas.fit", "--help"]
    done = subprocess.run(line, cwd=ROOT, env={}, capture_output=True, text=True)
    assert "torch is not installed" not in done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="without make")
def test_where_the_port_is_taken_serving_says_so_before_it_builds():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        options = (f"PORT={port}", f"BIN={Path(sys.executable).parent}")
        line = ["make", "--old-file", ".venv/docs", "serve", *options]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"port {port} is taken: make serve PORT=" in done.stderr
    assert "mkdocs" not in done.stdout


def test_a_moved_clone_needs_no_new_environment():
    """The first line of an installed script names the folder it was installed in. uv
    and zizmor are no scripts.
    """
    recipes = (ROOT / "Makefile").read_text()
    assert set(re.findall(r"\$\(BIN\)/(\w+)", recipes)) == {"python", "uv", "zizmor"}
