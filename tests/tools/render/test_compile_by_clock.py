"""What compiling gains over the shorter of two eager steps."""

import pytest

from tests.factories import make_gpu, make_record, make_row
from tools.render.spanning import compile_by_clock

H200 = make_gpu("NVIDIA H200")


def a_step(size: str, precision: str, ms: float, **config):
    named = {"size": size, "precision": precision, "context": 512}
    phases = {f"{phase}_ms": [ms / 4] * 3 for phase in ("forward", "loss", "optimizer")}
    return make_row(named | config, **phases, backward_ms=[ms / 4] * 3)


def compiled_record(eager: float, compiled: float):
    """Compiling both passes takes three seconds more than a step."""
    eager_row = a_step("small", "bf16", eager, execution="eager")
    row = a_step("small", "bf16", compiled, execution="compiled")
    for phase in ("forward", "backward"):
        row.metrics[f"warmup_{phase}_ms"] = [1500 + compiled / 4, compiled / 4]
    return make_record("compile", eager_row, row, device=H200)


def clock_record(ms: float):
    row = a_step("small", "bf16", ms, mode="step", batch=4)
    return make_record("end_to_end", row, device=H200)


@pytest.mark.parametrize(
    ("eager", "clock", "gain", "steps"),
    [
        (80.0, 50.0, "2.50", "100"),
        (40.0, 50.0, "2.00", "150"),
        (80, None, "4.00", "50"),
    ],
    ids=str,
)
def test_the_shorter_eager_step_counts(eager, clock, gain, steps):
    found = {"compile": [compiled_record(eager, 20.0)]}
    if clock is not None:
        found["end_to_end"] = [clock_record(clock)]
    facts = compile_by_clock.facts(found)
    assert (facts["gain_small_bf16"], facts["steps_small_bf16"]) == (gain, steps)
    # Of what was not compiled, the clock alone says nothing.
    assert facts["gain_small_fp32"] == facts["steps_small_fp32"] == "not measured"


def test_a_compiled_step_that_is_not_faster_never_pays():
    found = {"compile": [compiled_record(80.0, 60.0)]}
    found["end_to_end"] = [clock_record(50.0)]
    assert compile_by_clock.facts(found)["steps_small_bf16"] == "never"


def test_without_records_nothing_is_said():
    assert set(compile_by_clock.facts({}).values()) == {"not measured"}
