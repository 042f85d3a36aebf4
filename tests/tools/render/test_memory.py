"""Tables, facts and figures of `peak_memory` from a record made here: every category is
what the formulas say.
"""

import copy
import re

import pytest

from systems.experiments import peak_memory as experiment
from systems.formulas.memory_costs import (
    Pass,
    attention_saved,
    residual_bytes,
)
from systems.formulas.memory_peak import category_peaks, peak
from systems.profiling.memory.snapshot import CATEGORIES
from systems.records.device import Device
from systems.records.record import Record, Row
from tests.factories import RESULTS
from tools.render import load
from tools.render.stems import peak_memory
from tools.render.stems.peak_memory import rows as memory_rows

GIB = 2**30


def memory_row(
    size: str,
    context: int,
    mode: str,
    precision: str,
    attention: str = "eager",
    checkpoint: bool = False,
) -> Row:
    """A pass that needs what the formulas say, and an eighth of a GiB more."""
    config = {
        "size": size,
        "context": context,
        "mode": mode,
        "precision": precision,
        "attention": attention,
    }
    config |= {"checkpoint": checkpoint, "batch": 4, "vocab": 10_000}
    p = Pass(**{**config, "checkpoint": int(checkpoint)})
    moment, highest = peak(p), category_peaks(p)
    moment["temporaries"] += GIB // 8
    total = sum(moment.values())
    phase = (
        "forward"
        if mode.startswith("forward") and mode != "forward_backward"
        else "backward"
    )
    scores = attention_saved(p).get("exponentials", 1)
    group = {
        "bytes": scores,
        "count": 9,
        "category": "temporaries",
        "phase": "forward",
        "owner": "",
    }
    group["code"] = "model.py:111 softmax, model.py:125 scaled_dot_product_attention"
    owned = {**group, "owner": "layers.*.w", "code": "", "bytes": 7}
    line = {
        "event": [0, 5, 9],
        **{name: [0, value, highest.get(name, 0)] for name, value in moment.items()},
    }
    metrics = {
        "forward_ms": [10.0, 11.0, 12.0],
        "peak_allocated_bytes": total + 2**20,
        "peak_reserved_bytes": total + GIB,
        "residual_bytes": residual_bytes(p),
        "peak_requested_bytes": total,
        "peak_phase": phase,
        "categories": [
            {
                "category": n,
                "at_peak_bytes": moment[n],
                "most_bytes": highest.get(n, moment[n]),
            }
            for n in CATEGORIES
        ],
        "phases": [
            {"phase": phase, "first_event": 0, "last_event": 9, "peak_bytes": total}
        ],
        "allocations": 1234,
        "tenth_least_bytes": 2**20,
        "tenth": [group, owned],
        "largest_at_peak": [group, {**owned, "owner": "", "category": "gradients"}],
        "timeline": line,
    }
    return Row(config, "ok", metrics)


def memory_record() -> Record:
    names = ("size", "context", "mode", "precision", "attention", "checkpoint")
    rows = [
        memory_row(*(getattr(config, name) for name in names))
        for config in experiment.configs()
    ]
    device = Device("NVIDIA H200", "nvidia-h200", memory_bytes=140 * GIB)
    return Record(
        "peak_memory",
        "measured",
        device,
        rows,
        len(rows),
        software={"torch": "2.11"},
        source_hash="x",
    )


@pytest.fixture
def record() -> Record:
    return memory_record()


def test_every_fact_has_a_number(record):
    facts = peak_memory.facts(record)
    assert (
        facts.keys() == peak_memory.facts(None).keys()
        and "not measured" not in facts.values()
    )
    assert (
        facts["residual_512"] == facts["residual_measured_bf16"] == "20 MiB"
        and facts["residual_256"] == "10 MiB"
    )
    assert facts["forward_largest"] == facts["scores"] == "128 MiB"
    assert facts["forward_largest_code"] == "`model.py:111 softmax`"
    assert facts["agrees"] == "to the byte" and facts["step_falls"] == "no"
    # 2.7B, fp32, context 512: 66.61 GiB by the formula, an eighth more, a MiB of
    # rounding.
    assert facts["forward_two_graphs_512_fp32"] == "66.73 GiB"
    assert facts["weights"] == "12.69 GiB"


def test_the_modes_are_those_of_the_experiment():
    assert tuple(memory_rows.MODES) == tuple(experiment.MODES)
    remedies = {(c.attention, c.checkpoint) for c in experiment.configs()}
    assert remedies == set(memory_rows.REMEDIES)


def test_tables_and_figures(record):
    files = peak_memory.fragments([record])
    for name in ("timeline-forward", "timeline-step", "contexts"):
        assert files[f"{name}.md"].count("<svg") == 2
    assert ">saved activations<" in files["timeline-step.md"]
    assert "| forward, previous graph alive | 512 | 66.73 |" in files["peaks-fp32.md"]
    lines = files["peaks-bf16.md"].splitlines()
    assert sum(line.startswith("| ") for line in lines) == 2 + 15
    assert (
        "autograd's thread" in files["live.md"]
        and "`layers.*.w`" in files["largest.md"]
    )
    assert (
        "The largest tenth of 1,234 allocations; the smallest of it has 1.0 MiB."
        in files["largest.md"]
    )
    assert (
        "checkpointing by block" in files["helps.md"]
        and " %)" not in files["prediction.md"]
    )
    lines = files["helps.md"].splitlines()
    assert sum(line.startswith("| ") for line in lines) == 2 + 8
    # By hand: 4 · 32 · 512² scores of 4 bytes; five tensors of 4 · 512 · 10240.
    assert "| attention half | exponentials | 128.00 | 128.00 |" in files["saved.md"]
    assert files["saved.md"].count("| 80.00 | 40.00 |") == 5


def test_ends_of_a_step_that_need_alike_tie(record):
    """By formula 50.83 and 50.93 GiB at context 128, less apart than rounding adds."""
    steps = [memory_rows.at(record, c, "step", "fp32") for c in (128, 256, 512)]
    tie = "at the end of the backward pass and nearly as high in the optimizer"
    assert [memory_rows.place(c) for c in steps] == [
        tie,
        tie,
        "at the start of the backward pass",
    ]
    # Where it was, stands first.
    steps[0].metrics["peak_phase"] = "optimizer"
    assert memory_rows.place(steps[0]) == (
        "in the optimizer and nearly as high at the end of the backward pass"
    )
    # Whatever a formula says, the peak is where it was recorded.
    steps[2].metrics["peak_phase"] = "optimizer"
    assert memory_rows.place(steps[2]) == "in the optimizer"
    both = memory_rows.at(record, 128, "forward_backward", "fp32")
    assert memory_rows.place(both) == "at the end of the backward pass"
    assert f"| {tie} |" in peak_memory.fragments([record])["peaks-fp32.md"]


def test_out_of_memory_is_a_row_with_the_need_beside_it(record):
    for row in record.rows:
        if row.config["size"] == "2.7B" and row.config["mode"] != "forward":
            row.status, row.metrics = "out_of_memory", {}
    files, facts = peak_memory.fragments([record]), peak_memory.facts(record)
    assert (
        "| full step, AdamW | 512 | out of memory, needs 65.4 GiB |"
        in files["peaks-fp32.md"]
    )
    assert facts["step_512_fp32"] == "out of memory, needs 65.4 GiB" and facts[
        "step_bf16_over_fp32"
    ].startswith("out of memory")
    assert "<svg" not in files["timeline-step.md"]
    assert "<svg" in files["timeline-forward.md"]
    assert "ran out of memory" in files["timeline-step.md"]
    assert "nan" not in "".join(facts.values())
    assert (
        "out of memory, needs" in files["prediction.md"]
        and ">out of memory<" in files["contexts.md"]
    )


def test_a_category_off_its_prediction_shows(record):
    assert memory_rows.worst(record, *memory_rows.PREDICTED) == 0
    cell = memory_rows.at(record, 512, "step", "fp32")
    cell["categories"][CATEGORIES.index("gradients")]["most_bytes"] *= 1.03
    assert memory_rows.worst(record, "gradients") == pytest.approx(0.03)
    assert memory_rows.worst(record, "weights") == 0
    assert peak_memory.facts(record)["agrees"] == "within 3.00 %"
    assert peak_memory.fragments([record])["prediction.md"].count("(+3.0 %)") == 1


def test_a_longer_context_that_needs_less_is_told_as_rounding(record):
    short = memory_rows.at(record, 128, "step", "fp32")
    short.metrics["peak_allocated_bytes"] += GIB
    assert peak_memory.facts(record)["step_falls"] == "yes"
    # What asks for less needs less, whatever is rounded.
    short.metrics["peak_requested_bytes"] += GIB
    assert peak_memory.facts(record)["step_falls"] == "no"


def test_a_row_without_its_timeline_is_not_drawn(record):
    other = copy.deepcopy(record)
    for row in other.rows:
        row.metrics.pop("timeline")
    assert not [
        name
        for name in peak_memory.fragments([other])
        if name.startswith(("forward-", "step-"))
    ]


def test_without_a_record_every_table_says_so():
    files = peak_memory.fragments([])
    assert all(
        "Not measured yet" in text for name, text in files.items() if name != "saved.md"
    )
    assert "not measured" in peak_memory.facts(None).values()


def test_reported_peaks_say_so():
    found = [r for r in load.load(RESULTS)["peak_memory"] if r.kind == "reported"]
    text = peak_memory.fragments(found)["reported.md"]
    assert (
        "Reported, not measured here:" in text
        and "| training | fp32 | 512 | about 70 |" in text
    )


def test_the_experiment_refuses_a_machine_without_gpu(monkeypatch):
    monkeypatch.setattr(experiment.timing, "default_device", lambda: "cpu")
    with pytest.raises(ValueError, match="torch sees no GPU here"):
        experiment.run(experiment.Config())


def test_a_snapshot_has_a_name_of_its_own():
    paths = {experiment.snapshot_path(config) for config in experiment.configs()}
    assert len(paths) == len(experiment.configs())
    assert all(re.fullmatch(r"peak_memory-[\w-]+\.pickle", path.name) for path in paths)
