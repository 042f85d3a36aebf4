"""A recorded step explains every byte that the allocator counts."""

import json
import os
from dataclasses import replace

import pytest
import torch

from systems.model.optimizer import AdamW
from systems.model.train_step import precision_context, training_step
from systems.model.transformer import build_model
from systems.profiling.memory.digest import category_timelines, summarize
from systems.profiling.memory.recorder import Recorder
from systems.profiling.memory.snapshot import bytes_in_use
from tests.cpu_allocator import allocator, round_up
from tests.needed import run_python

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
SCRIPT = "import json, sys; from tests.profiling.memory import test_recorder as of; "
SCRIPT += "print(json.dumps(of.record_first_step('cuda', sys.argv[1])))"


def record_first_step(device: str, precision: str) -> dict:
    """Record the first step of `small`; return peaks by history and by allocator."""
    with torch.device(device):
        model = build_model("small", 128, 1000)
        token_ids, targets = torch.randint(1000, (2, 2, 128))
    optimizer = AdamW(model.parameters())
    with Recorder(model, optimizer) as recorder:
        context = precision_context(precision, device)
        rest = targets, context, optimizer, recorder.phase
        training_step(model, token_ids, *rest)
        # Unmap freed pages, so that the history of expandable segments has such events.
        model.zero_grad()
        torch.empty(64 * 2**20, dtype=torch.uint8, device=device)
        torch.cuda.empty_cache()
    allocated = torch.cuda.max_memory_allocated()
    # `history` raises SnapshotError if its peak differs from the allocator's.
    history = recorder.history()
    total, layers = bytes_in_use(history), category_timelines(history)
    found, snapshot = summarize(history), recorder.snapshot
    blocks = [replace(block, bytes=round_up(block.bytes)) for block in history.blocks]
    tensors = *model.parameters(), *model.buffers()
    sums = [sum(layer) for layer in zip(*layers.values(), strict=True)]
    return {
        "allocated": allocated,
        "allocated_by_history": max(bytes_in_use(replace(history, blocks=blocks))),
        "requested": recorder.peak_requested_bytes,
        "digest": found["peak_requested_bytes"],
        "at_peak": {c["category"]: c["at_peak_bytes"] for c in found["categories"]},
        "categories_add_up": sums == total,
        "weights": sum(tensor.untyped_storage().nbytes() for tensor in tensors),
        "phases": [phase.name for phase in history.phases],
        "actions": sorted({e["action"] for t in snapshot["device_traces"] for e in t}),
        "expandable": [s.get("is_expandable", False) for s in snapshot["segments"]],
    }


def check_history(found: dict) -> None:
    at_peak = found["at_peak"]
    assert found["digest"] == found["requested"] == sum(at_peak.values())
    assert found["categories_add_up"]
    assert found["phases"] == ["forward", "loss", "backward", "optimizer"]
    # Weights are the parameters and the rotary table.
    assert at_peak["weights"] == found["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_recorded_step_explains_every_byte(monkeypatch, precision):
    with allocator(monkeypatch):
        found = record_first_step("cpu", precision)
    check_history(found)
    assert found["allocated_by_history"] == found["allocated"]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "settings", ["expandable_segments:False", "expandable_segments:True"]
)
def test_a_recorded_step_explains_every_byte_on_a_gpu(settings, precision):
    """Run in a new process, because the allocator reads its settings once."""
    known = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    environment = known | {"PYTORCH_ALLOC_CONF": settings}
    done = run_python("-c", SCRIPT, precision, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    check_history(found)
    if settings == "expandable_segments:True":
        assert all(found["expandable"])
        assert {"segment_map", "segment_unmap"} <= set(found["actions"])
        # Here the rest of a block is split off, so a block has just its rounded size.
        assert found["allocated_by_history"] == found["allocated"]
    else:
        assert not any(found["expandable"]) and "segment_alloc" in found["actions"]
        # A large block may have up to 1 MiB more, which the history doesn't show.
        assert found["allocated_by_history"] <= found["allocated"]
