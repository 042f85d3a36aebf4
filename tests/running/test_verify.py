"""A stale record is fresh again where rows measured again agree, and only there."""

from dataclasses import dataclass

import pytest
import torch

from systems.records import store
from systems.records.record import Record
from systems.records.source_hash import source_hash
from systems.running import verify
from systems.running.reports import CannotStart
from tests import fake_stem
from tests.factories import make_row
from tools.render.load import VERIFIED, age


@pytest.fixture
def stale(run, record_file) -> Record:
    run()
    record = store.read(record_file)
    record.source_hash = "older"
    store.write(record, record_file)
    return record


def test_verify_stamps_a_stale_record_whose_rows_agree(run, stale, record_file):
    outcome = run(verify=True)
    assert outcome.code == 0 and outcome.measured == [6, 3, 1]
    stale.verified_hashes = [source_hash("tests.fake_stem")]
    assert store.read(record_file) == stale
    assert run(verify=True).code == 0 and store.read(record_file) == stale


def differs(**metrics):
    return lambda config: (
        {"work_ms": [config.index * t for t in (1.0, 1.0, 1.5)], "count": config.index}
        | metrics
    )


def out_of_memory(config):
    raise torch.OutOfMemoryError("CUDA out of memory. It is full.")


DIFFERENCES = {
    "time": (differs(work_ms=[60.0, 60.0, 60.0]), "work_ms (median 6, now median 60)"),
    "count": (differs(count=9), "count (6, now 9)"),
    "metric gone": (
        lambda config: {"count": config.index},
        "work_ms (median 6, now None)",
    ),
    "names": (
        differs(count=["triton_a", "triton_b"]),
        "count (6, now ['triton_a', 'triton_b'])",
    ),
    "table": (
        lambda config: differs()(config) | {"count": [{"n": 1}]},
        "count (6, now 1 entries)",
    ),
    "status": (out_of_memory, "work_ms (median 6, now None), count (6, now None)"),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_verify_refuses_a_record_whose_rows_differ(
    run, monkeypatch, stale, record_file, difference
):
    replaced, named = DIFFERENCES[difference]
    monkeypatch.setattr(fake_stem, "run", replaced)
    where = "fake differs at {'index': 6, 'sleep': 3}"
    assert run(verify=True).error == f"{where} in {named}: measure it again"
    assert store.read(record_file) == stale


def test_verify_refuses_rows_without_samples(run, monkeypatch, stale, record_file):
    monkeypatch.setattr(fake_stem, "run", differs(work_ms=[]))
    _, row, end = run(verify=True).events
    assert row["reason"] == "ValueError: work_ms: has no samples"
    assert end["event"] == "error" and "work_ms (median 6, now None)" in end["message"]
    assert store.read(record_file) == stale


def test_rows_in_turns_are_measured_again_together(
    run, monkeypatch, stale, record_file
):
    """All of each group: a kernel is compared with what ran beside it."""
    monkeypatch.setattr(fake_stem, "IN_TURNS", "index", raising=False)
    outcome = run(verify=True)
    assert outcome.code == 0 and outcome.measured == [6, 5, 4, 3, 2, 1]
    monkeypatch.setattr(
        fake_stem,
        "run",
        lambda c: differs()(c) | {"count": 9 if c.index == 2 else c.index},
    )
    stale.source_hash = "older still"
    store.write(stale, record_file)
    assert "count (2, now 9)" in run(verify=True).error


def test_what_only_a_first_start_tells_is_not_compared(run, monkeypatch, stale):
    monkeypatch.setattr(fake_stem, "run", differs(count=9))
    monkeypatch.setattr(fake_stem, "ONCE", ("cou",), raising=False)
    assert run(verify=True).code == 0


def test_an_attention_without_any_numbers_counts_with_the_others(
    run, monkeypatch, record_file
):
    """A record is as old as the code of all its rows, also of those out of memory."""

    @dataclass(frozen=True)
    class Config:
        index: int
        attention: str

    def run_config(config):
        return differs()(config) if config.attention == "eager" else out_of_memory(0)

    rows = [Config(1, "eager"), Config(2, "flash")]
    monkeypatch.setattr(fake_stem, "configs", lambda quick=False: rows)
    monkeypatch.setattr(fake_stem, "run", run_config)
    run()
    record = store.read(record_file)
    assert [row.status for row in record.rows] == ["ok", "out_of_memory"]
    record.source_hash = "older"
    store.write(record, record_file)
    assert run(verify=True).code == 0
    assert age(store.read(record_file)) == VERIFIED


@pytest.mark.parametrize(
    "old, new, same",
    [
        ([10.0, 10.0], [10.4, 10.4], True),
        ([10.0, 10.0], [10.6, 10.6], False),
        ([10.0, 10.0], [9.4, 9.4], False),
        # Noise of three times the spread is allowed, whichever run was the noisier: p80
        # - p20 is 0.6 of 1.
        ([10.0, 11.0], [12.0, 12.0], True),
        ([12.0, 12.0], [10.0, 11.0], True),
        ([10.0, 11.0], [12.5, 12.5], False),
        (3, 3, True),
        (3, 4, False),
        ([1.0], None, False),
        (1.0, [1.0], False),
    ],
)
def test_agreement_is_within_noise(old, new, same):
    assert verify.agrees("forward_ms", old, new) == same


def test_gpu_times_are_compared_where_a_row_has_them():
    """Within 3 %; what the host decides is not."""
    old = make_row({}, forward_ms=[10.0], warmup_ms=[9.0], forward_gpu_ms=[8.0])
    slow = make_row({}, forward_ms=[99.0], warmup_ms=[1.0], forward_gpu_ms=[8.2])
    verify.compare("end_to_end", old, slow, ())
    slow.metrics["forward_gpu_ms"] = [8.3]
    with pytest.raises(CannotStart, match="forward_gpu_ms .median 8, now median 8.3."):
        verify.compare("end_to_end", old, slow, ())


def test_what_is_no_time_must_be_the_same():
    old = [{"dtype": "float32", "bytes": 8}]
    assert verify.agrees("saved", old, [dict(old[0])]) and not verify.agrees(
        "saved", old, [old[0] | {"bytes": 9}]
    )
    assert not verify.agrees("forward_fused", ["triton_a"], ["triton_b"])


def test_reserved_memory_may_differ_by_a_tenth():
    assert verify.agrees("peak_reserved_bytes", 1000, 1100) and verify.agrees(
        "peak_reserved_bytes", 1000, 900
    )
    assert not verify.agrees("peak_reserved_bytes", 1000, 1101) and not verify.agrees(
        "peak_allocated_bytes", 9, 10
    )
    assert not verify.agrees("peak_reserved_bytes", 1000, None)


def test_an_error_may_differ_by_a_hundredth():
    """As the gradients of a kernel do that adds in another order each time."""
    name, old = "dq_relative_error", 0.0025283
    assert verify.agrees(name, old, 0.0025284) and verify.agrees(name, 0.0, 0.0)
    assert not verify.agrees(name, old, 0.00256) and not verify.agrees(name, 0.0, old)
    assert not verify.agrees(name, old, None) and not verify.agrees(name, None, old)
    # A list of errors is one of single operations, which repeat.
    steps = [0.0, None, old]
    assert verify.agrees("mean_error", steps, list(steps))
    assert not verify.agrees("mean_error", steps, [0.0, None, 1.001 * old])


def test_verify_needs_a_record_with_rows(run, record_file):
    assert run(verify=True).error.startswith(
        f"{record_file} does not exist: there is nothing to verify"
    )
    run()
    record = store.read(record_file)
    for row in record.rows:
        row.status, row.metrics, row.reason = "unsupported", {}, "no kernel"
    store.write(record, record_file)
    assert run(verify=True).error.startswith(
        f"{record_file} has no row to measure again"
    )


@pytest.mark.parametrize("rows", [7, 5])
def test_a_record_of_another_grid_is_not_verified(
    run, monkeypatch, stale, record_file, rows
):
    """Rows that were never measured would count as measured by today's code."""
    monkeypatch.setenv("FAKE_ROWS", str(rows))
    said = {
        7: "lacks a row of today's grid, {'index': 7, 'sleep': 3}",
        5: "has a row that is not in today's grid, {'index': 6, 'sleep': 3}",
    }
    outcome = run(verify=True)
    assert outcome.error == (
        f"{record_file} {said[rows]}: measure it again by --only fake"
    )
    assert outcome.measured == [] and store.read(record_file) == stale


def test_an_edited_record_is_never_verified(run, stale, record_file):
    text = record_file.read_text()
    record_file.write_text(text.replace("[6.0, 6.0", "[1.0, 6.0"))
    assert (
        run(verify=True).error == f"{record_file} was edited by hand: measure it again"
    )
