"""Keep a run on the cores that are quick. A core of a virtual machine, or of a node
that jobs share, may be half of a real one: while somebody else uses the other half, all
that the host decides takes longer. The cores beside it may be free.
"""

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from systems.records.host import SLOW, Probe, Quiet, quietest, slowdown, usual
from systems.running.host import fixed_loop, milliseconds

# About 1 ms of Python, of which the middle one of three counts.
LOOPS, LOOP_LENGTH = 3, 30_000
# So many are kept even if they are slow, where one is not enough: compilers work side
# by side, profilers have threads of their own.
LEAST = 4
TASKS = Path("/proc/self/task")

Look = Callable[[], list[Probe]]


class Cores:
    """Those that this process may use, and what its probes took at best. With `one` it
    runs on the quickest of them alone: the thread that issues a backward pass is
    another than that of the forward pass, and would have a neighbour of its own.
    """

    def __init__(self, allowed: set[int], one: bool = False):
        self.allowed, self.one = allowed, one
        self.best: Quiet = {}
        # Whether some were slow while others were quick: then somebody else computes
        # on this machine, and which are slow changes.
        self.shared = False

    def settle(self, probes: list[Probe], look: Look) -> list[Probe]:
        """The host as `probes` saw it; where that is slower than it has been, or
        nothing is known yet, as `look` sees it from cores that are quick now. Of a
        shared host the cores are chosen anew each time: a probe sees only its own.
        """
        if not self.allowed or not probes:
            return probes
        if not self.best or self.shared or slowdown(probes, self.best) > SLOW:
            self.move()
            probes = look()
        self.best = quietest([self.best, usual(probes)])
        return probes

    def move(self) -> None:
        """To the cores that are quick now, with all threads."""
        if self.allowed:
            times = times_of(self.allowed)
            chosen = quick(times)
            self.shared |= chosen != self.allowed
            keep_on({min(times, key=times.__getitem__)} if self.one else chosen)


@contextmanager
def quick_cores(wanted: bool, one: bool = False) -> Iterator[Cores]:
    """Inside, this process may be moved, to `one` core or to several; afterwards it has
    all of its cores again. Where that isn't `wanted`, or the system has no such choice,
    it stays where it is.
    """
    here = hasattr(os, "sched_setaffinity")
    cores = Cores(os.sched_getaffinity(0) if wanted and here else set(), one)
    try:
        yield cores
    finally:
        if cores.allowed:
            keep_on(cores.allowed)


def times_of(cores: set[int]) -> dict[int, float]:
    """What a fixed loop takes on each, in ms."""
    times: dict[int, float] = {}
    for core in cores:
        # One that was taken away since is none of them.
        with suppress(OSError):
            os.sched_setaffinity(0, {core})
            times[core] = statistics.median(
                milliseconds(lambda: fixed_loop(LOOP_LENGTH)) for _ in range(LOOPS)
            )
    return times


def quick(times: dict[int, float]) -> set[int]:
    """The cores that take about as long as the quickest."""
    order = sorted(times, key=times.__getitem__)
    near = [core for core in order if times[core] <= SLOW * times[order[0]]]
    return set(order[: max(LEAST, len(near))])


def keep_on(cores: set[int]) -> None:
    """All threads of this process, and those that they start. A thread may end
    meanwhile.
    """
    for task in TASKS.iterdir():
        with suppress(OSError):
            os.sched_setaffinity(int(task.name), cores)
