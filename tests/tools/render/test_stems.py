"""Test tables and facts of experiments with rows that no committed record has."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from systems.benchmarking import peers as attentions
from systems.experiments import peak_memory as memory_experiment
from tests.factories import make_gpu, make_record, make_row, read_record
from tools.render.clocks import attach_clock_rows
from tools.render.frame import Line
from tools.render.markdown import NOTHING_YET
from tools.render.rows import dropna, fmt
from tools.render.stems import (
    attention,
    compile,
    end_to_end,
    norm_precision,
    peak_memory,
    warmup,
)
from tools.render.stems import flash_accuracy as accuracy
from tools.render.stems import flash_benchmarking as benchmarking
from tools.render.stems import flash_leaderboard as leaderboard
from tools.render.stems.attention.columns import peak_bytes
from tools.render.stems.flash_peers import RESULTS, relative_time
from tools.render.stems.kernel_profile import rows as kernel_rows
from tools.render.stems.peak_memory import rows as memory_rows

GIB = 2**30


def make_pass_row(both: float, **metrics) -> Line:
    """Return a row whose backward pass takes twice its forward pass."""
    errors = {f"{result}_relative_error": 1e-3 for result in RESULTS}
    times = {"forward_ms": [both / 3], "backward_ms": [2 * both / 3], "both_ms": [both]}
    return Line.from_row(make_row({"n": 1}, **errors | times | metrics))


def test_recorded_peaks_are_predicted():
    off = memory_rows.passes(read_record("peak_memory")).column("off")
    assert max(map(abs, dropna(off))) < 0.002


def test_passes_with_wrong_results_have_no_ratio():
    def ratio(ours: Line, other: Line, of: str = "both") -> str:
        return fmt(relative_time(Line(ours=ours, other=other), of, "other"), "{:.2f}")

    short, wrong = make_pass_row(3.0), make_pass_row(6.0, dq_relative_error=1.1)
    assert ratio(short, make_pass_row(6.0)) == ratio(short, wrong, "forward") == "0.50"
    assert ratio(short, wrong) == "wrong gradient"
    # Ratios are medians over rounds if both rows have equally many rounds.
    rounds = make_pass_row(3.0, both_rounds_ms=[3.0, 3.0, 9.0])
    assert ratio(rounds, make_pass_row(6.0, both_rounds_ms=[2.0, 4.0, 10.0])) == "0.90"
    assert ratio(rounds, make_pass_row(6.0, both_rounds_ms=[2.0, 4.0])) == "0.50"


def test_kernel_time_is_wall_clock_time_without_gpu_time():
    assert make_pass_row(3.0, both_ms=[9.0]).kernel_ms("both") == 9.0
    assert not make_pass_row(3.0, both_ms=[9.0], no_gpu_time="").kernel_ms("both")
    assert make_pass_row(3.0, both_gpu_ms=[6.0, 7.0, 9.0]).kernel_ms("both") == 7.0


def test_a_cpus_reduced_grids_show_no_numbers_that_they_lack():
    """Without our kernels none "ran nowhere"; without its width no figure is drawn."""
    assert benchmarking.facts(None)["hopper_ran"] == "not measured"
    record = read_record("norm_precision")
    record.rows = [row for row in record.rows if row.config["width"] == 64]
    assert norm_precision.fragments([record])["layer.md"].startswith(NOTHING_YET)


def test_one_step_has_no_standard_deviation():
    row = make_row({"warmup": 0}, **{f"{phase}_ms": [1.0] for phase in warmup.PASSES})
    assert warmup.medians_by_warmup(make_record("", row))[0]["spread"] == "3.0"


class ScoreByteCounter(TorchDispatchMode):
    """A mode that counts the bytes of score matrices that operations read or write."""

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


def test_plain_attention_traffic_equals_the_prediction():
    n, loss = 48, torch.ones(1, 1, 48, 8, dtype=torch.bfloat16)
    q, k, v = (torch.randn_like(loss, requires_grad=True) for _ in range(3))
    with ScoreByteCounter(n) as moves:
        o = attentions.plain_attention(q, k, v, causal=True)
        forward = moves.bytes
        torch.autograd.grad(o, (q, k, v), loss)
    found = {"forward": forward, "backward": moves.bytes - forward}
    for of, moved in benchmarking.PLAIN_MOVES.items():
        assert found[of] == 2 * n**2 * moved


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)]
)
def test_rounding_error_equals_the_prediction(name, dtype):
    x = torch.randn(2**20, generator=torch.Generator().manual_seed(0)).double()
    off = (x.to(dtype).double() - x).norm() / x.norm()
    expected = accuracy.rounding_error(accuracy.BITS[name])
    assert off.item() == pytest.approx(expected, rel=0.01)


def test_kernel_roles_follow_from_names():
    names = {
        "forward_kernel": "forward",
        "attention_dkdv_hopper": "dkdv",
        "dq_kernel": "dq",
        "one_pass_kernel": "one_pass",
        "triton_red_forward": "rest",
        "void at::native::elementwise_kernel<4>(int, forward)": "rest",
    }
    assert {name: leaderboard.kernel_role(name) for name in names} == names


def test_lower_bounds_use_the_higher_clock():
    """Bounds use the higher clock: the measured one or the data sheet's."""
    record = read_record("flash_leaderboard")
    for seen, hertz in ((1000, 1.98e9), (2000, 2e9)):
        record.device.sm_clocks_mhz = [seen]
        rates = leaderboard.device_rates(record)
        assert rates["products"] == pytest.approx(132 * hertz * 4096)


def test_shortest_oom_length_exceeds_the_memory():
    for gib, length in ((140, 32768), (2000, 131072)):
        record = make_record("attention", device=make_gpu(memory_bytes=gib * GIB))
        assert attention.oom_length(record) == length
        n = attention.shortest_oom(gib * GIB)
        assert peak_bytes(n - 1) <= gib * GIB < peak_bytes(n)


def test_slower_rows_are_shown_as_slower():
    compiling, training = read_record("compile"), read_record("end_to_end")
    for row in (*compiling.rows, *training.rows):
        is_slow = {"compiled", "bf16"} & {*row.config.values()}
        for name in {"forward_ms", "forward_gpu_ms"} & row.metrics.keys():
            row.metrics[name] = [(99 if is_slow else 1) * x for x in row.metrics[name]]
    assert compile.facts(compiling)["steps_small_fp32"] == "never"
    drawn = end_to_end.fragments([training])["speedup.md"]
    assert "var(--warn)" in drawn and "var(--accent)" not in drawn


@pytest.mark.parametrize("differs", ["", "torch", "driver", "gpu"])
def test_idle_time_needs_the_same_gpu_and_software(differs):
    profile, clock = read_record("kernel_profile"), read_record("end_to_end")
    clock.device, clock.software = make_gpu("A"), {"torch": "2.11"}
    profile.device, profile.software = make_gpu("A"), dict(clock.software)
    if differs == "torch":
        clock.software["torch"] = "2.12"
    if differs == "driver":
        clock.device.driver = "581"
    if differs == "gpu":
        clock.device.slug = "b"
    attach_clock_rows({"kernel_profile": [profile], "end_to_end": [clock]})
    config = {"size": "small", "context": 512, "precision": "fp32"}
    x = kernel_rows.passes(profile).one(**config)
    assert (fmt(x["wall_ms"]) == "not measured") == bool(differs)
    # Idle time is 0 if the profiled kernels took longer than the timed pass.
    if not differs:
        x["clock"].row.metrics["forward_ms"] = [0.1]
        assert kernel_rows.passes(profile).one(**config)["idle_share"] == 0
        # A profile of the forward pass alone replaces a step that did not fit.
        x.row.status = "out_of_memory"
        assert kernel_rows.passes(profile).one(**config)["busy_ms"] > 0


def test_kernels_with_equal_tiles_are_separate():
    """The kernels' names differ only in the number of pipeline stages."""
    key = "sm80_xmma_gemm_f32f32_tilesize128x128x8_stage{}_warpsize2x2x1_execute_kernel"
    kernel = {"category": "matmul", "phase": "forward"}
    kernels = [
        {"name": key.format(stage), "calls": calls, "total_ms": ms, **kernel}
        for stage, calls, ms in ((4, 24, 1.0), (3, 85, 6.0))
    ]
    profiled = Line.from_row(make_row({}, kernels=kernels))
    first, second = kernel_rows.kernels_by_name(profiled)
    assert first.table_name == second.table_name
    assert (first.calls, first.ms, second.calls) == (85, 6.0, 24)


def test_peak_memory_modes_equal_the_experiment_s():
    assert tuple(memory_rows.MODES) == tuple(memory_experiment.MODES)
    remedies = {(c.attention, c.checkpoint) for c in memory_experiment.configs()}
    assert remedies == set(memory_rows.REMEDIES)


def test_row_without_a_timeline_is_not_drawn():
    record = read_record("peak_memory")
    for row in record.rows:
        row.metrics.pop("timeline", None)
    assert "<svg" not in "".join(peak_memory.fragments([record]).values())
