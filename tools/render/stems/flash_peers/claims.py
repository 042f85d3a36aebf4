"""The bars that this stem's claims are held to, set before these kernels were measured
beside FlashAttention-4: ours over it, ordered and as it comes; and the claims.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import columns
from tools.render.rows import MISSING, Cell, cell, counted, known, say, span
from tools.render.stems.flash_peers.rows import (
    NAMES,
    SHAPE,
    long_cells,
    ratio,
    ratios,
    shape_text,
)


class Bar(NamedTuple):
    """Forward and backward over FlashAttention-4's time. Where the host counts, cuDNN
    stands in the place of the ordered one.
    """

    ordered: float
    unordered: float
    over: str = "fa4_ordered"


# Why the bars are where they are.
SET = "set before ours was measured beside it."
KEYS = ("batch", "heads", "n", "d", "causal")
BARS = {
    (1, 16, 16384, 64, True): Bar(0.96, 1.00),
    (1, 16, 16384, 128, True): Bar(0.95, 1.00),
    (4, 16, 4096, 128, True): Bar(0.97, 1.02),
    (4, 16, 4096, 128, False): Bar(0.97, 1.00),
    (4, 32, 4096, 64, True): Bar(0.98, 1.00),
    (4, 32, 4096, 64, False): Bar(0.97, 1.00),
    (16, 32, 1024, 64, True): Bar(0.95, 0.97),
    (1, 1, 65536, 64, True): Bar(0.98, 1.05),
    (2, 32, 8192, 128, True): Bar(0.97, 1.02),
    (2, 16, 8192, 96, True): Bar(1.00, 1.10),
    (8, 16, 2048, 128, False): Bar(0.97, 1.02),
    (8, 16, 512, 64, True): Bar(1.00, 1.00, "sdpa_cudnn"),
}
# So many of them are to be kept, and no shape may be above the last in either column.
KEPT_ORDERED, KEPT_UNORDERED, WORST = 10, 8, 1.10
GROUPED = {"batch": 2, "heads": 64, "n": 8192, "d": 128, "group": 8, "layout": "bhnd"}
FULL = {"batch": 4, "heads": 16, "n": 4096, "d": 128, "causal": False}
FULL_BAR = 1.02


def of_shape(record: Record | None, shape: tuple[Any, ...]) -> Cell:
    named = dict(zip(KEYS, shape, strict=True))
    found = long_cells(record, "bf16", **named)
    return next((c for c in found if c.config.get("group", 1) == 1), cell(None))


def against(
    record: Record | None, over: Callable[[Bar], str], bar: Callable[[Bar], float]
) -> list[tuple[Cell, float, float]]:
    """(ours, its ratio, the bar), of the shapes that were measured."""
    shown = [
        (c, ratio(record, c, "both", over(of)), bar(of))
        for shape, of in BARS.items()
        for c in [of_shape(record, shape)]
    ]
    return [(c, value, most) for c, value, most in shown if known([value])]


def ordered(record: Record | None) -> list[tuple[Cell, float, float]]:
    return against(record, lambda of: of.over, lambda of: of.ordered)


def unordered(record: Record | None) -> list[tuple[Cell, float, float]]:
    return against(record, lambda of: "fa4", lambda of: of.unordered)


def within(found: list[tuple[Cell, float, float]], wanted: int) -> Judgement:
    """Whether so many are within their bars, if all were measured."""
    if len(found) < len(BARS):
        return None
    kept = [value <= most for _, value, most in found]
    return sum(kept) >= wanted, f"Within: {counted(kept)}.{missed(found)}"


def missed(found: list[tuple[Cell, float, float]]) -> str:
    """ " Furthest off: 4k · d 128 · full (1.03, bar 0.97)." """
    c, value, most = max(found, key=lambda one: one[1] / one[2])
    if value <= most:
        return ""
    return f" Furthest off: {shape_text(c)} ({value:.3f}, bar {most:.2f})."


def bars_table(record: Record) -> str:
    """Each bar beside what was measured; nothing without FlashAttention-4's rows."""
    found = {id(c.row): (c, value, bar) for c, value, bar in unordered(record)}
    if not found:
        return ""
    both = {id(c.row): (value, bar) for c, value, bar in ordered(record)}

    def over_ordered(place: int) -> Callable[[Any], float]:
        return lambda one: both.get(id(one[0].row), (MISSING, MISSING))[place]

    return columns(
        found.values(),
        (SHAPE, lambda one: shape_text(one[0])),
        ("over it ordered", over_ordered(0), "{:.3f}"),
        ("its bar", over_ordered(1), "{:.2f}"),
        ("over it unordered", lambda one: one[1], "{:.3f}"),
        ("that bar", lambda one: one[2], "{:.2f}"),
    )


# The judges ---------------------------------------------------------------------------


@claim(
    "flash_benchmarking",
    f"The time of our forward + backward over that of FlashAttention-4 with ordered "
    f"sums is within the bar of the shape at {KEPT_ORDERED} or more of {len(BARS)} "
    "shapes. (At the shortest shape, where the host counts, it is over cuDNN's.)",
    f"The time of our forward + backward over that of FlashAttention-4 with ordered "
    f"sums is within the bar of the shape at fewer than {KEPT_ORDERED} of {len(BARS)} "
    "shapes. (At the shortest shape, where the host counts, it is over cuDNN's.)",
    because=SET,
)
def ahead_where_results_repeat(record: Record) -> Judgement:
    return within(ordered(record), KEPT_ORDERED)


@claim(
    "flash_benchmarking",
    f"The same over FlashAttention-4's default, whose gradients need not repeat, is "
    f"within the bar of the shape at {KEPT_UNORDERED} or more of {len(BARS)} shapes.",
    f"The same over FlashAttention-4's default is within the bar of the shape at fewer "
    f"than {KEPT_UNORDERED} of {len(BARS)} shapes.",
    because=SET,
)
def near_the_unordered(record: Record) -> Judgement:
    return within(unordered(record), KEPT_UNORDERED)


@claim(
    "flash_benchmarking",
    f"At no shape does ours take more than {WORST:.2f} of the time "
    "of FlashAttention-4's default.",
    f"At some shape ours takes more than {WORST:.2f} of the time of FlashAttention-4's "
    "default.",
    because=SET,
)
def never_far_behind(record: Record) -> Judgement:
    found = unordered(record)
    if len(found) < len(BARS):
        return None
    c, most, _ = max(found, key=lambda one: one[1])
    return most <= WORST, f"The most: {most:.3f}, at {shape_text(c)}."


@claim(
    "flash_benchmarking",
    "With 64 heads of queries and 8 of keys ours takes no longer than FlashAttention-4 "
    "with ordered sums, forward + backward.",
    "With 64 heads of queries and 8 of keys ours takes longer than FlashAttention-4 "
    "with ordered sums, forward + backward.",
)
def grouped_heads_keep_up(record: Record) -> Judgement:
    c = cell(record, implementation="ours", dtype="bf16", **GROUPED)
    over = ratio(record, c, "both", "fa4_ordered")
    return over and (over <= 1, f"Ours over it: {over:.3f}.")


@claim(
    "flash_benchmarking",
    f"Without a mask, at {FULL['n']:,} tokens and head dimension {FULL['d']}, our "
    f"forward pass takes at most {FULL_BAR:.2f} of FlashAttention-4's time.",
    f"Without a mask, at {FULL['n']:,} tokens and head dimension {FULL['d']}, our "
    f"forward pass takes more than {FULL_BAR:.2f} of FlashAttention-4's time.",
    because=SET,
)
def full_masks_keep_up(record: Record) -> Judgement:
    c = of_shape(record, tuple(FULL.values()))
    over = ratio(record, c, "forward", "fa4")
    return over and (over <= FULL_BAR, f"Ours over it: {over:.3f}.")


@claim(
    "flash_benchmarking",
    "Forward + backward, ours takes less time than cuDNN at every shape in bf16 that "
    "is long enough for the GPU to decide.",
    "Forward + backward, ours takes longer than cuDNN at some shape in bf16.",
)
def cudnn_is_beaten(record: Record) -> Judgement:
    found = known(ratios(record, long_cells(record, "bf16"), "both"))
    told = f"Ours over {NAMES['sdpa_cudnn']}: {span(found)}, {say(len(found))} shapes."
    return found and (max(found) < 1, told)
