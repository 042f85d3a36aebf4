"""Records are written atomically, and each field is validated."""

import errno
import json
import os
import re
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins

from systems.records import store
from systems.records.device import Device
from systems.records.record import Git, Record, Row, record_faults
from systems.records.store import RecordError
from systems.records.summary import summarize


def example_record() -> Record:
    gpu = ("NVIDIA H200", "nvidia-h200", "9.0", 2**37, "570.1", 700.0, [1200, 1980])
    small, big = {"size": "small", "context": 128}, {"size": "2.7B", "context": 1024}
    found = {"forward_ms": [1.5, 2.25], "peak_bytes": 7}
    why = "CUDA out of memory: größer als frei"
    return Record(
        stem="end_to_end",
        kind="measured",
        device=Device(*gpu),
        rows=[Row(small, "ok", found, None, 1.25), Row(big, "out_of_memory", {}, why)],
        expected_rows=2,
        protocol={"tf32": "off"},
        software={"python": "3.11.7"},
        started_utc="2026-01-02 03:04",
        command="python tools/regen_tables.py",
        git=Git("abc", dirty=False),
        source_hash="0123",
        notes=["one"],
    )


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "r.json"


def read_error(path: Path, text: str | bytes) -> str:
    """Return the error message of reading this text as a record, without the path."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RecordError) as raised:
        store.read(path)
    said = str(raised.value)
    assert said.startswith(f"{path}: ") and "\n" not in said
    return said.removeprefix(f"{path}: ")


def test_record_round_trips_through_a_file(tmp_path):
    path = tmp_path / "new" / "folder" / "r.json"
    store.write(example_record(), path)
    # Some editors begin a file with a byte order mark.
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    record = store.read(path)
    assert record == example_record() and not record.edited
    assert os.listdir(path.parent) == ["r.json"]


def test_json_starts_with_the_schema_and_has_a_line_per_row():
    lines = store.to_json(example_record()).splitlines()
    assert lines[1] == ' "schema": 3,' and lines[2].startswith(' "digest": "')
    rows = [json.loads(x.rstrip(",")) for x in lines if x.startswith("  ")]
    assert rows == to_builtins(example_record().rows)


def test_times_are_rounded_to_nanoseconds():
    samples = {"forward_ms": [0.2016629999985753, 1], "loss": [0.1234567891]}
    record = example_record()
    record.rows = [Row({}, "ok", samples | {"last_ms": 0.1234567})]
    (row,) = json.loads(store.to_json(record))["rows"]
    kept = {"forward_ms": [0.201663, 1], "loss": [0.1234567891], "last_ms": 0.1234567}
    assert row["metrics"] == kept


def test_complete_record_has_every_row_by_configuration():
    record = example_record()
    small, large = record.rows
    assert record.row({"size": "small", "context": 128}) is small
    assert record.row({"size": "small"}) is record.find(size="2.7B", context=8) is None
    assert record.find(size="2.7B") is large and record.complete
    record.rows.pop()
    assert not record.complete


SAMPLES = {"forward_ms": [1.0], "loss_ms": [1.0, 2.0]}
# (field of the example, invalid value, end of the error message).
FAULTS = [
    ("device", {"name": "x"}, "missing required field `slug` - at `$.device`"),
    ("rows.1.extra", 1, "Object contains unknown field `extra` - at `$.rows[1]`"),
    ("edited", False, "Object contains unknown field `edited`"),
    ("expected_rows", True, "`bool` - at `$.expected_rows`"),
    ("notes", ["a", 3], "at `$.notes[1]`"),
    ("stem", "../../x", "at `$.stem`"),
    ("rows.1.status", "fine", "'fine' - at `$.rows[1].status`"),
    ("git.commit", "<b>", "at `$.git.commit`"),
    ("notes", ["<script>"], "at `$.notes[0]`"),
    ("notes", ["a\n\n# b"], "at `$.notes[0]`"),
    ("device.name", "[x](javascript:x)", "at `$.device.name`"),
    ("device.name", "", "at `$.device.name`"),
    ("device.slug", "..", "at `$.device.slug`"),
    ("rows.1.config", {"size": "small", "context": 128}, "config: is that of rows[0]"),
    ("rows.1.config.colour", 1, "rows[1].config: 'colour' is not in all rows"),
    ("rows.1.config.size", ["a"], "rows[1].config.size: is ['a'], not one value"),
    ("rows.1.config.size", "{$ 6 $}", "[size]: is '{$ 6 $}', which a page would obey"),
    ("source", "a paper", "source is 'a paper', which no measured record has"),
    ("kind", "reported", "source is None, which no reported record has"),
    ("schema", 2, "schema is 2, this version reads 3; measure again"),
    ("rows.0.metrics.a_ms", [True, 1.0], "a_ms[0]: is True, no time in ms above 0"),
    ("rows.0.metrics.a_ms", [1.0, 0], "a_ms[1]: is 0, no time in ms above 0"),
    ("rows.0.metrics.a_ms", ["1"], "a_ms[0]: is '1', no time in ms above 0"),
    ("rows.0.metrics.a_ms", [], "rows[0].metrics.a_ms: has no samples"),
    ("rows.0.metrics.a_ms", "x", "a_ms: is 'x', no time in ms"),
    ("rows.0.metrics.a_ms", None, "a_ms: is None, no time in ms"),
    ("rows.0.metrics.peak_bytes", 1.5, "peak_bytes: is 1.5, no number of bytes"),
    ("rows.0.metrics.peak_bytes", True, "peak_bytes: is True, no number of bytes"),
    ("rows.0.metrics", SAMPLES, "metrics.forward_ms: has 1 samples, loss_ms 2"),
    ("rows.0.metrics.x", [{"y": "<script>"}], "is '<script>', which a page would obey"),
    ("rows.0.metrics.x", [{"a_ms": [0]}], "x.a_ms[0]: is 0, no time in ms above 0"),
]


def change_field(name: str, value: object) -> dict:
    data = json.loads(store.to_json(example_record()))
    *inside, last = name.split(".")
    at: Any = data
    for part in inside:
        at = at[int(part) if isinstance(at, list) else part]
    at[int(last) if isinstance(at, list) else last] = value
    return data


@pytest.mark.parametrize(("name", "value", "message"), FAULTS)
def test_invalid_field_is_named_with_its_file(path, name, value, message):
    found = read_error(path, json.dumps(change_field(name, value)))
    assert found.endswith(message), found


# Valid rows as (kind of record, status, reason, number of metrics).
ROWS = {
    ("measured", "ok", None, 1),
    ("measured", "unsupported", "why", 0),
    ("reported", "ok", None, 1),
    ("reported", "ok", "why", 1),
    ("reported", "unsupported", "why", 0),
}


def test_a_row_has_numbers_or_a_reason():
    kinds, statuses = ("measured", "reported"), ("ok", "unsupported")
    for case in product(kinds, statuses, (None, "why"), (0, 1)):
        kind, status, reason, count = case
        record = example_record()
        record.kind, record.source = kind, None if kind == "measured" else "a paper"
        record.rows = [Row({}, status, {"x": 1} if count else {}, reason)]
        assert (not [*record_faults(record)]) == (case in ROWS), case


# The smallest and the largest valid value of fields, by name.
LIMITS = {
    "expected_rows": (2, 100_000),
    "device.memory_bytes": (0, 2**60),
    "device.power_limit_w": (0, 1e6),
    "device.sm_clocks_mhz.0": (0, 100_000),
    "rows.1.seconds": (0, 1e7),
    "rows.0.metrics.last_ms": (0, 1e9),
    "rows.0.metrics.forward_ms.0": (5e-324, 1e9),
    "rows.0.metrics.peak_bytes": (1, 2**60),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_fields_are_inclusive(path, name):
    least, most = LIMITS[name]
    for value in (least, most):
        path.write_text(json.dumps(change_field(name, value)))
        store.read(path)
    for value in (least - 1, most + 1):
        text = read_error(path, json.dumps(change_field(name, value)))
        assert name.removesuffix(".0").split(".")[-1] in text


def test_records_up_to_the_size_limit_are_read(path):
    text = store.to_json(example_record()).encode()
    path.write_bytes(text.ljust(store.LONGEST_BYTES))
    path.with_name("link").symlink_to(path)
    assert store.read(path) == store.read(path.with_name("link")) == example_record()
    assert read_error(path, text.ljust(2**23 + 1)).startswith("has 8388609 ")


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
@pytest.mark.parametrize("at", ["loss", "loss[1]", "table[0][part]"])
def test_non_finite_metrics_are_rejected(path, value, at):
    record, name = example_record(), at.partition("[")[0]
    store.write(record, path)
    before = path.read_bytes()
    nested = {"loss": value, "loss[1]": [1.0, value]}.get(at, [{"part": value}])
    record.rows[0].metrics[name] = nested
    fault = f"rows[0].metrics.{at}: is {value}, not a finite number"
    with pytest.raises(RecordError, match=re.escape(fault)):
        store.write(record, path)
    # The old record stays, and no other file remains.
    assert path.read_bytes() == before and os.listdir(path.parent) == ["r.json"]
    text = json.dumps(change_field(f"rows.0.metrics.{name}", nested))
    assert read_error(path, text).startswith("is not JSON")


NOT_JSON = (
    *(b"no JSON", b"<<<<<<< HEAD\n{}", b"\xff\xfe", b'{"schema": 3} {}'),
    b'{"schema": 3, "rows": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
)


@pytest.mark.parametrize("content", NOT_JSON)
def test_invalid_json_is_reported(path, content):
    remedy = "`git checkout .*" if b"<<<" in content else "delete it to measure again"
    assert re.fullmatch(f"is not JSON .*; {remedy}", read_error(path, content))


@pytest.mark.parametrize("depth", [100, 900, 1100, 100_000])
@pytest.mark.parametrize("place", ['"x": {}', '"x": [{{"y": {}}}]', '"x_ms": {}'])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_raises_only_record_errors(path, place, depth, opened, closed):
    text, deep = store.to_json(example_record()), opened * depth + "1" + closed * depth
    path.write_text(text.replace('"peak_bytes": 7', place.format(deep)))
    try:
        assert store.read(path).edited and depth < 1000
    except RecordError as error:
        assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
    read_error(path, text.replace('"context": 128', f'"context": {deep}', 1))


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()]
)
def test_failed_write_keeps_the_old_record(path, monkeypatch, call, error):
    record = example_record()
    store.write(record, path)
    before = path.read_bytes()
    record.rows.clear()
    monkeypatch.setattr(os, call, Mock(side_effect=error))
    with pytest.raises(type(error)):
        store.write(record, path)
    assert path.read_bytes() == before and os.listdir(path.parent) == ["r.json"]


REFUSED = {
    "a long note": lambda r: r.notes.append("x" * 2001),
    "half of a pair": lambda r: setattr(r.rows[1], "reason", "\ud800"),
    "half of a pair in a metric": lambda r: r.rows[0].metrics.update(x="\udfff"),
    "a set": lambda r: r.rows[0].metrics.update(x={1}),
    "bytes": lambda r: r.rows[0].config.update(x=b""),
    "a huge integer": lambda r: r.rows[0].metrics.update(x=10**5000),
    "too much": lambda r: r.rows[0].metrics.update(x="x" * store.LONGEST_BYTES),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_invalid_records_are_not_written(path, fault):
    """A record that can be written but not read would be lost."""
    record = example_record()
    REFUSED[fault](record)
    with pytest.raises(RecordError) as raised:
        store.write(record, path)
    assert str(raised.value).startswith(f"{path}: ") and not os.listdir(path.parent)


def test_special_files_are_rejected(tmp_path):
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "loop.json").symlink_to("loop.json")
    for name in ("fifo", "zero", "folder", "loop"):
        with pytest.raises(RecordError, match=rf"{name}\.json: can't be read: "):
            store.read(tmp_path / f"{name}.json")


def test_missing_foreign_or_huge_files_are_rejected(path):
    """Python rejects an integer of 5000 digits, and 100 GB would fill the memory."""
    with pytest.raises(FileNotFoundError):
        store.read(path)
    assert read_error(path, '{"name": "x"}').startswith("schema is None, this version")
    digits = f'"peak_bytes": {"1" * 5000}'
    text = store.to_json(example_record()).replace('"peak_bytes": 7', digits)
    assert "out of range" in read_error(path, text)
    with open(path, "wb") as file:
        file.truncate(10**11)
    with pytest.raises(RecordError, match="has 100000000000 bytes, no record is long"):
        store.read(path)


def test_writing_follows_no_symbolic_link(path):
    other = path.with_name("other")
    other.write_text("not ours")
    for link in (path, path.with_name(".r.json.tmp")):
        link.symlink_to(other)
    store.write(example_record(), path)
    assert other.read_text() == "not ours" and store.read(path) == example_record()
    assert not path.is_symlink()


@settings(deadline=None)
@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=40))
def test_summary_equals_numpy(samples):
    s = summarize(samples)
    spread = np.std(samples, ddof=1) if len(samples) > 1 else float("nan")
    expected = np.mean(samples), spread, np.median(samples)
    got = s.mean, s.std, s.median
    assert got == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)
    assert (s.min, s.max) == (min(samples), max(samples))
