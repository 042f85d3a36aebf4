"""Several experiments at once, each on a GPU of its own and on its share of the host's
cores: `regen_tables.py --at-once 4`.

The one that takes longest begins first, and a lane that is free takes the next. What
the lanes still share, memory and the power of the host, is in the records: each says
that another experiment ran on this host, and its probes say how slow that made it.
"""

import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from systems.records.device import find_gpu, visible_gpus
from tools.measuring import Lane, Outcome, end, measure_if_stale, progress_bars


def measure_at_once(
    stems: Sequence[str],
    count: int,
    results: Path,
    quick: bool,
    force: bool,
    deadline: float,
) -> list[Outcome]:
    """As `measure_if_stale`, for so many stems at a time. ValueError where there are
    not as many GPUs, all of one kind.
    """
    gpus = alike(count)
    shares = shared_out(available_cores(), count)
    waiting, outcomes = deque(longest_first(stems, results)), dict[str, Outcome]()
    stopped = threading.Event()
    with progress_bars() as bars, ThreadPoolExecutor(count) as pool:
        lanes = [
            Lane(gpu, cores, bars, stopped)
            for gpu, cores in zip(gpus, shares, strict=True)
        ]

        def work(lane: Lane) -> None:
            while not stopped.is_set() and (stem := next_of(waiting)):
                outcomes[stem] = measure_if_stale(
                    stem, results, quick, force, deadline, lane
                )

        try:
            for future in [pool.submit(work, lane) for lane in lanes]:
                future.result()
        except BaseException:
            # Ctrl-C reaches this thread alone, and a lane that failed no other.
            stopped.set()
            end([lane.child for lane in lanes if lane.child])
            raise
    return [outcomes[stem] for stem in stems]


def alike(count: int) -> list[str]:
    """The first visible GPUs, by the names that CUDA takes."""
    gpus = visible_gpus()
    if len(gpus) < count:
        raise ValueError(f"--at-once {count}: {len(gpus)} GPUs are visible")
    found = [find_gpu(gpu) for gpu in gpus[:count]]
    names = {gpu.name if gpu else "one that the driver does not tell" for gpu in found}
    if len(names) > 1:
        several = " and ".join(sorted(names))
        raise ValueError(
            f"--at-once {count}: the GPUs are of several kinds, {several}: "
            "name some of one kind in CUDA_VISIBLE_DEVICES"
        )
    return gpus[:count]


def available_cores() -> list[int]:
    """Those that this process may use; none where the system has no such choice."""
    here = hasattr(os, "sched_getaffinity")
    return sorted(os.sched_getaffinity(0)) if here else []


def shared_out(cores: list[int], count: int) -> list[list[int]]:
    """Neighbours together, for both halves of a core often are: as many for each."""
    each = len(cores) // count
    return [cores[i * each : (i + 1) * each] for i in range(count)]


def longest_first(stems: Iterable[str], results: Path) -> list[str]:
    """By what they took in the records that are there; first those in none."""
    from systems.records import store
    from systems.records.store import RecordError
    from tools.render.load import files_in

    took: dict[str, float] = {}
    for path in files_in(results):
        try:
            record = store.read(path)
        except (RecordError, OSError):
            # Whoever measures or renders says what is wrong with it.
            continue
        if record.kind == "measured":
            seconds = sum(row.seconds or 0 for row in record.rows)
            took[record.stem] = max(seconds, took.get(record.stem, 0.0))
    return sorted(stems, key=lambda stem: -took.get(stem, float("inf")))


def next_of(waiting: deque[str]) -> str | None:
    """Lanes take from it at the same time."""
    try:
        return waiting.popleft()
    except IndexError:
        return None
