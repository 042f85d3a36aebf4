"""Records: whole on disk, checked field by field, and what their samples say."""

import errno
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins

from systems import ROOT
from systems.records import store
from systems.records.device import Device
from systems.records.record import Git, Record, Row
from systems.records.store import RecordError
from systems.records.summary import summarize


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


def test_the_schema_stands_first_and_each_row_on_a_line():
    lines = store.to_json(example()).splitlines()
    assert lines[1] == ' "schema": 2,' and lines[2].startswith(' "digest": "')
    assert [
        json.loads(line.rstrip(",")) for line in lines if line.startswith("  ")
    ] == to_builtins(example().rows)


def test_samples_are_kept_to_the_nanosecond():
    """Losses, and whatever else isn't a clock's, keep all of their digits."""
    samples = {"forward_ms": [0.2016629999985753, 1], "loss": [0.1234567891]}
    record = example()
    record.rows = [Row({}, "ok", samples | {"last_ms": 0.1234567})]
    (row,) = json.loads(store.to_json(record))["rows"]
    kept = {"forward_ms": [0.201663, 1], "loss": [0.1234567891], "last_ms": 0.1234567}
    assert row["metrics"] == kept


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


def content() -> dict:
    return json.loads(store.to_json(example()))


def changed(**fields):
    return {**content(), **fields}


def row_with(**fields):
    first, second = content()["rows"]
    return changed(rows=[first, {**second, **fields}])


def device_with(**fields):
    return changed(device={**content()["device"], **fields})


FAULTS = {
    "missing inside": (
        changed(device={"name": "x"}),
        "Object missing required field `slug` - at `$.device`",
    ),
    "unknown inside": (
        row_with(extra=1),
        "Object contains unknown field `extra` - at `$.rows[1]`",
    ),
    "whether it was edited": (
        changed(edited=False),
        "Object contains unknown field `edited`",
    ),
    "bool for a count": (changed(expected_rows=True), "`bool` - at `$.expected_rows`"),
    "fewer than no rows": (changed(expected_rows=-1), ">= 0 - at `$.expected_rows`"),
    "too many rows": (changed(expected_rows=100_001), "100000 - at `$.expected_rows`"),
    "more rows than expected": (
        changed(expected_rows=1),
        "has 2 rows, expected_rows is 1",
    ),
    "wrong item": (changed(verified_hashes=["a", 3]), "at `$.verified_hashes[1]`"),
    "stem of another folder": (changed(stem="../../x"), "at `$.stem`"),
    "wrong literal inside": (row_with(status="fine"), "'fine' - at `$.rows[1].status`"),
    "commit that is none": (
        changed(git={"commit": "<b>", "dirty": False}),
        "at `$.git.commit`",
    ),
    "markup": (changed(notes=["<script>"]), "at `$.notes[0]`"),
    "lines": (changed(notes=["a\n\n# b"]), "at `$.notes[0]`"),
    "a link": (device_with(name="[x](javascript:x)"), "at `$.device.name`"),
    "a macro in a name": (
        row_with(config={"size": "{$ 6 * 7 $}", "context": 1}),
        "rows[1].config[size]: is '{$ 6 * 7 $}', which a page would obey",
    ),
    "folder above": (device_with(slug=".."), "at `$.device.slug`"),
    "no name": (device_with(name=""), "at `$.device.name`"),
    "negative clock": (device_with(sm_clocks_mhz=[-1]), "`$.device.sm_clocks_mhz[0]`"),
    "a clock too fast": (device_with(sm_clocks_mhz=[100_001]), "sm_clocks_mhz[0]`"),
    "seconds of months": (row_with(seconds=1e7 + 1), "at `$.rows[1].seconds`"),
    "negative seconds": (row_with(seconds=-1.0), ">= 0.0 - at `$.rows[1].seconds`"),
    "no reason": (
        row_with(reason=None),
        "rows[1].reason: is None, the status out_of_memory",
    ),
    "numbers out of memory": (
        row_with(metrics={"forward_ms": [1.0]}),
        "rows[1]: is out_of_memory with 1 metrics",
    ),
    "a configuration twice": (
        row_with(config=content()["rows"][0]["config"]),
        "rows[1].config: is that of rows[0]",
    ),
    "a key more": (
        row_with(config=content()["rows"][1]["config"] | {"colour": 1}),
        "rows[1].config: 'colour' is not in all rows",
    ),
    "a list for a value": (
        row_with(config={"size": ["small"], "context": 1}),
        "rows[1].config.size: is ['small'], not one value",
    ),
    "a source of a measured record": (
        changed(source="a paper"),
        "source is 'a paper', which no measured record has",
    ),
    "a reported record without one": (
        changed(kind="reported"),
        "source is None, which no reported record has",
    ),
    "foreign schema": (
        changed(schema=1),
        "schema is 1, this version reads 2; measure again",
    ),
    "no schema": (
        {"name": "some other JSON"},
        "schema is None, this version reads 2; measure again",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_field_is_named_with_its_file(tmp_path, fault):
    data, message = FAULTS[fault]
    path = tmp_path / "r.json"
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError) as raised:
        store.read(path)
    text = str(raised.value)
    assert text.startswith(f"{path}: ") and text.endswith(message), text


METRICS = {
    "booleans": ("forward_ms", [True, 1.0], "[0]: is True, no time in ms above 0"),
    "zero": ("forward_ms", [1.0, 0], "[1]: is 0, no time in ms above 0"),
    "negative": ("forward_ms", [-1.0], "[0]: is -1.0, no time in ms above 0"),
    "months": ("forward_ms", [1e10], "[0]: is 10000000000.0, no time in ms above 0"),
    "text": ("forward_ms", ["1"], "[0]: is '1', no time in ms above 0"),
    "no samples": ("forward_ms", [], ": has no samples"),
    "no number": ("forward_ms", None, ": is None, no time in ms"),
    "negative bytes": ("peak_bytes", -1, ": is -1, no number of bytes"),
    "a fraction of bytes": ("peak_bytes", 1.5, ": is 1.5, no number of bytes"),
    "a boolean for bytes": ("peak_bytes", True, ": is True, no number of bytes"),
    "a script": (
        "x",
        [{"y": "<script>"}],
        "[0][y]: is '<script>', which a page would obey",
    ),
    "inside": (
        "kernels",
        [{"time_ms": [0]}],
        ".time_ms[0]: is 0, no time in ms above 0",
    ),
}


@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_that_can_not_be_is_named(tmp_path, metric):
    name, value, message = METRICS[metric]
    data = content()
    data["rows"][0]["metrics"] = {"loss": 1.0, name: value}
    (tmp_path / "r.json").write_text(json.dumps(data))
    with pytest.raises(RecordError) as raised:
        store.read(tmp_path / "r.json")
    assert str(raised.value).endswith(f"rows[0].metrics.{name}{message}")


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
@pytest.mark.parametrize(
    ("at", "nested"),
    [("loss", lambda x: x), ("loss[1]", lambda x: [1.0, x])]
    + [("table[0][part]", lambda x: [{"part": x}])],
)
def test_a_metric_that_is_not_finite_is_neither_written_nor_read(
    tmp_path, value, at, nested
):
    path, record, name = tmp_path / "r.json", example(), at.partition("[")[0]
    store.write(record, path)
    before = path.read_bytes()
    record.rows[0].metrics[name] = nested(value)
    fault = f"rows[0].metrics.{at}: is {value}, not a finite number"
    with pytest.raises(RecordError, match=re.escape(fault)):
        store.write(record, path)
    # The old record stays, and nothing else.
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["r.json"]
    data = content()
    data["rows"][0]["metrics"][name] = nested(value)
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError, match="is not JSON"):
        store.read(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"no JSON",
        b"\xff\xfe",
        b'{"schema": 2} {}',
        b'{"kind": "reported", "schema": 2, "kind": "measured"}',
        b'{"schema": 2, "rows": [{"config": {"n": 1, "n": 2}}]}',
        b'\xef\xbb\xbf{"schema": 2}',
        b'{"schema": 2, "rows": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_is_not_json_is_named(tmp_path, content):
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(
        RecordError, match=r"r\.json: is not JSON .*; delete it to measure again"
    ):
        store.read(path)


NESTED = {
    "metrics": '"peak_bytes": 7, "x": {}',
    "an item of a list": '"peak_bytes": 7, "x": [{{"y": {}}}]',
    "a time": '"peak_bytes": 7, "x_ms": {}',
}


@pytest.mark.parametrize("depth", [100, 900, 1100, 100_000])
@pytest.mark.parametrize("place", NESTED)
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_however_deep_a_record_is_nested_it_is_read_or_named(
    tmp_path, place, depth, opened, closed
):
    path, text = tmp_path / "r.json", store.to_json(example())
    deep = opened * depth + "1" + closed * depth
    path.write_text(text.replace('"peak_bytes": 7', NESTED[place].format(deep)))
    try:
        assert store.read(path).edited and depth < 1000
    except RecordError as error:
        assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
    in_config = text.replace('"context": 128', f'"context": {deep}', 1)
    path.write_text(in_config)
    with pytest.raises(RecordError, match=r"r\.json: "):
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


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("fsync", OSError(errno.ENOSPC, "No space left")),
        ("replace", OSError(errno.ENOSPC, "No space left")),
        ("fsync", KeyboardInterrupt()),
    ],
)
def test_a_full_disk_or_ctrl_c_leaves_the_old_record_and_nothing_else(
    tmp_path, monkeypatch, call, error
):
    path, record = tmp_path / "r.json", example()
    store.write(record, path)
    before = path.read_bytes()

    def fail(*_):
        raise error

    record.rows.clear()
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(type(error)):
        store.write(record, path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["r.json"]


REFUSED = {
    "markup in a name": lambda r: setattr(r.device, "name", "<b>"),
    "a line end": lambda r: r.protocol.update(clock="a\n\n# b"),
    "a long note": lambda r: r.notes.append("x" * 2001),
    "half of a pair": lambda r: setattr(r.rows[1], "reason", "\ud800"),
    "half of a pair in a metric": lambda r: r.rows[0].metrics.update(x="\udfff"),
    "a set": lambda r: r.rows[0].metrics.update(x={1}),
    "bytes": lambda r: r.rows[0].config.update(x=b""),
    "an odd slug": lambda r: setattr(r.device, "slug", "../x"),
    "a huge integer": lambda r: r.rows[0].metrics.update(x=10**5000),
    "text for a number": lambda r: setattr(r, "expected_rows", "2"),
    "too much": lambda r: r.rows[0].metrics.update(x="x" * store.LONGEST_BYTES),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_reading_refuses_is_not_written(tmp_path, fault):
    """Measured once, it would be in the way for ever."""
    path, record = tmp_path / "r.json", example()
    REFUSED[fault](record)
    with pytest.raises(RecordError) as raised:
        store.write(record, path)
    assert str(raised.value).startswith(f"{path}: ") and not list(tmp_path.iterdir())


def test_an_integer_of_5000_digits_is_no_record(tmp_path):
    """Python itself would raise an error of its own for it."""
    path = tmp_path / "r.json"
    text = store.to_json(example())
    path.write_text(text.replace('"peak_bytes": 7', f'"peak_bytes": {"1" * 5000}'))
    with pytest.raises(RecordError, match="out of range"):
        store.read(path)


def test_a_record_that_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "loop.json").symlink_to("loop.json")
    for name in ("fifo", "zero", "folder", "loop"):
        with pytest.raises(RecordError, match=rf"{name}\.json: can't be read: "):
            store.read(tmp_path / f"{name}.json")


def test_a_record_that_is_too_long_is_not_read(tmp_path):
    """A sparse file of 100 GB: reading it would take all memory."""
    path = tmp_path / "r.json"
    with open(path, "wb") as file:
        file.truncate(10**11)
    with pytest.raises(
        RecordError, match="has 100000000000 bytes, no record is longer"
    ):
        store.read(path)


def test_the_worst_record_that_is_read_takes_less_than_a_gigabyte(tmp_path):
    """What takes most memory by its length is many empty objects."""
    path = tmp_path / "r.json"
    item, ends = b"{},", (b'{"schema": 2, "rows": [', b"{}]}")
    path.write_bytes(
        item.join(ends).replace(item, item * (store.LONGEST_BYTES // 3 - 20))
    )
    code = (
        "import resource, sys; from pathlib import Path\n"
        "resource.setrlimit(resource.RLIMIT_AS, (10**9, 10**9))\n"
        "from systems.records import store\n"
        "try: store.read(Path(sys.argv[1]))\n"
        "except store.RecordError as error: print(error)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, path], cwd=ROOT, capture_output=True, text=True
    )
    assert "Object missing required field" in child.stdout, child.stderr


def test_nothing_is_written_through_a_link(tmp_path):
    path, other = tmp_path / "r.json", tmp_path / "other"
    other.write_text("not ours")
    (tmp_path / ".r.json.tmp").symlink_to(other)
    store.write(example(), path)
    assert other.read_text() == "not ours" and store.read(path) == example()
    assert not path.is_symlink()


def test_a_reader_never_sees_a_part(tmp_path, monkeypatch):
    """The new file is flushed before it replaces the old one."""
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


@settings(deadline=None)
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
