"""Tables, facts and figures of `peak_memory` from a record made here: every category is
what the formulas say.
"""

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
from tools.render.markdown import REST
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
    assert facts["residual_512"] == facts["residual_measured_bf16"] == "20 MiB"
    assert facts["forward_largest"] == facts["scores"] == "128 MiB"
    assert facts["agrees"] == "to the byte"
    # 2.7B, fp32, context 512: 66.61 GiB by the formula, an eighth more, a MiB of
    # rounding.
    assert facts["forward_two_graphs_fp32"] == "66.7 GiB"
    assert facts["weights"] == "12.7 GiB"
    assert facts["place_fp32"] == "at the start of the backward pass"
    assert facts["place_short"] == "at the end of the backward pass"


def test_the_modes_are_those_of_the_experiment():
    assert tuple(memory_rows.MODES) == tuple(experiment.MODES)
    remedies = {(c.attention, c.checkpoint) for c in experiment.configs()}
    assert remedies == set(memory_rows.REMEDIES)


def test_tables_and_figures(record):
    files = peak_memory.fragments([record])
    for name in ("timeline-forward", "timeline-step"):
        assert files[f"{name}.md"].count("<svg") == 2
    assert ">saved activations<" in files["timeline-step.md"]
    (line,) = (x for x in files["peaks.md"].splitlines() if "graph alive" in x)
    assert line.split(" | ")[3] == "66.73"
    assert "`layers.*.w`" in files["largest.md"]
    assert (
        "The largest tenth of 1,234 allocations; the smallest of it has 1.0 MiB."
        in files["largest.md"]
    )
    rows = [x for x in files["predicted.md"].splitlines() if x.startswith("| ")]
    assert len(rows) == 2 + len(record.rows)
    lines = files["helps.md"].splitlines()
    assert sum(line.startswith("| ") for line in lines) == 2 + 8
    assert "checkpointing by block" in files["helps.md"]


def test_two_gpus_stand_side_by_side(record):
    """One of them has GPU time beside wall-clock time."""
    other = memory_record()
    other.device.name, other.device.slug = "NVIDIA H100", "nvidia-h100"
    for row in other.rows:
        row.metrics |= {"forward_gpu_ms": [1.0, 1.0]}
    for name, text in peak_memory.fragments([record, other]).items():
        first, _, second = text.partition('=== "NVIDIA H100"')
        assert first.startswith('===! "NVIDIA H200"'), name
        assert re.findall(r"\| .* \|", first) == re.findall(r"\| .* \|", second)


def test_out_of_memory_is_a_row_with_the_need_beside_it(record):
    for row in record.rows:
        if row.config["size"] == "2.7B" and row.config["mode"] != "forward":
            row.status, row.metrics = "out_of_memory", {}
    files, facts = peak_memory.fragments([record]), peak_memory.facts(record)
    assert "| out of memory, needs 65.4 GiB |" in files["peaks.md"]
    assert (
        "| 2.7B | full step, AdamW | as written | fp32 | 512 | out of memory, needs"
        in (files["predicted.md"].replace(REST, ""))
    )
    assert facts["step_fp32"] == "out of memory, needs 65.4 GiB"
    assert "<svg" not in files["timeline-step.md"]
    assert "<svg" in files["timeline-forward.md"]
    assert "ran out of memory" in files["timeline-step.md"]
    assert "nan" not in "".join(facts.values())


def test_a_category_off_its_prediction_shows(record):
    assert memory_rows.worst(record) == 0
    config = {"size": "2.7B", "context": 512, "mode": "step", "precision": "fp32"}
    row = record.find(**config, **memory_rows.PLAIN)
    assert row is not None
    row.metrics["categories"][CATEGORIES.index("gradients")]["most_bytes"] *= 1.03
    assert memory_rows.worst(record) == pytest.approx(0.03)
    assert peak_memory.facts(record)["agrees"] == "within 3.00 %"


def test_a_row_without_its_timeline_is_not_drawn(record):
    for row in record.rows:
        row.metrics.pop("timeline")
    assert "<svg" not in "".join(peak_memory.fragments([record]).values())


def test_without_a_record_every_table_says_so():
    files = peak_memory.fragments([])
    assert all("Not measured yet" in text for text in files.values())
    assert "not measured" in peak_memory.facts(None).values()


def test_the_experiment_refuses_a_machine_without_gpu(monkeypatch):
    monkeypatch.setattr(experiment.timing, "default_device", lambda: "cpu")
    with pytest.raises(ValueError, match="torch sees no GPU here"):
        experiment.run(experiment.Config())


def test_a_snapshot_has_a_name_of_its_own():
    paths = {experiment.snapshot_path(config) for config in experiment.configs()}
    assert len(paths) == len(experiment.configs())
    assert all(re.fullmatch(r"peak_memory-[\w-]+\.pickle", path.name) for path in paths)
