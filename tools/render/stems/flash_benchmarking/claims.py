"""Claims of `flash_benchmarking`."""

from systems.formulas.chips import chip_of
from systems.formulas.costs import find_peak
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.rows import cells, known, span
from tools.render.stems.flash_benchmarking.rows import (
    LONGEST,
    TILE,
    memory_bytes,
    ratios,
)
from tools.render.stems.flash_passes import PASSES


@claim(
    "flash_benchmarking",
    "Ours takes no longer than plain PyTorch in any pass, at any length, dtype and "
    "head dimension.",
)
def fused_keeps_up(record: Record) -> Judgement:
    found = [r for of in PASSES for r in ratios(record, "plain", of).values()]
    lost = sum(faster < 1 for faster in found)
    said = f"{len(found)} pairs{f', {lost} of them below one' if lost else ''}"
    numbers = f"Plain PyTorch's time over ours: {span(found)}, {said}."
    return found and (min(found) >= 1, numbers)


@claim(
    "flash_benchmarking",
    "At every head dimension, where a head has a tile of 128 queries for each SM, the "
    "forward pass in bf16 takes less time than the data sheet's memory needs to write "
    "the visible scores once and read them once.",
)
def faster_than_storing_scores(record: Record) -> Judgement:
    peak, chip = find_peak(record.device.slug), chip_of(record.device.slug)
    if not (peak and chip):
        return None
    # Half of the scores, two bytes each, there and back.
    found = known(
        c.kernel_ms("forward") / (1e3 * 2 * c.config["n"] ** 2 / peak.bandwidth)
        for c in cells(record, implementation="ours", dtype="bf16")
        if c.config["n"] >= TILE * chip.sms
    )
    return found and (max(found) < 1, f"Our time over that: {span(found)}.")


@claim(
    "flash_benchmarking",
    "Nothing that ours holds grows with the square of N. At 65,536 tokens in bf16, "
    "forward and backward need at most what they return, dQ's sums in fp32 and three "
    "fp32 numbers for each row, to within five percent, at every head dimension.",
    because="the allocator rounds each block up.",
)
def fused_memory_linear(record: Record) -> Judgement:
    def linear(n: int, d: int) -> int:
        returned, sums, of_rows = 4 * 2 * n * d, 4 * n * d, 3 * 4 * n
        return returned + sums + of_rows

    found = known(
        memory_bytes(c) / linear(LONGEST, c.config["d"])
        for c in cells(record, implementation="ours", dtype="bf16", n=LONGEST)
    )
    return found and (max(found) <= 1.05, f"Memory over that: {span(found)}.")
