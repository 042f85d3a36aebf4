"""Run the exercises in Triton's interpreter, which must be chosen before the first
import of triton, and list the unsolved ones.
"""

import importlib.util
import os
import re
from pathlib import Path

import pytest

os.environ["TRITON_INTERPRET"] = "1"


def pytest_configure(config):
    if importlib.util.find_spec("triton") is None:
        raise pytest.UsageError(
            "Triton is not installed here: run `make exercises` on Linux (or WSL), "
            "for Triton is built for no other system"
        )
    names = sorted(path.stem for path in Path(__file__).parent.glob("[0-9]_*.py"))
    for word in re.findall(r"\w+", config.option.keyword.lower()):
        if word not in " ".join((*names, "test_exercise and or not")):
            listed = ", ".join(names)
            raise pytest.UsageError(f"no exercise is named {word}; there are: {listed}")
    # "s": skipped ones with their reasons, which say what is left to fill in.
    config.option.reportchars += "s"
