"""What a probe tells of the host."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from systems.records.host import SLOW
from systems.running import host
from systems.running.host import other_threads, probe
from systems.running.precompile import cores


def test_a_probe_times_python_and_here_no_launches():
    found = probe(launches=True)
    assert 0.1 < found.python_ms < 1000
    assert found.launch_ms is None or found.launch_ms < 1


def test_what_issuing_costs_is_told_of_each_kind(monkeypatch):
    issued, waits = [], []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(len(issued)))
    milliseconds = host.issued_ms(lambda: lambda: issued.append(time.sleep(1e-4)))
    assert len(issued) == 1 + host.LOOPS * host.LAUNCHES
    # Nothing else is in the queue, and the time of the first is not counted.
    before = [1 + i * host.LAUNCHES for i in range(host.LOOPS)]
    assert waits == [0, *before, len(issued)]
    assert milliseconds is not None and 0.1 <= milliseconds < 10

    def broken():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    assert host.issued_ms(broken) is None


@pytest.mark.gpu
def test_a_gpu_is_given_launches_and_additions():
    found = probe(launches=True)
    assert found.launch_ms and found.dispatch_ms
    assert 1e-3 < found.launch_ms < found.dispatch_ms < 1


@pytest.mark.alone
def test_who_keeps_the_cores_busy_is_seen():
    before = probe().python_ms
    count = 4 * cores()
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(count)]
    try:
        time.sleep(1)
        busy = [probe() for _ in range(3)]
    finally:
        for child in others:
            child.kill()
            child.wait()
    assert max(each.other_threads or 0 for each in busy) >= count
    assert max(each.python_ms for each in busy) > SLOW * before


def proc(root: Path, loadavg: str, *states: str) -> Path:
    for i, state in enumerate(states):
        task = root / "self" / "task" / str(i)
        task.mkdir(parents=True)
        (task / "stat").write_text(f"{i} (a (b) c) {state} 1 2 3")
    (root / "loadavg").write_text(loadavg)
    return root


@pytest.mark.parametrize(
    ("loadavg", "states", "others"),
    [
        ("0.20 0.18 0.12 1/80 11206", "RSS", 0),
        ("9.20 0.18 0.12 7/80 11206", "RSR", 5),
        ("0.20 0.18 0.12 0/80 11206", "R", 0),
        ("0.20 0.18", "R", None),
        ("a b c d/e f", "R", None),
    ],
)
def test_threads_of_others_are_those_that_are_not_ours(
    tmp_path, loadavg, states, others
):
    assert other_threads(proc(tmp_path, loadavg, *states)) == others


def test_a_system_without_such_a_count_tells_none(tmp_path):
    assert other_threads(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("files", "battery"),
    [
        ({}, False),
        ({"AC/online": "0"}, False),
        ({"BAT0/status": "Charging"}, False),
        ({"BAT0/status": "Discharging\n"}, True),
        ({"BAT0/status": "Full", "BAT1/status": "Discharging"}, True),
        ({"mouse/status": "Discharging", "mouse/scope": "Device\n"}, False),
    ],
)
def test_a_battery_of_the_machine_is_told_from_a_mouse_s(tmp_path, files, battery):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert host.on_battery(tmp_path) == battery
