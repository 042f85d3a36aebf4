"""How much of the host's memory this process may still take: of what the system has
free, no more than the limits of its control groups leave. In a container, or in a job
of a cluster, these are what ends a process.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from systems.records.device import find_gpu


def bound_memory() -> None:
    """Where there is no GPU: let an allocation of more than is free fail, which is a
    result. Otherwise the system would end this process, or another. A lower limit that
    is set (`ulimit -d`) stays.
    """
    free = free_bytes()
    if free is None or find_gpu() is not None:
        return
    try:
        import resource
    except ModuleNotFoundError:
        # Windows has no such limits.
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = free // 10 * 9
    if soft != resource.RLIM_INFINITY:
        most = min(most, soft)
    # Not on every system.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def free_bytes(root: Path = Path("/")) -> int | None:
    """What programs can have without another giving up any; None where the system has
    no such count.
    """
    free = [*available(root / "proc" / "meminfo"), *left_by_groups(root)]
    return min(free, default=None)


def available(meminfo: Path) -> Iterator[int]:
    with suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def left_by_groups(root: Path) -> Iterator[int]:
    """What each control group of memory that this process is in, and each around it,
    leaves of its limit. Linux has two versions of them, and each its own names.
    """
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    mounted = root / "sys" / "fs" / "cgroup"
    for line in lines:
        # "4:memory:/job", or of the second version "0::/job".
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            folder, names = mounted / "memory", ("limit_in_bytes", "usage_in_bytes")
        elif not controllers:
            folder, names = mounted, ("max", "current")
        else:
            continue
        # In a container its own group may be mounted as the root, and a path of the
        # machine outside leads nowhere.
        inner = PurePosixPath(path.lstrip("/"))
        for each in (inner, *inner.parents):
            yield from left(folder / each, *names)


def left(group: Path, limit: str, usage: str) -> Iterator[int]:
    """A group's limit less what it uses, where it has one. Pages that only cache files
    are given up for programs, and count as free, as in MemAvailable.
    """
    # Without a limit it is "max".
    with suppress(OSError, ValueError):
        most = int((group / f"memory.{limit}").read_text())
        used = int((group / f"memory.{usage}").read_text())
        yield max(0, most - used + cached(group / "memory.stat"))


def cached(stat: Path) -> int:
    """Bytes of files in a group and below it. In the first version totals have names of
    their own.
    """
    counts = dict(line.split() for line in stat.read_text().splitlines())
    below = "total_" if "total_inactive_file" in counts else ""
    return sum(int(counts.get(f"{below}{x}_file", 0)) for x in ("active", "inactive"))
