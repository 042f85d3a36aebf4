"""One configuration from the command line, where what it is given can't be."""

import json
import subprocess
import sys

import pytest

from systems import ROOT
from systems.records.outcome import measure_row
from tests.fake_stem import Config


def command(stem: str, *options: str) -> subprocess.CompletedProcess[str]:
    given = [sys.executable, "-m", f"systems.experiments.{stem}", *options, "--json"]
    return subprocess.run(given, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("term", ["nan", "inf", "-inf"])
def test_a_number_that_is_none_is_refused_in_one_line(term):
    child = command("accumulation", "--term", term)
    assert child.returncode == 2 and not child.stdout
    assert child.stderr == f"error: --term must be finite, not {term}\n"


def test_json_never_holds_a_number_that_is_none():
    """The sum of a few of the largest terms is infinite in float32."""
    child = command("accumulation", "--term", "3e38", "--steps", "10")
    assert child.returncode == 2 and not child.stdout
    assert child.stderr.startswith("error: ") and child.stderr.count("\n") == 1
    assert "is inf, not a finite number" in child.stderr


@pytest.mark.slow
def test_out_of_memory_on_a_cpu_is_a_result_too():
    child = command("accumulation", "--steps", "1000000000000")
    row = json.loads(child.stdout)
    assert (child.returncode, row["status"]) == (0, "out_of_memory")
    assert "\n" not in row["reason"] and "alloc_cpu.cpp" not in row["reason"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
            "allocate memory: you tried to allocate 8 bytes.\nframe #0: c10::...",
            "err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 8 bytes.",
        ),
        (
            "Storage size calculation overflowed with sizes=[9, 9]",
            "Storage size calculation overflowed with sizes=[9, 9]",
        ),
    ],
)
def test_a_cpu_says_otherwise_that_it_is_out_of_memory(text, reason):
    def run(config):
        raise RuntimeError(text)

    row = measure_row(Config(), run)
    assert (row.status, row.metrics, row.reason) == ("out_of_memory", {}, reason)
