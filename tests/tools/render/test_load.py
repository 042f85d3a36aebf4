"""Test the primary GPU that mkdocs.yml names, and which records are read."""

import json
import re

import pytest

from systems.experiments import STEMS
from systems.records import store
from systems.records.source_hash import source_hash
from systems.records.store import RecordError
from tests.factories import make_gpu, make_record, read_record
from tools import regen_tables
from tools.render import load


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


INVALID = "primary_gpu:", "primary_gpu: [a]", "primary: a", "primary_gpu: a\n  " * 2


@pytest.mark.parametrize("text", INVALID)
def test_invalid_primary_gpu_is_rejected(read_primary, text):
    with pytest.raises(RecordError, match=r"mkdocs.yml: extra.primary_gpu must name"):
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
    read_primary("primary_gpu: a-gpu")
    assert len(load.load_records(tmp_path / "results")["warmup"]) == 2


def test_record_of_other_code_is_stale():
    record = read_record("warmup")
    record.source_hash = source_hash(STEMS["warmup"].module, ["eager"])
    assert load.is_fresh(record)
    record.source_hash = "of before"
    assert not load.is_fresh(record)


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
