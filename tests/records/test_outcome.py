"""Test errors that become a row's result, such as out of memory on a CPU."""

import pytest

from systems.records.outcome import measure_row
from tests.fake_stem import Config

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
def test_cpu_errors_are_recorded_as_out_of_memory(text, reason):
    def run(config):
        raise RuntimeError(text)

    row = measure_row(Config(), run)
    assert (row.status, row.metrics, row.reason) == ("out_of_memory", {}, reason)


def test_allocator_without_history_gives_a_remedy():
    def run(config):
        raise RuntimeError("cudaMallocAsync does not yet support recordHistory. If")

    with pytest.raises(ValueError, match="set PYTORCH_CUDA_ALLOC_CONF=backend:native"):
        measure_row(Config(), run)
