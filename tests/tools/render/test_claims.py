"""An altered record changes the verdict of each claim."""

from collections.abc import Callable
from typing import Any

import pytest

from systems.experiments import STEMS
from systems.records.record import Record, Row
from tests.factories import read_record
from tools.render import claims
from tools.render.markdown import typeset
from tools.render.spanning.writeup import all_claims

CLAIMS = all_claims()
BY_NAME = {claim.name: claim for claim in CLAIMS}
PHASES = ("forward", "loss", "backward", "optimizer")
STEP = [f"{phase}{clock}_ms" for phase in PHASES for clock in ("", "_gpu")]
PASSES = [
    f"{of}_{kind}"
    for of in ("forward", "backward", "both")
    for kind in ("ms", "gpu_ms", "rounds_ms")
]


def find_rows(record: Record, **wanted: Any) -> list[Row]:
    return [r for r in record.rows if r.metrics and wanted.items() <= r.config.items()]


def scale(
    *names: str, by: float, which: slice = slice(None), **wanted: Any
) -> Callable[[Record], None]:
    def alter(record: Record) -> None:
        for row in find_rows(record, **wanted):
            for name in row.metrics.keys() & names:
                if isinstance(found := row.metrics[name], list):
                    row.metrics[name] = found = list(found)
                    found[which] = [by * sample for sample in found[which]]
                else:
                    row.metrics[name] = by * found

    return alter


def scale_items(
    metric: str, name: str, by: float, of: dict[str, str], **wanted: Any
) -> Callable[[Record], None]:
    """Return an alteration that multiplies `name` in a list's items that match `of`."""

    def alter(record: Record) -> None:
        for row in find_rows(record, **wanted):
            for item in row.metrics[metric]:
                item[name] *= by if of.items() <= item.items() else 1

    return alter


def put(name: str, value: Any, **wanted: Any) -> Callable[[Record], None]:
    def alter(record: Record) -> None:
        for row in find_rows(record, **wanted):
            row.metrics[name] = value

    return alter


def flip_claim(claim: str, **wanted: Any) -> Callable[[Record], None]:
    """Return an alteration that makes the claim's faster row slower, or vice versa."""

    def alter(record: Record) -> None:
        judgement = BY_NAME[claim].judge(record)
        held = isinstance(judgement, tuple) and judgement[0]
        scale(*PASSES, by=9 if held else 1 / 9, **wanted)(record)

    return alter


LAYER = {"norm": "layer", "dtype": "bf16"}
# For each claim, an alteration of its record that reverses the verdict.
ALTERED = {
    "deterministic_mode_is_beaten": flip_claim(
        "deterministic_mode_is_beaten", implementation="ours"
    ),
    "cudnn_is_beaten": flip_claim("cudnn_is_beaten", implementation="ours"),
    "backward_takes_twice": scale("backward_gpu_ms", by=2, size="xl", mode="step"),
    "passes_steady": scale("forward_ms", by=2, which=slice(0, None, 2), mode="forward"),
    "warm_up_suffices": scale("forward_ms", by=1.5, which=slice(0, 5), warmup=2),
    "top_kernel_multiplies": scale_items(
        "kernels", "total_ms", 99, {"category": "copy"}, size="large", mode="step"
    ),
    "softmax_is_memory_bound": scale_items(
        "kernels", "total_ms", 3, {"phase": "forward/attention softmax"}, mode="step"
    ),
    "inference_is_forward": scale("forward_gpu_busy_ms", by=1.1, mode="forward"),
    "kernels_are_attributed": scale_items(
        "kernels", "total_ms", 1.05, {"category": "matmul"}, size="xl", context=256
    ),
    "instruments_agree": scale("nsys_backward_gpu_busy_ms", by=1.2),
    "saved_bytes_as_predicted": scale_items("tensors", "bytes", 2, {}, part="block"),
    "peaks_match_prediction": scale("peak_allocated_bytes", by=1.02),
    "one_block_is_best": scale("peak_allocated_bytes", by=1.2, run=1),
    "sums_follow_from_formats": scale("last_change", by=99, value="bf16"),
    "dtypes_follow_autocast": put("ln", "fp16", part="toy", dtype="fp16"),
    "bf16_squares_fit": put("square_nonfinite", [1.0] * 10, compute="library", **LAYER),
    "bf16_sums_need_fp32": put("output_error", [1e-3] * 10, compute="running", **LAYER),
    "bf16_gain_grows": scale(*STEP, by=9, size="2.7B", context=512, precision="bf16"),
    "memory_peak_moves": scale_items(
        "categories", "most_bytes", 9, {"category": "saved activations"}, mode="step"
    ),
    "autocast_raises_forward": scale(
        "peak_allocated_bytes", by=1.5, mode="step", precision="bf16"
    ),
    "largest_are_scores": lambda r: [
        row.metrics["tenth"][0].update(bytes=1) for row in find_rows(r, mode="forward")
    ],
    "memory_matches_prediction": scale_items(
        "categories", "most_bytes", 1.03, {"category": "gradients"}, mode="step"
    ),
    "two_matrices_are_saved": scale("before_backward_bytes", by=2, n=16384),
    "time_grows_with_square": scale(*STEP, by=3, n=16384),
    "compiled_attention_is_faster": flip_claim(
        "compiled_attention_is_faster", execution="compiled"
    ),
    "compiled_is_faster": scale(*STEP, by=2, execution="compiled"),
    "bf16_gains_more": scale(*STEP, by=2, execution="compiled", precision="bf16"),
    "forward_is_accurate": scale(
        "o_relative_error", by=9, implementation="triton", dtype="bf16"
    ),
    "backward_is_accurate": scale(
        "dk_relative_error", by=9, implementation="hopper", dtype="bf16"
    ),
    "calls_are_bitwise_equal": put("differing_calls", 1, implementation="hopper"),
    "fused_keeps_up": scale(
        "forward_rounds_ms", by=99, implementation="ours", d=16, n=128
    ),
    "fused_memory_is_linear": scale(
        "peak_allocated_bytes", by=1.1, implementation="ours", n=65536, d=64
    ),
}


def test_every_claim_has_an_alteration():
    assert len(BY_NAME) == len(CLAIMS) and BY_NAME.keys() == ALTERED.keys()


@pytest.mark.parametrize("name", BY_NAME)
def test_altered_record_reverses_its_claim(name, monkeypatch):
    monkeypatch.setattr(claims, "is_fresh", lambda record: False)
    claim = BY_NAME[name]
    gpu = "meta" if "meta" in STEMS[claim.stem].full else "nvidia-h200"
    record = read_record(claim.stem, gpu)
    before = claim.judge(record)
    ALTERED[name](record)
    after, (_, text) = claim.judge(record), claims.verdict(claim, record)
    assert isinstance(before, tuple) and isinstance(after, tuple)
    assert after[0] != before[0] and after[1] != before[1]
    label = "Holds" if after[0] else "Does not hold here"
    # A CPU has no GPU time.
    record.device.slug = "cpu"
    if "GPU time" in claim.sentence:
        assert claims.verdict(claim, record)[0] is None
    assert text.startswith(f"**{label}:** {claim.sentence} {typeset(after[1])}")
    assert claim.because in text and text.endswith(", stale)")
