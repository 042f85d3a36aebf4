"""Test that records depend on software and on tuned launch configurations."""

import json

import pytest

from systems.attention.triton import tuned
from systems.attention.triton.available import describe_by_capability
from systems.experiments import STEMS, accumulation, flash_peers
from systems.records.device import CPU
from systems.records.source_hash import source_hash
from systems.running import software
from systems.running.resuming import new_record, why_not_resumable
from tests.factories import make_gpu, make_record
from tools.render import load
from tools.render.markdown import conditions

A100 = make_gpu("NVIDIA A100-SXM4-80GB", capability="8.0")


@pytest.fixture
def write_tuned(monkeypatch, tmp_path):
    monkeypatch.setattr(tuned, "FOLDER", tmp_path)
    tuned.configs.cache_clear()
    entry = {"arithmetic": "half", "kernel": "dq", "d": 64, "causal": True}
    config = [64, 64, 4, 2, None, False, ""]
    found = {
        "software": {"triton": "3.7.1"},
        "source_hash": tuned.kernels_hash(),
        "measured_utc": "2026-01-01 00:00",
        "entries": [entry | {"config": config}],
    }
    tuned.file_path(A100.slug).write_text(json.dumps(found))
    yield tuned.file_path(A100.slug)
    tuned.configs.cache_clear()


def versions(stem: str, slug: str = A100.slug, triton: str = "3.7.1") -> dict[str, str]:
    return software.tuning_digest(STEMS[stem].module, [], slug, triton)


def test_tuned_configs_are_versions_where_used(write_tuned):
    digest = tuned.config_digest(A100.slug, "3.7.1")
    assert digest and versions("flash_peers") == {software.TUNED: f"tuned {digest}"}
    assert versions("accumulation") == {}
    assert versions("flash_peers", slug="nvidia-h200") == {}
    assert versions("flash_peers", triton="3.8.0") == {}


def test_record_describes_the_kernels_of_its_gpu(write_tuned, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(software.metadata, "version", lambda name: "3.7.1")
    status = software.kernel_status(A100)
    assert status == describe_by_capability((8, 0), "3.7.1", timed=1)
    assert "1 of them timed here" in status["triton"]
    made = new_record("flash_peers", A100, "full", [], {})
    assert made.kernels == status
    assert new_record("warmup", A100, "full", [], {}).kernels == {}
    assert new_record("flash_peers", CPU, "quick", [], {}).kernels == {}
    shown = conditions([made])
    for name, words in status.items():
        assert f"attention by {name}: {words}" in shown
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "the interpreter" in software.kernel_status(A100)["triton"]
    monkeypatch.setattr(software, "find_missing", lambda *_: "no Triton here")
    assert software.kernel_status(A100) == {"hopper, triton": "no Triton here"}
    assert software.kernel_status(make_gpu()) == {}, "the driver tells no capability"


def test_changed_tuned_configs_make_a_record_stale(write_tuned):
    record = make_record(
        "flash_peers",
        device=A100,
        software={"triton": "3.7.1"} | versions("flash_peers"),
        source_hash=source_hash(STEMS["flash_peers"].module),
    )
    assert load.is_fresh(record)
    found = tuned.read(write_tuned)
    # Tune again with equal results, with other results, and with other kernels, for
    # which the file is unused.
    for change, fresh in (
        ({"measured_utc": "2026-01-02 00:00"}, True),
        ({"entries": [found["entries"][0] | {"d": 32}]}, False),
        ({"source_hash": "other"}, False),
    ):
        write_tuned.write_text(json.dumps(found | change))
        tuned.configs.cache_clear()
        assert load.is_fresh(record) == fresh
    assert tuned.config_digest(A100.slug, "3.7.1") is None
    write_tuned.unlink()
    tuned.configs.cache_clear()
    assert not load.is_fresh(record)
    del record.software[software.TUNED]
    assert load.is_fresh(record)


@pytest.mark.parametrize(
    ("configs", "count"),
    [
        ([flash_peers.Config("ours"), flash_peers.Config("fa4_ordered")], True),
        ([flash_peers.Config("ours")], False),
        ([accumulation.Config()], False),
    ],
)
def test_library_versions_count_where_used(configs, count):
    """A record without rows of FlashAttention-4 stays fresh if its version changes."""
    found = {"torch": "2.11.0", software.PEER: "4.0"}
    expected = found if count else {"torch": "2.11.0"}
    assert software.drop_unused_peer(found, configs) == expected
    old, new = (make_record("fake", software=dict(found)) for _ in range(2))
    del new.software[software.PEER]
    assert (why_not_resumable(old, new, configs) is not None) == count
