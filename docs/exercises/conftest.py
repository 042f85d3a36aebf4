"""The exercises run in Triton's interpreter, which has to be chosen before triton is
first imported. What is unsolved is listed by itself.
"""

import importlib.util
import os

import pytest

os.environ["TRITON_INTERPRET"] = "1"


def pytest_configure(config):
    if importlib.util.find_spec("triton") is None:
        raise pytest.UsageError(
            "Triton is not installed here: run `make exercises` on Linux (or WSL), "
            "for Triton is built for no other system"
        )
    # "s": skipped ones with their reasons, which say what is left to fill in.
    config.option.reportchars += "s"
