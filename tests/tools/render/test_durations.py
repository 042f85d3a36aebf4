"""How long measuring takes: every experiment is listed, with a column for each GPU."""

import copy

from tests.factories import RESULTS
from tools.render import load
from tools.render.spanning import durations


def test_each_gpu_has_a_column_and_what_is_not_measured_says_so(monkeypatch):
    ours = load.load(RESULTS)["warmup"][0]
    monkeypatch.setattr(durations, "primary_gpu", lambda: ours.device.slug)
    other = copy.deepcopy(ours)
    other.device.slug, other.device.name = "a-gpu", "A GPU"
    for row in other.rows:
        row.seconds = 90
    text = durations.fragments({"warmup": [other, ours]})["method-durations.md"]
    lines = [[x.strip(" `*") for x in line.split("|")] for line in text.splitlines()]
    table = {name: values for _, name, *values, _ in lines}
    assert table["experiment"] == [f"{ours.device.name}, minutes", "A GPU, minutes"]
    expected = f"{1.5 * len(other.rows):.1f}"
    assert table["warmup"][1] == table["all"][1] == expected
    assert table["attention"] == ["not measured"] * 2
