"""Which GPU's numbers stand in sentences, by mkdocs.yml; which records are read."""

import pytest
from msgspec.structs import replace

from systems.experiments import STEMS
from systems.records import store
from systems.records.source_hash import source_hash
from systems.records.store import RecordError
from tests.factories import committed, make_gpu, make_record
from tools.render import load


@pytest.fixture
def primary(monkeypatch, tmp_path):
    """What is read of this text under `extra` of mkdocs.yml."""
    monkeypatch.setattr(load, "ROOT", tmp_path)

    def read(text: str) -> str:
        tag = "slugify: !!python/object/apply:os.system [exit]"
        (tmp_path / "mkdocs.yml").write_text(f"{tag}\nextra:\n  {text}\n  other: 1\n")
        return load.primary_gpu()

    return read


@pytest.mark.parametrize(
    "text", ["a-gpu", '"a-gpu"', "'a-gpu'", "a-gpu  # ours", "\n    a-gpu"]
)
def test_primary_gpu_is_read_as_yaml(primary, text):
    assert primary(f"primary_gpu: {text}") == "a-gpu"


@pytest.mark.parametrize(
    "text", ["primary_gpu:", "primary_gpu: [a]", "primary_gpu: 3", "primary: a-gpu"]
)
def test_a_primary_gpu_that_is_no_name_is_refused(primary, text):
    with pytest.raises(RecordError, match=r"mkdocs.yml: extra.primary_gpu must name"):
        primary(text)


def test_a_primary_gpu_without_records_is_refused_by_those_that_there_are(
    primary, tmp_path
):
    primary("primary_gpu: A-GPU")
    reported = make_record("warmup", device=make_gpu("Theirs"))
    reported.kind, reported.source = "reported", "a paper"
    measured = make_record("warmup", device=make_gpu("A GPU"))
    for record in (reported, measured):
        store.write(record, tmp_path / "results" / record.device.slug / "warmup.json")
    with pytest.raises(RecordError, match=r"'A-GPU', and no .*; there are: a-gpu$"):
        load.load(tmp_path / "results")
    primary("primary_gpu: a-gpu")
    assert len(load.load(tmp_path / "results")["warmup"]) == 2


def test_before_anything_was_measured_any_gpu_may_be_named(primary, tmp_path):
    primary("primary_gpu: later")
    assert load.load(tmp_path / "results") == {}


def test_a_record_verified_by_todays_source_is_neither_fresh_nor_stale():
    record = committed("warmup")
    present = source_hash(STEMS["warmup"].module, ["eager"])
    for measured, verified, age in (
        (present, [], "fresh"),
        (present, ["x"], "fresh"),
        ("of before", ["x", present], "verified"),
        ("of before", ["x"], "stale"),
    ):
        record.source_hash, record.verified_hashes = measured, verified
        assert load.age(record) == age
        assert load.is_fresh(record) == (age != "stale")


def test_only_a_stale_record_may_have_other_fields_than_todays(tmp_path):
    record = committed("warmup")
    path = tmp_path / record.device.slug / "warmup.json"
    for row in record.rows:
        del row.config["context"]
    record.source_hash, record.verified_hashes = "of before", []
    store.write(record, path)
    assert len(load.read(path).rows) == len(record.rows)
    record.source_hash = source_hash(STEMS["warmup"].module, ["eager"])
    store.write(record, path)
    with pytest.raises(RecordError, match=r"rows\[0\].config: 'context' is missing"):
        load.read(path)
    # A field that went since then.
    record.rows = [
        replace(row, config=row.config | {"colour": 1, "context": 128})
        for row in record.rows
    ]
    store.write(record, path)
    with pytest.raises(RecordError, match=r"'colour' is no field of it"):
        load.read(path)
    record.source_hash = "of before"
    store.write(record, path)
    assert len(load.read(path).rows) == len(record.rows)
    record.rows[0].config["context"] = "long"
    store.write(record, path)
    with pytest.raises(RecordError, match=r"config.context: is 'long', not int"):
        load.read(path)
