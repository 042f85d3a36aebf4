"""Probes of the host: three fixed pieces of work, a Python loop, launches of an empty
kernel and additions by PyTorch, and what else ran. `systems.records.host` says which of
them were slow.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from systems.records.host import Probe

# Long enough that a host whose cores are wanted by others interrupts: about 10 ms of
# Python, and 5 ms of launches or additions, of which a GPU's queue takes 1,024 without
# waiting.
LOOPS, LOOP_LENGTH, LAUNCHES = 3, 200_000, 500


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
        launch_ms=issued_ms(empty_kernels) if launches else None,
        dispatch_ms=issued_ms(additions) if launches else None,
        other_threads=round(statistics.median(others)) if others else None,
        on_battery=on_battery(),
    )


def milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def fixed_loop(length: int = LOOP_LENGTH) -> None:
    total = 0
    for i in range(length):
        total += i


def empty_kernels() -> Callable[[], object]:
    """Launches a kernel that ends at once, and holds no memory."""
    import torch

    return lambda: torch.cuda._sleep(0)


def additions() -> Callable[[], object]:
    """Adds two numbers as a model does: dispatched, with memory for the sum."""
    import torch

    one = torch.ones(1, device="cuda")
    return lambda: one + one


def issued_ms(kind: Callable[[], Callable[[], object]]) -> float | None:
    """What issuing one costs the CPU. None where the GPU fails: its rows say how."""
    import torch

    times: list[float] = []
    try:
        issue = kind()

        def issue_many() -> None:
            for _ in range(LAUNCHES):
                issue()

        torch.cuda.synchronize()
        # The first of a process loads the kernel.
        issue()
        for _ in range(LOOPS):
            torch.cuda.synchronize()
            times.append(milliseconds(issue_many) / LAUNCHES)
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
