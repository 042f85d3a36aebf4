"""Tables, figures and facts of `gradient_checkpointing`: peaks and times by what is
computed again, measured beside predicted.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from systems.formulas.memory_costs import (
    Pass,
    block_saved,
    residual_bytes,
    weight_bytes,
    weight_copy_bytes,
)
from systems.formulas.recomputation import (
    best_run_lengths,
    count_kept_inputs,
    forward_passes,
)
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import captioned, columns, in_gib, in_mib, per_device
from tools.render.plots import (
    ACCENT,
    DARK,
    GREY,
    line,
    note,
    panels,
    picture,
    plot,
    power_of_two_axis,
)
from tools.render.rows import known, measured, most, say, span
from tools.render.stems.gradient_checkpointing.rows import (
    BEST,
    BY_HAND,
    COMPILED,
    CURVE,
    HALF,
    NESTED,
    NEXT,
    NONE,
    PEAKS,
    PLAIN,
    RUNS,
    SDPA,
    Row,
    all_off,
    named,
    off,
    pass_of,
    rows_of,
)

GIB = 2**30
# A block of what a reader may try without autocast.
IN_BF16, IN_FP32 = (
    Pass("small", 512, "forward_backward", precision, "flash")
    for precision in ("bf16", "fp32")
)
LAYERS = pass_of().shape.num_layers

CAPTIONS = {
    "telling.md": "Peaks and times of the orders that matter; beside each peak, "
    "measured over predicted.",
    "table.md": "Every row: both peaks beside their predictions, and the time.",
}


def fragments(records: list[Record]) -> dict[str, str]:
    """The predictions, and what was measured of them."""
    ours = measured(records)
    # The best run of each column of peaks is there, by formula.
    runs = dict.fromkeys((BEST, NEXT, best(1)))
    telling = (NONE, HALF, *runs, *NESTED, COMPILED)
    return {
        "orders.md": orders_table(),
        "predicted.md": predicted_table(),
        "curve.md": per_device(ours, curve_figure) if ours else predicted_figure(),
        "telling.md": per_device(ours, lambda r: rows_table(r, telling)),
        "table.md": per_device(ours, lambda r: rows_table(r, rows_of(r))),
    }


# What follows from shapes -------------------------------------------------------------


def orders_table() -> str:
    """Inputs and blocks in memory at most, and computed blocks, for 32 of them."""
    listed = [
        ("none", 1, 0, LAYERS),
        ("runs", 1, LAYERS, 1),
        ("runs", 6, -(-LAYERS // 6), 6),
        *(
            (
                s,
                1,
                max(count_kept_inputs(s, LAYERS, b) for b in range(1, LAYERS + 1)),
                1,
            )
            for s in ("halving", "chain")
        ),
    ]
    names = {
        ("none", 1): "nothing",
        ("runs", 1): "every block by itself",
        ("runs", 6): "runs of k = 6 ≈ √N blocks",
        ("halving", 1): "nested: halves of halves",
        ("chain", 1): "nested: all but the last",
    }
    orders = {
        ("none", 1): ("N blocks", "N"),
        ("runs", 1): ("N inputs, 1 block", "2 N"),
        ("runs", 6): ("N/k inputs, k blocks", "2 N"),
        ("halving", 1): ("1 + log₂ N inputs, 1 block", "N (3 + log₂ N) / 2"),
        ("chain", 1): ("2 inputs, 1 block", "N (N + 3) / 2"),
    }
    p = pass_of()

    def bytes_of(row: tuple[str, int, int, int]) -> float:
        _, _, inputs, blocks = row
        return (inputs * residual_bytes(p) + blocks * block_saved(p)) / GIB

    shown = columns(
        listed,
        ("computed again", lambda row: names[row[:2]]),
        ("in memory at most", lambda row: orders[row[:2]][0]),
        ("blocks computed", lambda row: orders[row[:2]][1]),
        ("for 2.7B: inputs", lambda row: row[2]),
        ("blocks", lambda row: row[3]),
        ("GiB", bytes_of, "{:.2f}"),
        ("forward passes", lambda row: forward_passes(row[0], LAYERS), "{:.1f}"),
        left=3,
    )
    caption = (
        "Nothing computed again, and four ways to compute N blocks again: what is in "
        "memory at most, and how much is computed. For halves, N is a power of two."
    )
    return f"{captioned(caption, shown)}\n"


def predicted_table() -> str:
    """What both peaks are by formula, for each run and its neighbours."""
    shown = columns(
        [NONE, HALF, *CURVE, *NESTED],
        ("computed again", lambda row: row.words),
        ("peak, GiB", lambda row: row.predicted[0] / GIB, "{:.2f}"),
        ("with gradients kept, GiB", lambda row: row.predicted[1] / GIB, "{:.2f}"),
    )
    caption = (
        "Predicted peaks of a bf16 forward and backward pass of `2.7B`, batch 4, "
        "context 2048, `flash` attention."
    )
    return f"{captioned(caption, shown)}\n"


def best(which: int) -> Row:
    """The run whose peak is least by formula."""
    return min(CURVE, key=lambda row: row.predicted[which] if row.predicted else 0)


# Figures ------------------------------------------------------------------------------

KEY = (
    "Lines are predicted, points measured. Made: gradients appear during the pass. "
    "Kept: they are there before it, as in gradient accumulation. Dotted: the known "
    "rule, √N, and √(N r / R), where a block keeps R bytes and its input has r."
)


def draw_peaks(axes: Axes, record: Record | None) -> None:
    for which, (name, color) in enumerate((("made", ACCENT), ("kept", DARK))):
        by_formula = [row.predicted[which] / GIB for row in CURVE if row.predicted]
        line(axes, RUNS, by_formula, label=name, color=color, marker="")
        if record:
            found = [row.of(record).get(PEAKS[which]) / GIB for row in CURVE]
            line(axes, RUNS, found, color=color, linestyle="")
        low = best(which)
        assert low.predicted is not None
        value = low.predicted[which] / GIB
        # Above the upper line and below the lower one.
        side = {"va": "bottom", "offset": (0, 5)}
        if not which:
            side = {"va": "top", "offset": (0, -6)}
        note(axes, f"{value:.1f}", low.run, value, color=color, **side)
    axes.set_ylim(bottom=0)
    for name, run in zip(
        ("√N", "√(N r / R)"), best_run_lengths(pass_of()), strict=True
    ):
        axes.axvline(run, color=GREY, linewidth=1, linestyle=":")
        beside = {"ha": "left", "va": "top", "offset": (3, -9)}
        note(axes, name, run, axes.get_ylim()[1], color=DARK, **beside)
    power_of_two_axis(axes.xaxis, (1, 2, 4, 8, 16, 32), "blocks in a run")
    axes.set_title("peak, GiB, gradients made or kept")


def predicted_figure() -> str:
    """Where nothing was measured yet."""

    def draw(figure: Figure) -> None:
        draw_peaks(figure.subplots(), None)

    finding = (
        "By formula, the least memory is needed by runs of "
        f"{counted(best(0))} where gradients are made on the way, and of "
        f"{counted(best(1))} where they are kept."
    )
    drawn = picture(
        "gradient_checkpointing-curve",
        draw,
        finding,
        f"Not measured yet: predictions alone. {KEY}",
        numbers="#predict",
        height=300,
    )
    return drawn


def counted(row: Row) -> str:
    return "one block" if row.run == 1 else f"{row.run} blocks"


def curve_figure(record: Record) -> str:
    if not known(row.of(record).get(PEAKS[0]) for row in CURVE):
        return ""

    def draw(figure: Figure) -> None:
        peaks, times = panels(figure, 2)
        draw_peaks(peaks, record)
        found = [row.of(record).ms() for row in CURVE]
        line(times, RUNS, found, color=ACCENT)
        if whole := NONE.of(record).ms():
            times.axhline(whole, color=DARK, linewidth=1)
            note(times, "nothing again", RUNS[-1], whole, ha="right", color=DARK)
        times.set_ylim(bottom=0)
        power_of_two_axis(times.xaxis, (1, 2, 4, 8, 16, 32), "blocks in a run")
        times.set_title("forward and backward, ms")

    least = [
        min(
            (row for row in CURVE if row.of(record).get(p)),
            key=lambda row: row.of(record).get(p),
        )
        for p in PEAKS
    ]
    finding = (
        f"Runs of {counted(least[0])} need least memory if gradients are made during "
        f"the pass, runs of {counted(least[1])} if they are kept from before; the time "
        "hardly depends on the run."
    )
    return plot(record, "curve", draw, finding, KEY, height=300, narrow=560)


# Tables -------------------------------------------------------------------------------


def rows_table(record: Record, shown: Sequence[Row]) -> str:
    rows = [row for row in shown if row.of(record).row]

    def peak(which: int) -> Callable[[Row], Any]:
        return lambda row: row.of(record).get(PEAKS[which]) / GIB

    def over(which: int) -> Callable[[Row], Any]:
        def ratio(row: Row) -> Any:
            return 1 + off(row, record, which) if row.predicted else ""

        return ratio

    return columns(
        rows,
        (
            "attention",
            lambda row: "plain" if row.attention == "eager" else row.attention,
        ),
        ("computed again", lambda row: row.words),
        ("peak, GiB", peak(0), "{:.2f}"),
        ("over its prediction", over(0), "{:.4f}"),
        ("peak, gradients kept, GiB", peak(1), "{:.2f}"),
        ("over that prediction", over(1), "{:.4f}"),
        ("forward and backward, ms", lambda row: row.of(record).ms(), "{:.0f}"),
        left=2,
    )


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """Peaks, times and their predictions that the pages name; and what follows from
    shapes.
    """
    shown = {"none": NONE, "half": HALF, "best": BEST, "next": NEXT}
    shown |= {"plain_best": PLAIN[0], "plain_next": PLAIN[1], "attention": PLAIN[2]}
    found: dict[str, str] = {}
    for name, row in {**shown, "sdpa": SDPA, "compiled": COMPILED}.items():
        found[f"{name}_peak"] = in_gib(row.of(record).get(PEAKS[0]))
        if row.predicted and name in ("half", "best", "next"):
            found[f"{name}_predicted"] = in_gib(row.predicted[0])
    timed = {"sdpa": SDPA, "compiled": COMPILED, "best": BEST, "hand": BY_HAND}
    timed["whole"] = CURVE[-1]
    for name, row in timed.items():
        found[f"{name}_ms"] = say(row.of(record).ms(), "{:.0f} ms")
    kept = best(1)
    plain = named("none", 1, "eager").predicted
    assert kept.predicted is not None and plain is not None
    p = pass_of()
    root, weighed = best_run_lengths(p)
    slower = BEST.of(record).ms() / NONE.of(record).ms()
    chained = NESTED[1].of(record).ms() / BEST.of(record).ms()
    return {
        **found,
        "plain_none_predicted": in_gib(plain[0]),
        "wider_in_fp32": f"{block_saved(IN_FP32) / block_saved(IN_BF16):.1f}",
        "kept_run": counted(kept),
        "kept_predicted": in_gib(kept.predicted[1]),
        "kept_peak": in_gib(kept.of(record).get(PEAKS[1])),
        "kept_best_peak": in_gib(BEST.of(record).get(PEAKS[1])),
        "kept_half_peak": in_gib(HALF.of(record).get(PEAKS[1])),
        "slower": say(slower, "{:.2f}"),
        "chain_slower": say(chained, "{:.1f}"),
        "worst": say(100 * most(all_off(record)), "{:.2f} %"),
        "input": in_mib(residual_bytes(p)),
        "block": in_mib(block_saved(p)),
        "block_plain": in_mib(block_saved(pass_of("eager"))),
        "block_over_input": f"{block_saved(p) / residual_bytes(p):.0f}",
        "weights": in_gib(weight_bytes(p)),
        "copies": in_gib(weight_copy_bytes(p)),
        "root": f"{root:.1f}",
        "weighed": f"{weighed:.1f}",
        "halving_inputs": str(1 + round(math.log2(LAYERS))),
        "halving_passes": f"{forward_passes('halving', LAYERS):.0f}",
        "chain_passes": f"{forward_passes('chain', LAYERS):.1f}",
    }


# Claims -------------------------------------------------------------------------------


@claim(
    "gradient_checkpointing",
    "Every measured peak is within a hundredth of its prediction, where no compiler "
    "decides what is kept.",
    because="the allocator rounds blocks up, which shapes don't tell.",
)
def peaks_as_predicted(record: Record) -> Judgement:
    found = known(all_off(record))
    return found and (
        max(found) < 0.01,
        f"Off by at most {100 * max(found):.2f} %, over {len(found)} peaks.",
    )


@claim(
    "gradient_checkpointing",
    "Where gradients are made on the way, no run of blocks needs less memory than one "
    "block by itself, with `flash` attention and with plain.",
)
def one_block_is_best(record: Record) -> Judgement:
    flash = known(row.of(record).get(PEAKS[0]) for row in CURVE)
    plain = known(row.of(record).get(PEAKS[0]) for row in PLAIN[:2])
    if len(flash) < 2 or len(plain) < 2:
        return None
    numbers = f"GiB: {', '.join(f'{v / GIB:.1f}' for v in [*flash, *plain])}."
    return flash[0] == min(flash) and plain[0] == min(plain), numbers


@claim(
    "gradient_checkpointing",
    "The length of a run hardly changes the time: every run computes each block once "
    "more, and all are within a twentieth of their median.",
    because="one more forward pass would take a quarter longer, by FLOPs.",
)
def runs_take_alike(record: Record) -> Judgement:
    found = sorted(known(row.of(record).ms() for row in CURVE))
    if len(found) < 2:
        return None
    middle = found[len(found) // 2]
    near = all(abs(ms / middle - 1) < 0.05 for ms in found)
    return near, f"Forward and backward: {span(found, '{:.0f}')} ms."
