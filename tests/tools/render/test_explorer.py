"""The data of the results explorer: the metrics that readers compare, of each row with
their median.
"""

import copy
import json
import statistics

import pytest

from tests.factories import RESULTS
from tools.render import load
from tools.render.spanning import explorer


@pytest.fixture(scope="module")
def found():
    return load.load(RESULTS)


def table(found) -> list[dict]:
    """The script as the page reads it: one dictionary a line."""
    data = json.loads(
        explorer.fragments(found)["explorer.js"].removeprefix("window.RESULTS = ")
    )
    width, found_lines, row = len(explorer.TEXTS), [], []
    for same, *rest in data["rows"]:
        row = row[:same] + rest
        line = [data["texts"][n] for n in row[:width]] + row[width:]
        found_lines.append(dict(zip(data["columns"], line, strict=True)))
    return found_lines


def test_the_table_has_few_metrics_with_names_in_words(found):
    lines = table(found)
    metrics = {line["metric"] for line in lines}
    assert len(metrics) <= 40 and not any("_" in metric for metric in metrics)
    # Dtypes, saved tensors and what instruments add have tables of their own.
    timed = {"end_to_end", "compile", "flash_peers", "peak_memory", "model_sizes"}
    assert timed <= {line["stem"] for line in lines}


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
        if wanted | {"metric": "peak memory"} == {k: x[k] for k in wanted}
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


def test_a_step_is_the_sum_of_its_phases_and_a_ratio_that_of_the_page(found):
    """Recomputed from the records, another way."""
    lines = [line for line in table(found) if line["GPU"] == "NVIDIA H200"]
    row = next(
        row
        for row in found["end_to_end"][0].rows
        if row.config["mode"] == "step" and row.config["size"] == "xl" and row.metrics
    )
    names = ("forward_ms", "loss_ms", "backward_ms", "optimizer_ms")
    steps = [sum(row.metrics[name][i] for name in names) for i in range(10)]
    wanted = {key: row.config[key] for key in ("size", "context", "precision")}
    (line,) = [
        line
        for line in lines
        if line["metric"] == "whole step"
        and wanted.items() <= line.items()
        and f"batch {row.config['batch']}," in line["configuration"]
        and line["stem"] == "end_to_end"
    ]
    assert line["value"] == pytest.approx(statistics.median(steps), rel=1e-5)

    peers = found["flash_peers"][0]
    shape = {"n": 16384, "d": 64, "dtype": "bf16"}
    # Of each round's quotient, as on the page.
    ours, cudnn = (
        peers.find(implementation=name, **shape).metrics["forward_rounds_ms"]
        for name in ("ours", "sdpa_cudnn")
    )
    over = statistics.median(a / b for a, b in zip(ours, cudnn, strict=True))
    (line,) = [
        line
        for line in lines
        if (line["metric"], line["context"]) == ("forward over cuDNN", 16384)
        and "implementation ours," in line["configuration"]
        and "d 64" in line["configuration"]
    ]
    assert line["value"] == pytest.approx(over, rel=1e-5)
    assert not any(
        "over cuDNN" in line["metric"] and "sdpa_cudnn" in line["configuration"]
        for line in lines
    )
