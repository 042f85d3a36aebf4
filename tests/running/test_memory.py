"""Test how free host memory is read from Linux's files."""

import os
from pathlib import Path

import pytest

from systems.running.machine import available_host_bytes
from tests.needed import run_python

GIB = 2**30
MEMINFO = "MemTotal: 9 kB\nMemAvailable:    8388608 kB\n"


def write_system(root: Path, meminfo: str = MEMINFO, **files: str | int) -> Path:
    """Write files below `root`. In their names, __ stands for / and - for a dot."""
    for name, text in ({"proc__meminfo": meminfo} | files).items():
        path = root.joinpath(*name.replace("-", ".").split("__"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


MEMINFO = {"MemTotal: 9 kB\nMemAvailable:    3 kB\n": 3072}
MEMINFO |= dict.fromkeys(("MemTotal: 9 kB\n", "MemAvailable: much\n"))


@pytest.mark.parametrize(("text", "free"), MEMINFO.items())
def test_free_host_memory_is_read_from_meminfo(tmp_path, text, free):
    assert available_host_bytes(write_system(tmp_path, text)) == free
    assert available_host_bytes(tmp_path / "nowhere") is None


def control_group(name: str, limit: str | int, used: int, files: int = 0) -> dict:
    """Return the names and texts of a control group's files."""
    folder = f"sys__fs__cgroup__{name}memory-"
    stat = f"anon 5\nactive_file {files // 2}\ninactive_file {files // 2}"
    return {f"{folder}max": limit, f"{folder}current": used, f"{folder}stat": stat}


@pytest.mark.parametrize(
    ("path", "files", "free"),
    [
        # In a container, the root group has the limit.
        ("0::/", control_group("", 4 * GIB, GIB), 3 * GIB),
        ("0::/job", control_group("job__", 4 * GIB, GIB), 3 * GIB),
        # Memory of cached files counts as free.
        ("0::/job", control_group("job__", 4 * GIB, 3 * GIB, 2 * GIB), 3 * GIB),
        ("0::/job", control_group("job__", GIB, 2 * GIB), 0),
        ("0::/job", control_group("job__", "max", GIB), 8 * GIB),
        # The group's path exists only outside of the container.
        ("0::/../../job", control_group("", 4 * GIB, GIB), 3 * GIB),
        # Version 1 beside version 2; version 1 alone; a group that lacks files.
        ("4:memory:/job\n0::/", control_group("", 4 * GIB, GIB), 3 * GIB),
        ("4:memory:/job", {}, 8 * GIB),
        ("0::/job", {"sys__fs__cgroup__job__memory-max": GIB}, 8 * GIB),
    ],
)
def test_container_limits_reduce_free_memory(tmp_path, path, files, free):
    root = write_system(tmp_path, proc__self__cgroup=path, **files)
    assert available_host_bytes(root) == free


LIMITED = """
from resource import RLIMIT_DATA, getrlimit, setrlimit
import systems.experiments.attention as stem
from systems.records.outcome import measure_row
from systems.running import machine
machine.find_gpu = lambda: None
machine.available_host_bytes = lambda: 2**30
machine.limit_host_memory()
print(measure_row(stem.Config(n=10_000_000), stem.run).status)
setrlimit(RLIMIT_DATA, (2**29, getrlimit(RLIMIT_DATA)[1]))
machine.limit_host_memory()
print(getrlimit(RLIMIT_DATA)[0] == 2**29)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="not on Linux")
def test_allocation_above_free_memory_is_a_row():
    assert (available_host_bytes() or 0) > GIB / 64
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    child = run_python("-c", LIMITED, env=environment)
    assert child.stdout == "out_of_memory\nTrue\n", child.stderr
