"""The data of the results explorer: every row of every record is in it, with its
median.
"""

import copy
import json

import pytest

from systems import ROOT
from tools.render import load
from tools.render.spanning import explorer


@pytest.fixture(scope="module")
def found():
    return load.load(ROOT / "docs" / "results")


def table(found) -> list[dict]:
    """The script as the page reads it: one dictionary a line."""
    data = json.loads(
        explorer.files(found)["explorer.js"].removeprefix("window.RESULTS = ")
    )
    width = len(explorer.TEXTS)
    cells = (
        [data["texts"][n] for n in row[:width]] + row[width:] for row in data["rows"]
    )
    return [dict(zip(data["columns"], line, strict=True)) for line in cells]


def test_every_record_is_in_the_table(found):
    listed = {(line["GPU"], line["stem"]) for line in table(found)}
    # Where every metric is a curve, there is no line.
    records = {
        (r.device.name, r.kind, r.stem)
        for rs in found.values()
        for r in rs
        if r.stem != "norm_precision"
    }
    names = {
        (f"{gpu.partition(' (')[0]}{', reported' if kind == 'reported' else ''}", s)
        for gpu, kind, s in records
    }
    assert listed == names


def test_a_line_is_the_median_of_its_samples(found):
    lines = [
        line
        for line in table(found)
        if (line["stem"], line["GPU"]) == ("end_to_end", "NVIDIA H200")
    ]
    wanted = {"size": "2.7B", "context": 512, "precision": "bf16", "metric": "backward"}
    (line,) = [
        x
        for x in lines
        if wanted.items() <= x.items() and "mode step" in x["configuration"]
    ]
    row = found["end_to_end"][0].find(
        size="2.7B", context=512, precision="bf16", mode="step"
    )
    samples = sorted(row.metrics["backward_ms"])
    assert line["value"] == pytest.approx((samples[4] + samples[5]) / 2, rel=1e-5)
    assert (line["unit"], line["samples"]) == ("ms", 10)
    memory = next(
        x
        for x in lines
        if wanted | {"metric": "peak_allocated_bytes"} == {k: x[k] for k in wanted}
    )
    assert isinstance(memory["value"], int) and memory["unit"] == "bytes"


def test_out_of_memory_is_a_line(found):
    record = copy.deepcopy(found["end_to_end"][0])
    record.rows[0].status, record.rows[0].metrics = "out_of_memory", {}
    line = table({"end_to_end": [record]})[0]
    assert (line["metric"], line["value"], line["size"], line["samples"]) == (
        "status",
        "out of memory",
        "small",
        None,
    )
