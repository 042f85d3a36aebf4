"""Reduce an allocator history to peaks, largest blocks and a timeline for a record."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from systems.profiling.memory.snapshot import CATEGORIES, Block, History, bytes_in_use

# Approximate number of points of a sampled timeline.
TIMELINE_POINTS = 120
# Number of groups of the largest blocks to store.
GROUPS = 8
# The folder `systems`.
FOLDER = Path(__file__).parents[2]


# --8<-- [start:digest]
def summarize(history: History, timeline: bool = False) -> dict[str, Any]:
    """Summarize an allocator history: bytes by category at the peak, the maximum of
    each category, phases, the largest blocks, and if `timeline` bytes over time.
    """
    layers = category_timelines(history)
    total = bytes_in_use(history)
    peak = total.index(max(total))
    allocations = sorted(
        (b for b in history.blocks if not b.older), key=lambda block: -block.bytes
    )
    tenth = allocations[: max(1, len(allocations) // 10)]
    return {
        "peak_requested_bytes": total[peak],
        "peak_phase": next(
            (p.name for p in history.phases if p.first <= peak <= p.last),
            "between phases",
        ),
        "categories": [
            {"category": name, "at_peak_bytes": layer[peak], "most_bytes": max(layer)}
            for name, layer in layers.items()
        ],
        "phases": [
            {"phase": p.name, "first_event": p.first, "last_event": p.last}
            for p in history.phases
        ],
        "allocations": len(allocations),
        "tenth_least_bytes": tenth[-1].bytes,
        "tenth": group_blocks(tenth)[:GROUPS],
        **({"timeline": sample_timeline(layers, total)} if timeline else {}),
    }
    # --8<-- [end:digest]


def category_timelines(history: History) -> dict[str, list[int]]:
    """Return {category: bytes in use after each event}."""
    return {
        name: bytes_in_use(
            replace(history, blocks=[b for b in history.blocks if b.category == name])
        )
        for name in CATEGORIES
    }


def sample_timeline(
    layers: dict[str, list[int]], total: list[int]
) -> dict[str, list[int]]:
    """Return {"event": numbers, category: bytes} from `category_timelines`, for the
    first event, the last, and the fullest in each of about TIMELINE_POINTS intervals.
    """
    count = len(total)
    length = -(-count // TIMELINE_POINTS)
    peaks = (
        max(range(first, min(first + length, count)), key=total.__getitem__)
        for first in range(0, count, length)
    )
    events = sorted({0, count - 1, *peaks})
    return {
        "event": events,
        **{name: [layer[event] for event in events] for name, layer in layers.items()},
    }


def group_blocks(blocks: list[Block]) -> list[dict[str, Any]]:
    """Return groups of blocks equal in size, category, phase, owner and code, with a
    count, largest first. Owners have "*" for numbers (`layers.*.w1.weight`) or are "".
    """
    names = ("bytes", "category", "phase", "owner", "code")
    counts = Counter(
        (
            b.bytes,
            b.category,
            b.phase or "between phases",
            re.sub(r"\b\d+\b", "*", b.owner or ""),
            allocation_site(b),
        )
        for b in blocks
    )
    groups = [
        {**dict(zip(names, key, strict=True)), "count": count}
        for key, count in counts.most_common()
    ]
    return sorted(groups, key=lambda group: -group["bytes"])


def allocation_site(block: Block) -> str:
    """Return up to two innermost frames in `systems` as "file:line function", or ""."""
    frames = [
        f"{Path(file).name}:{line} {function}"
        for function, file, line in block.stack
        if Path(file).is_relative_to(FOLDER)
    ]
    return ", ".join(frames[:2])
