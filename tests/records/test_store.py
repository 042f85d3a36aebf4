"""Records: whole on disk, checked field by field, and what their samples say."""

import errno
import json
import os
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from systems.records import store
from systems.records.device import Device
from systems.records.record import Git, Record, Row
from systems.records.store import RecordError
from systems.records.summary import Summary, summarize


def example() -> Record:
    return Record(
        stem="end_to_end",
        kind="measured",
        device=Device(
            "NVIDIA H200", "nvidia-h200", "9.0", 2**37, "570.1", 700.0, [1200, 1980]
        ),
        rows=[
            Row(
                {"size": "small", "context": 128},
                "ok",
                {"forward_ms": [1.5, 2.25], "peak_bytes": 7},
                None,
                1.25,
            ),
            Row(
                {"size": "2.7B", "context": 1024},
                "out_of_memory",
                {},
                "CUDA out of memory: größer als frei",
            ),
        ],
        expected_rows=2,
        protocol={"tf32": "off"},
        software={"python": "3.11.7"},
        started_utc="2026-01-02 03:04",
        command="python tools/regen_tables.py",
        git=Git("abc", dirty=False),
        source_hash="0123",
        verified_hashes=["4567"],
        notes=["one"],
    )


def test_a_record_comes_back_as_it_went(tmp_path):
    path = tmp_path / "new" / "folder" / "r.json"
    store.write(example(), path)
    assert store.read(path) == example()
    assert os.listdir(path.parent) == ["r.json"]


def test_a_reported_record_needs_few_fields(tmp_path):
    record = Record(
        "warmup",
        "reported",
        Device("A100", "a100"),
        [],
        expected_rows=3,
        source="section 2 of the notes",
    )
    store.write(record, tmp_path / "r.json")
    assert store.read(tmp_path / "r.json") == record and not record.complete


def test_the_schema_stands_first_and_each_row_on_a_line():
    lines = store.to_json(example()).splitlines()
    assert lines[1] == ' "schema": 1,'
    assert [
        json.loads(line.rstrip(",")) for line in lines if line.startswith("  ")
    ] == [asdict(row) for row in example().rows]


def test_samples_are_kept_to_the_nanosecond():
    record = example()
    record.rows = [
        Row(
            {},
            "ok",
            {
                "forward_ms": [0.2016629999985753, 1],
                "loss": [0.1234567891],
                "last_ms": 0.1234567,
            },
        )
    ]
    (row,) = json.loads(store.to_json(record))["rows"]
    # Losses, and whatever else isn't a clock's, keep all of their digits.
    assert row["metrics"] == {
        "forward_ms": [0.201663, 1],
        "loss": [0.1234567891],
        "last_ms": 0.1234567,
    }


def test_complete_means_every_row_and_none_failed():
    record = example()
    assert record.complete
    record.rows[0].status = "failed"
    assert not record.complete
    record.rows = record.rows[1:]
    assert not record.complete


def test_rows_are_found_by_configuration():
    record = example()
    assert (
        record.row({"size": "small", "context": 128}) is record.rows[0]
        and record.row({"size": "small"}) is None
    )
    assert (
        record.find(size="2.7B") is record.rows[1]
        and record.find(size="2.7B", context=128) is None
    )


def changed(**fields):
    return {**asdict(example()), **fields}


def without(name):
    return {key: value for key, value in asdict(example()).items() if key != name}


def row_with(**fields):
    return changed(
        rows=[asdict(example().rows[0]), {**asdict(example().rows[1]), **fields}]
    )


FAULTS = {
    "not an object": ([1], ": is [1], not an object with the fields of Record"),
    "missing": (without("device"), ": lacks the field 'device'"),
    "missing inside": (
        changed(device={"name": "x"}),
        ": device: lacks the field 'slug'",
    ),
    "unknown": (changed(colour="red"), ": has the unknown field 'colour'"),
    "unknown inside": (row_with(extra=1), ": rows[1]: has the unknown field 'extra'"),
    "wrong type": (changed(expected_rows="2"), ": expected_rows: is '2', not int"),
    "fraction for a count": (
        changed(expected_rows=2.0),
        ": expected_rows: is 2.0, not int",
    ),
    "bool for a count": (
        changed(expected_rows=True),
        ": expected_rows: is True, not int",
    ),
    "text for a list": (changed(notes="one"), ": notes: is 'one', not list"),
    "list for an object": (changed(protocol=[]), ": protocol: is [], not dict"),
    "wrong item": (
        changed(verified_hashes=["a", 3]),
        ": verified_hashes[1]: is 3, not str",
    ),
    "wrong value": (
        changed(software={"torch": 2.11}),
        ": software.torch: is 2.11, not str",
    ),
    "null where there must be a value": (
        changed(stem=None),
        ": stem: is None, not str",
    ),
    "wrong literal": (
        changed(kind="guessed"),
        ": kind: is 'guessed', not one of measured, reported",
    ),
    "wrong literal inside": (
        row_with(status="fine"),
        ": rows[1]: status: is 'fine', not one of ok, out_of_memory, ",
    ),
    "unhashable literal": (
        changed(grid=["full"]),
        ": grid: is ['full'], not one of full, quick",
    ),
    "number for an object": (
        changed(git=3),
        ": git: is 3, not an object with the fields of Git",
    ),
    "nan": (
        row_with(seconds=float("nan")),
        ": rows[1]: seconds: is nan, not a finite number",
    ),
    "infinity": (
        row_with(seconds=float("inf")),
        ": rows[1]: seconds: is inf, not a finite number",
    ),
    "foreign schema": (
        changed(schema=99),
        ": schema is 99, this version reads 1; measure again",
    ),
    "no schema": (
        {"name": "some other JSON"},
        ": schema is None, this version reads 1; measure again",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_field_is_named_with_its_file(tmp_path, fault):
    data, message = FAULTS[fault]
    path = tmp_path / "r.json"
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError) as raised:
        store.read(path)
    assert str(raised.value).startswith(f"{path}{message}")


@pytest.mark.parametrize(
    "metric", ["NaN", "[1.5, NaN]", "Infinity", '{"deep": [-Infinity]}']
)
def test_a_metric_is_never_nan(tmp_path, metric):
    path = tmp_path / "r.json"
    path.write_text(
        store.to_json(example()).replace('"peak_bytes": 7', f'"peak_bytes": {metric}')
    )
    where = r"r\.json: rows\[0\]: metrics\.peak_bytes.*"
    with pytest.raises(
        RecordError, match=rf"{where}: is .*(nan|inf), not a finite number"
    ):
        store.read(path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"no JSON", b"\xff\xfe", b'{"schema": 1} {}']
)
def test_what_is_not_json_is_named(tmp_path, content):
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(
        RecordError, match=r"r\.json: is not JSON .*; delete it to measure again"
    ):
        store.read(path)


def test_a_record_cut_off_anywhere_is_refused(tmp_path):
    path, text = tmp_path / "r.json", store.to_json(example()).encode()
    for length in range(len(text) - 1):
        path.write_bytes(text[:length].rstrip())
        if path.read_bytes() != text.rstrip():
            with pytest.raises(RecordError):
                store.read(path)


def test_an_absent_record_is_no_broken_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        store.read(tmp_path / "r.json")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_record_and_nothing_else(
    tmp_path, monkeypatch, call
):
    path = tmp_path / "r.json"
    store.write(example(), path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    record = example()
    record.rows.clear()
    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        store.write(record, path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["r.json"]


def test_what_json_cannot_hold_leaves_the_old_record_and_nothing_else(tmp_path):
    path = tmp_path / "r.json"
    store.write(example(), path)
    before = path.read_bytes()
    record = example()
    record.rows[0].metrics["forward_ms"] = [float("nan")]
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.write(record, path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["r.json"]


def test_a_reader_never_sees_a_part(tmp_path, monkeypatch):
    """At the moment before the new file takes its place, the old one is whole; it is
    flushed by then.
    """
    path = tmp_path / "r.json"
    store.write(example(), path)
    calls, replace, fsync = [], os.replace, os.fsync

    def spy(source, target):
        calls.append("replace")
        assert store.read(path) == example() and store.read(source).rows == []
        replace(source, target)

    monkeypatch.setattr(os, "replace", spy)
    monkeypatch.setattr(
        os, "fsync", lambda handle: (calls.append("fsync"), fsync(handle))
    )
    record = example()
    record.rows = []
    store.write(record, path)
    assert calls == ["fsync", "replace"] and store.read(path).rows == []


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=40))
def test_a_summary_equals_that_of_numpy(samples):
    s = summarize(samples)
    p20, median, p80 = np.quantile(samples, [0.2, 0.5, 0.8])
    expected = (
        len(samples),
        np.mean(samples),
        np.std(samples, ddof=1) if len(samples) > 1 else 0.0,
        median,
        p20,
        p80,
    )
    got = (s.n, s.mean, s.std, s.median, s.p20, s.p80)
    assert got == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert (s.min, s.max) == (min(samples), max(samples))


def test_a_summary_by_hand():
    s = summarize([5.0, 1.0, 4.0, 2.0, 3.0, 9.0])
    assert (s.n, s.mean, s.median, s.p20, s.p80, s.min, s.max) == (
        6,
        4.0,
        3.5,
        2.0,
        5.0,
        1.0,
        9.0,
    )
    # Deviations 1, -3, 0, -2, -1, 5: squares add up to 40, over 5.
    assert s.std == pytest.approx(8**0.5) and s.variation == pytest.approx(8**0.5 / 4)
    assert summarize([2.0]) == Summary(1, 2.0, 0.0, 2.0, 2.0, 2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="no samples"):
        summarize([])
