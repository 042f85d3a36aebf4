"""Records that time the same cell and differ are named, and those alone."""

import pytest

from systems.records.host import SLOW
from tests.factories import RESULTS, make_gpu, make_record, make_row
from tools.checks import same_cell
from tools.checks.same_cell import compare
from tools.render import load

H200 = make_gpu("NVIDIA H200")
CELL = {"size": "medium", "context": 128, "batch": 4, "warmup": 5}
STEP = {**CELL, "mode": "step", "precision": "fp32"}


def times(forward=17.0, backward=35.0, optimizer=10.0):
    return {
        "forward_ms": [0.9 * forward, forward, 2 * forward],
        "backward_ms": [backward] * 3,
        "optimizer_ms": [optimizer] * 3,
    }


def found(*records):
    return {record.stem: [record] for record in records}


def clock(**changed):
    row = make_row({**STEP, "attention": "eager"}, **times(**changed))
    return make_record("end_to_end", row, device=H200)


def profile(**changed):
    row = make_row({**STEP, "profiler": "auto"}, **times(**changed))
    return make_record("kernel_profile", row, device=H200)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Whether records are, by stem."""
    stale: set[str] = set()
    monkeypatch.setattr(same_cell, "is_fresh", lambda record: record.stem not in stale)
    return stale


def test_times_within_a_tenth_are_the_same():
    assert compare(found(clock(), profile(forward=18.6, backward=32.0))) == ([], [])


def test_a_time_beyond_a_tenth_is_an_error_that_names_the_slower_record():
    errors, warnings = compare(found(clock(), profile(forward=40.1, backward=39.0)))
    assert warnings == []
    assert errors == [
        "nvidia-h200: end_to_end and kernel_profile differ by more than a tenth in 2 "
        "of 3 times of the same cell, most in forward of medium 128 4 fp32 step eager: "
        "40.1 ms in kernel_profile, 17.0 in the other; measure it again by "
        "`regen_tables.py --again kernel_profile`"
    ]


def test_the_slower_row_is_the_one_to_measure_again(fresh):
    """Of either record, by whichever phase."""
    records = found(clock(backward=44.0), profile(forward=40.1))
    for stem in ("end_to_end", "kernel_profile"):
        (row,) = same_cell.slower_rows(records, stem)
        assert row is records[stem][0].rows[0]
    assert same_cell.slower_rows(found(clock(), profile(forward=18.6)), "warmup") == []
    fresh.add("end_to_end")
    assert same_cell.slower_rows(records, "kernel_profile") == []


def test_while_one_of_them_is_stale_it_is_a_warning(fresh):
    fresh.add("end_to_end")
    errors, warnings = compare(found(clock(), profile(forward=40.1)))
    assert errors == [] and len(warnings) == 1
    assert "`regen_tables.py --only kernel_profile --force`" in warnings[0]


def test_what_configurations_leave_unsaid_is_known():
    bf16 = make_row(
        {**STEP, "precision": "bf16", "attention": "eager"}, **times(forward=30.0)
    )
    clocks = make_record("end_to_end", *clock().rows, bf16, device=H200)
    compiled = make_row(
        {**CELL, "precision": "fp32", "execution": "compiled"}, **times(forward=9.0)
    )
    eager = make_row(
        {**CELL, "precision": "fp32", "execution": "eager"}, **times(forward=24.0)
    )
    attention = make_row({**CELL, "attention": "eager"}, **times(forward=40.0))
    flash = make_row({**CELL, "attention": "ours"}, **times(forward=4.0))
    cold = make_row({**CELL, "warmup": 0}, **times(forward=900.0))
    warm = make_row(CELL, **times(forward=17.5))
    errors, _ = compare(
        found(
            clocks,
            make_record("compile", eager, compiled, device=H200),
            make_record("model_attention", attention, flash, device=H200),
            make_record("warmup", cold, warm, device=H200),
        )
    )
    assert [line.split(" differ")[0] for line in errors] == [
        "nvidia-h200: end_to_end and compile",
        "nvidia-h200: end_to_end and model_attention",
        "nvidia-h200: warmup and compile",
    ]


def test_other_gpus_other_phases_and_rows_without_numbers_are_not_compared():
    other = profile(forward=40.1)
    other.device = make_gpu("NVIDIA A100")
    assert compare(found(clock(), other)) == ([], [])
    gone = profile(forward=40.1)
    gone.rows[0].status, gone.rows[0].metrics = "out_of_memory", {}
    assert compare(found(clock(), gone)) == ([], [])
    fewer = profile(optimizer=99.0)
    del fewer.rows[0].metrics["optimizer_ms"]
    assert compare(found(clock(), fewer)) == ([], [])
    reported = profile(forward=40.1)
    reported.kind = "reported"
    assert compare(found(clock(), reported)) == ([], [])


def test_a_time_that_a_slow_host_may_have_lengthened_is_said_already():
    """And its other times are compared, however slow the host was."""
    slow = profile(forward=40.1)
    slow.rows[0].slowdown = SLOW + 0.1
    slow.rows[0].own = {"forward": 17.0, "backward": 35.0, "optimizer": 10.0}
    assert compare(found(clock(), slow)) == ([], [])
    slow.rows[0].metrics["backward_ms"] = slow.rows[0].metrics["forward_ms"]
    slow.rows[0].own["backward"] = 40.1
    errors, _ = compare(found(clock(), slow))
    assert "in 1 of 2 times of the same cell, most in backward" in errors[0]


def test_the_records_of_this_guide_have_cells_in_common():
    records = load.load(RESULTS)
    one, *others = same_cell.timed(records)
    # Whichever host measured them: what a slow one did isn't compared, but has a cell.
    mine = same_cell.cells(one).keys()
    common = {other.stem: len(mine & same_cell.cells(other).keys()) for other in others}
    assert min(common.values()) > 0, common
