"""What a probe tells of the host, and which rows it calls slow."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from systems.records import host, store
from systems.records.host import Probe, other_threads, probe, slowdown, usual
from systems.records.record import Row
from systems.running.precompile import cores
from tests.factories import committed, make_gpu, make_record, make_row
from tools.render import load
from tools.render.markdown import SLOW_HOST, columns, provenance
from tools.render.rows import Cell


def test_a_probe_times_python_and_here_no_launches():
    found = probe(launches=True)
    assert 0.1 < found.python_ms < 1000
    assert found.launch_ms is None or found.launch_ms < 1


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
    assert max(each.python_ms for each in busy) > host.SLOW * before


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


def test_slow_is_the_slowest_time_of_all_probes_against_the_usual():
    probes = [Probe(1.0, 0.1), Probe(3.0, 0.1), Probe(1.0), Probe(1.0, 0.4)]
    assert usual(probes) == {"python_ms": 1.0, "launch_ms": 0.1}
    assert slowdown(probes[:1], usual(probes)) == 1
    assert slowdown(probes, usual(probes)) == 4
    assert slowdown(probes[1:3], usual(probes)) == 3
    assert slowdown([], usual(probes)) == 1 and slowdown(probes, {}) == 1


# What tables say ----------------------------------------------------------------------


def record_of(times: list[float], python: str = "3.12", **fields):
    rows = [make_row({"i": i}, work_ms=[1.0]) for i in range(len(times))]
    for row, ms in zip(rows, times, strict=True):
        row.host = [Probe(1.0, **fields), Probe(ms, **fields)]
    return make_record("warmup", *rows, device=make_gpu(), software={"python": python})


def test_rows_are_slow_against_the_quietest_record_of_the_same_gpu_and_python():
    steady, moody = record_of([1.0, 1.1, 1.0]), record_of([1.0, 1.9, 1.2])
    other = record_of([0.1, 0.1, 0.1], python="3.13")
    # All of it on a slower host: each of its rows is.
    slower = record_of([2.0] * 3)
    for row in slower.rows:
        row.host = [Probe(2.0), Probe(2.0)]
    load.compare_hosts([steady, moody, other, slower])
    assert [row.slow for row in steady.rows] == [False, False, False]
    assert [row.slow for row in moody.rows] == [False, True, False]
    assert [row.slowdown for row in slower.rows] == [2, 2, 2]


def test_a_slow_row_is_marked_and_the_line_under_the_table_says_so():
    record = record_of([1.0, 1.9, 1.0])
    load.compare_hosts([record])
    lines = columns(map(Cell, record.rows), "i", ("ms", Cell.ms)).splitlines()
    assert [SLOW_HOST in line for line in lines] == [False, False, False, True, False]
    said = "† 1 of 3 rows while the host was slow, up to 1.9 times"
    assert said in provenance(record)
    record.rows[1].host = []
    load.compare_hosts([record])
    assert "host" not in provenance(record)


def test_a_shared_host_and_a_battery_are_named():
    assert "others ran 5 threads on this host" in provenance(
        record_of([1.0], other_threads=5)
    )
    assert "on battery" in provenance(record_of([1.0], on_battery=True))
    quiet = provenance(record_of([1.0], other_threads=1))
    assert "others" not in quiet and "battery" not in quiet


def test_the_check_names_the_record(tmp_path):
    found = committed("warmup")
    for row in found.rows:
        row.host = [Probe(1.0)]
    found.rows[0].host = [Probe(1.9)]
    store.write(found, tmp_path / "nvidia-h200" / "warmup.json")
    (line,) = load.slow_records(tmp_path)
    assert "nvidia-h200/warmup.json: the host was slow while 1 of 4 rows" in line
    assert "up to 1.9 times" in line


def test_a_probe_that_can_not_be_is_refused(tmp_path):
    record = record_of([1.0])
    record.rows[0].host = [Probe(0.0)]
    store.write(record, tmp_path / "x.json")
    with pytest.raises(store.RecordError, match=r"rows\[0\]\.host\[0\]\.python_ms"):
        store.read(tmp_path / "x.json")


def test_what_was_measured_before_there_were_probes_is_not_slow():
    assert Row({}, "ok", {"a": 1}).host == [] and not Row({}, "ok").slow
