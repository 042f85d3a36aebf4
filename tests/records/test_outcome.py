"""Test which errors become the result of a row, such as out of memory on a CPU."""

from dataclasses import asdict
from unittest.mock import Mock

import pytest
import torch

from systems import REMEDIES
from systems.profiling.torch_trace import read_trace
from systems.records.outcome import Unsupported, measure_row
from systems.records.record import Row
from tests.fake_stem import Config

NO_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."
FRAMES = f"[enforce fail at a.cpp:127] {NO_MEMORY}\nframe #0: c10::..."
# The message of PyTorch's errors, and the reason in the row.
OUT_OF_MEMORY = {FRAMES: NO_MEMORY} | {
    text: text
    for text in (
        "Storage size calculation overflowed with sizes=[9, 9]",
        "numel: integer multiplication overflow",
        "an int that cannot be represented as a SymInt: -9223372036854775808",
    )
}


@pytest.mark.parametrize("text", OUT_OF_MEMORY)
def test_cpu_errors_are_recorded_as_out_of_memory(text):
    row = measure_row(Config(), Mock(side_effect=RuntimeError(text)))
    assert row == Row(asdict(Config()), "out_of_memory", {}, OUT_OF_MEMORY[text])


@pytest.mark.parametrize("error", [Unsupported(" "), torch.OutOfMemoryError()])
def test_reason_of_an_empty_message_is_the_error_s_name(error):
    row = measure_row(Config(), Mock(side_effect=error))
    assert row.status != "ok" and row.reason == type(error).__name__


def test_only_a_missing_triton_is_unsupported():
    error = ModuleNotFoundError(REMEDIES["triton"], name="triton")
    row = measure_row(Config(), Mock(side_effect=error))
    assert row.status == "unsupported"
    assert row.reason == f"not installed: {REMEDIES['triton']}"
    error.name = "tritium"
    with pytest.raises(ModuleNotFoundError):
        measure_row(Config(), Mock(side_effect=error))


def test_allocator_without_history_gives_a_remedy():
    error = RuntimeError("cudaMallocAsync does not yet support recordHistory. If")
    with pytest.raises(ValueError, match="set PYTORCH_CUDA_ALLOC_CONF=backend:native"):
        measure_row(Config(), Mock(side_effect=error))


def test_profiler_that_may_not_trace_kernels_is_unsupported(tmp_path):
    path = tmp_path / "none.json"
    path.write_text('{"traceEvents": []}')
    row = measure_row(Config(), lambda _: {"kernels": len(read_trace(path))})
    assert row.status == "unsupported"
    assert row.reason.startswith("the profile has no kernel of a GPU: profile with Pro")
