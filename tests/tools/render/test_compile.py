"""What `compile` derives, from rows whose answers are known by hand."""

import pytest

from systems.records.record import PHASES, Record, Row
from tests.factories import make_gpu, make_record, make_row
from tools.render.stems import compile as builder

# Of a step's time.
SHARES = dict(zip(PHASES, (0.3, 0.1, 0.4, 0.2), strict=True))


def row(
    execution: str, *step_ms: float, optimizer: bool = False, size: str = "small"
) -> Row:
    """Two rounds of steps that took so long; compiling took 5 s of the first forward
    pass, and a second start 2 s.
    """
    config = {"size": size, "precision": "fp32", "execution": execution}
    compiling = 5000.0 * (execution == "compiled")
    metrics = {f"{p}_ms": [s * ms for ms in step_ms] for p, s in SHARES.items()}
    for start, first in (("warmup", compiling), ("again", 0.4 * compiling)):
        warm = {f"{start}_{p}_ms": [s * step_ms[0]] for p, s in SHARES.items()}
        warm[f"{start}_forward_ms"][0] += first
        metrics |= warm
    return make_row(config | {"optimizer": optimizer, "rounds": 2}, **metrics)


def record(*rows: Row) -> Record:
    return make_record("compile", *rows, device=make_gpu("NVIDIA X"))


@pytest.fixture
def steps() -> Record:
    """The second round of the host is four times as slow as the first."""
    return record(
        row("eager", 10.0, 40.0),
        row("graph", 8.0, 32.0),
        row("compiled", 5.0, 20.0),
        row("eager", 15.0, 60.0, optimizer=True),
        row("compiled", 5.0, 20.0, optimizer=True),
    )


def test_gains_and_what_they_cost(steps):
    found = builder.steps(steps)
    model, adamw = (found.one(compiled=name) for name in ("model", "model, AdamW"))
    assert (model["gain"], model["forward_gain"], adamw["gain"]) == pytest.approx(
        (2, 2, 3)
    )
    # The median eager step takes 25 ms, the compiled one 12.5 ms.
    assert model["saved_ms"] == pytest.approx(12.5)
    # The only warm-up step took 5001.5 ms, a settled forward pass 3.75 ms.
    seconds = (5001.5 - 3.75 + 2.0 - 5.0) / 1e3
    assert model["compile_s"] == pytest.approx(seconds)
    assert model["again_s"] == pytest.approx(seconds - 3)
    assert model["pays"] == 400
    assert found.one(execution="graph")["gain"] == 1.25
    assert builder.compiling_gains.judge(steps)[0]


def test_a_slower_step_never_pays_and_refutes_the_gain():
    slow = record(row("eager", 10.0, 10.0), row("compiled", 20.0, 20.0))
    assert builder.facts(slow)["steps_small_fp32"] == "never"
    assert not builder.compiling_gains.judge(slow)[0]


@pytest.mark.parametrize("lost", ["eager", "compiled"])
def test_without_memory_for_one_of_the_two_there_is_no_gain(steps, lost):
    large = [row(way, 90.0, 90.0, size="2.7B") for way in ("eager", "compiled")]
    for each in large:
        if each.config["execution"] == lost:
            each.status, each.metrics = "out_of_memory", {}
    both = record(*steps.rows, *large)
    facts = builder.facts(both)
    assert (facts["speedup_2_7B_fp32"], facts["speedup_most"]) == (
        "out of memory",
        "2.00",
    )
    assert builder.fragments([both])["table.md"].count("out of memory") == 1
    assert builder.compiling_gains.judge(both)[0]
