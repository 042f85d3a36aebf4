"""Reduce an allocator history to peaks, largest blocks and a timeline for a record."""

from collections import Counter
from pathlib import PurePath
from typing import Any

from systems.profiling.memory.snapshot import CATEGORIES, Block, History, bytes_in_use

# Approximate number of points of a sampled timeline.
TIMELINE_POINTS = 240
# Number of groups of blocks to store: for a pass with a timeline, and for other passes.
MOST_GROUPS, FEW_GROUPS = 8, 3
Group = dict[str, Any]


# --8<-- [start:digest]
def summarize(history: History, timeline: bool = False) -> dict[str, Any]:
    """Summarize an allocator history: bytes by category at the peak, the maximum of
    each category and each phase, and the largest blocks.
    """
    layers = category_timelines(history)
    total = bytes_in_use(history)
    peak = total.index(max(total))
    allocations = sorted(
        (b for b in history.blocks if not b.older), key=lambda block: -block.bytes
    )
    tenth = allocations[: max(1, len(allocations) // 10)]
    group_count = MOST_GROUPS if timeline else FEW_GROUPS
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
            {
                "phase": phase.name,
                "first_event": phase.first,
                "last_event": phase.last,
                "peak_bytes": max(total[phase.first : phase.last + 1]),
            }
            for phase in history.phases
        ],
        "allocations": len(allocations),
        "tenth_least_bytes": tenth[-1].bytes,
        "tenth": group_blocks(tenth)[:group_count],
        "largest_at_peak": group_blocks(
            [b for b in history.blocks if b.lives_at(peak)]
        )[:group_count],
        **({"timeline": sample_timeline(layers, total, history)} if timeline else {}),
    }
    # --8<-- [end:digest]


def category_timelines(history: History) -> dict[str, list[int]]:
    """Return {category: bytes in use after each event}."""
    return {
        name: bytes_in_use(
            History(
                [b for b in history.blocks if b.category == name],
                history.phases,
                history.events,
            )
        )
        for name in CATEGORIES
    }


def sample_timeline(
    layers: dict[str, list[int]], total: list[int], history: History
) -> dict[str, list[int]]:
    """Sample about `TIMELINE_POINTS` events: the maximum and minimum of the total bytes
    in each interval, and the first and last event of each phase.
    """
    length = max(1, -(-2 * len(total) // TIMELINE_POINTS))
    event_set = {0, len(total) - 1} | {
        event for phase in history.phases for event in (phase.first, phase.last)
    }
    for first in range(0, len(total), length):
        interval = range(first, min(first + length, len(total)))
        event_set |= {
            max(interval, key=total.__getitem__),
            min(interval, key=total.__getitem__),
        }
    events = sorted(event_set)
    return {
        "event": events,
        **{name: [layer[event] for event in events] for name, layer in layers.items()},
    }


def group_blocks(blocks: list[Block]) -> list[Group]:
    """Group blocks of equal size, category, phase, owner and code, largest first."""
    counts = Counter(
        (
            b.bytes,
            b.category,
            b.phase or "before",
            generalize_owner(b.owner),
            allocation_site(b),
        )
        for b in blocks
    )
    rows = [
        {
            "bytes": size,
            "count": count,
            "category": category,
            "phase": phase,
            "owner": owner,
            "code": site,
        }
        for (size, category, phase, owner, site), count in counts.items()
    ]
    return sorted(
        rows,
        key=lambda group: (
            -group["bytes"],
            -group["count"],
            group["code"],
            group["owner"],
        ),
    )


def generalize_owner(owner: str | None) -> str:
    """Replace numbers in an owner's name by "*" (`layers.*.w1.weight`); "" for None."""
    return (
        ".".join("*" if part.isdigit() else part for part in owner.split("."))
        if owner
        else ""
    )


def allocation_site(block: Block) -> str:
    """Return the two innermost frames in `systems` that allocated a block, or ""."""
    frames = [
        f"{PurePath(file).name}:{line} {function}"
        for function, file, line in block.stack
        if is_in_systems(PurePath(file))
    ]
    return ", ".join(frames[:2])


def is_in_systems(file: PurePath) -> bool:
    """Return whether a file is in `systems`, and not in a virtual environment there."""
    *_, relative = file.as_posix().rpartition("/systems/")
    packages = PurePath(relative).parts[:-1]
    return relative != file.as_posix() and all(map(str.isidentifier, packages))
