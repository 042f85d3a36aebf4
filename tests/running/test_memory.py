"""How much memory is free, by the files in which Linux says it; and a smaller GPU that
is simulated on a larger one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from systems import ROOT
from systems.experiments import STEMS
from systems.records import store
from systems.running import machine, measure, memory, verify
from systems.running.memory import free_host_bytes
from systems.running.reports import CannotStart
from systems.running.resuming import record_path
from tests.factories import RESULTS, fake_stem_on, make_gpu, make_record
from tools import regen_tables
from tools.render import load

GIB = 2**30
MEMINFO = "MemTotal: 9 kB\nMemAvailable:    8388608 kB\n"


# The host -----------------------------------------------------------------------------


def system(root: Path, meminfo: str = MEMINFO, **files: str | int) -> Path:
    """Make a root with these files, __ for each folder and - for a dot."""
    for name, text in ({"proc__meminfo": meminfo} | files).items():
        path = root.joinpath(*name.replace("-", ".").split("__"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("text", "free"),
    [
        ("MemTotal: 9 kB\nMemAvailable:    3 kB\n", 3072),
        ("MemTotal: 9 kB\n", None),
        ("MemAvailable: much\n", None),
    ],
)
def test_free_memory_is_what_the_system_says(tmp_path, text, free):
    assert free_host_bytes(system(tmp_path, text)) == free
    assert free_host_bytes(tmp_path / "nowhere") is None


def group(name: str, limit: str | int, used: int, files: int = 0) -> dict:
    """The files of a control group."""
    folder = f"sys__fs__cgroup__{name}memory-"
    stat = f"anon 5\nactive_file {files // 2}\ninactive_file {files // 2}"
    return {f"{folder}max": limit, f"{folder}current": used, f"{folder}stat": stat}


@pytest.mark.parametrize(
    ("path", "files", "free"),
    [
        # In a container the root of its groups has the limit.
        ("0::/", group("", 4 * GIB, GIB), 3 * GIB),
        ("0::/job", group("job__", 4 * GIB, GIB), 3 * GIB),
        # Cached files are given up.
        ("0::/job", group("job__", 4 * GIB, 3 * GIB, 2 * GIB), 3 * GIB),
        ("0::/job", group("job__", GIB, 2 * GIB), 0),
        ("0::/job", group("job__", "max", GIB), 8 * GIB),
        # The group around it is full sooner.
        (
            "0::/user/job",
            group("user__job__", 4 * GIB, GIB) | group("user__", 5 * GIB, 3 * GIB),
            2 * GIB,
        ),
        # A path of the machine outside of the container.
        ("0::/../../job", group("", 4 * GIB, GIB), 3 * GIB),
        # Version 1 beside it; and a group that can't be read.
        ("4:memory:/job\n0::/", group("", 4 * GIB, GIB), 3 * GIB),
        ("4:memory:/job", {}, 8 * GIB),
        ("0::/job", {"sys__fs__cgroup__job__memory-max": GIB}, 8 * GIB),
    ],
)
def test_in_a_container_the_smaller_counts(tmp_path, path, files, free):
    root = system(tmp_path, proc__self__cgroup=path, **files)
    assert free_host_bytes(root) == free


LIMITED = """
from resource import RLIMIT_DATA, getrlimit, setrlimit
import systems.experiments.attention as stem
from systems.records.outcome import measure_row
from systems.running import memory
memory.find_gpu = lambda: None
memory.free_host_bytes = lambda: 2**30
memory.limit_host_memory()
print(measure_row(stem.Config(n=10_000_000), stem.run).status)
setrlimit(RLIMIT_DATA, (2**29, getrlimit(RLIMIT_DATA)[1]))
memory.limit_host_memory()
print(getrlimit(RLIMIT_DATA)[0] == 2**29)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="not on Linux")
def test_more_than_is_free_is_a_result_and_kills_no_process():
    """As `attention --n 10000000` did. A lower limit that is set stays."""
    assert (free_host_bytes() or 0) > GIB / 64
    child = subprocess.run(
        [sys.executable, "-c", LIMITED],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
    )
    assert child.stdout == b"out_of_memory\nTrue\n", child.stderr.decode()


# A smaller GPU ------------------------------------------------------------------------

H200 = make_gpu("NVIDIA H200", capability="9.0", memory_bytes=141 * 2**30)


@pytest.fixture
def of_40(monkeypatch):
    """40 GiB are simulated on an H200 that is not here."""
    monkeypatch.setenv(memory.VARIABLE, "40")
    monkeypatch.setattr(machine, "find_gpu", lambda: H200)


def test_the_name_of_a_simulated_gpu_says_so(of_40, monkeypatch):
    device = machine.device_for(("cuda",))
    assert device is not None and device.is_simulated and not H200.is_simulated
    assert device.slug == "nvidia-h200-limited-to-40-gib"
    assert device.memory_bytes == 40 * 2**30 and device.capability == "9.0"
    # Torch uses the larger one.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: H200.name)
    machine.check_torch(device)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    with pytest.raises(CannotStart, match="would use NVIDIA A100"):
        machine.check_torch(device)
    monkeypatch.delenv(memory.VARIABLE)
    assert machine.device_for(("cuda",)) is H200


def test_the_allocator_gets_that_share(of_40, monkeypatch):
    shares = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda _: type("Properties", (), {"total_memory": 160 * 2**30}),
    )
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    memory.limit_gpu_memory()
    assert shares == [0.25]


def test_rows_that_are_verified_have_no_more(of_40, monkeypatch, tmp_path):
    monkeypatch.setitem(STEMS, "fake", fake_stem_on("cuda"))
    monkeypatch.setattr(machine, "check_torch", lambda _: None)
    limits = []
    monkeypatch.setattr(verify, "limit_gpu_memory", lambda: limits.append("40 GiB"))
    path = record_path(tmp_path, machine.device_for(("cuda",)), "fake", "full")
    path.parent.mkdir()
    path.write_text("no record")
    with pytest.raises(store.RecordError):
        verify.verify_stem("fake", tmp_path)
    assert limits


def test_a_simulated_gpu_is_never_published(of_40, tmp_path, monkeypatch):
    with pytest.raises(CannotStart, match="never published: give another"):
        measure.measure_stem("warmup", RESULTS, "full", 1e18)
    record = make_record("warmup", device=machine.device_for(("cuda",)) or H200)
    monkeypatch.setattr(memory, "ROOT", tmp_path)
    for results, published in (("docs/results", True), ("rehearsal", False)):
        path = tmp_path / results / record.device.slug / "warmup.json"
        store.write(record, path)
        if published:
            with pytest.raises(store.RecordError, match="of a simulated GPU"):
                load.read(path)
        else:
            assert load.read(path).device == record.device


@pytest.mark.parametrize("text", ["40GB", "0", "", "²"])
def test_no_number_of_gib_is_one_line(text, monkeypatch, capsys):
    monkeypatch.setenv(memory.VARIABLE, text)
    assert regen_tables.main(["--list"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: {memory.VARIABLE} must be a number of GiB, got {text!r}"
