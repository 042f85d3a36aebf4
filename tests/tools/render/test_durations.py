"""How long measuring takes: every experiment is listed."""

import copy

from systems.records.host import SHARE, Probe
from tests.factories import RESULTS
from tools.render import load
from tools.render.markdown import beside_others
from tools.render.spanning import durations
from tools.render.spanning.durations import PER_GPU, fragments, seconds, todays


def lines(found) -> dict[str, list[str]]:
    text = fragments(found)["method-durations.md"]
    cells = [
        [cell.strip(" `*") for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
    ]
    return {name: values for name, *values in cells}


def test_what_each_row_took_is_known_and_most_of_it_says_how_long_measuring_takes():
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
    # What was measured beside other work says nothing of it.
    alone = [r for r in records if not beside_others(r)]
    assert sum(len(r.rows) for r in alone) > 0.6 * sum(len(r.rows) for r in records)


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
    for row in ours.rows:
        row.host = [Probe(1.0, other_threads=3)]
    busy = lines({"warmup": [ours]})
    assert busy["warmup"] == [f"{seconds(ours) / 60:.1f}, beside others"]
    assert busy["measured by this code"] == ["0.0"]
    # By `--at-once`: it had cores of its own, as the record notes.
    ours.notes.append(SHARE.format(16, 64))
    shared = lines({"warmup": [ours]})
    assert shared["warmup"] == [f"{seconds(ours) / 60:.1f}"]
    assert shared["measured by this code"] == shared["warmup"]
