"""Records with unsteady rows are named, and too many of such rows are an error."""

import pytest

from tests.factories import make_gpu, make_record, make_row
from tools.checks import steadiness

GPU = make_gpu("NVIDIA H200")


def record(stem: str, unsteady: int, rows: int = 100, gpu=GPU):
    found = make_record(
        stem, *(make_row({"i": i}, work_ms=[1.0]) for i in range(rows)), device=gpu
    )
    for row in found.rows[:unsteady]:
        row.unsteady, row.slowdown = True, 1.9
    return found


@pytest.fixture(autouse=True)
def stale(monkeypatch):
    """The stems whose records are stale."""
    stems: set[str] = set()
    fresh = lambda record: record.stem not in stems  # noqa: E731
    monkeypatch.setattr(steadiness, "is_fresh", fresh)
    return stems


def judge(*records):
    return steadiness.judge({each.stem: [each] for each in records})


def test_a_few_rows_are_a_warning_that_names_the_record():
    errors, warnings = judge(record("warmup", 6), record("nsys", 0))
    assert errors == [] and warnings == [
        "nvidia-h200/warmup.json: unsteady are 6 of 100 rows, on a host that took up "
        "to 1.9 times as long as usual; measure again by `regen_tables.py --again "
        "warmup`"
    ]


def test_more_than_three_percent_of_all_rows_are_an_error():
    errors, warnings = judge(record("warmup", 7), record("nsys", 0))
    assert len(warnings) == 1 and errors == [
        "7 of 200 rows of today's code are unsteady, more than 3 %; the warnings name "
        "their records"
    ]


def test_rows_of_an_older_code_or_of_another_gpu_are_a_warning_alone(stale):
    stale.add("warmup")
    elsewhere = record("nsys", 100, gpu=make_gpu("NVIDIA A100"))
    errors, warnings = judge(record("warmup", 100), elsewhere, record("method", 1))
    assert errors == [] and len(warnings) == 3
    # What is stale is measured anew, all of it.
    assert warnings[0].endswith("`regen_tables.py --only warmup --force`")
