"""How much memory is free, by the files in which Linux says it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from systems import ROOT
from systems.running.host_memory import free_bytes

GIB = 2**30
MEMINFO = "MemTotal: 9 kB\nMemAvailable:    8388608 kB\n"
# Of no limit, in the first version.
NONE = 2**63 - 4096


def system(root: Path, **files: str | int) -> Path:
    """A root with these files, __ for each folder and - for a dot."""
    for name, text in ({"proc__meminfo": MEMINFO} | files).items():
        path = root.joinpath(*name.replace("-", ".").split("__"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("MemTotal: 9 kB\nMemAvailable:    3 kB\n", 3072),
        ("MemTotal: 9 kB\n", None),
        ("MemAvailable: much\n", None),
    ],
)
def test_free_memory_is_what_the_system_says(tmp_path, text, found):
    assert free_bytes(system(tmp_path, proc__meminfo=text)) == found


def test_a_system_without_such_files_tells_none(tmp_path):
    assert free_bytes(tmp_path) is None


def second(group: str, limit: str | int, used: int, files: int = 0) -> dict:
    """The files of a group of the second version."""
    folder = f"sys__fs__cgroup__{group}memory-"
    stat = f"anon 5\nactive_file {files // 2}\ninactive_file {files // 2}"
    return {f"{folder}max": limit, f"{folder}current": used, f"{folder}stat": stat}


def first(group: str, limit: int, used: int, files: int = 0) -> dict:
    """Those of the first: what it counts without the groups below it is no help."""
    folder = f"sys__fs__cgroup__memory__{group}memory-"
    stat = f"active_file {NONE}\ntotal_active_file {files}\ntotal_inactive_file 0"
    of = {"limit_in_bytes": limit, "usage_in_bytes": used, "stat": stat}
    return {f"{folder}{name}": text for name, text in of.items()}


@pytest.mark.parametrize(
    ("group", "files", "found"),
    [
        # In a container the root of its groups has the limit.
        ("0::/", second("", 4 * GIB, GIB), 3 * GIB),
        ("0::/job", second("job__", 4 * GIB, GIB), 3 * GIB),
        # What caches files is given up.
        ("0::/job", second("job__", 4 * GIB, 3 * GIB, 2 * GIB), 3 * GIB),
        ("0::/job", second("job__", GIB, 2 * GIB), 0),
        ("0::/job", second("job__", "max", GIB), 8 * GIB),
        ("0::/job", second("job__", 90 * GIB, GIB), 8 * GIB),
        # The group around it is full sooner.
        (
            "0::/user/job",
            second("user__job__", 4 * GIB, GIB) | second("user__", 5 * GIB, 3 * GIB),
            2 * GIB,
        ),
        ("2:cpu:/job\n4:memory:/job", first("job__", 4 * GIB, GIB), 3 * GIB),
        ("4:cpu,memory:/job", first("job__", 4 * GIB, 3 * GIB, GIB), 2 * GIB),
        ("4:memory:/job", first("job__", NONE, GIB), 8 * GIB),
        # A path of the machine outside of the container.
        ("4:memory:/docker/4f0c", first("", 4 * GIB, GIB), 3 * GIB),
        ("0::/../../job", second("", 4 * GIB, GIB), 3 * GIB),
        # Both versions side by side; and a group that can't be read.
        ("4:memory:/job\n0::/", first("job__", 4 * GIB, GIB), 3 * GIB),
        ("0::/job", {}, 8 * GIB),
        ("0::/job", {"sys__fs__cgroup__job__memory-max": GIB}, 8 * GIB),
    ],
)
def test_in_a_container_the_smaller_counts(tmp_path, group, files, found):
    assert free_bytes(system(tmp_path, proc__self__cgroup=group, **files)) == found


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="not on Linux")
def test_here_there_is_some():
    assert GIB / 64 < (free_bytes() or 0) < 2**50


@pytest.mark.slow
def test_without_a_gpu_more_than_is_free_is_a_result_and_kills_no_process():
    """As `attention --n 10000000` did."""
    code = (
        "import systems.experiments.attention as stem; "
        "from systems.records.outcome import measure_row; "
        "from systems.running import host_memory; "
        "host_memory.find_gpu = lambda: None; host_memory.free_bytes = lambda: 2**30; "
        "host_memory.bound_memory(); "
        "print(measure_row(stem.Config(n=10_000_000), stem.run).status)"
    )
    # torch too must see none.
    without = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=without, capture_output=True
    )
    assert child.stdout == b"out_of_memory\n", child.stderr.decode()


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="not on Linux")
def test_a_lower_limit_that_is_set_stays():
    code = (
        "from resource import RLIMIT_DATA, getrlimit, setrlimit; "
        "from systems.running import host_memory; "
        "host_memory.find_gpu = lambda: None; host_memory.free_bytes = lambda: 2**34; "
        "setrlimit(RLIMIT_DATA, (2**32, getrlimit(RLIMIT_DATA)[1])); "
        "host_memory.bound_memory(); print(getrlimit(RLIMIT_DATA)[0] / 2**32)"
    )
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True)
    assert child.stdout == b"1.0\n", child.stderr.decode()
