"""Tables, facts and figures of `kernel_profile` from a record made here: every number
can be followed by hand.
"""

import copy
import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from systems import ROOT
from systems.experiments import kernel_profile as experiment
from systems.formulas.costs import attention_part_costs
from systems.model import transformer
from systems.model.sizes import SIZES
from systems.profiling.kernel_names import CATEGORIES
from systems.records import store
from systems.records.device import Device
from systems.records.record import Record, Row
from tests.factories import committed
from tools.render import everything
from tools.render.clocks import note_clocks
from tools.render.frame import Line, frame
from tools.render.markdown import REST
from tools.render.stems import kernel_profile
from tools.render.stems.kernel_profile import rows as kernel_rows

GEMM, EXP = "sm80_xmma_gemm_f32f32", "elementwise exp"
# (phase, kernel, category, calls, ms) per pass of a step; a forward pass is its first
# five.
KERNELS = [
    ("forward", GEMM, "matmul", 85, 6.0),
    ("forward", "elementwise mul", "elementwise", 60, 1.0),
    ("forward/attention scores", GEMM, "matmul", 12, 0.5),
    ("forward/attention softmax", EXP, "softmax", 60, 2.0),
    ("forward/attention output", GEMM, "matmul", 12, 0.5),
    ("loss", "cunn_SoftMaxForward", "softmax", 1, 0.25),
    ("backward", "other_gemm", "matmul", 170, 7.5),
    ("backward", GEMM, "matmul", 24, 0.25),
    ("backward", "elementwise copy", "copy", 40, 2.0),
    ("optimizer", "elementwise add", "optimizer", 1000, 5.0),
]
WALL = {"forward": 12.5, "loss": 0.5, "backward": 10.0, "optimizer": 6.0}


def metrics_of(mode: str) -> dict:
    names = ["forward"] if mode == "forward" else list(WALL)
    seen = [kernel for kernel in KERNELS if kernel[0].split("/")[0] in names]
    busy = {
        name: sum(kernel[4] for kernel in seen if kernel[0].split("/")[0] == name)
        for name in names
    }
    kernels = [
        {"phase": p, "name": n, "category": c, "calls": k, "total_ms": ms}
        | dict.fromkeys(("median_ms", "min_ms", "max_ms", "start_ms"), 0.1)
        for p, n, c, k, ms in seen
    ]
    return {
        **{
            "profiler": "torch",
            "passes": 3,
            "thousand_marks_ms": [9.0, 8.0, 7.0, 8.0, 8.0],
        },
        **{f"profiled_{name}_ms": [1.5 * WALL[name]] * 3 for name in names},
        **{f"{name}_gpu_span_ms": [busy[name] + 0.5] * 3 for name in names},
        **{f"{name}_gpu_busy_ms": [busy[name]] * 3 for name in names},
        "matmul_ops_ms": [sum(k[4] for k in seen if k[2] == "matmul") / 1.02] * 3,
        "kernels": kernels,
    }


def kernel_record(clocked: bool = True) -> Record:
    """Every pass, and how long it takes without a profiler."""
    rows = [Row(asdict(c), "ok", metrics_of(c.mode)) for c in experiment.configs()]
    for row in rows if clocked else ():
        phases = ["forward"] if row.config["mode"] == "forward" else WALL
        walls = {f"{name}_ms": [WALL[name]] * 10 for name in phases}
        row.clock = Row(row.config, "ok", walls)
    device = Device("NVIDIA H200", "nvidia-h200", driver="580", power_limit_w=700.0)
    return Record(
        "kernel_profile",
        "measured",
        device,
        rows,
        len(rows),
        software={"torch": "2.11"},
        source_hash="x",
    )


def fragments(records: list[Record]) -> dict[str, str]:
    """Without the marks of lines that a page shows when asked."""
    files = kernel_profile.fragments(records)
    return {name: text.replace(REST, "") for name, text in files.items()}


@pytest.fixture(scope="module")
def record():
    return kernel_record()


def test_the_facts_by_hand(record):
    facts = kernel_profile.facts(record)
    assert (
        facts.keys() == kernel_profile.facts(None).keys()
        and "not measured" not in facts.values()
    )
    # 10 of 12.5 ms are kernels, and the span is half a ms longer.
    assert (facts["wall_2_7B"], facts["span_2_7B"], facts["busy_2_7B"]) == (
        "12.5 ms",
        "10.5 ms",
        "10.0 ms",
    )
    assert facts["profiled_2_7B"] == "18.8 ms"
    # 7 of 10 ms forward; 14.75 of 20 with loss and backward; of 25 with the optimizer.
    names = [f"matmul_{passes}_small" for passes in ("forward", "both", "step")]
    assert [facts[name] for name in names] == ["70 %", "74 %", "59 %"]
    # Calls of a kernel are those of all its phases.
    assert (facts["top_forward_small"], facts["top_forward_calls_small"]) == (
        f"`{GEMM}`",
        "109",
    )
    assert (facts["top_both_small"], facts["top_both_calls_small"]) == (
        "`other_gemm`",
        "170",
    )
    assert facts["top_both_share_small"] == "38 %"
    assert facts["softmax_small"] == "20 %" and facts["softmax_kernels_small"] == "60"
    assert (facts["products_ms_small"], facts["time_ratio_small"]) == (
        "1.00 ms",
        "0.50",
    )
    # Two products of 2 e FLOPs per score against five, e being 64.
    assert facts["flops_ratio_small"] == f"{4 * 64 / 5:.0f}"
    assert facts["mark_us"] == "8.0 µs"
    _, checked = kernel_profile.kernels_are_attributed.judge(record)
    assert "less than 0.1 %; names against operations at most 2.0 %" in checked


def test_two_kernels_of_one_tile_are_counted_apart(record):
    """As cuBLAS names them: weights are multiplied by one, heads by the other."""
    whole = f"{GEMM}_tilesize128x128x8_stage{{}}_warpsize2x2x1_execute_kernel"
    full = kernel_record()
    for row in full.rows:
        for kernel in row.metrics["kernels"]:
            if kernel["name"] == GEMM:
                stage = 4 if kernel["phase"].startswith("forward/") else 3
                kernel["name"] = whole.format(stage)
    facts = kernel_profile.facts(full)
    assert facts["top_forward_small"] == f"`{GEMM}_tilesize128x128x8`"
    # 85 of the 109 that have this tile, and 6 of 7 ms.
    assert facts["top_forward_calls_small"] == "85"
    assert facts["top_forward_share_small"] == "60 %"
    top = fragments([full])["top.md"]
    assert f"</summary>`{whole.format(3)}`" in top
    assert "| 85 | 60 % |" in top


def test_categories_add_up_to_the_whole(record):
    for x in frame(record):
        shares = [kernel_rows.share(x, name) for name in CATEGORIES]
        assert sum(shares) == pytest.approx(1)


def test_what_nobody_marked_shows(record):
    stray = kernel_record()
    stray.rows[0].metrics["kernels"].append(
        {**stray.rows[0].metrics["kernels"][0], "phase": "", "total_ms": 2.5}
    )
    assert kernel_rows.unattributed(Line.of(stray.rows[0])) == pytest.approx(0.2)
    judged = kernel_profile.kernels_are_attributed.judge(stray)
    assert isinstance(judged, tuple) and not judged[0] and "at most 20 %" in judged[1]


def test_every_question_has_its_table_and_every_figure_its_file(record):
    files = fragments([record])
    # The pass as it runs stands before the same pass under the profiler: idle is of the
    # first, the span of the second.
    assert (
        "| wall, ms | sum of kernels, ms | idle | wall, profiled, ms | GPU span, "
        "profiled, ms |" in files["times.md"]
    )
    line = "| small | 512 | fp32 | 12.50 | 10.00 | 20 % | 18.75 | 10.50 |"
    assert line in files["times.md"]
    assert f"| small | forward | `{GEMM}` | 109 | 70 % |" in files["top.md"]
    assert f"| `{EXP}` | softmax | 60 | 2.000 | 20 % |" in files["others.md"]
    assert GEMM not in files["others.md"]
    assert "| small | bf16 | 70 % | 74 % | 59 % | 20 % |" in files["matmul.md"]
    # bf16 moves other bytes, so attention's rates are of fp32 alone.
    assert files["attention.md"].count("attention softmax") == 5
    for name in ("causes", "roofline"):
        assert f'id="kernel_profile-{name}-nvidia-h200"' in files[f"{name}.md"]
    assert not any(re.search(r"\bnan\b", text) for text in files.values())


def clock_record(record, ms=16.0):
    """A record of `end_to_end` of one cell of it, on the same GPU."""
    cell = {"size": "small", "context": 128, "mode": "forward", "precision": "fp32"}
    config = cell | {"batch": 4, "vocab": 10_000, "attention": "eager"}
    row = Row(config, "ok", {"forward_ms": [ms] * 10})
    device, software = copy.deepcopy(record.device), dict(record.software)
    return Record("end_to_end", "measured", device, [row], 1, software=software)


@pytest.mark.parametrize("differs", ["", "torch", "driver", "gpu"])
def test_idle_is_told_by_the_clock_of_the_same_gpu_and_software(differs):
    profile = kernel_record(clocked=False)
    clock = clock_record(profile)
    if differs == "torch":
        clock.software["torch"] = "2.12"
    if differs == "driver":
        clock.device.driver = "581"
    if differs == "gpu":
        clock.device.slug = "nvidia-a100"
    note_clocks({"kernel_profile": [profile], "end_to_end": [clock]})
    times = fragments([profile])["times.md"]
    wall = " | 10.00 |  |" if differs else "16.00 | 10.00 | 38 % |"
    assert f"| small | 128 | fp32 | {wall} 18.75 |" in times
    assert ("Wall-clock time: [record]" in times) == (not differs)


def test_kernels_that_took_longer_than_the_timed_run_leave_nothing_idle():
    profile = kernel_record(clocked=False)
    clock = clock_record(profile, ms=9.9)
    note_clocks({"kernel_profile": [profile], "end_to_end": [clock]})
    assert "| 9.90 | 10.00 | 0.0 % |" in fragments([profile])["times.md"]


def test_a_pass_is_divided_by_what_the_gpu_did(record):
    x = kernel_rows.steps(record).one(size="2.7B", context=512, precision="fp32")
    # Of forward, loss and backward, without the optimizer: 7 + 7.75 matmuls, 2 copies,
    # 1 + 2 + 0.25 element-wise, of 23 ms by the clock.
    assert [x[name] for name in ("wall_ms", "matmuls", "copies", "rest", "idle")] == (
        pytest.approx([23, 14.75, 2, 3.25, 3])
    )
    named = [name for names in kernel_rows.CAUSES.values() for name in names]
    assert sorted([*named, "optimizer"]) == sorted(CATEGORIES)


def test_a_gain_is_expected_of_matmuls_alone(record):
    there = kernel_record()
    for row in there.rows:
        if row.config["precision"] == "bf16" and row.config["mode"] == "step":
            row.clock.metrics["backward_ms"] = [5.0] * 10
    found = kernel_rows.steps(there)
    x = found.one(size="2.7B", context=512, precision="bf16")
    rates = 989.5 / 67
    assert x["expected_gain"] == pytest.approx(
        23 / (23 - 14.75 * (1 - 1 / rates)), rel=1e-3
    )
    assert x["gain"] == pytest.approx(23 / 18)
    shown = fragments([there])["gains.md"]
    assert "| 2.7B | 512 | 0.0 % |" not in shown and "| 2.5 | 1.3 |" in shown


def test_a_slow_host_changes_idling_and_not_the_share_of_copies(record):
    slow = kernel_record()
    for row in slow.rows:
        row.clock.metrics["forward_ms"] = [90.0] * 10
    facts, slowed = kernel_profile.facts(record), kernel_profile.facts(slow)
    changed = {name for name in facts if facts[name] != slowed[name]}
    assert "idle_small_128_bf16" in changed
    assert not any(name.startswith(("copies_", "copied_")) for name in changed)


def test_out_of_memory_is_a_row_and_facts_say_so(record):
    smaller = kernel_record()
    for row in smaller.rows:
        if row.config["size"] == "2.7B":
            row.status, row.metrics = "out_of_memory", {}
    files = fragments([smaller])
    assert "| 2.7B | 512 | fp32 | out of memory |" in files["times.md"]
    assert "| 2.7B | fp32 | out of memory |" in files["matmul.md"]
    assert kernel_profile.facts(smaller)["wall_2_7B"] == "out of memory"


def test_a_gpu_without_a_data_sheet_has_no_roofline(record):
    unknown = kernel_record()
    unknown.device.slug = "acme-gpu"
    files = fragments([unknown])
    assert "roofline-acme-gpu" not in files["roofline.md"]


def test_two_gpus_stand_side_by_side_with_and_without_gpu_time(record):
    """Of one the clock has wall-clock time alone."""
    newer = kernel_record()
    newer.device.name, newer.device.slug = "NVIDIA H100", "nvidia-h100"
    for row in newer.rows:
        phases = [name.removesuffix("_ms") for name in row.clock.metrics]
        row.clock.metrics |= {f"{name}_gpu_ms": [1.0, 1.0] for name in phases}
    files = fragments([record, newer])
    for name, text in files.items():
        first, _, second = text.partition('=== "NVIDIA H100"')
        assert first.startswith('===! "NVIDIA H200"'), name
        if name not in ("attention.md", "gains.md"):
            # Rates are relative to each GPU's data sheet.
            assert re.findall(r"\| .* \|", first) == re.findall(r"\| .* \|", second)


MUL = "at::native::binary_internal::MulFunctor<float>"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (f"elementwise_kernel<128, 2, BinaryFunctor<float, {MUL} > >", "elementwise"),
        (f"vectorized_elementwise_kernel<4, BinaryFunctor<{MUL} > >", "vectorized"),
        (f"unrolled_elementwise_kernel<BinaryFunctor<{MUL} > >", "unrolled"),
    ],
)
def test_what_was_compiled_for_other_memory_has_a_name_of_its_own(name, short):
    of_two = kernel_rows.Kernel(f"void at::native::{name}", "elementwise", 1, 1.0)
    assert of_two.short == f"{short} mul"
    of_one = of_two._replace(name=of_two.name.replace("BinaryF", "BUnaryF"))
    assert of_one.short == "mul by a number"


def test_the_top_kernel_is_one_kernel_and_not_all_of_an_operation():
    config = {"size": "small", "context": 512, "mode": "forward", "precision": "bf16"}
    x = frame(committed("kernel_profile")).one(**config)
    sums: Counter[str] = Counter()
    for item in x["kernels"]:
        sums[item["name"]] += item["total_ms"]
    ((name, longest),) = sums.most_common(1)
    top = kernel_rows.by_name(x)[0]
    assert (top.name, top.ms) == (name, pytest.approx(longest))


def test_without_a_record_every_table_says_so():
    files = fragments([])
    assert all("Not measured yet" in text for text in files.values())
    assert set(kernel_profile.facts(None).values()) == {"not measured"}


def test_the_record_is_one_that_can_be_read(record, tmp_path: Path):
    path = tmp_path / "nvidia-h200" / "kernel_profile.json"
    store.write(record, path)
    assert store.to_json(store.read(path)) == store.to_json(record)
    assert "kernel_profile-times.md" in everything.render_all(tmp_path)


def test_products_of_attention_cost_what_pytorch_counts(monkeypatch):
    """And the model's other products cost the rest."""

    size = SIZES["small"]
    small = type(size)(d_model=16, d_ff=32, num_layers=2, num_heads=2)
    q, k, v = torch.randn(3, 3, 2, 8, 8)
    with FlopCounterMode(display=False) as counter:
        transformer.eager_attention(q, k, v)
    costs = attention_part_costs(context=8, batch=3, element_bytes=4, **asdict(small))
    per_layer = (
        costs["attention scores"][0] + costs["attention output"][0]
    ) / small.num_layers
    assert per_layer == counter.get_total_flops()
    # n = 2 layers x 3 sequences x 2 heads x 64 scores.
    assert costs["attention softmax"] == (5 * 768, 8 * 768 * 4)
    assert costs["attention scores"][1] == 4 * (768 + 2 * 2 * 3 * 8 * 16)


def test_no_two_sets_of_tabs_stand_side_by_side():
    """Markdown would join them into one, with the same GPU twice."""
    page = (ROOT / "docs" / "kernel_profile.md").read_text(encoding="utf-8")
    assert not re.search(r'--8<-- "generated/[^":]+"\s+--8<-- "generated/', page)
