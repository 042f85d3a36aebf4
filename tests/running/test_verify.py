"""Stale records are verified if rows measured again agree."""

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
from tools.render.load import VERIFIED, record_age


@pytest.fixture
def old_record(run, record_file) -> Record:
    run()
    record = store.read(record_file)
    record.source_hash = "older"
    store.write(record, record_file)
    return record


def test_verify_stamps_a_record(run, monkeypatch, old_record, record_file):
    def edit_code(config):
        monkeypatch.setattr(verify, "source_hash", lambda *_: "of edited code")
        return make_run()(config)

    monkeypatch.setattr(fake_stem, "run", edit_code)
    outcome = run(verify=True)
    assert outcome.code == 0 and outcome.measured == [6, 3, 1]
    old_record.verified_hashes = [source_hash("tests.fake_stem")]
    assert store.read(record_file) == old_record
    monkeypatch.setattr(verify, "source_hash", source_hash)
    assert run(verify=True).code == 0 and store.read(record_file) == old_record


def make_run(**metrics):
    return lambda config: (
        {"work_ms": [config.index * t for t in (1.0, 1.0, 1.5)], "count": config.index}
        | metrics
    )


def raise_oom(config):
    raise torch.OutOfMemoryError("CUDA out of memory. It is full.")


DIFFERENCES = {
    "work_ms (6, 6, 9, now 60, 60, 60)": make_run(work_ms=[60.0, 60.0, 60.0]),
    "count (6, now 9)": make_run(count=9),
    "work_ms (6, 6, 9, now None)": lambda config: {"count": config.index},
    "count (6, now triton_a, triton_b)": make_run(count=["triton_a", "triton_b"]),
    "count (6, now {'n': 1})": make_run(count=[{"n": 1}]),
    "work_ms (6, 6, 9, now None), count (6, now None)": raise_oom,
}


@pytest.mark.parametrize("named", DIFFERENCES)
def test_verify_rejects_other_rows(run, monkeypatch, old_record, record_file, named):
    monkeypatch.setattr(fake_stem, "run", DIFFERENCES[named])
    where = "fake differs at {'index': 6, 'sleep': 3}"
    assert run(verify=True).error == f"{where} in {named}: measure it again"
    assert store.read(record_file) == old_record


def test_verify_refuses_rows_without_samples(run, monkeypatch, old_record, record_file):
    monkeypatch.setattr(fake_stem, "run", make_run(work_ms=[]))
    _, row, end = run(verify=True).events
    assert row["reason"] == "ValueError: work_ms: has no samples"
    assert end["event"] == "error" and "work_ms (6, 6, 9, now None)" in end["message"]
    assert store.read(record_file) == old_record


def test_verify_measures_whole_groups(run, monkeypatch, old_record, record_file):
    monkeypatch.setattr(fake_stem, "IN_TURNS", "index", raising=False)
    outcome = run(verify=True)
    assert outcome.code == 0 and outcome.measured == [6, 5, 4, 3, 2, 1]

    def change_count(config):
        count = 9 if config.index == 2 else config.index
        return make_run(count=count)(config)

    monkeypatch.setattr(fake_stem, "run", change_count)
    old_record.source_hash = "older still"
    store.write(old_record, record_file)
    assert "count (2, now 9)" in run(verify=True).error


def test_verify_skips_first_start_metrics(run, monkeypatch, old_record):
    monkeypatch.setattr(fake_stem, "run", make_run(count=9))
    monkeypatch.setattr(fake_stem, "ONCE", ("cou",), raising=False)
    assert run(verify=True).code == 0


def test_verify_covers_attentions_without_numbers(run, monkeypatch, record_file):

    @dataclass(frozen=True)
    class Config:
        index: int
        attention: str

    def run_config(config):
        return make_run()(config) if config.attention == "eager" else raise_oom(0)

    rows = [Config(1, "eager"), Config(2, "flash")]
    monkeypatch.setattr(fake_stem, "configs", lambda quick=False: rows)
    monkeypatch.setattr(fake_stem, "run", run_config)
    run()
    record = store.read(record_file)
    assert [row.status for row in record.rows] == ["ok", "out_of_memory"]
    record.source_hash = "older"
    store.write(record, record_file)
    assert run(verify=True).code == 0
    assert record_age(store.read(record_file)) == VERIFIED


def test_verify_compares_gpu_times_if_any():
    """GPU times must agree within 3 %; the rows' wall-clock times are ignored."""
    old = make_row({}, forward_ms=[10.0], warmup_ms=[9.0], forward_gpu_ms=[8.0])
    slow = make_row({}, forward_ms=[99.0], warmup_ms=[1.0], forward_gpu_ms=[8.2])
    verify.require_agreement("end_to_end", old, slow, ())
    slow.metrics["forward_gpu_ms"] = [8.3]
    with pytest.raises(CannotStart, match="forward_gpu_ms .8, now 8.3."):
        verify.require_agreement("end_to_end", old, slow, ())


def test_verify_needs_a_record_with_rows(run, record_file):
    text = f"{record_file} does not exist: there is nothing to verify"
    assert run(verify=True).error.startswith(text)
    run()
    record = store.read(record_file)
    for row in record.rows:
        row.status, row.metrics, row.reason = "unsupported", {}, "no kernel"
    store.write(record, record_file)
    text = f"{record_file} has no row to measure again"
    assert run(verify=True).error.startswith(text)


GRIDS = {
    "7": "lacks a row of today's grid, {'index': 7, 'sleep': 3}",
    "5": "has a row that is not in today's grid, {'index': 6, 'sleep': 3}",
}


@pytest.mark.parametrize("rows", GRIDS)
def test_verify_rejects_other_grid(run, monkeypatch, old_record, record_file, rows):
    """Rows of the current grid that were never measured would count as verified."""
    monkeypatch.setenv("FAKE_ROWS", rows)
    outcome = run(verify=True)
    text = f"{record_file} {GRIDS[rows]}: measure it again by --only fake"
    assert outcome.error == text and outcome.measured == []
    assert store.read(record_file) == old_record


def test_verify_rejects_an_edited_record(run, old_record, record_file):
    text = record_file.read_text()
    record_file.write_text(text.replace("[6.0, 6.0", "[1.0, 6.0"))
    said = f"{record_file} was edited by hand: measure it again"
    assert run(verify=True).error == said


MEMORY, TENSORS = "peak_reserved_bytes", [{"dtype": "float32", "bytes": 8}]
ERROR, STEPS = "dq_relative_error", [0.0, None, 0.0025283]
KERNELS = [
    {"phase": "forward", "name": "gemm", "calls": 3, "total_ms": 1.0},
    {"phase": "loss", "name": "exp", "calls": 1, "total_ms": 0.9},
]
SLOWER = [KERNELS[1] | {"total_ms": 1.1}, KERNELS[0]]


@pytest.mark.parametrize(
    ("name", "old", "new", "same"),
    [
        ("a_ms", [10.0, 10.0], [10.4, 10.4], True),
        ("a_ms", [10.0, 10.0], [10.6, 10.6], False),
        ("a_ms", [10.0, 10.0], [9.4, 9.4], False),
        # Medians may differ by three times the larger p80 - p20, which is 0.6 here.
        ("a_ms", [10.0, 11.0], [12.0, 12.0], True),
        ("a_ms", [12.0, 12.0], [10.0, 11.0], True),
        ("a_ms", [10.0, 11.0], [12.5, 12.5], False),
        ("a_ms", [1.0], None, False),
        ("a_ms", 1.0, [1.0], False),
        ("count", 3, 4, False),
        # Other metrics must be equal.
        ("saved", TENSORS, [dict(TENSORS[0])], True),
        ("saved", TENSORS, [TENSORS[0] | {"bytes": 9}], False),
        ("forward_fused", ["triton_a"], ["triton_b"], False),
        # Kernels may have another order and other times.
        ("kernels", KERNELS, SLOWER, True),
        ("kernels", KERNELS, [KERNELS[0] | {"calls": 4}, KERNELS[1]], False),
        ("kernels", KERNELS, KERNELS[:1], False),
        # Reserved bytes may differ by 10 %.
        (MEMORY, 1000, 1100, True),
        (MEMORY, 1000, 900, True),
        (MEMORY, 1000, 1101, False),
        (MEMORY, 1000, None, False),
        ("peak_allocated_bytes", 9, 10, False),
        # Errors may differ by 1 %, because some kernels add in varying order; lists
        # have errors of single operations, which must be equal.
        (ERROR, 0.0025283, 0.0025284, True),
        (ERROR, 0.0, 0.0, True),
        (ERROR, 0.0025283, 0.00256, False),
        (ERROR, 0.0, 0.0025283, False),
        (ERROR, None, 0.0025283, False),
        ("mean_error", STEPS, list(STEPS), True),
        ("mean_error", STEPS, [0.0, None, 1.001 * 0.0025283], False),
    ],
)
def test_metrics_agree_within_tolerances(name, old, new, same):
    assert verify.metrics_agree(name, old, new) == same
