"""Test the lifetime, owner and category of blocks in hand-made histories."""

import pickle
from typing import Any

import pytest
from torch import nn

from systems.profiling.memory import digest as memory_digest
from systems.profiling.memory.digest import TIMELINE_POINTS, sample_timeline, summarize
from systems.profiling.memory.recorder import Recorder
from systems.profiling.memory.snapshot import (
    CATEGORIES,
    Block,
    Mark,
    SnapshotError,
    build_history,
    bytes_in_use,
)

MIB = 2**20
FOLDER = memory_digest.FOLDER
FILE = f"{FOLDER}/model/transformer.py"
MODEL = [{"name": "forward", "filename": FILE, "line": 46}]
RECORDER = "/x/systems/profiling/memory/recorder.py"
MARKED = [{"name": "add_mark", "filename": RECORDER, "line": 1}]


class Pool:
    """A memory pool that writes a history as PyTorch's allocator does."""

    def __init__(self, **older: int):
        self.live = {
            name: (1000 * MIB * (i + 1), size)
            for i, (name, size) in enumerate(older.items())
        }
        self.trace: list[dict[str, Any]] = []
        self.next = 2**40

    def add_entry(self, action: str, address: int, size: int, frames: list) -> None:
        entry = {"action": action, "addr": address, "size": size, "frames": frames}
        self.trace.append(entry)

    def allocate(
        self, name: str, size: int, frames: list = MODEL, address: int | None = None
    ) -> int:
        self.next += size
        self.live[name] = (address or self.next, size)
        self.add_entry("alloc", *self.live[name], frames)
        return self.live[name][0]

    def free(self, name: str) -> None:
        lost = self.live.pop(name)
        self.add_entry("free_requested", *lost, [])
        self.add_entry("free_completed", *lost, [])

    def mark(self) -> None:
        self.allocate("mark", 1, MARKED)
        self.free("mark")

    def snapshot(self) -> dict[str, Any]:
        used = "active_allocated"
        segments = [
            {
                "device": 0,
                "address": address - 512,
                "blocks": [
                    {"state": "inactive", "size": 512},
                    {"state": used, "size": size + 100, "requested_size": size},
                ],
            }
            for address, size in self.live.values()
        ]
        # Blocks of another GPU are ignored.
        blocks = [{"state": used, "size": 9 * MIB}]
        other = {"device": 1, "address": 1, "blocks": blocks}
        return {"segments": [*segments, other], "device_traces": [self.trace, []]}


def training_step() -> tuple[Pool, list[Mark]]:
    """Return a step's pool and marks; its gradient reuses a temporary's address."""
    pool = Pool(weight=40 * MIB, m=40 * MIB, v=40 * MIB, workspace=8 * MIB)
    address = {name: place for name, (place, _) in pool.live.items()}
    owners = {address["weight"]: ("weights", "layers.0.w")}
    owners |= {
        address[name]: ("optimizer state", f"layers.0.w, {name}") for name in ("m", "v")
    }
    pool.mark()
    reused = pool.allocate("temporary", 40 * MIB)
    pool.allocate("kept", 30 * MIB)
    pool.free("temporary")
    pool.allocate("copy", 20 * MIB)
    copies = {pool.live["copy"][0]: ("weight copies", "layers.0.w")}
    pool.mark()
    pool.mark()
    pool.mark()
    pool.allocate("gradient", 40 * MIB, [], reused)
    pool.allocate("work", 60 * MIB, [])
    pool.free("kept")
    pool.free("copy")
    pool.free("work")
    pool.mark()
    done = owners | {reused: ("gradients", "layers.0.w")}
    marks = [
        Mark("forward", "begin", owners),
        Mark("forward", "inside", copies),
        Mark("forward", "end", owners),
        Mark("backward", "begin", owners),
        Mark("backward", "end", done),
    ]
    return pool, marks


def test_older_blocks_live_from_the_first_event():
    pool = Pool(old=MIB)
    pool.allocate("new", MIB)
    pool.free("old")
    blocks = build_history(pool.snapshot(), []).blocks
    assert [(b.start, b.end) for b in blocks if b.older] == [(0, 1)]


def test_digest_of_a_hand_made_history_is_right():
    pool, marks = training_step()
    history = build_history(pool.snapshot(), marks)
    found = summarize(history, timeline=True)
    assert found["peak_requested_bytes"] == 278 * MIB
    assert found["peak_phase"] == "backward"
    at_peak = [(c["category"], c["at_peak_bytes"] / MIB) for c in found["categories"]]
    assert at_peak == [*zip(CATEGORIES, (40, 80, 40, 20, 30, 68), strict=True)]
    assert all(c["at_peak_bytes"] == c["most_bytes"] for c in found["categories"])
    bounds = [(p["first_event"], p["last_event"]) for p in found["phases"]]
    assert bounds == [(0, 8), (10, 17)]
    # A tenth of ten allocations is one; autograd's thread made the largest.
    assert found["allocations"] == 10 and found["tenth_least_bytes"] == 60 * MIB
    (tenth,) = found["tenth"]
    of_tenth = tenth["bytes"], tenth["code"], tenth["phase"]
    assert of_tenth == (60 * MIB, "", "backward")
    groups = memory_digest.group_blocks(history.blocks)
    largest = groups[0]
    assert (largest["bytes"], largest["count"], largest["owner"]) == (60 * MIB, 1, "")
    owners = [group["owner"] for group in groups if group["category"] == "gradients"]
    assert owners == ["layers.*.w"]
    kept = next(g for g in groups if g["category"] == "saved activations")
    assert kept["code"] == "transformer.py:46 forward" and kept["phase"] == "forward"
    line = found["timeline"]
    sums = [sum(at) for at in zip(*(line[name] for name in CATEGORIES), strict=True)]
    assert sums == [bytes_in_use(history)[event] for event in line["event"]]
    assert "timeline" not in summarize(history)


def test_allocation_site_is_two_frames_of_systems():
    files = (
        f"{FOLDER.parent}/.venv/lib/python3.12/site-packages/torch/functional.py",
        f"{FOLDER}/attention/triton/launches.py",
        "/opt/python3.12/systems.py",
        f"{FOLDER}/check_setup.py",
        FILE,
    )
    stack = tuple(("f", file, line) for line, file in enumerate(files))
    found = memory_digest.allocation_site(Block(0, 1, 0, stack=stack))
    assert found == "launches.py:1 f, check_setup.py:3 f"


def test_a_sampled_timeline_keeps_every_peak():
    total = [(7919 * i) % 10_007 for i in range(20_000)]
    total[12_345] = 99_999
    layers = {name: total for name in CATEGORIES}
    line = sample_timeline(layers, total)
    assert 99_999 in line["weights"]
    assert 0.9 * TIMELINE_POINTS < len(line["event"]) <= TIMELINE_POINTS + 2
    assert line["event"][0] == 0 and line["event"][-1] == len(total) - 1


def test_pauses_are_removed_from_the_history():
    pool, marks = training_step()
    plain = build_history(pool.snapshot(), marks)
    trace = pool.trace
    after_copy = next(i for i, e in enumerate(trace) if e["size"] == 20 * MIB) + 1
    pool.trace = []
    pausing = MARKED[0] | {"name": "mark_weight_copies", "line": 2}
    pool.allocate("probe", 500 * MIB, [*MODEL, pausing])
    pool.free("probe")
    pool.trace = [*trace[:after_copy], *pool.trace, *trace[after_copy:]]
    looked = build_history(pool.snapshot(), marks)
    assert bytes_in_use(looked) == bytes_in_use(plain) and looked.phases == plain.phases


def test_segment_events_are_ignored():
    """Events that map pages or create segments are no allocations."""
    pool, marks = training_step()
    plain = build_history(pool.snapshot(), marks)
    actions = [f"segment_{done}" for done in ("map", "unmap", "alloc", "free")]
    actions += ["workspace_snapshot", "snapshot"]
    # The events have the address of a live block.
    address = pool.live["gradient"][0]
    pages = [
        {"action": action, "addr": address, "size": 20 * MIB, "frames": MARKED}
        for action in actions
    ]
    # Entries of out-of-memory errors have no address.
    pages.append({"action": "oom", "size": MIB, "device_free": 0, "frames": MODEL})
    pool.trace = [entry for one in pool.trace for entry in (*pages, one)] + pages
    assert build_history(pool.snapshot(), marks) == plain


def drop_free(snapshot):
    (trace, _) = snapshot["device_traces"]
    freed = ("free_completed", 40 * MIB)
    trace.remove(next(e for e in trace if (e["action"], e["size"]) == freed))


def drop_block(snapshot):
    """Remove blocks of 40 MiB from the pool; the history allocated one of them."""
    segments = snapshot["segments"]
    kept = [s for s in segments if s["blocks"][-1].get("requested_size") != 40 * MIB]
    snapshot["segments"] = kept


NO_PICTURES = {
    "holds no history": lambda snapshot: snapshot.update(device_traces=[[]]),
    "no history: enable it": lambda snapshot: snapshot.pop("device_traces"),
    # The allocator overwrites its oldest entries.
    "4 of 5 marks are in the history, so it overflowed": (
        lambda snapshot: snapshot["device_traces"][0].__delitem__(slice(3))
    ),
    "twice": drop_free,
    "1 blocks of the history are not in the pool": drop_block,
    "in the history": lambda s: s["segments"][-2]["blocks"][-1].update(
        requested_size=1
    ),
}


@pytest.mark.parametrize("said", NO_PICTURES)
def test_unusable_history_is_an_error(said):
    pool, marks = training_step()
    snapshot = pool.snapshot()
    NO_PICTURES[said](snapshot)
    with pytest.raises(SnapshotError, match=said):
        build_history(snapshot, marks)


def test_saved_snapshot_is_a_pickle(tmp_path):
    recorder = Recorder(nn.Linear(1, 1), None)
    recorder.snapshot = training_step()[0].snapshot()
    path = tmp_path / "folder" / "kept.pickle"
    recorder.save(path)
    assert pickle.loads(path.read_bytes()) == recorder.snapshot
