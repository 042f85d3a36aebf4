"""How fast the host is beside a measurement. On a login node, on a node that jobs share
or on battery, what the host decides takes longer: a probe before and one after each row
say when.

A row is *slow* where its probes took longer than those of the quietest record of the
same kind of device with the same software. `systems.running.host` takes them.
"""

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

# A probe that takes this much longer than a quiet one is of a slow host.
SLOW = 1.25
# What a record notes of an experiment that had its share of the host for itself.
SHARE = "on {} of {} cores"
A_SHARE = re.compile(re.escape(SHARE).replace(r"\{\}", r"\d+"))

Milliseconds = Annotated[float, Meta(gt=0, le=1e6)]
Threads = Annotated[int, Meta(ge=0, le=1_000_000)]


class Probe(Struct, forbid_unknown_fields=True):
    """The host at one moment. What it does not tell is None."""

    python_ms: Milliseconds
    # Of an empty kernel, by the CPU's clock: where a GPU measures in this process.
    launch_ms: Milliseconds | None = None
    # Of one addition by PyTorch, likewise, which issues a model's kernels: some hosts
    # are slow at this alone.
    dispatch_ms: Milliseconds | None = None
    # Threads that ran or waited for a core, without those of this process.
    other_threads: Threads | None = None
    on_battery: bool = False


TIMES = ("python_ms", "launch_ms", "dispatch_ms")
# Of each of TIMES, in ms.
Quiet = dict[str, float]


def usual(probes: Iterable[Probe]) -> Quiet:
    """The median of each time."""
    found = defaultdict(list)
    for each in probes:
        for name in TIMES:
            if (value := getattr(each, name)) is not None:
                found[name].append(value)
    return {name: statistics.median(values) for name, values in found.items()}


def quietest(usuals: Iterable[Quiet]) -> Quiet:
    """The least of each time."""
    least: Quiet = {}
    for each in usuals:
        for name, value in each.items():
            least[name] = min(value, least.get(name, value))
    return least


def slowdown(probes: Iterable[Probe], quiet: Quiet) -> float:
    """How many times as long as on a quiet host the slowest of these took; 1 where
    nothing is known.
    """
    ratios = (
        getattr(each, name) / value
        for each in probes
        for name, value in quiet.items()
        if getattr(each, name) is not None
    )
    return max(ratios, default=1.0)


def on_cores_of_its_own(notes: Iterable[str]) -> bool:
    return any(map(A_SHARE.fullmatch, notes))
