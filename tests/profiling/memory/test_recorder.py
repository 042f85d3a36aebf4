"""A recorded step explains every byte that the allocator counts."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from systems import ROOT
from systems.model.optimizer import AdamW
from systems.model.train_step import precision_context, training_step
from systems.model.transformer import build_model
from systems.profiling.memory.digest import bytes_by_category, digest
from systems.profiling.memory.recorder import Recorder
from systems.profiling.memory.snapshot import bytes_in_use
from tests.cpu_allocator import allocator, rounded

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
SCRIPT = (
    "import json, sys; from tests.profiling.memory.test_recorder import whole_step; "
)
SCRIPT += "print(json.dumps(whole_step('cuda', sys.argv[1])))"


def whole_step(device: str, precision: str) -> dict:
    """Record a first step of `small`; return what history and allocator say."""
    with torch.device(device):
        model = build_model("small", 128, 1000)
        token_ids, targets = torch.randint(1000, (2, 2, 128))
    optimizer = AdamW(model.parameters())
    with Recorder(model, optimizer) as recorder:
        training_step(
            model,
            token_ids,
            targets,
            precision_context(precision, device),
            optimizer,
            recorder.phase,
        )
        # Whole pages that are free again, and given back: a history with expandable
        # segments has it unmapped.
        model.zero_grad()
        torch.empty(64 * 2**20, dtype=torch.uint8, device=device)
        torch.cuda.empty_cache()
    allocated = torch.cuda.max_memory_allocated()
    # SnapshotError where the history's peak is not the allocator's, of bytes as asked
    # for.
    history = recorder.history()
    total, layers, found = (
        bytes_in_use(history),
        bytes_by_category(history),
        digest(history),
    )
    blocks = [replace(block, bytes=rounded(block.bytes)) for block in history.blocks]
    return {
        "allocated": allocated,
        "allocated_by_history": max(bytes_in_use(replace(history, blocks=blocks))),
        "requested": recorder.peak_requested_bytes,
        "digest": found["peak_requested_bytes"],
        "categories_at_peak": {
            c["category"]: c["at_peak_bytes"] for c in found["categories"]
        },
        "categories_add_up": [
            sum(layer) for layer in zip(*layers.values(), strict=True)
        ]
        == total,
        "weights": sum(
            tensor.untyped_storage().nbytes()
            for tensor in (*model.parameters(), *model.buffers())
        ),
        "phases": [phase.name for phase in history.phases],
        "actions": sorted(
            {
                entry["action"]
                for trace in recorder.snapshot["device_traces"]
                for entry in trace
            }
        ),
        "expandable": [
            segment.get("is_expandable", False)
            for segment in recorder.snapshot["segments"]
        ],
    }


def explains(found: dict) -> None:
    assert (
        found["digest"]
        == found["requested"]
        == sum(found["categories_at_peak"].values())
    )
    assert found["categories_add_up"] and found["phases"] == [
        "forward",
        "loss",
        "backward",
        "optimizer",
    ]
    # Parameters and the table of cosines and sines.
    assert found["categories_at_peak"]["weights"] == found["weights"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_recorded_step_explains_every_byte(monkeypatch, precision):
    with allocator(monkeypatch):
        found = whole_step("cpu", precision)
    explains(found)
    assert found["allocated_by_history"] == found["allocated"]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "settings", ["expandable_segments:False", "expandable_segments:True"]
)
def test_a_recorded_step_explains_every_byte_on_a_gpu(settings, precision):
    """In a process of its own: the allocator reads its settings once."""
    environment = {
        name: value for name, value in os.environ.items() if name not in VARIABLES
    }
    environment["PYTORCH_ALLOC_CONF"] = settings
    command = [sys.executable, "-c", SCRIPT, precision]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    explains(found)
    if settings == "expandable_segments:True":
        assert all(found["expandable"]) and {"segment_map", "segment_unmap"} <= set(
            found["actions"]
        )
        # A rest of 512 bytes or more is split off, so every block is its request,
        # rounded up.
        assert found["allocated_by_history"] == found["allocated"]
    else:
        assert not any(found["expandable"]) and "segment_alloc" in found["actions"]
        # A large block keeps a rest of up to a MiB, which the history doesn't tell.
        assert found["allocated_by_history"] <= found["allocated"]
