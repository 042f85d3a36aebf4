"""One configuration from the command line, where what it is given can't be."""

import json
import os
import subprocess

import pytest

from tests.needed import python


def command(stem: str, *options: str) -> subprocess.CompletedProcess[str]:
    return python("-m", f"systems.experiments.{stem}", *options, "--json")


def test_who_waits_at_a_terminal_is_told_what_for():
    ours, terminal = os.openpty()
    child = python("-m", "systems.experiments.accumulation", "--json", stderr=terminal)
    assert child.returncode == 0 and json.loads(child.stdout)["status"] == "ok"
    assert os.read(ours, 1000).startswith(b"measuring")
    os.close(ours)
    os.close(terminal)
    assert not command("accumulation").stderr


REFUSED = {
    "accumulation --term nan": "error: --term must be finite, not nan",
    # The sum of a few of the largest terms is infinite in float32.
    "accumulation --term 3e38 --steps 10": "is inf, not a finite number",
    f"accumulation --steps {10**30}": "error: Invalid value for '--steps': ",
    "mixed_precision --vocab 3": "error: vocab must be 8 or more, not 3",
}


@pytest.mark.slow
@pytest.mark.parametrize("line", REFUSED)
def test_a_number_that_can_not_be_is_refused_in_one_line(line):
    child = command(*line.split())
    assert child.returncode == 2 and not child.stdout
    assert child.stderr.startswith("error: ") and child.stderr.count("\n") == 1
    assert REFUSED[line] in child.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [f"model_sizes --context {10**18}", f"accumulation --steps {10**12}"],
)
def test_more_than_any_memory_is_a_result_without_any(line):
    child = command(*line.split())
    row = json.loads(child.stdout)
    assert (child.returncode, row["status"]) == (0, "out_of_memory"), child.stderr
    assert "\n" not in row["reason"] and "alloc_cpu.cpp" not in row["reason"]
