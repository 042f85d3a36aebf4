"""What measuring everything takes is said where it is too much."""

import pytest

from tests.factories import make_gpu, make_record, make_row
from tools.checks import durations
from tools.render.spanning import durations as table

GPU = make_gpu("NVIDIA H200")


def judge(monkeypatch, minutes: float, stale: bool = False, gpu=GPU):
    monkeypatch.setattr(table, "is_fresh", lambda record: not stale)
    rows = [make_row({"i": i}, work_ms=[1.0]) for i in range(4)]
    for row in rows:
        row.seconds = minutes * 60 / 8
    records = [make_record(stem, *rows, device=gpu) for stem in ("nsys", "compile")]
    return durations.judge({r.stem: [r] for r in records})


def test_more_than_75_minutes_are_told(monkeypatch):
    assert judge(monkeypatch, 74.9) == []
    assert judge(monkeypatch, 80) == [
        "measuring everything took 80.0 minutes by today's code, more than 75.0; see "
        "docs/method.md"
    ]


@pytest.mark.parametrize(
    "how", [{"stale": True}, {"gpu": make_gpu("NVIDIA A100")}], ids=str
)
def test_but_not_of_an_older_code_or_another_gpu(monkeypatch, how):
    assert judge(monkeypatch, 80, **how) == []
