"""Test frames (tables of rows) and missing numbers: select, join, derive, print."""

import math

import pytest

from systems.records.record import Row
from tests.factories import make_record, make_row
from tools.render import rows
from tools.render.frame import Frame, frame, gpu_columns
from tools.render.markdown import NOTHING_FITS, NOTHING_YET, add_caption, device_tabs
from tools.render.rows import MISSING, Missing, dropna, fmt, nanmax, nanmin, span

FULL = Row({"size": "2.7B", "mode": "step", "precision": "bf16"}, "out_of_memory")


def row(size: str, mode: str, precision: str, *forward_ms: float, **metrics) -> Row:
    config = {"size": size, "mode": mode, "precision": precision}
    return make_row(config, forward_ms=[*forward_ms], **metrics)


@pytest.fixture
def small_frame() -> Frame:
    return frame(
        make_record(
            "end_to_end",
            row("small", "step", "bf16", 1.0, 3.0, backward_ms=[2.0, 2.0], bytes=8),
            row("small", "forward", "bf16", 1.0, 1.0, bytes=2),
            row("2.7B", "step", "fp32", 8.0, 8.0, backward_ms=[16.0, 16.0], bytes=64),
            row("small", "step", "fp32", 4.0, 4.0, backward_ms=[8.0, 8.0], bytes=16),
            FULL,
        )
    )


def test_columns_are_medians_and_sums_of_phases(small_frame):
    x = small_frame.one(size="small", mode="step", precision="bf16")
    assert (x["forward_ms"], x["step_ms"], x["bytes"]) == (2.0, 4.0, 8)
    assert (x["step ±"], x["backward ±"]) == ("4.00 ± 1.41", "2.00 ± 0.00")
    assert x.summary("forward").max == 3.0
    rows = (make_row({}, step_ms=samples) for samples in ([5.0, 7.0], [5.0]))
    own, once = frame(make_record("mixed_precision", *rows))
    assert (own["step_ms"], own["step ±"], once["step ±"]) == (6, "6.00 ± 1.41", "5.00")


def test_rows_are_selected_and_sorted(small_frame):
    assert small_frame.where(mode="forward").column("bytes") == [2]
    assert len(small_frame.where(bool, size=("small", "2.7B"))) == 4
    steps = small_frame.where(mode="step")
    ordered = steps.arrange(size=["small", "2.7B"], precision=["fp32"])
    assert ordered.column("bytes") == [16, 64]
    assert frame(None) == [] and not frame(None).one(size="small")


def test_missing_numbers_have_reasons_and_misspelt_columns_raise(small_frame):
    full, absent = small_frame.one(**FULL.config), small_frame.one(size="xl")
    assert f"{full['bytes']}, {absent['bytes']}" == "out of memory, not measured"
    assert str(full["forward ±"]) == str(full["step_ms"] / 2) == "out of memory"
    for name in ("bites", "loss_ms"):
        with pytest.raises(KeyError, match=name):
            small_frame[0][name]
    assert str(small_frame[0].get("loss_ms")) == "not measured"
    assert (small_frame[0].get("at_once", 1), full.get("at_once", 1)) == (1, 1)


def test_rows_are_joined_by_columns(small_frame):
    steps = small_frame.where(mode="step").join("fp32", precision="fp32")
    steps.derive(gain=lambda x: x["fp32"]["step_ms"] / x["step_ms"])
    assert dropna(steps.column("gain")) == [3.0, 1.0, 1.0]
    assert span(steps.where(size="2.7B").column("gain")) == "1.00"
    # Join rows of another frame that agree in these columns.
    steps.join("pass", small_frame.where(mode="forward"), on=["size"])
    assert [x["pass"].get("bytes", 0) for x in steps] == [2, 0, 2, 0]


def test_pivot_turns_an_axis_into_columns(small_frame):
    modes = small_frame.where(precision="bf16").pivot("mode", "forward", "step")
    reasons = [(x["size"], x["step"].reason) for x in modes]
    assert reasons == [("small", ""), ("2.7B", "out of memory")]
    shown = modes.table("size", ("forward", "forward.bytes"), ("step", "step.bytes"))
    assert shown == (
        "| size | forward | step |\n"
        "| :--- | ---: | ---: |\n"
        "| small | 2 | 8 |\n"
        "| 2.7B |  | out of memory |"
    )


def test_gpu_columns_name_launch_bound_rows():
    gpu = {"forward_gpu_ms": [2.0], "backward_gpu_ms": [1.5]}
    wall = {"forward_ms": [3.0], "backward_ms": [2.0]}
    rows = make_row({"n": 1}, **wall, **gpu), make_row({"n": 2}, **wall)
    columns = ("step, ms", "step_ms"), *gpu_columns()
    shown = frame(make_record("end_to_end", *rows)).table("n", *columns)
    assert shown.splitlines()[2:] == [
        "| 1 | 5.0 | 3.5 | 1.5 | launch-bound |",
        "| 2 | 5.0 | not measured | not measured |  |",
    ]
    shown = frame(make_record("end_to_end", rows[1])).table("n", *columns)
    assert "waiting" in shown and "step is" not in shown  # Drop an empty column.


LACK = Missing("out of memory")


@pytest.mark.parametrize(
    "result",
    [1 / LACK, LACK / 2, 2 + LACK, LACK - 1, 3 * LACK, LACK**2, 2**LACK, -LACK]
    + [abs(LACK), round(LACK, 2), math.ceil(LACK), LACK / MISSING, LACK // 2],
)
def test_arithmetic_keeps_the_missing_reason(result):
    assert not result and fmt(result, "{:.2f} ms") == "out of memory"
    assert f"{result:,.3f}" == str(result) == "out of memory"
    assert not (result > 0 or result <= 0)


def test_ranges_ignore_missing_numbers_or_give_the_reason():
    assert (nanmin([3, LACK, 2]), nanmax([LACK, 3, math.nan])) == (2, 3)
    assert span([LACK, 2.0]) == "2.00" and span([LACK, 2.0, 1.0]) == "1.00 to 2.00"
    assert span([MISSING, LACK]) == fmt(nanmin([MISSING, LACK])) == "out of memory"
    assert nanmax(iter([LACK])) is LACK and "ran out" in rows.describe_range([LACK])
    assert span([MISSING]) == span([]) == fmt(nanmax([])) == "not measured"
    assert rows.describe_range([MISSING]) == "was not measured"


def test_table_lines_give_each_reason_once():
    rows = (
        make_row({"n": 1}, forward_ms=[1.0, 3.0], loss_ms=[1.0, 1.0], kept=7),
        Row({"n": 2}, "out_of_memory"),
        make_row({"n": 4}, forward_ms=[4.0]),
        make_row({"n": 8}, forward_ms=[8.0]),
    )
    found = frame(make_record("end_to_end", *rows))
    # Samples of different phases are added pairwise.
    assert found[0].samples() == [2.0, 4.0] and not found[1]
    shown = found.table(
        "n",
        ("ms", lambda x: x.ms(), "{:.1f}"),
        ("kept", lambda x: x.get("kept")),
        ("over the next", lambda x: found.one(n=2 * x["n"]).ms() / x.ms(), "{:.1f}"),
    )
    assert shown.splitlines()[2:] == [
        "| 1 | 3.0 | 7 |  |",
        "| 2 | out of memory |  |  |",
        "| 4 | 4.0 |  | 2.0 |",
        "| 8 | 8.0 |  |  |",
    ]


def test_notice_tells_out_of_memory_from_not_measured():
    out = make_record("warmup", Row({"n": 1}, "out_of_memory", reason="CUDA"))
    assert device_tabs([out], lambda record: "") == NOTHING_FITS
    timed = make_record("warmup", make_row({"n": 1}, a_ms=[1.0]))
    assert device_tabs([timed], lambda record: "") == NOTHING_YET
    assert device_tabs([], lambda record: "table") == NOTHING_YET
    assert add_caption("A caption.", NOTHING_FITS) == NOTHING_FITS
