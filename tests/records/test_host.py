"""Which rows probes of the host call slow, and where that is said."""

import pytest
from msgspec.structs import replace

from systems.records import store
from systems.records.host import Probe, slowdown, usual
from systems.records.record import Row
from tests.factories import make_gpu, make_record, make_row
from tools.render import hosts
from tools.render.markdown import columns, per_device, provenance
from tools.render.rows import DAGGER, Cell


def test_slow_is_the_slowest_time_of_all_probes_against_the_usual():
    probes = [Probe(1.0, 0.1), Probe(3.0, 0.1), Probe(1.0), Probe(1.0, 0.4)]
    assert usual(probes) == {"python_ms": 1.0, "launch_ms": 0.1}
    assert slowdown(probes[:1], usual(probes)) == 1
    assert slowdown(probes, usual(probes)) == 4
    assert slowdown(probes[1:3], usual(probes)) == 3
    assert slowdown([], usual(probes)) == 1 and slowdown(probes, {}) == 1


# What tables say ----------------------------------------------------------------------


def record_of(times: list[float], software=None, driver="580", **fields):
    rows = [make_row({"i": i}, work_ms=[1.0]) for i in range(len(times))]
    for row, ms in zip(rows, times, strict=True):
        row.host = [Probe(1.0, **fields), Probe(ms, **fields)]
    device, own = (
        replace(make_gpu(), driver=driver),
        {"python": "3.12", "torch": "2.11"},
    )
    return make_record("warmup", *rows, device=device, software=own | (software or {}))


def test_rows_are_slow_against_the_quietest_record_of_the_same_gpu():
    steady, moody = record_of([1.0, 1.1, 1.0]), record_of([1.0, 1.9, 1.2])
    # All of it on a slower host: each of its rows is.
    slower = record_of([2.0] * 3)
    for row in slower.rows:
        row.host = [Probe(2.0), Probe(2.0)]
    hosts.compare_hosts([steady, moody, slower])
    assert [row.slow for row in steady.rows] == [False, False, False]
    assert [row.slow for row in moody.rows] == [False, True, False]
    assert [row.slowdown for row in slower.rows] == [2, 2, 2]


@pytest.mark.parametrize(
    "other",
    [
        {"software": {"python": "3.13"}},
        {"software": {"torch": "2.13"}},
        {"driver": "590"},
    ],
    ids=str,
)
def test_with_other_software_a_host_is_neither_slow_nor_quiet(other):
    here, there = record_of([1.0, 1.0]), record_of([0.1, 0.1], **other)
    for row in there.rows:
        row.host = [Probe(0.1)]
    hosts.compare_hosts([here, there])
    assert [row.slowdown for row in (*here.rows, *there.rows)] == [1, 1, 1, 1]
    # What doesn't run the probes makes no difference.
    alike = record_of([2.0], software={"triton": "3.9"})
    hosts.compare_hosts([here, alike])
    assert alike.rows[0].slow


def test_an_unsteady_number_is_marked_and_the_line_under_the_table_says_so():
    record = record_of([1.0, 1.9, 1.0])
    hosts.judge_hosts([record])

    def shown(record):
        return columns(map(Cell, record.rows), "i", ("ms", lambda c: c.ms("work")))

    lines = shown(record).splitlines()
    assert [DAGGER in line for line in lines] == [False, False, False, True, False]
    said = (
        "† [unsteady](method.md#unsteady): 1 of 3 rows, on a host that took up to 1.9"
    )
    assert said in per_device([record], shown)
    # Of a host that no probe called slow, only how many.

    # Where no such number is shown, there is nothing to say.
    assert DAGGER not in per_device([record], lambda _: "| a table |")
    # Of what is not timed, nothing is longer.
    record.rows[1].metrics = {"error": 1e-3}
    hosts.judge_hosts([record])
    assert not record.rows[1].unsteady
    record.rows[1].metrics = {"work_ms": [1.0]}
    record.rows[1].host = []
    hosts.judge_hosts([record])
    assert not record.rows[1].unsteady


def test_a_shared_host_and_a_battery_are_named():
    assert "others ran 5 threads on this host" in provenance(
        record_of([1.0], other_threads=5)
    )
    assert "on battery" in provenance(record_of([1.0], on_battery=True))
    quiet = provenance(record_of([1.0], other_threads=1))
    assert "others" not in quiet and "battery" not in quiet


def test_a_probe_that_can_not_be_is_refused(tmp_path):
    record = record_of([1.0])
    record.rows[0].host = [Probe(0.0)]
    path, named = tmp_path / "x.json", r"rows\[0\]\.host\[0\]\.python_ms"
    with pytest.raises(store.RecordError, match=named):
        store.write(record, path)
    path.write_text(store.to_json(record))
    with pytest.raises(store.RecordError, match=named):
        store.read(path)


def test_what_was_measured_before_there_were_probes_is_not_slow():
    assert Row({}, "ok", {"a": 1}).host == [] and not Row({}, "ok").slow
