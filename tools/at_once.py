"""Several experiments at once, each on a GPU of its own and on its share of the host's
cores: `regen_tables.py --at-once 4`.

The one that takes longest begins first, and a lane that is free takes the next. Memory
and power of the host are still shared. Each record of a GPU says on how many of the
host's cores it was measured.
"""

import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from systems import ROOT
from systems.records.device import find_gpu, no_gpu, uuid_of, visible_gpus
from tools.measuring import Lane, Outcome, end, progress_bars

TOPOLOGY = Path("/sys/devices/system/cpu")


class CannotShare(Exception):
    """This machine has not as many GPUs or cores. The message names the remedy."""


def measure_at_once(
    stems: Sequence[str],
    count: int,
    results: Path,
    measure: Callable[[str, Lane], Outcome],
) -> list[Outcome]:
    """What came of each stem; so many are measured at a time, each in a lane."""
    # No lane would be left without one, and each has the more cores.
    gpus = alike(count)[: len(stems)]
    shares = shared_out(available_cores(), len(gpus))
    waiting, outcomes = deque(longest_first(stems, results)), dict[str, Outcome]()
    stopped = threading.Event()
    with progress_bars() as bars, ThreadPoolExecutor(len(gpus)) as pool:
        lanes = [
            Lane(gpu, cores, bars, stopped)
            for gpu, cores in zip(gpus, shares, strict=True)
        ]

        def work(lane: Lane) -> None:
            while not stopped.is_set() and (stem := next_of(waiting)):
                outcomes[stem] = found = measure(stem, lane)
                if not stopped.is_set():
                    bars.console.print(f"{stem}: {found.message}")

        try:
            futures = [pool.submit(work, lane) for lane in lanes]
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
        finally:
            # Ctrl-C reaches this thread alone, and a lane that failed no other.
            stopped.set()
            end([lane.child for lane in lanes if lane.child])
    return [outcomes[stem] for stem in stems]


def alike(count: int) -> list[str]:
    """The first visible GPUs, by the names that CUDA takes: different ones, of one
    kind.
    """
    said, gpus = f"--at-once {count}", visible_gpus()
    if not gpus:
        raise CannotShare(f"{said} {no_gpu()}: leave it out")
    if len(gpus) < count:
        fewer = f"give --at-once {len(gpus)}" if len(gpus) > 1 else "leave it out"
        raise CannotShare(
            f"{said}: visible GPUs: {len(gpus)}; {fewer}, or name more in "
            "CUDA_VISIBLE_DEVICES"
        )
    names = set()
    for gpu in gpus[:count]:
        if (found := find_gpu(gpu)) is None:
            raise CannotShare(
                f"{said}: no GPU is {gpu}: `nvidia-smi -L` lists those that "
                "CUDA_VISIBLE_DEVICES can name"
            )
        names.add(found.name)
    if len(names) > 1:
        raise CannotShare(
            f"{said}: the GPUs are of several kinds, {' and '.join(sorted(names))}: "
            "name some of one kind in CUDA_VISIBLE_DEVICES"
        )
    if len({uuid_of(gpu) for gpu in gpus[:count]}) < count:
        raise CannotShare(f"{said}: CUDA_VISIBLE_DEVICES names a GPU twice")
    return gpus[:count]


def available_cores() -> list[int]:
    """Those that this process may use; none where the system has no such choice."""
    here = hasattr(os, "sched_getaffinity")
    return sorted(os.sched_getaffinity(0)) if here else []


def shared_out(cores: list[int], count: int) -> list[list[int]]:
    """As many for each, and whole ones: what computes on one half of a core slows the
    other. Neighbours together, which often have a socket in common.
    """
    halves: dict[str, list[int]] = defaultdict(list)
    for core in cores:
        halves[siblings(core)].append(core)
    whole = list(halves.values())
    if cores and len(whole) < count:
        raise CannotShare(
            f"--at-once {count}: this process may use {len(whole)} cores: give fewer "
            "experiments at once, or ask for more cores"
        )
    each = len(whole) // count
    return [sum(whole[i * each : (i + 1) * each], []) for i in range(count)]


def siblings(core: int) -> str:
    """The halves of the core that this is one of, as Linux lists them; where it does
    not, this one.
    """
    path = TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list"
    try:
        return path.read_text()
    except OSError:
        return str(core)


def longest_first(stems: Iterable[str], results: Path) -> list[str]:
    """By what all of their rows took, here or on any GPU of the guide; first those of
    which nothing is known.
    """
    from systems.records import store
    from tools.render.load import files_in

    took: dict[str, float] = {}
    for path in {*files_in(ROOT / "docs" / "results"), *files_in(results)}:
        if path.name.endswith(store.PARTIAL_SUFFIX):
            continue
        try:
            record = store.read(path)
        except (store.RecordError, OSError):
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
