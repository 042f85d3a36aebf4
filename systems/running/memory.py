"""A limit on memory, so that running out of it on a CPU is a result and ends no
process.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from systems.records.device import find_gpu


def limit_host_memory() -> None:
    """Without a GPU, let an allocation of more than is free fail. Otherwise the system
    would end this process, or another. A lower limit that is set (`ulimit -d`) stays.
    """
    free = free_host_bytes()
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


def free_host_bytes(root: Path = Path("/")) -> int | None:
    """Return what the system has free, or the limits of this process's control groups
    leave where that is less (in a container, or a job of a cluster). None if unknown.
    """
    free = []
    with suppress(OSError, ValueError):
        for line in (root / "proc" / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free.append(1024 * int(line.split()[1]))
    return min([*free, *left_by_groups(root)], default=None)


def left_by_groups(root: Path) -> Iterator[int]:
    """Yield what this process's control group, and each group around it, leaves of its
    limit. Cached files count as free, as in MemAvailable. Control groups of version 2.
    """
    with suppress(OSError, ValueError):
        lines = (root / "proc" / "self" / "cgroup").read_text().splitlines()
        (path,) = (line[3:] for line in lines if line.startswith("0::"))
        # In a container the group may be mounted as the root, and its path leads
        # nowhere.
        inner = PurePosixPath(path.lstrip("/"))
        for each in (inner, *inner.parents):
            group = root / "sys" / "fs" / "cgroup" / each
            # Without a limit, or at the root of all, there is no number.
            with suppress(OSError, ValueError):
                most = int((group / "memory.max").read_text())
                used = int((group / "memory.current").read_text())
                stat = (group / "memory.stat").read_text().splitlines()
                counts = dict(line.split() for line in stat)
                files = (f"{kind}_file" for kind in ("active", "inactive"))
                cached = sum(int(counts.get(name, 0)) for name in files)
                yield max(0, most - used + cached)
