"""What the calculator's script is given: whole programs, and points that were
measured.
"""

import json

import pytest

from systems.formulas.fit import optimizer_moved_bytes, peak_bytes, step_flops
from systems.formulas.gpus import GPUS
from systems.formulas.memory_costs import Pass
from systems.model.sizes import SIZES
from tests.factories import RESULTS
from tools.render import load
from tools.render.spanning import calculator


@pytest.fixture(scope="module")
def found():
    return load.load(RESULTS)


@pytest.fixture(scope="module")
def data(found):
    text = calculator.fragments(found)["calculator.js"]
    return json.loads(text.removeprefix("window.CALCULATOR = "))


def test_every_choice_of_words_has_a_program(data):
    assert len(data["programs"]) == 3 * (3 + 2)
    for program in data["programs"].values():
        places = [place for moment in program["moments"].values() for place in moment]
        last = len(program["instructions"])
        assert max(*places, program["flops"], program["moved_bytes"]) < last


def test_what_was_measured_lies_near_what_is_computed(found, data):
    assert len(data["memory"]) >= 15
    for point in data["memory"]:
        names = ("size", "context", "precision", "attention", "checkpoint", "batch")
        p = Pass(mode="step", **{name: point[name] for name in names})
        assert peak_bytes(p) == pytest.approx(point["bytes"], rel=0.01)
    assert calculator.worst(found) < 0.01


def test_a_gpu_comes_with_its_rates(data):
    assert data["gpus"].keys() == GPUS.keys()
    assert data["gpus"]["a100-80"]["bf16"] == 312e12
    assert data["measured_on"] == "h200"


def test_steps_that_were_timed_have_times(data):
    assert len(data["steps"]) >= 20
    assert all(point["ms"] > 0 for point in data["steps"])


def test_without_records_it_still_computes():
    data = calculator.fragments({})["calculator.js"]
    assert json.loads(data.removeprefix("window.CALCULATOR = "))["memory"] == []
    assert calculator.facts({})["worst"] == "not measured"


def test_without_javascript_the_sizes_stand_in_a_table(found):
    lines = calculator.fragments(found)["calculator-sizes.md"].splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {s}" for s in SIZES]
    plain = peak_bytes(Pass("xl", 512, "step", "fp32"))
    assert f"{plain / 2**30:.1f}" in lines[5]
    assert step_flops(Pass("xl", 512, "step", "fp32")) > optimizer_moved_bytes(
        Pass("xl", 512, "step", "fp32")
    )
