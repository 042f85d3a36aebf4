"""One configuration from the command line, where what it is given can't be."""

import json
import os
import subprocess

import pytest

from systems.records.outcome import measure_row
from tests.fake_stem import Config
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


NO_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."
OUT_OF_MEMORY = [
    "Storage size calculation overflowed with sizes=[9, 9]",
    "numel: integer multiplication overflow",
    "an int that cannot be represented as a SymInt: -9223372036854775808",
]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"[enforce fail at a.cpp:127] {NO_MEMORY}\nframe #0: c10::...", NO_MEMORY),
        *((text, text) for text in OUT_OF_MEMORY),
    ],
)
def test_a_cpu_says_otherwise_that_it_is_out_of_memory(text, reason):
    def run(config):
        raise RuntimeError(text)

    row = measure_row(Config(), run)
    assert (row.status, row.metrics, row.reason) == ("out_of_memory", {}, reason)


def test_an_allocator_that_keeps_no_history_is_one_line():
    def run(config):
        raise RuntimeError("cudaMallocAsync does not yet support recordHistory. If")

    with pytest.raises(ValueError, match="set PYTORCH_CUDA_ALLOC_CONF=backend:native"):
        measure_row(Config(), run)


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
