"""What was compiled for each GPU: all of the tables, within the limits; and the model's
predictions, marked as such.
"""

import resource
from itertools import product

import pytest
from msgspec.structs import replace

from systems.attention.triton.chooser import for_mask
from systems.attention.triton.tables import CONFIGS
from systems.formulas.chips import TARGETS
from systems.records.device import slug_of
from tests.factories import committed
from tools import compile_tables
from tools.compile_ahead import (
    DTYPES,
    MOST_RELOADED,
    MOST_STACK,
    TIMED,
    architecture,
)
from tools.render.compiled_files import TABLES
from tools.render.rows import Missing
from tools.render.spanning import compiled
from tools.render.spanning.compiled import errors, predicted_ms, rows_of, shapes

ROWS = TABLES.read()[compiled.newest()]["rows"]


def test_shown_is_the_newest_triton_that_compiled_for_every_gpu(monkeypatch):
    every = [{"gpu": name} for name in TARGETS]
    of = {
        "3.10.0rc1": every,
        "3.9.0": every,
        "3.9.0+git1": every,
        "3.10.0": every[:-1],
        "4.0.0": [],
    }
    for newest in ("3.10.0rc1", "3.9.0+git1", "3.9.0", ""):
        found = {version: {"rows": rows} for version, rows in of.items()}
        monkeypatch.setattr(TABLES, "read", lambda found=found: found)
        assert compiled.newest() == newest
        of.pop(newest, None)
    assert compiled.needs_fragment().startswith("Not compiled")
    assert "compile_tables.py" in compiled.predictions_fragment(None)


def test_what_was_compiled_by_other_launches_is_stale(monkeypatch):
    version = compiled.newest()
    source = TABLES.read()[version]["source_hash"]
    monkeypatch.setattr(compiled, "kernels_hash", lambda: source)
    assert "**Stale:**" not in compiled.needs_fragment()
    monkeypatch.setattr(compiled, "kernels_hash", lambda: "of other launches")
    assert "**Stale:**" in compiled.needs_fragment()


@pytest.fixture(scope="module")
def found():
    return {"flash_peers": [committed("flash_peers")]}


def test_every_entry_of_the_tables_was_compiled_as_it_is():
    """Where this fails, `python tools/compile_tables.py --gpu ...` compiles it."""
    there = {
        (r["gpu"], r["arithmetic"], r["kernel"], r["d"]): tuple(r["config"])
        for r in ROWS
        if r["causal"]
    }
    for name, gpu in TARGETS.items():
        table = CONFIGS[architecture(gpu.capability)]
        for kind, kernel in product(DTYPES, ("forward", "dq", "dkdv")):
            for d, entry in table[kind][kernel].items():
                own = tuple(for_mask(entry, causal=True))
                assert there[name, kind, kernel, d] == own, (name, kind, kernel, d)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['gpu']} {r['kernel']}")
def test_what_was_compiled_is_within_the_limits(row):
    """No product of any arithmetic is computed twice. An A100 reloads nothing in its
    loops of 16 bits.
    """
    assert row["shared_bytes"] <= TARGETS[row["gpu"]].block_bytes
    assert row["programs"] >= 1
    kind, loop = row["arithmetic"], row["loop"]
    if row["gpu"] == "h100" and (kind, row["kernel"], row["d"]) in TIMED:
        return
    assert row["stack_bytes"] <= MOST_STACK[kind] <= 4096
    assert kind != "half" or loop["spilled"] == 0
    touched = loop["spilled"] + loop["reloaded"]
    none = kind == "half" and row["gpu"] == "a100"
    assert touched <= (0 if none else MOST_RELOADED[kind] * loop["instructions"])
    # Of a B200 the binary does not tell.
    assert row["repeats"] <= 1


def test_each_exception_that_was_timed_is_one():
    """Of some version: what spills no more, or computes its products once, is held to
    the limits again.
    """
    found = set()
    for of in TABLES.versions().values():
        for row in (r for r in of["rows"] if r["gpu"] == "h100"):
            kind, loop = row["arithmetic"], row["loop"]
            touched = loop["spilled"] + loop["reloaded"]
            if (
                row["stack_bytes"] > MOST_STACK[kind]
                or kind == "half"
                and loop["spilled"]
                or touched > MOST_RELOADED[kind] * loop["instructions"]
                or row["repeats"] > 1.01
            ):
                found.add((kind, row["kernel"], row["d"]))
    assert found == TIMED


def test_the_backward_pass_of_an_a100_at_d_128_has_tiles_of_four_warps():
    for causal in (True, False):
        for kernel in ("dq", "dkdv"):
            row = rows_of(compiled.newest(), "a100", 128, causal)[kernel]
            assert row["config"][2] == 4 and row["programs"] == 2


def test_every_shape_has_a_prediction_and_says_that_it_is_one(found):
    (record,) = found["flash_peers"]
    text = compiled.fragments(found)["compiled-predictions.md"]
    assert "**Predicted, not measured**" in text and "not measured |" not in text
    lines = [line for line in text.splitlines() if "causal" in line or "full" in line]
    assert len(lines) == len(shapes(record)) >= 8


def of_device(record, name: str):
    """What another GPU would have measured."""
    slug = slug_of(name)
    return replace(record, device=replace(record.device, name=name, slug=slug))


@pytest.mark.parametrize("first", [True, False])
def test_an_owners_record_of_an_a100_stands_beside_whatever_gpu_is_shown(found, first):
    (record,) = found["flash_peers"]
    measured = of_device(record, "NVIDIA A100-SXM4-40GB")
    there = {"flash_peers": [measured, record] if first else [record, measured]}
    text = compiled.fragments(there)["compiled-predictions.md"]
    assert "**Predicted, then measured**" in text and "measured forward, ms" in text
    assert f"the {measured.device.name} took" in " ".join(text.split())
    shape = shapes(measured)[0]
    (line,) = (x for x in text.splitlines() if compiled.shape_text(shape) in x)
    assert f" {compiled.milliseconds(shape.ms('forward'))} |" in line


@pytest.mark.parametrize("other", ["NVIDIA A100-SXM4-80GB MIG 3g.40gb", "NVIDIA A30"])
def test_a_slice_or_a_smaller_chip_is_no_a100(other, found):
    (record,) = found["flash_peers"]
    there = {"flash_peers": [record, of_device(record, other)]}
    text = compiled.fragments(there)["compiled-predictions.md"]
    assert "**Predicted, not measured**" in text and record.device.name in text


def test_the_error_is_what_was_measured_over_what_is_predicted(found):
    (record,) = found["flash_peers"]
    rows = []
    for row in record.rows:
        slower = {
            k: [2 * x for x in v] if k.endswith("_ms") else v
            for k, v in row.metrics.items()
        }
        rows.append(replace(row, metrics=slower))
    twice = errors(replace(record, rows=rows))
    assert twice == pytest.approx([2 * x for x in errors(record)]) and len(twice) > 15
    # The model knows only what a GPU must do: nothing is faster.
    assert min(errors(record)) > 1


def test_a_backward_pass_is_both_of_its_kernels():
    (chip,) = [compiled.CHIPS["nvidia-a100"]]
    rows = rows_of(compiled.newest(), "a100", 64, True)
    shape = {"batch": 4, "heads": 32, "n": 4096, "causal": True}
    both = predicted_ms(rows, "backward", shape, chip, "8.0")
    least, most = predicted_ms(rows, "forward", shape, chip, "8.0")
    assert least <= most < both[1]
    longer = predicted_ms(rows, "forward", shape | {"batch": 8}, chip, "8.0")
    assert longer == pytest.approx((2 * least, 2 * most))
    assert isinstance(predicted_ms({}, "forward", shape, chip, "8.0")[0], Missing)


def test_without_a_record_or_with_another_triton_nothing_is_predicted(found):
    (record,) = found["flash_peers"]
    assert set(compiled.facts({}).values()) >= {"not measured"}
    said = compiled.fragments({})["compiled-predictions.md"]
    assert said.startswith("Not predicted") and "--only flash_peers" in said
    other = replace(record, software=record.software | {"triton": "1.0.0"})
    assert errors(other) == []


def test_what_was_compiled_before_survives_a_full_disk(monkeypatch, tmp_path):
    """It is written anew after each case, for an hour."""
    path = tmp_path / "tables-compiled.json"
    monkeypatch.setattr(TABLES, "path", path)
    compile_tables.write({"3.7.1": {"source_hash": "a", "rows": []}})
    before = path.read_text()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            compile_tables.write({"3.7.1": {"source_hash": "b", "rows": []}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]
