"""Skip tests whose requirements this machine lacks."""

import os
import subprocess
import sys
from shutil import which
from typing import NoReturn

import pytest

from systems import ROOT
from systems.records.outcome import SPACE_FAULT, paths_with_a_space


def skip_or_fail(what: str) -> NoReturn:
    """Skip the test, or fail it where CI is set."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(what)


def require_git() -> None:
    if not which("git"):
        skip_or_fail("git is not installed")


def run_python(*line: object, **options) -> subprocess.CompletedProcess[str]:
    """Run Python in the project's root; return the finished process."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    command = [sys.executable, *map(str, line)]
    return subprocess.run(command, cwd=ROOT, text=True, **options)


# With a space in these paths, some PyTorch versions can't compile C++.
compiles_cpp = pytest.mark.xfail(
    bool(paths_with_a_space()), reason=f"torch.compile: {SPACE_FAULT}"
)
