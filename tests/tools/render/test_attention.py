"""What `attention` derives when rendered, from records made here whose
answers are known by hand.
"""

import re

import pytest

from systems import ROOT
from systems.formulas.costs import attention_peak_bytes
from systems.records.device import Device
from systems.records.record import Record, Row
from tests.factories import RESULTS
from tools.render import load
from tools.render.markdown import REST
from tools.render.spanning import envelope
from tools.render.stems import attention
from tools.render.stems.attention import compiled as attention_compiled
from tools.render.stems.attention.columns import peak_bytes, shape

MIB, GIB = 2**20, 2**30


def device(gib: int) -> Device:
    return Device(
        "NVIDIA X", "nvidia-x", "9.0", gib * GIB, driver="1", power_limit_w=700.0
    )


def attention_row(
    n: int, execution: str, d: int = 64, dtype: str = "fp32", causal: bool = False
) -> Row:
    """Times grow with N²; compiled, forward takes half and backward the same; what is
    kept is what the formula says.
    """
    config = {
        "d": d,
        "n": n,
        "causal": causal,
        "dtype": dtype,
        "execution": execution,
        "batch": 8,
        "warmup": 2,
    }
    if n > 16384 and execution == "eager":
        return Row(
            {**config, "passes": 3},
            "out_of_memory",
            {},
            "CUDA out of memory. Tried to allocate 32.00 GiB",
        )
    compiled = execution == "compiled"
    element, rows = 4 if dtype == "fp32" else 2, 8 * n
    matrix, output = rows * n * element, rows * d * element
    forward, backward = n**2 / 1e6 / (2 if compiled else 1), 3 * n**2 / 1e6
    sizes = [
        matrix,
        matrix,
        rows * element,
        rows * 8,
        *([n * n] if causal else []),
    ]
    saved = [
        {"dtype": "any", "shape": [size], "bytes": size, "adds_bytes": size}
        for size in sizes
    ]
    metrics = {
        # The first pass compiles, for 2 s forward and 1 s backward.
        "warmup_forward_ms": [forward + 2000 * compiled, forward],
        "warmup_backward_ms": [backward + 1000 * compiled, backward],
        "forward_ms": [forward] * 3,
        "backward_ms": [backward] * 3,
        "peak_allocated_bytes": (3 if compiled else 6) * matrix,
        "graphs": int(compiled),
        "recompiles": 0,
        "before_forward_bytes": MIB,
        "before_backward_bytes": MIB + sum(sizes) + output,
        "saved": saved,
        "forward_kernels": 4 if compiled else 8,
        "backward_kernels": 9 if compiled else 25,
        **({"forward_fused": ["triton_red_fused_div_exp_0"]} if compiled else {}),
    }
    return Row({**config, "passes": 3}, "ok", metrics)


@pytest.fixture
def record() -> Record:
    both = ("eager", "compiled")
    grid = [
        (n, d, t, c)
        for t in ("fp32", "bf16")
        for c in (False, True)
        for d in (16, 64)
        for n in (8192, 16384)
    ]
    rows = [
        attention_row(n, e, d, t, c)
        for n, d, t, c in [*grid, (4096, 64, "fp32", False)]
        for e in both
    ]
    rows += [attention_row(32768, e) for e in both]
    return Record(
        "attention",
        "measured",
        device(140),
        rows,
        len(rows),
        started_utc="2026-01-01 00:00",
    )


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr("tools.render.markdown.age", lambda record: load.FRESH)


def test_facts_of_attention_by_hand(record):
    facts, none = attention.facts(record), attention.facts(None)
    assert facts.keys() == none.keys() and "not measured" in none.values()
    # 16384² / 10⁶ ms forward, three times that backward.
    assert (facts["forward"], facts["backward"]) == ("268.4 ms", "805.3 ms")
    assert facts["growth_forward"] == facts["growth_backward"] == "4.00"
    # Forward twice as fast and backward equally fast: (1 + 3) / (0.5 + 3).
    assert (facts["speedup_forward"], facts["speedup_backward"]) == ("2.00", "1.00")
    assert facts["speedups"] == "1.14"
    assert facts["compile_seconds"] == "3.0"
    assert [
        facts[f"{p}_kernels_{e}"]
        for p in ("forward", "backward")
        for e in ("eager", "compiled")
    ] == list("84") + [
        "25",
        "9",
    ]
    # Two matrices of 8 GiB, and 64 bytes for each pair of positions.
    assert (facts["one_matrix"], facts["kept"]) == ("8.0 GiB", "16.0 GiB")
    assert facts["per_square_eager"] == "64.1"


def test_the_prediction_is_compared_with_the_measurement(record):
    assert attention.largest_error(record) == pytest.approx(0, abs=0.001)
    row = record.find(n=8192, d=16, dtype="bf16", causal=False, execution="eager")
    kept = row.metrics["before_backward_bytes"] - row.metrics["before_forward_bytes"]
    row.metrics["before_backward_bytes"] += kept // 50
    assert attention.largest_error(record) == pytest.approx(0.02, abs=0.001)
    # At short sequences other things count, and nobody promised anything.
    short = attention_row(256, "eager")
    short.metrics["before_backward_bytes"] *= 9
    record.rows.append(short)
    assert attention.largest_error(record) == pytest.approx(0.02, abs=0.001)


def test_the_first_length_that_does_not_fit(record):
    facts = attention.facts(record)
    n = attention.shortest_out(140 * GIB)
    assert facts["shortest_out"] == "28,000"
    assert (facts["out_on_40"], facts["out_on_80"]) == ("15,000", "21,000")
    assert peak_bytes(n - 1) <= 140 * GIB < peak_bytes(n)
    assert facts["tried_length"] == "32,768" and facts["tried_need"] == "192.4 GiB"
    assert facts["tried_eager"] == "ran out of memory"
    table = attention.accounting(record)
    cells = [
        float(line.split("|")[2])
        for line in table.splitlines()[2:]
        if line.startswith("|")
    ]
    assert (
        sum(cells[:-1]) == pytest.approx(cells[-1], abs=0.01) and cells.count(32.0) == 6
    )
    # Where nothing ran out, it is the first doubled length that must.
    record.rows = [row for row in record.rows if row.config["n"] <= 16384]
    assert attention.accounted_length(record) == 32768
    record.device = device(2000)
    assert attention.accounted_length(record) == 131072
    assert attention.facts(record)["tried_eager"] == "was not measured"


def test_on_a_smaller_gpu_a_row_that_does_not_fit_says_so(record):
    for row in record.rows:
        if row.config["n"] == 16384 and row.config["dtype"] == "fp32":
            row.status, row.metrics, row.reason = (
                "out_of_memory",
                {},
                "CUDA out of memory",
            )
    record.device = device(40)
    facts, files = attention.facts(record), attention.fragments([record])
    assert facts["forward"] == facts["speedup_forward"]
    assert facts["forward"] == "out of memory"
    assert facts["tried_length"] == "16,384" and facts["tried_need"] == "48.2 GiB"
    assert "| 64 | 16384 | out of memory |  |  |  |" in files["table.md"]
    assert not re.search(
        r"\bnan\b|None",
        "".join(text for name, text in files.items() if name.endswith(".md")),
    )


def test_every_cell_of_the_map_has_its_number(record):
    files = attention.fragments([record])
    # Two drawings of four maps of two widths and two or three lengths that were
    # measured.
    assert files["speedups.md"].count(">1.14<") == 2 * (4 * 4 + 1)
    assert files["times.md"].count(">slope of N²<") == 2 * 2
    assert files["memory.md"].count("<svg") == 2


def test_gpu_time_has_columns_where_it_was_measured(record):
    assert "GPU" not in attention.grid_table(record)
    row = record.find(n=8192, d=16, dtype="fp32", causal=False, execution="eager")
    row.metrics |= {"forward_gpu_ms": [1.0], "backward_gpu_ms": [2.0]}
    table = attention.grid_table(record)
    assert "| forward, GPU, ms | backward, GPU, ms |" in table
    assert "| 1.000 | 2.000 |" in table and "not measured" not in table


def test_kernels_tell_what_they_fuse(record):
    assert "| fp32 | no | forward | 8 | 4 | reduction: div exp |" in (
        attention_compiled.kernels_table(record)
    )
    words = attention_compiled.fused_words("triton_poi_fused__to_copy_add_12").split(
        " "
    )
    assert words == ["pointwise:", "to", "copy", "add"]
    assert attention_compiled.fused_words("triton_mm") == "triton_mm"


def test_the_matrices_drawn_at_the_peak_are_those_that_the_formula_counts():
    svg = (ROOT / "docs/drawings/score-matrices-wide.svg").read_text("utf-8")
    alive = [int(n) for n in re.findall(r'y="334"[^>]*>(\d+)<', svg)]
    counted = [
        name for name in attention_peak_bytes(**shape(16384)) if "(b, n, n)" in name
    ]
    assert max(alive) == len(counted) == 6


def test_fusion_moves_what_the_drawing_shows():
    """The scale and softmax read or write ten score matrices, fused two; the drawing
    adds one for each matmul.
    """
    predicted = envelope.traffic_facts(None)
    matrix = 8 * 16384**2 * 4 / 2**30
    assert predicted["moved"] == f"{10 * matrix:.0f} GiB"
    assert predicted["moved_fused"] == f"{2 * matrix:.0f} GiB"


def test_reported_grids_are_shown_as_reported():
    found = load.load(RESULTS)
    files = {
        name: text.replace(REST, "")
        for name, text in attention.fragments(found["attention"]).items()
    }
    # The notes' own figures, from GB and from MiB.
    assert "| 16 | 16384 | 56.91 | 140.36 | 8.048 | 32.070 |" in files["table.md"]
    assert (
        "| 16 | 16384 | 58.65 ± 0.41 | 142.65 ± 0.26 | 8.047 | 32.078 |"
        in files["table.md"]
    )
    assert files["compiled.md"].count("| apparently ran eager |") == 1
    assert (
        "| 128 | 16384 | 81.476 | 81.510 | 1.00 | 165.394 | 165.312 | 1.00 | "
        "apparently ran eager |" in (files["compiled.md"])
    )
