"""Convert the allocator's history to blocks, each with an owner, phase and category.

`systems.profiling.memory.recorder` records each allocation and free with its Python
stack. A block lives from its allocation to its free. Its category follows from its
owner (parameter, gradient, optimizer state, autocast's copy of a weight) or its
lifetime: a block that survives the forward or loss phase is saved for the backward
pass. This module needs no torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

# Categories as figures stack them, from longest-lived to shortest-lived blocks.
CATEGORIES = (
    "weights",
    "optimizer state",
    "gradients",
    "weight copies",
    "saved activations",
    "temporaries",
)
# A block that one of these phases allocates and does not free is saved for backward.
SAVING_PHASES = ("forward", "second_forward", "loss")
# Name of the recorder's method whose allocations mark a point in the history.
MARKER = "add_mark"
# Name of the recorder's method whose allocations start a pause: events until the next
# mark come from the recorder itself, which looks for the owners of tensors.
PAUSE = "mark_weight_copies"
Frame = tuple[str, str, int]


class SnapshotError(ValueError):
    """A snapshot can't be read; the message states the reason and what to do."""


@dataclass(frozen=True)
class Mark:
    """A point in the history, with the tensors' owners: {address: (category, name)}."""

    phase: str
    edge: Literal["begin", "inside", "end"]
    owners: dict[int, tuple[str, str]]


@dataclass
class Block:
    """One allocation, in requested bytes, live from event `start` until event `end`."""

    address: int
    bytes: int
    start: int
    # The event that frees the block, or None if it is never freed.
    end: int | None = None
    # Python frames (function, file, line), innermost first; empty for C++ callers.
    stack: tuple[Frame, ...] = ()
    # Whether the block was allocated before the history began.
    older: bool = False
    phase: str | None = None
    category: str = "temporaries"
    owner: str | None = None

    def lives_at(self, event: int) -> bool:
        return self.start <= event and (self.end is None or event < self.end)


@dataclass(frozen=True)
class Span:
    name: str
    first: int
    last: int


@dataclass(frozen=True)
class History:
    """All blocks of a recorded pass, its phases, and its number of events."""

    blocks: list[Block]
    phases: list[Span]
    events: int


# --8<-- [start:history]
def build_history(
    snapshot: dict[str, Any], marks: list[Mark], device: int = 0
) -> History:
    """Return the history of a snapshot, with a category for each block. `marks` are in
    recording order. Raise `SnapshotError` if the history is empty or incomplete.
    """
    blocks, mark_events, events = replay_events(snapshot, device)
    if len(mark_events) != len(marks):
        raise SnapshotError(
            f"{len(mark_events)} of {len(marks)} marks are in the history, so it "
            "overflowed: record it with a larger MAX_ENTRIES"
        )
    blocks_at: dict[int, list[Block]] = {}
    for block in blocks:
        blocks_at.setdefault(block.address, []).append(block)
    phases: list[Span] = []
    begin = 0
    for mark, event in zip(marks, mark_events, strict=True):
        for address, (category, name) in mark.owners.items():
            # An address can hold other blocks, with other owners, at other times.
            for block in blocks_at.get(address, ()):
                if block.lives_at(event) and block.owner is None:
                    block.category, block.owner = category, name
        if mark.edge == "begin":
            begin = event
        elif mark.edge == "end":
            phases.append(Span(mark.phase, begin, event))
    for phase in phases:
        for block in blocks:
            if not block.older and phase.first <= block.start <= phase.last:
                block.phase = phase.name
                outlives = block.lives_at(phase.last + 1)
                if outlives and phase.name in SAVING_PHASES and block.owner is None:
                    block.category = "saved activations"
    return History(blocks, phases, events)


def replay_events(
    snapshot: dict[str, Any], device: int
) -> tuple[list[Block], list[int], int]:
    """Return (blocks, each mark's event number, event count). Raise SnapshotError."""
    traces = snapshot.get("device_traces", [])
    if device >= len(traces) or not traces[device]:
        raise SnapshotError("the snapshot holds no history: enable it before the pass")
    blocks: list[Block] = []
    live: dict[int, Block] = {}
    marks: list[int] = []
    event, paused = 0, False
    for entry in traces[device]:
        # Other events (of segments, or requests to free) don't change the bytes in use.
        if entry["action"] == "alloc":
            block = Block(entry["addr"], entry["size"], event, stack=read_stack(entry))
            if block.address in live:
                raise SnapshotError(
                    f"the history allocates {block.address:#x} twice: entries are "
                    "missing, record again"
                )
            live[block.address] = block
            blocks.append(block)
            functions = {function for function, _, _ in block.stack}
            if MARKER in functions:
                marks.append(event)
            paused = MARKER not in functions and (paused or PAUSE in functions)
            event += not paused
        elif entry["action"] == "free_completed":
            block = live.pop(entry["addr"], None)
            if block is None:
                block = Block(
                    entry["addr"], entry["size"], 0, stack=read_stack(entry), older=True
                )
                blocks.append(block)
            block.end = event
            event += not paused
    for segment in snapshot["segments"]:
        if segment["device"] == device:
            blocks += surviving_blocks(segment, live)
    if live:
        raise SnapshotError(
            f"{len(live)} blocks of the history are not in the pool that it ended "
            "with: record again"
        )
    return blocks, marks, event
    # --8<-- [end:history]


def surviving_blocks(
    segment: dict[str, Any], live: dict[int, Block]
) -> Iterator[Block]:
    """Pop a segment's active blocks from `live`; yield blocks from before recording."""
    address = segment["address"]
    for entry in segment["blocks"]:
        if entry["state"].startswith("active"):
            size = entry.get("requested_size", entry["size"])
            block = live.pop(address, None)
            if block is None:
                yield Block(address, size, 0, stack=read_stack(entry), older=True)
            elif block.bytes != size:
                raise SnapshotError(
                    f"{address:#x} has {size} bytes, in the history {block.bytes}: "
                    "record again"
                )
        address += entry["size"]


def bytes_in_use(history: History) -> list[int]:
    change = [0] * (history.events + 1)
    for block in history.blocks:
        change[block.start] += block.bytes
        if block.end is not None:
            change[block.end] -= block.bytes
    return list(accumulate(change[: history.events]))


def read_stack(entry: dict[str, Any]) -> tuple[Frame, ...]:
    return tuple(
        (frame["name"], frame["filename"], frame["line"])
        for frame in entry.get("frames") or ()
    )
