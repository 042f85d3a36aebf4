"""Claims: altering the record that a claim is judged by turns its verdict over."""

import re

import pytest

from systems.experiments import STEMS
from systems.formulas.costs import find_peak
from systems.records.record import Record, Row
from tests.factories import committed
from tools.render import claims
from tools.render.frame import Line
from tools.render.markdown import in_words
from tools.render.spanning.writeup import all_claims
from tools.render.stems.flash_passes import PASSES
from tools.render.stems.kernel_profile.rows import SOFTMAX_PART, part_costs

CLAIMS = all_claims()
BY_NAME = {claim.name: claim for claim in CLAIMS}


def rows(record: Record, **wanted) -> list[Row]:
    """The rows of these values that have numbers."""
    return [
        row
        for row in record.rows
        if row.metrics and wanted.items() <= row.config.items()
    ]


def stretch(chosen: list[Row], factor: float, *names: str):
    """Multiply samples by a factor: those of a step by default."""
    for row in chosen:
        for name in names or ("forward_ms", "loss_ms", "backward_ms", "optimizer_ms"):
            if name in row.metrics:
                row.metrics[name] = [factor * time for time in row.metrics[name]]


def jolt(record: Record):
    """Every second sample twice as long."""
    for row in rows(record, mode="forward"):
        row.metrics["forward_ms"] = [
            t * (1 + i % 2) for i, t in enumerate(row.metrics["forward_ms"])
        ]


def settle_late(record: Record):
    """The first half of the steps after two of warm-up far longer."""
    for row in rows(record, warmup=2):
        times = row.metrics["forward_ms"] = list(row.metrics["forward_ms"])
        for i in range(len(times) // 2):
            times[i] *= 1.5


def stall_never(record: Record):
    for row in rows(record, value="bf16", accumulator="bf16"):
        row.metrics["last_change"] = row.config["steps"]


def as_on_a_cpu(record: Record):
    rows(record, part="toy", dtype="fp16")[0].metrics["ln"] = "fp16"


def overflow(record: Record):
    for row in rows(record, norm="layer", dtype="bf16", compute="library"):
        row.metrics["square_nonfinite"] = [1.0] * 10


def careful_sums(record: Record):
    for row in rows(record, norm="layer", dtype="bf16", compute="running"):
        row.metrics["output_error"] = [1e-3] * 10


def keep_more(record: Record):
    for row in rows(record, n=16384):
        row.metrics["before_backward_bytes"] *= 2


def worse_errors(*names: str, of: str = "triton"):
    def alter(record: Record):
        for row in rows(record, implementation=of, dtype="bf16"):
            for name in names:
                row.metrics[f"{name}_relative_error"] *= 9

    return alter


def another_bit(record: Record):
    rows(record, implementation="hopper")[0].metrics["differing_calls"] = 1


def save_more(record: Record):
    for row in rows(record, part="block"):
        row.metrics["tensors"][0]["bytes"] += 4


def most_of(category: str, factor: float):
    def alter(record: Record):
        for row in rows(record, mode="step"):
            for found in row.metrics["categories"]:
                if found["category"] == category:
                    found["most_bytes"] *= factor

    return alter


def raise_peaks(factor: float, **wanted):
    def alter(record: Record):
        for row in rows(record, **wanted):
            row.metrics["peak_allocated_bytes"] *= factor

    return alter


def larger_block(record: Record):
    for row in rows(record, mode="forward"):
        row.metrics["tenth"][0]["bytes"] *= 2


def slow_kernels(chosen, category: str, factor: float):
    for row in chosen:
        for kernel in row.metrics["kernels"]:
            if kernel["category"] == category:
                kernel["total_ms"] *= factor


def rename_products(record: Record):
    for kernel in rows(record, size="large", context=512, mode="step")[0].metrics[
        "kernels"
    ]:
        if kernel["category"] == "matmul" and kernel["phase"] == "backward":
            kernel["category"] = "copy"


def above_the_floor(record: Record):
    """Let softmax take three times what its bytes take."""
    peak = find_peak(record.device.slug)
    assert peak
    for row in rows(record, mode="forward", precision="fp32"):
        moved = part_costs(Line.of(row))[SOFTMAX_PART][1]
        kernels = row.metrics["kernels"]
        softmax = [k for k in kernels if k["phase"].endswith(SOFTMAX_PART)]
        for kernel in softmax:
            kernel["total_ms"] = 3e3 * moved / peak.bandwidth / len(softmax)


def hoard(record: Record):
    for row in rows(record, implementation="ours", n=65536, d=64):
        row.metrics["peak_allocated_bytes"] += 2**22


def outrun(claim: str, **wanted):
    """Make what the claim calls faster the slower one, or the faster one where it is
    the slower one now.
    """

    def alter(record: Record):
        kinds = ("ms", "gpu_ms", "rounds_ms")
        names = [f"{of}_{kind}" for of in PASSES for kind in kinds]
        judgement = BY_NAME[claim].judge(record)
        held = isinstance(judgement, tuple) and judgement[0]
        stretch(rows(record, **wanted), 9 if held else 1 / 9, *names)

    return alter


# What makes each claim change sides.
ALTERED = {
    **{
        name: outrun(name, implementation="ours")
        for name in ("deterministic_mode_is_beaten", "cudnn_is_beaten")
    },
    "backward_about_twice": lambda r: stretch(
        rows(r, size="xl", mode="step"), 2, "backward_ms"
    ),
    "passes_steady": jolt,
    "two_steps_warm_up": settle_late,
    "top_kernel_multiplies": rename_products,
    "softmax_is_memory_traffic": above_the_floor,
    "kernels_are_attributed": lambda r: slow_kernels(
        rows(r, size="xl", context=256), "matmul", 1.05
    ),
    "instruments_agree": lambda r: stretch(r.rows, 1.2, "nsys_backward_gpu_busy_ms"),
    "saved_as_predicted": save_more,
    "peaks_as_predicted": raise_peaks(1.02),
    "one_block_is_best": raise_peaks(1.2, run=1),
    "sums_follow_from_formats": stall_never,
    "autocast_dtypes": as_on_a_cpu,
    "bf16_squares_fit": overflow,
    "bf16_sums_need_fp32": careful_sums,
    "gain_grows": lambda r: stretch(
        rows(r, size="2.7B", context=512, precision="bf16"), 9
    ),
    "memory_peak_moves": most_of("saved activations", 9),
    "autocast_raises_forward": raise_peaks(1.5, mode="step", precision="bf16"),
    "largest_are_scores": larger_block,
    "memory_as_predicted": most_of("gradients", 1.03),
    "two_matrices_saved": keep_more,
    "time_grows_with_square": lambda r: stretch(rows(r, n=16384), 3),
    "compiled_attention_faster": outrun(
        "compiled_attention_faster", execution="compiled"
    ),
    "compiling_gains": lambda r: stretch(rows(r, execution="compiled"), 2),
    "bf16_gains_more": lambda r: stretch(
        rows(r, execution="compiled", precision="bf16"), 2
    ),
    "forward_accurate": worse_errors("o"),
    "backward_accurate": worse_errors("dk", of="hopper"),
    "same_bits": another_bit,
    "fused_keeps_up": lambda r: stretch(
        rows(r, implementation="ours", d=16, n=128), 99, "forward_ms"
    ),
    "fused_memory_linear": hoard,
}


def test_every_claim_has_a_name_of_its_own_and_is_turned_over_here():
    assert len(BY_NAME) == len(CLAIMS) and BY_NAME.keys() == ALTERED.keys()


def test_every_threshold_is_argued_for():
    line = re.compile(r"\b(within|at (most|least)|twice|between|tenth)\b|%")
    drawn = [claim for claim in CLAIMS if line.search(claim.sentence)]
    assert len(drawn) > 10
    assert [claim.name for claim in drawn if not claim.because] == []


@pytest.mark.parametrize("name", BY_NAME)
def test_an_altered_record_turns_the_claim_over(name, monkeypatch):
    monkeypatch.setattr(claims, "age", lambda record: "stale")
    claim = BY_NAME[name]
    gpu = "meta" if "meta" in STEMS[claim.stem].full else "nvidia-h200"
    record = committed(claim.stem, gpu)
    before = claim.judge(record)
    ALTERED[name](record)
    after, text = claim.judge(record), claims.verdict(claim, record)
    assert isinstance(before, tuple) and isinstance(after, tuple)
    assert after[0] != before[0] and after[1] != before[1]
    label = "Holds" if after[0] else "Does not hold here"
    assert text.startswith(f"**{label}:** {claim.sentence} {in_words(after[1])}")
    assert claim.because in text and text.endswith(", stale)")
