"""What `attention` and `compile` derive when rendered, from records made here whose
answers are known by hand.
"""

import re

import pytest

from systems.formulas.costs import attention_peak_bytes
from systems.records.device import Device
from systems.records.record import Record, Row
from tests.factories import RESULTS, make_record, make_row
from tools.render import load
from tools.render.markdown import REST
from tools.render.rows import PHASES
from tools.render.spanning import envelope
from tools.render.stems import attention
from tools.render.stems import compile as compile_builder
from tools.render.stems.attention import compiled as attention_compiled
from tools.render.stems.attention import memory as attention_memory
from tools.render.stems.attention.rows import at, shape
from tools.render.stems.compile import AT_ONCE

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
    assert facts["compile_least"] == facts["compile_most"] == "3.0 s"
    assert [
        facts[f"{p}_kernels_{e}"]
        for p in ("forward", "backward")
        for e in ("eager", "compiled")
    ] == list("84") + [
        "25",
        "9",
    ]
    # Two matrices of 8 GiB, and 64 bytes for each pair of positions.
    assert (facts["one_matrix"], facts["kept"], facts["per_square_limit"]) == (
        "8.0 GiB",
        "16.0 GiB",
        "64",
    )
    assert facts["per_square_eager"] == "64.1"


def test_the_prediction_is_compared_with_the_measurement(record):
    assert attention_memory.largest_error(record) == pytest.approx(0, abs=0.001)
    cell = at(record, 8192, 16, "bf16")
    more = int(attention_memory.kept_bytes(cell)) // 50
    cell.row.metrics["before_backward_bytes"] += more
    assert attention.facts(record)["prediction_off"] == "at most 2.0 %"
    # At short sequences other things count, and nobody promised anything.
    short = attention_row(256, "eager")
    short.metrics["before_backward_bytes"] *= 9
    record.rows.append(short)
    assert attention.facts(record)["prediction_off"] == "at most 2.0 %"


def test_the_first_length_that_does_not_fit(record):
    facts = attention.facts(record)
    n = attention_memory.shortest_out(140 * GIB)
    assert facts["shortest_out"] == "28,000"
    assert (
        attention_memory.needed_at(n - 1) <= 140 * GIB < attention_memory.needed_at(n)
    )
    assert facts["tried_length"] == "32,768" and facts["tried_need"] == "192.4 GiB"
    assert (
        facts["tried_eager"] == "ran out of memory"
        and facts["tried_compiled"] == "ran with a peak of 96.0 GiB"
    )
    table = attention_memory.accounting(record)
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
    assert attention_memory.accounted_length(record) == 32768
    record.device = device(2000)
    assert attention_memory.accounted_length(record) == 131072
    assert attention.facts(record)["tried_eager"] == "was not measured"


def test_on_a_smaller_gpu_a_row_that_does_not_fit_names_its_need(record):
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
    assert facts["forward"] == "out of memory, needs 48.2 GiB"
    assert facts["tried_length"] == "16,384" and facts["tried_need"] == "48.2 GiB"
    assert (
        "| 64 | 16384 | out of memory, needs 48.2 GiB |  |  |  |" in files["table.md"]
    )
    # A compiled row's need grows with N² from its longest one that fitted: 4 times 3
    # matrices of 2 GiB.
    compiled = at(record, 16384, execution="compiled")
    assert compiled.why == "out of memory, needs 24.0 GiB"
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


def test_kernels_tell_what_they_fuse(record):
    assert "| fp32 | no | forward | 8 | 4 | reduction: div exp |" in (
        attention_compiled.kernels_table(record)
    )
    words = attention_compiled.fused_words("triton_poi_fused__to_copy_add_12").split(
        " "
    )
    assert words == ["pointwise:", "to", "copy", "add"]
    assert attention_compiled.fused_words("triton_mm") == "triton_mm"


def test_the_kernels_that_fusion_joins_are_counted_by_the_record(record):
    drawn = attention_compiled.fusion(record)
    assert "<strong>Fusion makes 4 kernels of 8.</strong>" in drawn
    assert "12 become 4." in drawn
    assert "Fusion joins the kernels" in attention_compiled.fusion(None)


def test_the_matrices_drawn_at_the_peak_are_those_that_the_formula_counts():
    counted = [
        name for name in attention_peak_bytes(**shape(16384)) if "(b, n, n)" in name
    ]
    assert len(attention_memory.alive(attention_memory.AT_PEAK)) == len(counted) == 6
    alive = [len(attention_memory.alive(i)) for i in range(11)]
    assert alive == [1, 2, 2, 2, 3, 3, 4, 5, 6, 4, 4]
    drawn = attention_memory.matrices()
    assert "6 are alive" in drawn and "256 times as large" in drawn
    # After the forward pass what autograd keeps is alive, and nothing else.
    kept = [m.name for m in attention_memory.alive(attention_memory.FORWARD)]
    assert kept == ["e", "P"]


def test_the_drawing_of_fusion_moves_what_the_prediction_counts():
    predicted = envelope.traffic_facts(None)
    matrix = 8 * 16384**2 * 4 / 2**30
    # The products need longer for their arithmetic.
    _, *between, _ = attention_compiled.KERNELS.values()
    moved = sum(map(sum, between))
    assert predicted["moved"] == f"{moved * matrix:.0f} GiB"
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
    table = compile_builder.fragments(found["compile"])["table.md"]
    assert "| large | not said | model | 283.66 | 640.30 | 922.44 |" in table


# The whole model ----------------------------------------------------------------------


def model_row(
    execution: str, step_ms: float, compile_ms: float = 0.0, size: str = "small"
) -> Row:
    """A step of four phases: 30 % forward, 10 % loss, 40 % backward, 20 % optimizer;
    forward compiles in the first.
    """
    shares = {"forward": 0.3, "loss": 0.1, "backward": 0.4, "optimizer": 0.2}
    metrics: dict = {
        f"{phase}_ms": [share * step_ms] * 3 for phase, share in shares.items()
    }
    metrics |= {
        f"warmup_{phase}_ms": [share * step_ms] * 2 for phase, share in shares.items()
    }
    metrics["warmup_forward_ms"][0] += compile_ms
    metrics |= {
        "graphs": int(execution != "eager"),
        "recompiles": 0,
        "peak_allocated_bytes": 3 * GIB,
    }
    metrics |= {
        f"{phase}_kernels": 10 if execution == "eager" else 4 for phase in shares
    }
    config = {
        "size": size,
        "precision": "fp32",
        "execution": execution,
        "context": 512,
        "batch": 4,
    }
    return Row(config, "ok", metrics)


def model_record(*rows: Row) -> Record:
    return Record("compile", "measured", device(140), list(rows), len(rows))


def test_steps_that_pay_for_compiling_by_hand():
    record = model_record(
        model_row("eager", 100.0), model_row("compiled", 80.0, compile_ms=5001.0)
    )
    facts = compile_builder.facts(record)
    assert facts.keys() == compile_builder.facts(None).keys()
    assert (
        facts["speedup_small_fp32"]
        == facts["speedup_least"]
        == facts["speedup_most"]
        == "1.25"
    )
    # 5001 ms at 20 ms a step: the 251st step makes it even.
    assert (facts["compile_small_fp32"], facts["steps_small_fp32"]) == ("5 s", "251")
    assert (
        "| small | fp32 | model | 5.0 | 20.0 | 251 | 1 | 40 to 16 | 3.0 to 3.0 |"
        in (compile_builder.price_table(record))
    )


def test_compiling_that_gains_nothing_never_pays():
    record = model_record(
        model_row("eager", 80.0), model_row("compiled", 80.1, compile_ms=5000.0)
    )
    assert compile_builder.facts(record)["steps_small_fp32"] == "never"
    assert compile_builder.facts(record)["steps_2_7B_fp32"] == "not measured"


def in_rounds(execution: str, *step_ms: float, **more) -> Row:
    """A row of two rounds whose steps took so long."""
    row = model_row(execution, 1.0)
    row.config |= {"rounds": 2, "optimizer": False}
    shares = {p: row.metrics[f"{p}_ms"][0] for p in PHASES}
    row.metrics |= {f"{p}_ms": [shares[p] * t for t in step_ms] for p in PHASES}
    row.metrics |= more
    return row


def test_a_host_that_slows_a_whole_round_slows_no_ratio():
    """Both rounds gain two; the medians over all steps would gain more."""
    eager, fast = (10.0, 10.0, 40.0, 40.0), (5.0, 5.0, 20.0, 20.0)
    record = model_record(in_rounds("eager", *eager), in_rounds("compiled", *fast))
    assert compile_builder.facts(record)["speedup_small_fp32"] == "2.00"


def test_a_step_as_graphs_stands_beside_eager_and_compiled():
    rows = [
        in_rounds("eager", *4 * [10.0]),
        in_rounds("graph", *4 * [8.0]),
        in_rounds("compiled", *4 * [5.0]),
    ]
    del rows[1].metrics["recompiles"]
    table = compile_builder.fragments([model_record(*rows)])["graphs.md"]
    assert "| small | fp32 | 10.00 | 8.00 | 5.00 | 1.25 | 2.00 |" in table
    # Without them there is neither a table nor a word on turns.
    before = model_record(model_row("eager", 10.0), model_row("compiled", 5.0))
    assert "Not measured" in compile_builder.fragments([before])["graphs.md"]
    facts = compile_builder.facts(before)
    assert facts["graph_small"] == facts["rounds"] == "not measured"
    for row in rows:
        row.config["precision"] = "bf16"
    facts = compile_builder.facts(model_record(*rows))
    assert (facts["graph_small"], facts["rounds"]) == ("1.25", "2")


def test_adamw_is_compared_with_the_eager_rows_of_its_own_turns():
    both = [in_rounds("compiled", *4 * [5.0]), in_rounds("eager", *4 * [15.0])]
    for row in both:
        row.config["optimizer"] = True
    alone = [in_rounds("eager", *4 * [10.0]), in_rounds("compiled", *4 * [8.0])]
    record = model_record(*alone, *both)
    table = compile_builder.fragments([record])["speedup-table.md"]
    assert re.search(r"small \| fp32 \| model \| 1.25 .* 1.25 \|", table)
    assert re.search(r"small \| fp32 \| model, AdamW \| 3.00 .* 3.00 \|", table)
    # AdamW is a fifth of 15 ms eager, not of the 10 ms of the other turns.
    facts = compile_builder.facts(record)
    assert (facts["optimizer_eager"], facts["optimizer_compiled"]) == (
        "3.0 ms",
        "1.0 ms",
    )


def test_a_second_start_has_a_column_once_it_was_measured():
    again = {"again_forward_ms": [2001.5], "again_backward_ms": [2.0]}
    row = in_rounds("compiled", *4 * [5.0], compiled_at_once=5, **again)
    record = model_record(in_rounds("eager", *4 * [10.0]), row)
    price = compile_builder.fragments([record])["price.md"]
    assert "| again, from its cache, s |" in price and "| 2.0 |" in price
    alone = model_record(model_row("eager", 10.0), model_row("compiled", 5.0))
    price = compile_builder.fragments([alone])["price.md"]
    assert "again" not in price and "at once" not in price and AT_ONCE not in price


def test_each_price_says_how_many_cells_were_compiled_at_once():
    """One compiled beside four others, one alone, where it was measured."""
    alone = [in_rounds("eager", *4 * [20.0]), in_rounds("compiled", *4 * [8.0])]
    for row in alone:
        row.config["size"] = "large"
    ahead = in_rounds("compiled", *4 * [5.0], compiled_at_once=5)
    record = model_record(in_rounds("eager", *4 * [10.0]), ahead, *alone)
    files = compile_builder.fragments([record])
    # Of what is told first only the smallest and the largest model are there.
    assert "| large |" not in files["price.md"]
    price = files["price-all.md"]
    lines = [line.split("|") for line in price.splitlines() if line.startswith("|")]
    place = [cell.strip() for cell in lines[0]].index("at once")
    assert [cells[place].strip() for cells in lines[2:]] == ["5", "1"]
    assert price.count(AT_ONCE) == 1


def test_graphs_are_shown_where_nothing_was_compiled():
    """Without a C++ compiler compiled rows are a result all the same."""
    unsupported = in_rounds("compiled", 1.0)
    unsupported.status, unsupported.metrics = "unsupported", {}
    unsupported.reason = "torch.compile needs a C++ compiler"
    eager, graph = in_rounds("eager", 2.0, 2.0), in_rounds("graph", 1.0, 1.5)
    shown = compile_builder.graphs_body(model_record(eager, unsupported, graph))
    assert "| 2.00 | 1.25 | unsupported | 1.67 |  |" in shown


def test_a_slower_step_refutes_the_gain():
    fast = [in_rounds("eager", *4 * [10.0]), in_rounds("compiled", *4 * [5.0])]
    slow = [
        in_rounds("eager", *4 * [10.0]),
        in_rounds("compiled", 20.0, 20.0, 40.0, 40.0),
    ]
    for row in slow:
        row.config["size"] = "large"
    judge = compile_builder.compiling_gains.judge
    told = "Eager time over compiled time of a step"
    assert judge(model_record(*fast)) == (True, f"{told}: 2.00.")
    assert judge(model_record(*fast, *slow)) == (False, f"{told}: 0.38 to 2.00.")


@pytest.mark.parametrize("lost", ["eager", "compiled"])
def test_a_cell_without_memory_for_one_of_the_two_has_no_gain(lost):
    large = [in_rounds("eager", *4 * [90.0]), in_rounds("compiled", *4 * [80.0])]
    for row in large:
        row.config["size"] = "2.7B"
        if row.config["execution"] == lost:
            row.status, row.metrics = "out_of_memory", {}
    small = [in_rounds("eager", *4 * [10.0]), in_rounds("compiled", *4 * [5.0])]
    record = model_record(*small, *large)
    facts, files = compile_builder.facts(record), compile_builder.fragments([record])
    assert facts["speedup_2_7B_fp32"] == "out of memory"
    assert facts["speedup_most"] == "2.00"
    assert "of a whole step is 2.00." in files["speedups.md"]
    assert compile_builder.compiling_gains.judge(record)[0]


def test_a_model_that_does_not_fit_is_a_row():
    """Neither eager nor compiled, in the grid that is measured in turns."""
    out = [in_rounds("eager"), in_rounds("compiled")]
    for row in out:
        row.config["size"] = "2.7B"
        row.status, row.metrics = "out_of_memory", {}
    record = model_record(in_rounds("eager", *4 * [100.0]), *out)
    files = compile_builder.fragments([record])
    assert re.search(
        r"\| 2.7B \| fp32 \| model \| out of memory \|(  \|){3}", files["table.md"]
    )
    assert compile_builder.facts(record)["speedup_2_7B_fp32"] == "out of memory"
    assert "compile-speedup-nvidia-x" in files["speedups.md"]


def test_compiled_adamw_counts_its_own_compile_time():
    both = model_row("compiled_optimizer", 60.0, compile_ms=2000.0)
    both.metrics["warmup_optimizer_ms"] = [4012.0, 3012.0]
    facts = compile_builder.facts(model_record(model_row("eager", 100.0), both))
    # 7 s of optimizer, 9 s in all, at 40 ms a step.
    assert facts["optimizer_compile"] == "7 s"
    assert (facts["optimizer_eager"], facts["optimizer_compiled"]) == (
        "20.0 ms",
        "12.0 ms",
    )


def test_a_gain_that_falls_with_each_larger_model():
    def record(*compiled: float) -> Record:
        sizes = ("small", "medium", "large")
        rows = [
            make_row(
                {"size": size, "precision": "fp32", "execution": execution},
                **{f"{phase}_ms": [ms] * 5 for phase in PHASES},
            )
            for size, own in zip(sizes, compiled, strict=True)
            for execution, ms in (("eager", 10.0), ("compiled", own))
        ]
        return make_record("compile", *rows)

    assert compile_builder.falls_with_size(record(5.0, 6.0, 7.0))
    assert not compile_builder.falls_with_size(record(5.0, 7.0, 6.0))
