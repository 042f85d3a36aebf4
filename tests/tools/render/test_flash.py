"""Builders of the attention benchmarks, on records small enough to reckon by hand."""

import re
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode

from systems.benchmarking import peers as attentions
from systems.experiments import flash_peers as peers_experiment
from systems.formulas.costs import KERNELS
from systems.records.device import Device
from systems.records.record import Record, Row
from tests.factories import committed, make_record, make_row
from tools.render.frame import Line
from tools.render.rows import say
from tools.render.stems import (
    flash_ablation,
    flash_accuracy,
    flash_benchmarking,
    flash_leaderboard,
    flash_peers,
    model_attention,
)
from tools.render.stems.flash_passes import PASSES, kernel_ms, tflops

GPU = Device("NVIDIA H200", "nvidia-h200", "9.0", 1, "580", 700.0, [1000, 2000])


def record(stem: str, *rows: Row) -> Record:
    return Record(stem, "measured", GPU, list(rows), expected_rows=len(rows))


def times(forward: float, backward: float, both: float) -> dict[str, list[float]]:
    return {"forward_ms": [forward], "backward_ms": [backward], "both_ms": [both]}


def bench_row(
    name: str, n: int, *passes: float, dtype: str = "bf16", **memory: int
) -> Row:
    config = {"implementation": name, "dtype": dtype, "d": 64, "n": n}
    return Row(
        config,
        "ok",
        {
            **times(*passes),
            "ran": "flash_attention",
            "held_bytes": 0,
            "peak_allocated_bytes": 0,
        }
        | memory,
    )


OUT = Row(
    {"implementation": "plain", "dtype": "bf16", "d": 64, "n": 65536},
    "out_of_memory",
    reason="CUDA out of memory",
)


@pytest.fixture
def bench():
    ours = [
        bench_row(
            "ours", n, 1.0, 2.0, 3.0, held_bytes=2**20, peak_allocated_bytes=65 * 2**20
        )
        for n in (128, 65536)
    ]
    return record(
        "flash_benchmarking",
        *ours,
        bench_row("plain", 128, 0.5, 4.0, 2.5),
        OUT,
    )


def test_rates_and_memory_by_hand(bench):
    (longest,) = flash_benchmarking.shapes(bench).where(n=65536)
    # 7 matmuls of 2 · 64 FLOPs for half of 65536² scores, in 3 ms.
    rate = 7 * 2 * 64 * 65536**2 / 2 / 3e-3 / 1e12
    assert longest["rate"] == pytest.approx(rate)
    # The data sheet has 989.5 TFLOP/s.
    assert longest["share"] == pytest.approx(rate / 989.5)
    assert longest["ours.mib"] == 64
    missing = (longest["plain.mib"], tflops(longest["plain"], "both"))
    assert [say(number) for number in missing] == ["out of memory"] * 2


def test_memory_that_is_less_than_what_a_pass_returns_was_misread(bench):
    """The output and three gradients, of two bytes each: 32 MiB."""
    ours = Line.of(bench.find(implementation="ours", n=65536))
    ours.metrics["held_bytes"] = 33 * 2**20
    assert flash_benchmarking.memory_mib(ours) == 32
    ours.metrics["held_bytes"] += 1
    assert say(flash_benchmarking.memory_mib(ours)) == "not measured"


def test_losing_is_said_and_counted(bench):
    (short,) = flash_benchmarking.shapes(bench).where(n=128)
    assert [short[f"{of} / plain"] for of in PASSES] == [0.5, 2.0, 2.5 / 3]
    files = flash_benchmarking.fragments([bench])
    assert "| plain PyTorch | 1 of 1 | 0 of 1 | 1 of 1 | 0.83 |" in files["lost.md"]
    assert "compiled PyTorch" not in files["lost.md"]


def test_gpu_time_decides_where_it_was_measured(bench):
    """A ratio is the median of rounds, and the table has the lowest and the highest."""
    plain, ours = (bench.find(implementation=n, n=128) for n in ("plain", "ours"))
    plain.metrics |= {"both_ms": [99.0], "both_gpu_ms": [6.0, 7.0, 9.0]}
    assert kernel_ms(Line.of(plain), "both") == 7.0
    plain.metrics["both_rounds_ms"], ours.metrics["both_rounds_ms"] = [6, 8], [2, 2]
    assert flash_benchmarking.shapes(bench)[0]["both / plain"] == 3.5
    table = flash_benchmarking.fragments([bench])["table.md"]
    assert "| 99.00 |" in table and "| 3.50 (3.00 to 4.00) |" in table
    assert "GPU, ms" not in table
    ours.metrics["both_gpu_ms"] = [2.0]
    table = flash_benchmarking.fragments([bench])["table.md"]
    assert "| 99.00 | 2.000 | 7.000 | 3.50 (3.00 to 4.00) |" in table
    # Without GPU time the host makes nobody slower between two passes.
    del plain.metrics["both_gpu_ms"]
    passes = sum(plain.metrics[f"{of}_ms"][0] for of in ("forward", "backward"))
    assert kernel_ms(Line.of(plain), "both") == passes
    assert say(kernel_ms(Line.of(OUT), "both")) == "out of memory"


def test_a_shape_without_memory_is_a_row_and_a_fact(bench):
    facts, files = (
        flash_benchmarking.facts(bench),
        flash_benchmarking.fragments([bench]),
    )
    assert facts["faster_bf16_65536"] == facts["memory_plain_bf16"] == "out of memory"
    line = "| bf16 | 64 | 65536 | 1.000 | 2.000 | 3.000 | out of memory |  |  |  |"
    assert line in files["table.md"]
    # A line for each shape of the record, of which there are two.
    assert files["table.md"].count("| bf16 |") == 2


def test_tables_tell_which_kernels_ran(bench):
    bench.find(implementation="ours", n=65536).metrics["ran"] = "hopper"
    table = flash_benchmarking.fragments([bench])["table.md"]
    (row,) = re.findall(r"\| bf16 \| 64 \| 65536 \|.*", table)
    assert row.endswith("| hopper |")
    # Where a row has no numbers nothing ran.
    assert flash_benchmarking.what_ran(Line.of(OUT)) == ""


class Moves(TorchDispatchMode):
    """Adds up the bytes of all score matrices that operations read and write."""

    def __init__(self, n: int):
        super().__init__()
        self.n, self.bytes = n, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view and func is not torch.ops.aten._unsafe_view.default:
            tensors = (x for x in (*args, out) if isinstance(x, torch.Tensor))
            matrices = (x for x in tensors if x.shape[-2:] == (self.n, self.n))
            self.bytes += sum(x.numel() * x.element_size() for x in matrices)
        return out


def test_plain_attention_moves_what_the_prediction_counts():
    n, loss = 48, torch.ones(1, 1, 48, 8, dtype=torch.bfloat16)
    q, k, v = (torch.randn_like(loss, requires_grad=True) for _ in range(3))
    found = {}
    with Moves(n) as moves:
        o = attentions.plain(q, k, v, causal=True)
        found["forward"] = moves.bytes / n**2 / 2
        torch.autograd.grad(o, (q, k, v), loss)
        found["backward"] = moves.bytes / n**2 / 2 - found["forward"]
    assert found == {
        of: sum(moved.values()) for of, moved in flash_benchmarking.PLAIN_MOVES.items()
    }


def test_predictions_need_no_record_and_ratios_do(bench):
    facts = flash_benchmarking.facts(None)
    # 20.5 numbers of two bytes for each score, at 4.8 TB/s; 7 products at 989.5
    # TFLOP/s.
    assert (facts["plain_moved"], facts["plain_predicted"]) == ("176 GB", "36.7 ms")
    assert (facts["ours_predicted"], facts["faster_predicted"]) == ("1.94 ms", "19")
    assert facts["ours_took"] == "not measured"
    assert flash_benchmarking.facts(bench)["ours_took"] == "3 ms"


def test_the_log_sum_exp_is_judged_in_fp32_alone():
    def row(implementation: str, dtype: str, **errors: float) -> Row:
        config = {
            "implementation": implementation,
            "dtype": dtype,
            "d": 64,
            "n": 1000,
            "causal": True,
        }
        return Row(
            config,
            "ok",
            {f"{name}_relative_error": error for name, error in errors.items()},
        )

    plain = {"o": 1.0, "lse": 1.0, "dq": 1.0, "dk": 2.0, "dv": 1.0}
    ours = {"o": 0.5, "lse": 1.9, "dq": 0.25, "dk": 1.5, "dv": 0.5}
    facts = flash_accuracy.facts(
        record(
            "flash_accuracy",
            row("triton", "fp32", **ours),
            row("plain", "fp32", **plain),
            row("triton", "bf16", **ours),
            row("plain", "bf16", **plain),
        )
    )
    assert (facts["worst_fp32"], facts["worst_bf16"]) == ("1.90", "0.75")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_one_rounding_errs_as_predicted(dtype):
    x = torch.randn(2**20, generator=torch.Generator().manual_seed(0)).double()
    off = (x.to(dtype).double() - x).norm() / x.norm()
    name = {torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    predicted = flash_accuracy.rounding(flash_accuracy.BITS[name])
    assert off.item() == pytest.approx(predicted, rel=0.01)
    assert flash_accuracy.facts(None)[f"once_{name}"] == f"{predicted:.5f}"


@pytest.fixture
def peers():
    def row(name: str, n: int, dtype: str, status="ok", **metrics) -> Row:
        shape = {"batch": 1, "heads": 16, "n": n, "d": 64}
        config = {"implementation": name, **shape, "causal": True, "dtype": dtype}
        return Row(config, status, metrics, None if status == "ok" else "no kernel")

    def timed(name: str, n: int, forward: float, error: float, dtype="bf16", **more):
        errors = {f"{of}_relative_error": error for of in ("o", "dq", "dk", "dv")}
        passes = times(forward, forward, 2 * forward)
        return row(name, n, dtype, **passes, **errors, **more)

    return record(
        "flash_peers",
        timed("ours", 16384, 3.0, 2e-3),
        timed("sdpa_cudnn", 16384, 2.0, 1e-3),
        timed("flex", 16384, 1.5, 1e-3),
        timed("ours", 4096, 1.0, 1e-3),
        timed("sdpa_cudnn", 4096, 2.0, 1e-3),
        timed("ours_triton", 4096, 2.5, 1e-3),
        row("sdpa_flash", 4096, "bf16", "unsupported"),
        # The host is twice as slow in the second round.
        timed("ours", 128, 9.0, 1e-3, call_ms=[0.05, 0.12, 0.06]),
        timed("sdpa_cudnn", 128, 1.0, 1e-3, call_ms=[0.04, 0.04, 0.04]),
        timed("ours_triton", 128, 9.0, 1e-3, call_ms=[0.04, 0.09, 0.045]),
        timed("sdpa_flash", 128, 2.0, 1e-3, call_ms=[0.03, 0.06, 0.03]),
        timed("ours", 2048, 3.0, 1e-6, "fp32"),
        timed("ours_high", 2048, 1.0, 1e-3, "fp32"),
        timed("sdpa_efficient", 2048, 4.0, 1e-6, "fp32"),
    )


def test_times_are_relative_to_a_library_at_one_shape(peers):
    facts = flash_peers.facts(peers)
    # The short row is launch-bound: neither its ratio nor its loss counts.
    assert (facts["bf16_both"], facts["bf16_both_lost"], facts["shapes"]) == (
        "0.50 to 1.50",
        "1 of 2",
        "2",
    )
    assert (facts["fp32_both"], facts["short_over_cudnn"]) == ("0.75", "1.50")
    assert facts["error_over_rival_most"] == "2.00"
    assert (facts["triton_64"], facts["triton_128"]) == ("1.25", "not measured")
    files = flash_peers.fragments([peers])
    assert "| this guide, Hopper | 60 |" in files["calls.md"]


def test_launch_bound_passes_have_no_relative_time(peers):
    """Such a shape still counts for each pass by itself."""
    ours, cudnn = (
        peers.find(n=16384, implementation=name).metrics
        for name in ("ours", "sdpa_cudnn")
    )
    # A tenth more than 3 ms and 3 ms may be noise.
    ours["both_ms"] = [6.5]
    assert flash_peers.facts(peers)["bf16_both"] == "0.50 to 1.50"
    ours["both_ms"] = [6.7]
    facts = flash_peers.facts(peers)
    assert (facts["bf16_both"], facts["bf16_both_lost"]) == ("0.50", "0 of 1")
    # cuDNN may be launch-bound as well.
    ours["both_ms"], cudnn["both_ms"] = [6.0], [4.5]
    assert flash_peers.facts(peers)["bf16_both_lost"] == "0 of 1"
    assert "| launch-bound |" in flash_peers.fragments([peers])["table.md"]


def test_determinism_and_its_cost(peers):
    shape = {"batch": 1, "heads": 16, "n": 4096, "d": 64, "causal": True}

    def add(name: str, both: float, **metrics):
        config = {"implementation": name, **shape, "dtype": "bf16"}
        passes = times(both / 2, both / 2, both)
        errors = {f"{of}_relative_error": 1e-3 for of in ("o", "dq", "dk", "dv")}
        peers.rows.append(Row(config, "ok", {**passes, **errors, **metrics}))

    add("fa4", 1.6, repeats=False, varies="dq")
    add("fa4_ordered", 2.4, repeats=True, varies="")
    facts, files = flash_peers.facts(peers), flash_peers.fragments([peers])
    # Ours takes 2 ms there.
    assert (facts["fa4_both"], facts["fa4_both_lost"]) == ("1.25", "1 of 1")
    assert (facts["ordered_both"], facts["order_costs_fa4"]) == ("0.83", "1.50")
    assert "| FlashAttention-4 | 0 of 1 | dq |" in files["repeats.md"]
    # A wrong gradient has no relative time. Its forward pass is right.
    for row in peers.rows:
        if row.config["implementation"].startswith("fa4"):
            row.metrics["dq_relative_error"] = 1.1
    facts, files = flash_peers.facts(peers), flash_peers.fragments([peers])
    told = {facts["fa4_both"], facts["order_costs_fa4"]}
    assert told == {"not measured"}
    (line,) = (x for x in files["table.md"].splitlines() if x.startswith("| 4k"))
    assert "| wrong gradient |  | 0.50 |" in line and line.endswith("| 1.25 |")


def test_a_shape_as_published_stands_beside_what_was(peers):
    shape = {"batch": 2, "heads": 64, "n": 8192, "d": 128, "causal": True}
    stored = {"dtype": "bf16", "group": 8, "layout": "bnhd"}
    config = {"implementation": "sdpa_cudnn", **shape, **stored}
    kernels = {"forward_kernels_ms": [2.0], "backward_kernels_ms": [6.0]}
    peers.rows.append(Row(config, "ok", {**times(2.5, 6.5, 9.0), **kernels}))
    reported = committed("flash_peers", "reported-nvidia-h200")
    files = flash_peers.fragments([peers, reported])
    # 2 matmuls of 256 FLOPs for half of 128 · 8192² scores, in 2 ms.
    assert "| cuDNN | 1100 | 655 | 916 | 526 |" in files["published.md"]
    # What NVIDIA measured on an H200 stands beside no other GPU.
    elsewhere = replace(peers, device=replace(GPU, slug="nvidia-h100"))
    files = flash_peers.fragments([elsewhere, reported])
    assert "cuDNN" not in files["published.md"]
    assert flash_peers.facts(peers)["shapes"] == "2"


def full_peers(both: float = 0.9, **rows: Any) -> Record:
    """Every row of the experiment, with what a full record has: ours takes `both` of
    what FlashAttention-4 with ordered sums takes, and that 1.05 times it as it comes.
    """
    takes = {"ours": both, "fa4_ordered": 1.0, "fa4": 1 / 1.05, "ours_high": 0.5}
    found = []
    for config in peers_experiment.configs():
        factor = takes.get(config.implementation, 1.2) * rows.get(
            config.implementation, 1.0
        )
        passes = times(factor, 2 * factor, 3 * factor)
        medians = {f"{of}_rounds_ms": passes[f"{of}_ms"][:1] * 5 for of in PASSES}
        errors = {f"{of}_relative_error": 1e-3 for of in ("o", "dq", "dk", "dv")}
        free = config.implementation in ("fa4", "sdpa_flash")
        more: dict[str, Any] = {"repeats": not free, "varies": "dq" if free else ""}
        if config.n == 128:
            more["call_ms"] = [0.05, 0.06]
        if config.layout == "bnhd":
            more |= {f"{of}_kernels_ms": [factor] for of in ("forward", "backward")}
        found.append(make_row(config, **passes, **medians, **errors, **more))
    device = committed("flash_peers").device
    return make_record("flash_peers", *found, device=device)


def test_a_ratio_is_the_median_of_its_rounds_where_both_have_them(peers):
    ours, cudnn = (
        peers.find(n=16384, implementation=name).metrics
        for name in ("ours", "sdpa_cudnn")
    )
    # The clock was low in the third round, for both.
    ours["both_rounds_ms"] = [1.0, 1.0, 3.0]
    assert flash_peers.facts(peers)["bf16_both"] == "0.50 to 1.50"
    cudnn["both_rounds_ms"] = [2.0, 2.5, 3.0]
    assert flash_peers.facts(peers)["bf16_both"] == "0.50"
    cudnn["both_rounds_ms"] = [2.0, 2.5]
    assert flash_peers.facts(peers)["bf16_both"] == "0.50 to 1.50"


def test_gpu_time_and_do_bench_stand_in_tabs(peers):
    """A record with GPU time alone, of another GPU, beside one by `do_bench`."""
    names = {f"{of}_ms": f"{of}_gpu_ms" for of in PASSES}
    rows = [
        replace(row, metrics={names.get(m, m): x for m, x in row.metrics.items()})
        for row in peers.rows
    ]
    other = replace(peers, rows=rows, device=replace(GPU, name="X", slug="nvidia-h100"))
    files = flash_peers.fragments([peers, other])
    for name in ("figure.md", "table.md", "calls.md"):
        assert files[name].count("===") == 2
    ours, theirs = (flash_peers.facts(each) for each in (peers, other))
    assert ours == theirs


def test_of_16_shapes_eight_are_shown_first():
    table = flash_peers.fragments([full_peers()])["table.md"]
    lines = re.findall(r"^\| \d.*", table, re.MULTILINE)
    assert [len(lines), sum(".rest" in line for line in lines)] == [16, 8]


HOPPER = "attention_dkdv_hopper"
ADD = (
    "void at::native::vectorized_elementwise_kernel"
    "<4, at::native::CUDAFunctor_add<float> >(int, forward)"
)


def listed(kernels: dict[str, float]) -> list[dict]:
    return [{"name": name, "time_ms": [time]} for name, time in kernels.items()]


@pytest.fixture
def board():
    def row(name: str, **metrics) -> Row:
        return Row(
            {"implementation": name, "rep_ms": 1000, "heads": 16, "n": 1024, "d": 64},
            "ok",
            metrics,
        )

    kernels = {
        "forward_kernel": 1.0,
        HOPPER: 2.0,
        "dq_kernel": 1.5,
        ADD: 0.3,
        "triton_red_forward": 0.1,
    }
    ours = row(
        "ours",
        both_ms=[5.0],
        ran="triton",
        kernels=listed(kernels),
    )
    top = row(
        "ceiling",
        product_ms=[1.0],
        product_flops=10**12,
        copy_ms=[1.0],
        weight_copy_bytes=10**9,
        multiprocessors=100,
    )
    return record(
        "flash_leaderboard",
        top,
        ours,
        row("sdpa_cudnn", both_ms=[4.0], ran="cudnn_attention"),
    )


def test_kernels_are_told_by_their_names(board):
    found = {x["role"]: x["ms"] for x in flash_leaderboard.kernels(board)}
    assert found == pytest.approx({"forward": 1.0, "dkdv": 2.0, "dq": 1.5, "rest": 0.4})


def test_the_rate_of_the_test_stands_beside_its_share_of_the_peak(board):
    # 7 matmuls of 128 FLOPs for half of 16 · 1024² scores, in 10 µs.
    board.find(implementation="ours").metrics["both_ms"] = [0.01]
    table = flash_leaderboard.fragments([board])["table.md"]
    assert "| this guide, Hopper | 0.010 |  | 752 | 76 % |" in table


def test_one_pass_is_a_kernel_of_its_own(board):
    ours = board.find(implementation="ours")
    kernels = {"delta_kernel": 0.2, "one_pass_kernel": 2.0, "round_kernel": 0.1}
    ours.metrics = {"both_ms": [4.0], "kernels": listed(kernels)}
    found = flash_leaderboard.kernels(board).column("role")
    assert found == ["delta", "one_pass", "round"]
    # 5 matmuls of 128 FLOPs for half of 16 · 1024² scores, at 4096 FLOPs a clock of
    # 132 multiprocessors at 2 GHz: 4.96 µs.
    shown = flash_leaderboard.fragments([board])["kernels.md"]
    assert "| dK, dV and dQ | 2.00 |" in shown and "| 402.83 |" in shown
    # Without a matmul there is no lower bound.
    (line,) = (line for line in shown.splitlines() if line.startswith("| δ |"))
    assert line.startswith("| δ | 0.20 |") and line.endswith("|  |")


def test_what_one_pass_adds_in_memory_is_a_limit_of_its_own(board):
    ours, top = board.find(implementation="ours"), board.find(implementation="ceiling")
    kernels = {"one_pass_kernel": 2.0, "forward_kernel": 1.0}
    ours.metrics = {"both_ms": [4.0], "kernels": listed(kernels)}
    assert not flash_leaderboard.kernels(board).one(role="one_pass")["additions"]
    top.metrics |= {"addition_ms": [1.0], "added_bytes": 10**9}
    # Half of 16 heads of 1024² scores, a row of 64 numbers of 4 bytes for 128 of them:
    # 16.8 MB at 10^12 bytes/s.
    one_pass = flash_leaderboard.kernels(board).one(role="one_pass")
    assert one_pass["additions"] == pytest.approx(0.016777, rel=1e-4)


def test_limits_by_hand(board):
    scores, rows = 16 * 1024**2 // 2, 16 * 1024
    shape = {"heads": 16, "n": 1024, "d": 64}
    found = {role: flash_leaderboard.limits_ms(board, role, shape) for role in KERNELS}
    # Four products at 4096 FLOPs a clock, one exponential at 16, of 132
    # multiprocessors at the highest clock that was seen, 2 GHz.
    clocks = 132 * 2e9 / 1e3
    assert found["dkdv"]["products"] == pytest.approx(
        4 * 2 * 64 * scores / 4096 / clocks
    )
    assert found["dkdv"]["exponentials"] == pytest.approx(scores / 16 / clocks)
    # q, k, v, o in 16 bits and lse in 32, at the data sheet's 4.8 TB/s.
    moved = rows * (4 * 64 * 2 + 4)
    assert found["forward"]["bytes"] == pytest.approx(moved / 4.8e12 * 1e3)
    assert "products" not in found["delta"]
    # A clock below the maker's was not the highest.
    slow = replace(board, device=replace(GPU, sm_clocks_mhz=[1000]))
    assert flash_leaderboard.rates_of(slow)["products"] == pytest.approx(
        132 * 1.98e9 * 4096
    )


def test_of_an_unknown_gpu_there_are_times_and_no_floors(board):
    elsewhere = replace(board, device=replace(GPU, name="X", slug="x"))
    shown = flash_leaderboard.fragments([elsewhere])["kernels.md"]
    assert "| dQ | 1.50 | 31 % |  |  |  |" in shown


def test_two_leaderboards_are_told_apart():
    boards = [
        committed("flash_leaderboard", f"reported-{edition}")
        for edition in ("cs336-leaderboard", "leaderboard-2026")
    ]
    shown = flash_leaderboard.fragments(boards)["reported.md"]
    assert "| 1 | 5.36 |" in shown
    assert "| place | training step, ms |" in shown and "| 1 | 3,837 |" in shown
    assert "=== " not in flash_leaderboard.fragments(boards[:1])["reported.md"]


def test_a_step_adds_its_phases_and_an_eager_one_may_have_no_memory():
    def row(attention: str, status, *phases: float) -> Row:
        names = ("forward_ms", "loss_ms", "backward_ms", "optimizer_ms")
        metrics = {name: [t, t, t] for name, t in zip(names, phases, strict=False)}
        found = (
            metrics | {"peak_allocated_bytes": 3 * 2**30, "ran": "triton"}
            if phases
            else {}
        )
        return Row(
            {"size": "small", "context": 4096, "attention": attention, "batch": 4},
            status,
            found,
        )

    measured = record(
        "model_attention",
        row("eager", "out_of_memory"),
        row("sdpa", "ok", 4, 1, 8, 2),
        row("flash", "ok", 2, 1, 5, 2),
    )
    facts = model_attention.facts(measured)
    assert facts["faster_small_4096"] == "out of memory"
    assert facts["sdpa_over_ours"] == "1.50"
    files = model_attention.fragments([measured])
    line = "| small | 4096 | out of memory | 15.00 | 10.00 |"
    assert line in files["table.md"]
    reached = "our attention reaches context 4,096 with 3.0\N{NO-BREAK SPACE}GiB"
    assert reached in files["figure.md"] and "eager reaches" not in files["figure.md"]


def test_steps_are_compared_in_gpu_time_where_all_have_it():
    rows = [
        ("eager", 20.0, [8.0, 8.0], [4.0, 4.0]),
        ("flash", 20.0, [3.0, 3.0], [3.0, 3.0]),
    ]
    found = []
    for name, wall, forward, backward in rows:
        config = {"size": "small", "context": 1024, "attention": name, "batch": 4}
        metrics = {"forward_ms": [wall], "backward_ms": [wall]}
        metrics |= {"forward_gpu_ms": forward, "backward_gpu_ms": backward}
        metrics |= {"peak_allocated_bytes": 2**30, "ran": "triton"}
        found.append(Row(config, "ok", metrics))
    measured = record("model_attention", *found)
    files = model_attention.fragments([measured])
    assert "| 40.00 | 1.00 | 2.00 |" in files["table.md"]
    assert model_attention.facts(measured)["gpu_small_1024"] == "2.00"


def test_what_the_launchers_choose_is_shown_without_it_and_with_it():
    times = {"shared": 2.0, "unshared": 3.0, "cut_ahead": 4.0, "cut_in_steps": 5.0}
    rows = (
        Row({"step": f"{how}_forward"}, "ok", {"time_ms": [time]})
        for how, time in times.items()
    )
    measured = record("flash_ablation", *rows)
    shown = flash_ablation.fragments([measured])["told.md"]
    assert "| 5.000 | 4.000 | 1.25 |" in shown and "| 3.000 | 2.000 | 1.50 |" in shown
