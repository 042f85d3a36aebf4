"""Limit host memory, so that on a CPU running out of memory raises an error."""

from contextlib import suppress
from pathlib import Path

from systems.records.device import find_gpu


def limit_host_memory() -> None:
    """Without a GPU, limit this process to 90 % of free memory: beyond that, the system
    would kill a process. Keep a lower existing limit (`ulimit -d`).
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
    # Some systems reject this limit.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def free_host_bytes(root: Path = Path("/")) -> int | None:
    """Return free memory: the lesser of the system's and the control group's, which
    limits containers and cluster jobs. None if unknown.
    """
    free = []
    with suppress(OSError, ValueError):
        for line in (root / "proc" / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free.append(1024 * int(line.split()[1]))
    with suppress(OSError, ValueError, KeyError):
        cgroup = (root / "proc" / "self" / "cgroup").read_text()
        path = cgroup.rpartition("0::/")[2].strip()
        group = root / "sys" / "fs" / "cgroup" / path
        # In a container, the group may be mounted at the root.
        group = group if (group / "memory.max").exists() else root / "sys/fs/cgroup"
        limit, used = ((group / f"memory.{n}").read_text() for n in ("max", "current"))
        lines = (group / "memory.stat").read_text().splitlines()
        stat = dict(line.split() for line in lines)
        cached = int(stat["active_file"]) + int(stat["inactive_file"])
        free.append(max(0, int(limit) - int(used) + cached))
    return min(free, default=None)
