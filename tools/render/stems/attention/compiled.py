"""Plain attention, compiled beside eager: times, the price of compiling, kernels before
and after, a map of gains.
"""

import re
from collections.abc import Collection
from math import log
from typing import Any

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import columns, per_device
from tools.render.plots import heat_map, panels, plot
from tools.render.rows import (
    Cell,
    axis,
    known,
    least,
    measured,
    most,
    ranges,
    say,
    span,
)
from tools.render.stems.attention.rows import (
    EXECUTIONS,
    LONGEST,
    PASSES,
    WIDTH,
    Tried,
    at,
    lengths,
    tried,
    variants,
)

# Where kernels are shown: long enough for every kernel of the passes to have work.
KERNELS_AT = 4096


def fragments(records: list[Record]) -> dict[str, str]:
    """Eager beside compiled for all devices; speed-ups and kernels for measured
    ones.
    """
    ours = measured(records)
    return {
        "compiled.md": per_device(records, compiled_table),
        "speedups.md": per_device(ours, speedup_figure),
        "speedup-table.md": per_device(ours, speedup_table),
        "kernels.md": per_device(ours, kernels_table),
    }


# What a pair of rows says -------------------------------------------------------------

Pair = tuple[Tried, Tried]


def pair(record: Record | None, n: int, *variant: Any) -> Pair:
    """A cell eager and compiled."""
    eager, compiled = (at(record, n, *variant, execution=e) for e in EXECUTIONS)
    return eager, compiled


def speedup(both: Pair, *passes: str) -> float:
    """Eager time over compiled time."""
    return both[0].ms(*passes or PASSES) / both[1].ms(*passes or PASSES)


def speedups(record: Record | None) -> list[float]:
    """Of all cells of the grid, forward and backward together."""
    return known(speedup(pair_of(record, c)) for c in compiled_rows(record))


def pair_of(record: Record | None, c: Tried) -> Pair:
    return pair(record, *(c.config[name] for name in ("n", "d", "dtype", "causal")))


def speedups_at(record: Record | None, lengths: Collection[int]) -> str:
    """ "1.72 to 3.69" at these lengths, over all else."""
    found = [c for c in compiled_rows(record) if c.config["n"] in lengths]
    return span(speedup(pair_of(record, c)) for c in found)


def compile_seconds(c: Cell) -> float:
    """What the warm-up passes took beyond as many settled ones."""
    return sum(c.beyond(f"warmup_{name}", name) for name in PASSES)


def compiled_rows(record: Record | None) -> list[Tried]:
    """The compiled rows of the grid that ran."""
    found = tried(record, execution="compiled")
    return [c for c in found if c and c.config["n"] <= LONGEST]


# Tables -------------------------------------------------------------------------------


def compiled_table(record: Record) -> str:
    """The assignment's 20 cells, fp32 without a mask: eager and compiled times, their
    ratio, and the compile time.
    """
    found = [pair(record, n, d) for d in axis(record, "d") for n in lengths(record)]
    found = [both for both in found if both[0].row and both[1].row]
    reported = record.kind == "reported"

    def time(name: str, which: int):
        if reported:
            return lambda both: both[which][f"{name}_mean_ms"]
        return lambda both: both[which].ms(name)

    def ratio(name: str):
        return lambda both: time(name, 0)(both) / time(name, 1)(both)

    times = [
        column
        for p in PASSES
        for column in (
            (f"{p} eager, ms", time(p, 0), "{:.3f}"),
            (f"{p} compiled, ms", time(p, 1), "{:.3f}"),
            (f"{p} speed-up", ratio(p), "{:.2f}"),
        )
    ]
    name = [
        (head, lambda both, k=head.lower(): both[0].config[k]) for head in ("d", "N")
    ]
    last = ("compiling, s", lambda both: compile_seconds(both[1]), "{:.1f}")
    if reported:
        last = ("remark", lambda both: both[1].row.reason or "")
    return columns(
        found,
        *(*name, *times, last),
        left=0,
        telling=lambda both: both[0].config["d"] == WIDTH,
    )


def kernels_table(record: Record) -> str:
    """Kernels of each pass, eager and compiled, and what those do that the compiler
    wrote.
    """
    found = [
        (*variant, name, *pair(record, KERNELS_AT, 64, *variant))
        for variant in variants(record)
        for name in PASSES
    ]
    return columns(
        found,
        *((head, lambda of, i=i: of[i]) for i, head in enumerate(NAME)),
        ("eager kernels", lambda of: of[3].get(f"{of[2]}_kernels")),
        ("compiled kernels", lambda of: of[4].get(f"{of[2]}_kernels")),
        (
            "of these, fused by the compiler",
            lambda of: "<br>".join(map(fused_words, of[4].get(f"{of[2]}_fused", []))),
        ),
        left=len(NAME) + 3,
    )


NAME = ("dtype", "causal mask", "pass")
KINDS = {"poi": "pointwise", "red": "reduction", "per": "reduction"}


def fused_words(kernel: str) -> str:
    """ "triton_red_fused_div_exp_3" -> "reduction: div exp"."""
    match = re.fullmatch(r"triton_([a-z]+)_fused_(.*?)_?\d*", kernel)
    if match is None:
        return kernel
    words = [f"{KINDS.get(match[1], match[1])}:", *filter(None, match[2].split("_"))]
    return " ".join(words)


# The map ------------------------------------------------------------------------------

# Colours end at a factor of 4 either way.
LARGEST = 4.0


def speedup_table(record: Record) -> str:
    return columns(
        [(*variant, d) for variant in variants(record) for d in axis(record, "d")],
        *((head, lambda of, i=i: of[i]) for i, head in enumerate((*NAME[:2], "d"))),
        *(
            (
                f"N = {n}",
                lambda of, n=n: speedup(pair(record, n, of[2], *of[:2])) or "",
                "{:.2f}",
            )
            for n in lengths(record)
        ),
        left=2,
    )


def speedup_figure(record: Record) -> str:
    widths, ns = axis(record, "d"), lengths(record)
    if not ns:
        return ""

    def shaded(ratio: float) -> tuple[str, float]:
        return (f"{ratio:.2f}", -log(ratio) / log(LARGEST)) if ratio else ("", 0)

    def draw(figure: Figure) -> None:
        found = panels(figure, len(variants(record)), beside=2)
        for axes, (dtype, causal) in zip(found, variants(record), strict=True):
            rows = {
                f"d = {d}": [
                    shaded(speedup(pair(record, n, d, dtype, causal))) for n in ns
                ]
                for d in widths
            }
            heat_map(axes, rows, [f"{n:,}" for n in ns])
            axes.set_title(f"{dtype}, {'causal mask' if causal else 'no mask'}, by N")

    told = ranges(speedups(record))
    return plot(
        record,
        "speedup",
        draw,
        f"Eager time over compiled time of both passes {told}.",
        "Blue: compiled is faster; the stronger the colour, the more. Orange: slower.",
        height=330,
        narrow=620,
    )


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """The range of the speed-ups, the price of compiling, and kernels before and
    after.
    """
    rows, found = compiled_rows(record), speedups(record)
    seconds = [compile_seconds(c) for c in rows]
    longest = pair(record, LONGEST)
    return {
        "speedups": span(found),
        "speedups_long": speedups_at(record, (8192, LONGEST)),
        "speedups_short": speedups_at(record, (256, 1024)),
        **{f"speedup_{p}": say(speedup(longest, p), "{:.2f}") for p in PASSES},
        "compile_least": say(least(seconds), "{:.1f} s"),
        "compile_most": say(most(seconds), "{:.1f} s"),
        **{
            f"{name}_kernels_{execution}": say(c.get(f"{name}_kernels"))
            for execution, c in zip(EXECUTIONS, pair(record, KERNELS_AT), strict=True)
            for name in PASSES
        },
    }


@claim(
    "torch_compile",
    "Compiled attention is faster than eager attention, forward and backward together, "
    "in every cell.",
)
def compiled_attention_faster(record: Record) -> Judgement:
    found = speedups(record)
    numbers = f"Eager time over compiled time: {span(found)} over {len(found)} cells."
    return found and (min(found) > 1, numbers)
