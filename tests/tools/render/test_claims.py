"""Claims: each holds or fails by its record, and a record altered just so turns its
sentence over.
"""

import copy
import re

import pytest

from systems.benchmarking.phases import PHASES
from systems.experiments import nsys
from systems.formulas.costs import find_peak
from systems.records.record import Record, Row
from tests.factories import RESULTS, make_record
from tests.tools.render.test_attention import attention_row
from tests.tools.render.test_flash import full_peers
from tests.tools.render.test_kernel_profile import kernel_record
from tests.tools.render.test_memory import memory_record
from tools.render import claims, load
from tools.render.frame import Line
from tools.render.markdown import in_words
from tools.render.spanning.writeup import all_claims
from tools.render.stems.flash_passes import PASSES
from tools.render.stems.kernel_profile.rows import SOFTMAX_PART, part_costs

CLAIMS = all_claims()
BY_NAME = {claim.name: claim for claim in CLAIMS}


@pytest.fixture(scope="module")
def found():
    return load.load(RESULTS)


def rows(record: Record, **wanted):
    return [row for row in record.rows if wanted.items() <= row.config.items()]


def stretch(chosen, factor: float, *names: str):
    """These samples, times a factor; those of a step by default."""
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


def at_the_floor(record: Record):
    """Softmax takes one and a half times what its bytes take, in every pass."""
    peak = find_peak(record.device.slug)
    assert peak
    for row in rows(record, mode="forward", precision="fp32"):
        moved = part_costs(Line.of(row))[SOFTMAX_PART][1]
        kernels = row.metrics["kernels"]
        softmax = [k for k in kernels if k["phase"].endswith(SOFTMAX_PART)]
        for kernel in softmax:
            kernel["total_ms"] = 1.5e3 * moved / peak.bandwidth / len(softmax)


def hoard(record: Record):
    for row in rows(record, implementation="ours", n=65536, d=64):
        row.metrics["peak_allocated_bytes"] += 2**22


def slower_than_peers(factor: float, **wanted):
    """Ours, in every round."""

    def alter(record: Record):
        names = [f"{of}_{kind}" for of in PASSES for kind in ("ms", "rounds_ms")]
        stretch(rows(record, implementation="ours", **wanted), factor, *names)

    return alter


# What makes each claim change sides.
ALTERED = {
    "deterministic_mode_is_beaten": slower_than_peers(1.12),
    "cudnn_is_beaten": slower_than_peers(1.4, n=16384),
    "backward_about_twice": lambda r: stretch(
        rows(r, size="xl", mode="step"), 2, "backward_ms"
    ),
    "passes_steady": jolt,
    "two_steps_warm_up": settle_late,
    "top_kernel_multiplies": rename_products,
    "softmax_is_memory_traffic": at_the_floor,
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
    "compiled_attention_faster": lambda r: stretch(
        rows(r, execution="compiled", n=8192), 9
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


# What draws a line somewhere.
THRESHOLD = re.compile(
    r"\b(?:within|at most|at least|twice|between|tenth|twentieth|hundredth|percent)\b|%"
)


def test_every_threshold_is_argued_for():
    drawn = [claim for claim in CLAIMS if THRESHOLD.search(claim.sentence)]
    assert len(drawn) > 10
    assert [claim.name for claim in drawn if not claim.because] == []


def record_for(claim, found) -> Record:
    """The record of the primary GPU; where there is none yet, one made for the
    claim.
    """
    if claim.stem == "attention":
        grid = [
            attention_row(n, execution)
            for n in (8192, 16384)
            for execution in ("eager", "compiled")
        ]
        return make_record("attention", *grid)
    if claim.stem == "peak_memory":
        return memory_record()
    if claim.stem == "kernel_profile":
        record = kernel_record()
        # Launches of small take longer than its kernels, and in bf16 products are fast.
        for context in (128, 256):
            stretch(rows(record, size="small", context=context), 3)
        slow_kernels(half := rows(record, precision="bf16"), "matmul", 0.5)
        stretch(half, 0.5, "matmul_ops_ms")
        return record
    if claim.stem == "flash_accuracy":
        return accuracy_record(found)
    if claim.stem == "flash_peers":
        return full_peers()
    if claim.stem == "nsys":
        return nsys_record()
    return copy.deepcopy(next(r for r in found[claim.stem] if r.kind == "measured"))


def nsys_record() -> Record:
    """Two steps that both instruments see alike."""
    metrics = {}
    for instrument in nsys.INSTRUMENTS:
        for phase in PHASES:
            metrics[f"{instrument}_{phase}_kernels"] = 7
            for name in (phase, f"profiled_{phase}", f"{phase}_gpu_busy"):
                metrics[f"{instrument}_{name}_ms"] = [2.0, 2.0]
    sizes = ("small", "medium")
    shape = {"context": 512, "precision": "fp32"}
    grid = [Row({"size": s, **shape}, "ok", dict(metrics)) for s in sizes]
    return make_record("nsys", *grid)


def accuracy_record(found) -> Record:
    """As measured; a record from before Hopper's kernels were judged gets rows of
    them.
    """
    record = copy.deepcopy(next(r for r in found["flash_accuracy"]))
    for row in rows(record, implementation="triton"):
        row.metrics.setdefault("calls", 200)
        row.metrics.setdefault("differing_calls", 0)
    if not rows(record, implementation="hopper"):
        of_16_bits = [
            row
            for row in rows(record, implementation="triton")
            if row.config["dtype"] != "fp32"
        ]
        for row in copy.deepcopy(of_16_bits):
            row.config["implementation"] = "hopper"
            record.rows.append(row)
    return record


def said(claim, judgement) -> str:
    """The sentence and the numbers that a judgement is printed with, and why its
    threshold is where it is.
    """
    why = f" *Why this bar:* {claim.because}" if claim.because else ""
    return f"{claim.sentence} {in_words(judgement[1])}{why} ("


@pytest.mark.parametrize("name", BY_NAME)
def test_an_altered_record_turns_the_claim_over(name, found, monkeypatch):
    monkeypatch.setattr(claims, "age", lambda record: "fresh")
    claim = BY_NAME[name]
    record = record_for(claim, found)
    before, text = claim.judge(record), claims.verdict(claim, record)
    assert isinstance(before, tuple) and said(claim, before) in text
    ALTERED[name](record)
    after, text = claim.judge(record), claims.verdict(claim, record)
    assert isinstance(after, tuple) and said(claim, after) in text
    assert after[0] != before[0] and after[1] != before[1]
    label = "Holds" if after[0] else "Does not hold here"
    assert text.startswith(f"**{label}:**")


@pytest.mark.parametrize("name", BY_NAME)
def test_without_its_rows_a_claim_has_no_data(name, found):
    claim = BY_NAME[name]
    record = record_for(claim, found)
    record.rows = []
    assert not claim.judge(record)
    assert claims.verdict(claim, record).startswith("**No data here:**")
    assert claims.verdict(claim, None).startswith("**No data here:**")


def test_rows_out_of_memory_are_no_numbers(found):
    """On a smaller GPU the largest models lack times: claims are judged by what ran, or
    not at all, and never raise.
    """
    small = {"warmup", "accumulation", "autocast", "norm_precision"}
    for claim in (claim for claim in CLAIMS if claim.stem not in small):
        record = record_for(claim, found)
        for row in record.rows[len(record.rows) // 2 :]:
            row.status, row.metrics = "out_of_memory", {}
        judgement = claim.judge(record)
        assert not judgement or "nan" not in judgement[1]


def test_a_stale_record_says_so_beside_its_claim(found, monkeypatch):
    claim = BY_NAME["sums_follow_from_formats"]
    monkeypatch.setattr(claims, "age", lambda record: "stale")
    assert claims.verdict(claim, record_for(claim, found)).endswith(", stale)")
