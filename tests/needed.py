"""What a test needs of its machine."""

import os
from shutil import which
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Skips the test, for the reason `what`. Where CI is set nothing may be missing:
    there it fails.
    """
    (pytest.fail if os.environ.get("CI") else pytest.skip)(what)


def needs_git() -> None:
    if not which("git"):
        missing("git is not installed")
