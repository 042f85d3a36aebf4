"""Test rendered files: provenance, misplaced records, and errors while rendering."""

import pytest

from systems.records import store
from tests.factories import read_record
from tools.render import everything, load, markdown
from tools.render.spanning import explorer
from tools.render.stems import warmup


def test_provenance_has_age_and_link(monkeypatch):
    record = read_record("warmup")
    for fresh, shown in ((True, ""), (False, " · **stale**{ .old }")):
        monkeypatch.setattr(markdown, "is_fresh", lambda record, fresh=fresh: fresh)
        table, line = markdown.device_tabs([record], lambda r: "| a |").split("\n\n")
        assert table == "| a |" and line.startswith(f"NVIDIA H200{shown} · 20")
    # The link leads to the rows in the explorer.
    link = "explorer.html#GPU=NVIDIA+H200&amp;stem=warmup"
    assert f'<a href="{link}">CSV</a>' in line
    assert '"NVIDIA H200"' in explorer.fragments({"warmup": [record]})["explorer.js"]
    # Notes stand in the conditions only.
    record.notes = ["on 16 of 64 cores"]
    assert f" · {record.notes[0]} · " in markdown.conditions([record])
    assert record.notes[0] not in markdown.provenance_line(record)


def test_csv_links_lead_to_rows(records):
    every = (record for of_stem in records.values() for record in of_stem)
    for record in (r for r in every if r.kind == "measured"):
        assert bool(markdown.rows_link(record)) == any(explorer.record_lines(record))


def test_misplaced_record_is_rejected(tmp_path):
    record = read_record("warmup")
    store.write(record, tmp_path / "nvidia-a100" / "warmup.json")
    with pytest.raises(store.RecordError, match="misplaced"):
        load.load_records(tmp_path)
    (tmp_path / "nvidia-a100" / "warmup.json").unlink()
    store.write(record, tmp_path / record.device.slug / "method.json")
    with pytest.raises(store.RecordError, match="of warmup on nvidia-h200, misplaced"):
        load.load_records(tmp_path)


def test_absent_metrics_show_not_measured():
    """Records of older code may lack metrics."""
    record = read_record("warmup")
    for row in record.rows:
        del row.metrics["forward_ms"]
    files, facts = everything.render_stem("warmup", [record])
    assert "not measured" in files["table.md"]
    assert facts["first_step"] == "not measured"


def test_rendering_errors_name_the_records(monkeypatch):
    """The error keeps its type, and a note names the record."""
    monkeypatch.setattr(warmup, "fragments", lambda records: 1 / 0)
    with pytest.raises(ZeroDivisionError) as raised:
        everything.render_stem("warmup", [read_record("warmup")])
    assert raised.value.__notes__ == ["while rendering nvidia-h200/warmup.json"]


@pytest.mark.parametrize(
    ("exact", "told"),
    [
        ("65.52 GiB", "66 GiB"),
        ("1.08502 to 1.45264, 0.51149 ms", "1.09 to 1.5, 0.51 ms"),
        ("0.035 ms, 1.19 ms, 9.96 ms", "0.035 ms, 1.2 ms, 10 ms"),
        ("24.95 ± 3.78 ms", "24.95 ± 3.78 ms"),
        ("16,384 tokens", "16,384 tokens"),
    ],
)
def test_numbers_in_sentences_are_rounded(exact, told):
    assert markdown.round_numbers(exact) == told
