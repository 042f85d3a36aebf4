"""Test which records are read, the primary GPU, provenance and errors."""

import json
import re

import pytest

from systems.experiments import STEMS
from systems.records import store
from systems.records.source_hash import source_hash
from systems.records.store import RecordError
from tests.factories import make_gpu, make_record, read_record
from tools import regen_tables
from tools.render import everything, load, markdown
from tools.render.spanning import explorer
from tools.render.stems import warmup


@pytest.fixture
def read_primary(monkeypatch, tmp_path):
    """Return a function that reads the primary GPU from such text in mkdocs.yml."""
    monkeypatch.setattr(load, "ROOT", tmp_path)

    def write_and_read(text: str) -> str:
        tag = "slugify: !!python/object/apply:os.system [exit]"
        (tmp_path / "mkdocs.yml").write_text(f"{tag}\nextra:\n  {text}\n  other: 1\n")
        return load.primary_gpu()

    return write_and_read


@pytest.mark.parametrize("text", ["a-gpu", "'a-gpu'", "a-gpu  # ours"])
def test_primary_gpu_is_read_as_yaml(read_primary, text):
    assert read_primary(f"primary_gpu: {text}") == "a-gpu"


WRONG = "primary_gpu:", "primary_gpu: [a]", "primary: a", "primary_gpu: a\n  " * 2
INVALID = dict.fromkeys(WRONG, "extra.primary_gpu must name")
INVALID["primary_gpu: a\n>>>>>>> b"] = "has a merge conflict"


@pytest.mark.parametrize("text", INVALID)
def test_invalid_primary_gpu_is_rejected(read_primary, text):
    with pytest.raises(RecordError, match=f"mkdocs.yml: {INVALID[text]}"):
        read_primary(text)


def test_primary_gpu_without_records_is_rejected(read_primary, tmp_path):
    read_primary("primary_gpu: A-GPU")
    reported = make_record("warmup", device=make_gpu("Theirs"))
    reported.kind, reported.source = "reported", "a paper"
    measured = make_record("warmup", device=make_gpu("A GPU"))
    for record in (reported, measured):
        store.write(record, tmp_path / "results" / record.device.slug / "warmup.json")
    with pytest.raises(RecordError, match=r"'A-GPU', and no .*; there are: a-gpu$"):
        load.load_records(tmp_path / "results")
    (tmp_path / "results/quick/A-GPU").mkdir(parents=True)
    with pytest.raises(RecordError, match=r"quick has its records of reduced grids$"):
        load.load_records(tmp_path / "results")
    read_primary("primary_gpu: a-gpu")
    (tmp_path / "results/a-gpu/._warmup.json").touch()
    assert len(load.load_records(tmp_path / "results")["warmup"]) == 2


def test_record_of_other_code_is_stale():
    record = read_record("warmup")
    record.source_hash = source_hash(STEMS["warmup"].module)
    assert load.is_fresh(record)
    record.source_hash = "of before"
    assert not load.is_fresh(record)


def test_facts_about_the_first_step_are_those_of_context_128():
    assert " ± " in warmup.facts(record := read_record("warmup"))["cold"]
    for row in record.rows:
        row.config["context"] = 32
    assert {*warmup.facts(record).values()} == {"not measured"}


def test_edited_record_is_rejected(tmp_path, monkeypatch):
    record = read_record("warmup")
    path = tmp_path / record.device.slug / "warmup.json"
    store.write(record, path)
    text = path.read_text()
    # Another JSON layout does not change the digest.
    path.write_text(json.dumps(dict(sorted(json.loads(text).items())), indent=3))
    load.read_record(path)
    path.write_text(changed := re.sub(r'"seconds": \d', '"seconds": 9', text))
    assert changed != text
    with pytest.raises(RecordError, match=r"warmup\.json: was edited by hand; restore"):
        load.read_record(path)
    folders = ["--results", str(tmp_path), "--generated", str(tmp_path / "x")]
    assert regen_tables.main(["--check", *folders]) == 2
    # Writing a record updates its digest.
    store.write(store.read(path), path)
    load.read_record(path)


def test_provenance_has_age_and_link(monkeypatch):
    record = read_record("warmup")
    for fresh, shown in ((True, ""), (False, " · **stale**{ .old }")):
        monkeypatch.setattr(markdown, "is_fresh", lambda record, fresh=fresh: fresh)
        table, line = markdown.device_tabs([record], lambda r: "| a |").split("\n\n")
        assert table == "| a |" and line.startswith(f"NVIDIA H200{shown} · 20")
        assert f"{shown} · [record]" in (described := markdown.conditions([record]))
        assert ("stale" in described) == bool(shown)
    assert '<a href="explorer.html#GPU=NVIDIA+H200&amp;stem=warmup">CSV</a>' in line
    assert '"NVIDIA H200"' in explorer.fragments({"warmup": [record]})["explorer.js"]
    # Notes stand in the conditions only.
    record.notes = ["on 16 of 64 cores"]
    assert f" · {record.notes[0]} · " in markdown.conditions([record])
    assert record.notes[0] not in markdown.provenance_line(record)
    record = read_record("attention")
    assert "gpu time: " in markdown.conditions([record])
    record.device.slug, record.grid = "cpu", "quick"
    assert "gpu time: " not in (text := markdown.conditions([record]))
    # The options that all rows share say which numbers these are.
    lines = text, markdown.provenance_line(record)
    assert all(" · measured by --quick: batch 8 · " in line for line in lines)


def test_csv_links_lead_to_rows(records):
    every = (record for of_stem in records.values() for record in of_stem)
    for record in (r for r in every if r.kind == "measured"):
        assert bool(markdown.rows_link(record)) == any(explorer.record_lines(record))
    assert not markdown.rows_link(make_record("warmup"))


def test_misplaced_record_is_rejected(tmp_path):
    record = read_record("warmup")
    store.write(record, tmp_path / "nvidia-a100" / "warmup.json")
    with pytest.raises(store.RecordError, match="misplaced"):
        load.load_records(tmp_path)
    (tmp_path / "nvidia-a100" / "warmup.json").unlink()
    store.write(record, tmp_path / record.device.slug / "method.json")
    with pytest.raises(store.RecordError, match="of warmup on nvidia-h200, misplaced"):
        load.load_records(tmp_path)
    (tmp_path / record.device.slug / "method.json").unlink()
    for folder in ("quick/nvidia-h200", "nvidia-h200/.old", "nvidia-h200/nvidia-h200"):
        # A second `cp -r` copies a folder into its first copy.
        assert not load.load_records(tmp_path)
        store.write(record, tmp_path / folder / "warmup.json")
    with pytest.raises(store.RecordError, match=r"h200/nvidia-h200/\S+ lies too deep:"):
        load.load_records(tmp_path)


def test_absent_metrics_show_not_measured():
    """Records of older code may lack metrics. A figure has no headline without them."""
    record = read_record("warmup")
    for row in record.rows:
        del row.metrics["forward_ms"]
    files, facts = everything.render_stem("warmup", [record])
    assert "<svg" not in files["table.md"] and "not measured" not in files["table.md"]
    assert facts["first_step"] == "not measured"


def test_rendering_errors_name_the_records(monkeypatch):
    """The error keeps its type, and a note names the record."""
    monkeypatch.setattr(warmup, "fragments", lambda records: 1 / 0)
    with pytest.raises(ZeroDivisionError) as raised:
        everything.render_stem("warmup", [read_record("warmup")])
    assert raised.value.__notes__ == ["while rendering nvidia-h200/warmup.json"]


ROUNDED = {x: x for x in ("24.95 ± 3.78 ms", "16,384 tokens")}
ROUNDED |= {"1.08502 to 1.45264, 0.51149 ms": "1.09 to 1.5, 0.51 ms"}
ROUNDED |= {"0.035 ms, 1.19 ms, 9.96 ms": "0.035 ms, 1.2 ms, 10 ms"}
ROUNDED["65.52 GiB"] = "66 GiB"


@pytest.mark.parametrize(("exact", "told"), ROUNDED.items())
def test_numbers_in_sentences_are_rounded(exact, told):
    assert markdown.round_numbers(exact) == told
