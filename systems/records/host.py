"""How fast the host is beside a measurement. On a login node, on a node that jobs share
or on battery, what the host decides takes longer: a probe before and one after each row
say when.

A probe is two fixed pieces of work, a Python loop and launches of an empty kernel, and
what else ran. A row is *slow* where its probes took longer than those of the quietest
record of the same kind of device.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

# A probe that takes this much longer than a quiet one is of a slow host.
SLOW = 1.25
# Long enough that a host whose cores are wanted by others interrupts: about 10 ms of
# Python, and 5 ms of launches, of which a GPU's queue takes 1,024 without waiting.
LOOPS, LOOP_LENGTH, LAUNCHES = 3, 200_000, 500

Milliseconds = Annotated[float, Meta(gt=0, le=1e6)]
Threads = Annotated[int, Meta(ge=0, le=1_000_000)]


class Probe(Struct, forbid_unknown_fields=True):
    """The host at one moment. What it does not tell is None."""

    python_ms: Milliseconds
    # Of an empty kernel, by the CPU's clock: where a GPU measures in this process.
    launch_ms: Milliseconds | None = None
    # Threads that ran or waited for a core, without those of this process.
    other_threads: Threads | None = None
    on_battery: bool = False


def probe(launches: bool = False) -> Probe:
    """Look at the host now; with `launches`, at those of the GPU that torch uses."""
    loops: list[float] = []
    others: list[int] = []
    for _ in range(LOOPS):
        loops.append(milliseconds(fixed_loop))
        if (running := other_threads()) is not None:
            others.append(running)
    return Probe(
        python_ms=round(statistics.fmean(loops), 6),
        launch_ms=launch_ms() if launches else None,
        other_threads=round(statistics.median(others)) if others else None,
        on_battery=on_battery(),
    )


def milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def fixed_loop() -> None:
    total = 0
    for i in range(LOOP_LENGTH):
        total += i


def launch_ms() -> float | None:
    """What one launch costs the CPU. None where the GPU fails: its rows say how."""
    import torch

    def launch_many() -> None:
        for _ in range(LAUNCHES):
            # A kernel that ends at once, and holds no memory.
            torch.cuda._sleep(0)

    times: list[float] = []
    try:
        torch.cuda.synchronize()
        # The first launch of a process loads the kernel.
        torch.cuda._sleep(0)
        for _ in range(LOOPS):
            torch.cuda.synchronize()
            times.append(milliseconds(launch_many) / LAUNCHES)
        torch.cuda.synchronize()
    # A build of torch without CUDA asserts.
    except (RuntimeError, AssertionError):
        return None
    return round(statistics.fmean(times), 6)


def other_threads(proc: Path = Path("/proc")) -> int | None:
    """How many threads of other processes run or wait for a core at this moment. None
    where the system has no such count.
    """
    try:
        # "0.20 0.18 0.12 1/80 11206": runnable threads of all, and this one is among
        # them.
        running = int((proc / "loadavg").read_text().split()[3].partition("/")[0])
        states = [
            stat.read_text().rpartition(")")[2].split()[0]
            for stat in (proc / "self" / "task").glob("*/stat")
        ]
    except (OSError, ValueError, IndexError):
        return None
    return max(0, running - states.count("R"))


def on_battery(supplies: Path = Path("/sys/class/power_supply")) -> bool:
    """Whether a battery of the machine (not one of a mouse) gives the power."""
    for supply in supplies.glob("*/status"):
        try:
            scope = supply.with_name("scope")
            of_machine = not scope.exists() or scope.read_text().strip() != "Device"
            if of_machine and supply.read_text().strip() == "Discharging":
                return True
        except OSError:
            continue
    return False


# What probes say ----------------------------------------------------------------------

TIMES = ("python_ms", "launch_ms")
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
