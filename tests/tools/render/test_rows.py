"""Test missing numbers, and how they are printed."""

import math

import pytest

from systems.records.record import Row
from tests.factories import make_record, make_row
from tools.render import rows
from tools.render.frame import frame
from tools.render.markdown import NOTHING_FITS, NOTHING_YET, add_caption, device_tabs
from tools.render.rows import MISSING, Missing, fmt, nanmax, nanmin, span

FULL = Missing("out of memory")


@pytest.mark.parametrize(
    "result",
    [1 / FULL, FULL / 2, 2 + FULL, FULL - 1, 3 * FULL, FULL**2, 2**FULL, -FULL]
    + [abs(FULL), round(FULL, 2), math.ceil(FULL), FULL / MISSING, FULL // 2],
)
def test_arithmetic_keeps_the_missing_reason(result):
    assert not result and fmt(result, "{:.2f} ms") == "out of memory"
    assert f"{result:,.3f}" == str(result) == "out of memory"
    assert not (result > 0 or result <= 0)


def test_ranges_ignore_missing_numbers_or_give_the_reason():
    assert (nanmin([3, FULL, 2]), nanmax([FULL, 3, 2])) == (2, 3)
    assert span([FULL, 2.0]) == "2.00" and span([FULL, 2.0, 1.0]) == "1.00 to 2.00"
    assert span([MISSING, FULL]) == fmt(nanmin([MISSING, FULL])) == "out of memory"
    assert nanmax(iter([FULL])) is FULL and "ran out" in rows.describe_range([FULL])
    assert span([MISSING]) == span([]) == fmt(nanmax([])) == "not measured"
    assert rows.describe_range([MISSING]) == "was not measured"


def test_table_lines_give_each_reason_once():
    rows = (
        make_row({"n": 1}, forward_ms=[1.0, 3.0], loss_ms=[1.0, 1.0], kept=7),
        Row({"n": 2}, "out_of_memory"),
        make_row({"n": 4}, forward_ms=[4.0]),
    )
    found = frame(make_record("end_to_end", *rows))
    # Samples of different phases are added pairwise.
    assert found[0].samples() == [2.0, 4.0] and not found[1]
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


def test_notice_tells_out_of_memory_from_not_measured():
    out = make_record("warmup", Row({"n": 1}, "out_of_memory", reason="CUDA"))
    assert device_tabs([out], lambda record: "") == NOTHING_FITS
    timed = make_record("warmup", make_row({"n": 1}, a_ms=[1.0]))
    assert device_tabs([timed], lambda record: "") == NOTHING_YET
    assert device_tabs([], lambda record: "table") == NOTHING_YET
    assert add_caption("A caption.", NOTHING_FITS) == NOTHING_FITS
