"""Rows as builders see them: a number, or the words for why there is none."""

import math

import pytest

from systems.records.record import Row
from tests.factories import make_record, make_row
from tools.render.frame import frame
from tools.render.markdown import (
    NOTHING_FITS,
    NOTHING_YET,
    captioned,
    columns,
    per_device,
)
from tools.render.rows import (
    MISSING,
    Missing,
    axis,
    least,
    most,
    ranges,
    say,
    span,
)

FULL = Missing("out of memory")


@pytest.fixture
def record():
    return make_record(
        "end_to_end",
        make_row({"n": 1}, forward_ms=[1.0, 3.0], loss_ms=[1.0, 1.0], kept=7),
        Row({"n": 2}, "out_of_memory"),
        make_row({"n": 4, "only": "here"}, forward_ms=[4.0]),
    )


@pytest.mark.parametrize(
    "result",
    [1 / FULL, FULL / 2, 2 + FULL, FULL - 1, 3 * FULL, FULL**2, 2**FULL, -FULL]
    + [abs(FULL), round(FULL, 2), math.ceil(FULL), FULL / MISSING, FULL // 2],
)
def test_what_is_computed_with_a_missing_number_is_missing_for_its_reason(result):
    assert not result and say(result, "{:.2f} ms") == "out of memory"
    assert f"{result:,.3f}" == str(result) == "out of memory"
    assert not (result > 0 or result <= 0)


def test_missing_numbers_are_not_counted():
    assert (least([3, FULL, 2]), most([FULL, 3, 2])) == (2, 3)
    assert say(least([FULL])) == "out of memory" and span([FULL, 2.0]) == "2.00"
    assert say(least([MISSING])) == "not measured"


def test_a_row_adds_phases_sample_by_sample(record):
    found = frame(record).one(n=1)
    assert found and (found.samples(), found.ms()) == ([2.0, 4.0], 3.0)
    assert found.ms("loss") == 1.0 and found.mean_std("loss") == "1.00 ± 0.00"


def test_a_row_without_numbers_says_why(record):
    full, absent = frame(record).one(n=2), frame(None).one(n=2)
    assert not full and not absent
    assert [say(x.ms(), "{:.1f}") for x in (full, absent)] == [
        "out of memory",
        "not measured",
    ]
    assert say(full["kept"]) == say(full.mean_std()) == "out of memory"
    other = frame(record).one(n=4)
    assert say(other.get("kept")) == say(other.ms("loss")) == "not measured"


def test_an_axis_is_what_the_record_has(record):
    assert (axis(record, "n"), axis(record, "only"), axis(None, "n")) == (
        [1, 2, 4],
        ["here"],
        [],
    )


def test_a_table_says_once_why_a_line_is_empty(record):
    found = frame(record)
    shown = found.table(
        "n",
        ("ms", lambda x: x.ms(), "{:.1f}"),
        ("kept", lambda x: x.get("kept")),
        ("over the next", lambda x: found.one(n=2 * x["n"]).ms() / x.ms()),
    )
    assert shown.splitlines()[2:] == [
        "| 1 | 3.0 | 7 |  |",
        "| 2 | out of memory |  |  |",
        "| 4 | 4.0 |  |  |",
    ]
    pairs = columns([1, 2], ("ms", lambda n: frame(record).one(n=n).ms(), "{:.1f}"))
    assert pairs.splitlines()[2:] == ["| 3.0 |", "| out of memory |"]


def test_where_all_ran_out_of_memory_no_sentence_says_that_nothing_was_measured():
    lost = Missing()
    assert span([lost, FULL]) == say(least([lost, FULL])) == "out of memory"
    assert most(iter([FULL])) is FULL and ranges([FULL]) == "ran out of memory"
    assert span([lost]) == span([]) == say(most([])) == "not measured"
    assert ranges([lost]) == "was not measured"
    assert span([FULL, 2.0, 1.0]) == "1.00 to 2.00"


def test_a_table_that_is_empty_for_want_of_memory_says_so():
    out = make_record("warmup", Row({"n": 1}, "out_of_memory", reason="CUDA"))
    assert per_device([out], lambda record: "") == NOTHING_FITS
    timed = make_record("warmup", make_row({"n": 1}, a_ms=[1.0]))
    assert per_device([timed], lambda record: "") == NOTHING_YET
    assert per_device([], lambda record: "table") == NOTHING_YET
    assert captioned("A caption.", NOTHING_FITS) == NOTHING_FITS
