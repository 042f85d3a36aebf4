"""How long measuring takes: every experiment is listed."""

import copy

from tests.factories import RESULTS
from tools.render import load
from tools.render.spanning import durations
from tools.render.spanning.durations import PER_GPU, fragments, todays


def lines(found) -> dict[str, list[str]]:
    text = fragments(found)["method-durations.md"]
    cells = [
        [cell.strip(" `*") for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
    ]
    return {name: values for name, *values in cells}


def test_what_each_row_took_is_known():
    found, primary = load.load(RESULTS), load.primary_gpu()
    records = [
        r
        for stem in PER_GPU
        for r in found.get(stem, [])
        if r.kind == "measured" and r.device.slug == primary
    ]
    assert records and all(
        row.seconds is not None for record in records for row in record.rows
    )
    assert 0 < todays(records)


def test_each_gpu_has_a_column_and_what_is_not_measured_says_so(monkeypatch):
    ours = load.load(RESULTS)["warmup"][0]
    monkeypatch.setattr(durations, "primary_gpu", lambda: ours.device.slug)
    monkeypatch.setattr(durations, "is_fresh", lambda record: True)
    other = copy.deepcopy(ours)
    other.device.slug, other.device.name = "a-gpu", "A GPU"
    for row in other.rows:
        row.seconds = 90
    table = lines({"warmup": [ours, other]})
    assert table["experiment"] == [f"{ours.device.name}, minutes", "A GPU, minutes"]
    assert (
        table["warmup"][1]
        == table["measured by this code"][1]
        == f"{1.5 * len(other.rows):.1f}"
    )
    monkeypatch.setattr(durations, "is_fresh", lambda record: record is ours)
    table = lines({"warmup": [ours, other]})
    assert table["warmup"][1] == f"older code: {1.5 * len(other.rows):.1f}"
    assert table["measured by this code"][1] == "0.0"
    assert set(PER_GPU) <= table.keys() and table["attention"] == ["not measured"] * 2
    assert list(lines({})["warmup"]) == []
