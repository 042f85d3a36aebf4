"""Compare the running sums of `accumulation` with exact sums of integers."""

from dataclasses import asdict
from fractions import Fraction

import pytest
import torch

from systems.benchmarking import timing
from systems.experiments import accumulation
from systems.precision.number_formats import FORMATS, find_stall
from systems.records.outcome import measure_row
from tests.factories import make_gpu, make_record, read_record
from tools.render.stems import accumulation as builder


def rounded_sums(config: accumulation.Config) -> list[Fraction]:
    """Return the accumulator after every step, rounded in rational arithmetic."""
    add_to = FORMATS[config.accumulator]
    term = FORMATS[config.value].round_to_nearest(Fraction(str(config.term)))
    sums = [term]
    while len(sums) < config.steps:
        sums.append(add_to.round_to_nearest(sums[-1] + term))
    return sums


@pytest.mark.parametrize("config", accumulation.configs(), ids=str)
def test_every_sum_is_exact_and_stalls_where_predicted(config):
    expected = rounded_sums(config)
    found = [Fraction(s) for s in accumulation.running_sums(config, "cpu").tolist()]
    assert found == expected
    step, total = find_stall(FORMATS[config.accumulator], expected[0])
    last = max(i + 1 for i, x in enumerate(expected) if not i or x != expected[i - 1])
    sums = torch.tensor([float(s) for s in expected])
    assert accumulation.last_changing_step(sums) == last == min(step, config.steps)
    if step <= config.steps:
        assert expected[-1] == total


def test_record_of_the_h200_agrees_bitwise():
    measured = read_record("accumulation")
    for config in accumulation.configs():
        row = measured.row(asdict(config))
        assert row is not None and row.metrics["device"] == "cuda"
        assert row.metrics["differing_steps"] == 0
        assert Fraction(row.metrics["device_result"]) == rounded_sums(config)[-1]


def test_short_sums_on_a_cpu_decide_no_claim_and_no_answer():
    record = read_record("accumulation")
    for row in record.rows:
        row.metrics["device"], row.config["steps"] = "cpu", 500
    assert builder.sums_follow_from_formats.judge(record) == []
    assert builder.facts(record)["agreeing"] == "not measured"
    assert builder.facts(record)["fp16_in_fp16"] == "not measured"


def test_a_difference_between_devices_is_counted(monkeypatch):
    sums = {"cpu": [1.0, 2.0, 3.0], "other": [1.0, 2.5, 3.0]}
    monkeypatch.setattr(
        accumulation, "running_sums", lambda _, d: torch.tensor(sums[d])
    )
    monkeypatch.setattr(timing, "default_device", lambda: "other")
    row = accumulation.run(accumulation.Config(steps=3))
    assert row["differing_steps"] == 1 and row["last_change"] == 3


def test_errors_of_term_and_addition_add_up():
    rows = [measure_row(c, accumulation.run) for c in accumulation.configs()]
    found = builder.sums(make_record("accumulation", *rows, device=make_gpu()))
    for x in found:
        total = Fraction(x["device_result"])
        assert x["of_term"] + x["of_adding"] == x["error"]
        assert total - Fraction(str(x["term"])) * x["steps"] == x["error"]
    # In fp32, these sums of 16-bit terms are exact.
    assert found.one(name="fp16_in_fp32")["of_adding"] == 0
    assert found.one(name="bf16_in_fp32")["of_adding"] == 0
    assert found.one(name="fp32_in_fp32")["of_adding"] != 0
