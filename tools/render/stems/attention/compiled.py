"""Plain attention, compiled beside eager: times, the price of compiling, kernels before
and after, a map of gains.
"""

import re
from math import log

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from systems.records.record import Record, Row
from systems.records.summary import summarize
from tools.render.figures import INK, canvas, svg_pair
from tools.render.markdown import fact, figure, per_device, table
from tools.render.stems.attention.rows import (
    EXECUTIONS,
    LENGTHS,
    VARIANTS,
    WIDTHS,
    cell,
    in_words,
    median_ms,
)

PASSES = ("forward", "backward")
# Where kernels are shown: long enough for every kernel of the passes to have work.
KERNELS_AT = 4096


def fragments(records: list[Record]) -> dict[str, str]:
    """Eager beside compiled for all devices; speed-ups and kernels for measured ones."""
    measured = [record for record in records if record.kind == "measured"]
    figures: dict[str, str] = {}
    for record in measured:
        figures |= speedup_figure(record)
    return {
        "compiled.md": per_device(records, compiled_table),
        "speedups.md": per_device(measured, speedups_body),
        "kernels.md": per_device(measured, kernels_table),
        **figures,
    }


# What a pair of rows says -------------------------------------------------------------


def speedup(record: Record | None, row: Row | None, *passes: str) -> float | None:
    """Eager time over compiled time of the cell of this row; None where either is
    missing.
    """
    if record is None or row is None:
        return None
    pair = [
        record.row(row.config | {"execution": execution}) for execution in EXECUTIONS
    ]
    eager, compiled = (median_ms(row, *passes) for row in pair)
    return eager / compiled if eager and compiled else None


def compile_seconds(row: Row) -> float:
    """What the warm-up passes took beyond as many settled ones."""
    times = [
        (row.metrics[f"warmup_{name}_ms"], row.metrics[f"{name}_ms"]) for name in PASSES
    ]
    return (
        sum(
            sum(warm) - len(warm) * summarize(settled).median for warm, settled in times
        )
        / 1e3
    )


def compiled_rows(record: Record | None) -> list[Row]:
    """The compiled rows of the grid that ran."""
    rows = record.rows if record else []
    return [
        r
        for r in rows
        if (r.config["execution"], r.status) == ("compiled", "ok")
        and r.config["n"] in LENGTHS
    ]


# Tables -------------------------------------------------------------------------------


def compiled_table(record: Record) -> str:
    """The assignment's 20 cells, fp32 without a mask: eager and compiled times, their
    ratio, and the compile time.
    """
    rows = []
    for d in WIDTHS:
        for n in LENGTHS:
            eager, compiled = (
                cell(record, n, d, execution=execution) for execution in EXECUTIONS
            )
            if eager is not None and compiled is not None:
                cells = reported_cells if record.kind == "reported" else measured_cells
                rows.append([str(d), str(n), *cells(record, eager, compiled)])
    header = [
        f"{name} {what}"
        for name in PASSES
        for what in ("eager, ms", "compiled, ms", "speed-up")
    ]
    last = "remark" if record.kind == "reported" else "compiling, s"
    return table(["d", "N", *header, last], rows, left=0) if rows else ""


def measured_cells(record: Record, eager: Row, compiled: Row) -> list[str]:
    texts = []
    for name in PASSES:
        for row in (eager, compiled):
            time = median_ms(row, name)
            texts.append(in_words(record, row) if time is None else f"{time:.3f}")
        ratio = speedup(record, eager, name)
        texts.append(f"{ratio:.2f}" if ratio else "")
    return [
        *texts,
        f"{compile_seconds(compiled):.1f}" if compiled.status == "ok" else "",
    ]


def reported_cells(record: Record, eager: Row, compiled: Row) -> list[str]:
    texts = []
    for name in PASSES:
        times = [row.metrics[f"{name}_mean_ms"] for row in (eager, compiled)]
        texts += [*(f"{time:.3f}" for time in times), f"{times[0] / times[1]:.2f}"]
    return [*texts, compiled.reason or ""]


def kernels_table(record: Record) -> str:
    """Kernels of each pass, eager and compiled, and what those do that the compiler
    wrote.
    """
    rows = []
    for dtype, causal in VARIANTS:
        for name in PASSES:
            pair = [
                cell(record, KERNELS_AT, dtype=dtype, causal=causal, execution=e)
                for e in EXECUTIONS
            ]
            counts = [
                str(row.metrics.get(f"{name}_kernels", "")) if row else ""
                for row in pair
            ]
            written = pair[1].metrics.get(f"{name}_fused", []) if pair[1] else []
            rows.append(
                [dtype, causal, name, *counts, "<br>".join(map(fused_words, written))]
            )
    header = [
        "dtype",
        "causal mask",
        "pass",
        "eager kernels",
        "compiled kernels",
        "of these, fused by the compiler",
    ]
    return table(header, rows, left=len(header))


KINDS = {"poi": "pointwise", "red": "reduction", "per": "reduction"}


def fused_words(kernel: str) -> str:
    """ "triton_red_fused_div_exp_3" -> "reduction: div exp", on one line of its cell."""
    match = re.fullmatch(r"triton_([a-z]+)_fused_(.*?)_?\d*", kernel)
    if match is None:
        return kernel
    words = [f"{KINDS.get(match[1], match[1])}:", *filter(None, match[2].split("_"))]
    return "\N{NO-BREAK SPACE}".join(words)


# The map ------------------------------------------------------------------------------

MAP = "Eager time over compiled time, both passes together: above 1 compiling gains (green), below 1 it loses (brown)."
# Colours end at a factor of 4 either way.
LARGEST = 4.0


def speedups(record: Record | None) -> list[float]:
    """Of all cells of the grid, forward and backward together."""
    return [
        ratio
        for row in compiled_rows(record)
        if (ratio := speedup(record, row)) is not None
    ]


def speedups_body(record: Record) -> str:
    found = speedups(record)
    span = (
        f"goes from {min(found):.2f} to {max(found):.2f}"
        if found
        else "was not measured"
    )
    alt = f"Eager time over compiled time {span}, by d and N."
    rows = []
    for dtype, causal in VARIANTS:
        for d in WIDTHS:
            ratios = [
                speedup(record, cell(record, n, d, dtype, causal)) for n in LENGTHS
            ]
            rows.append(
                [
                    dtype,
                    causal,
                    str(d),
                    *(f"{ratio:.2f}" if ratio else "" for ratio in ratios),
                ]
            )
    data = table(
        ["dtype", "causal mask", "d", *(f"N = {n}" for n in LENGTHS)], rows, left=2
    )
    drawn = figure(f"attention-speedup-{record.device.slug}", alt, MAP)
    return f"{drawn}\n\n{data}"


def speedup_figure(record: Record) -> dict[str, str]:
    with canvas(width=6.4, height=5.0) as fig:
        for axes, (dtype, causal) in zip(
            fig.subplots(2, 2).flat, VARIANTS, strict=True
        ):
            for i, d in enumerate(WIDTHS):
                for j, n in enumerate(LENGTHS):
                    draw_cell(
                        axes, j, i, speedup(record, cell(record, n, d, dtype, causal))
                    )
            axes.set_title(
                f"{dtype}, {'causal mask' if causal == 'yes' else 'no mask'}",
                fontsize=11,
            )
            axes.set(xlim=(0, len(LENGTHS)), ylim=(len(WIDTHS), 0))
            axes.set_xticks(
                [j + 0.5 for j in range(len(LENGTHS))],
                [str(n) for n in LENGTHS],
                fontsize=9,
            )
            axes.set_yticks(
                [i + 0.5 for i in range(len(WIDTHS))], [str(d) for d in WIDTHS]
            )
            axes.tick_params(length=0)
            axes.grid(False)
            axes.spines[:].set_visible(False)
        fig.supxlabel("sequence length N", fontsize=11)
        fig.supylabel("width d", fontsize=11)
        return svg_pair(f"speedup-{record.device.slug}", fig)


def draw_cell(axes: Axes, x: int, y: int, ratio: float | None) -> None:
    """One cell with its number, in black or white, whichever reads on its colour, light
    page or dark.
    """
    if ratio is None:
        axes.text(x + 0.5, y + 0.5, "-", ha="center", va="center", color=INK)
        return
    place = 0.5 + 0.5 * max(-1.0, min(1.0, log(ratio) / log(LARGEST)))
    red, green, blue, _ = colormaps["BrBG"](place)
    bright = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
    axes.add_patch(
        Rectangle((x, y), 1, 1, facecolor=to_hex((red, green, blue)), edgecolor="none")
    )
    axes.text(
        x + 0.5,
        y + 0.5,
        f"{ratio:.2f}",
        ha="center",
        va="center",
        color="#000000" if bright else "#ffffff",
    )


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """The range of the speed-ups, the price of compiling, and kernels before and after."""
    rows, found = compiled_rows(record), speedups(record)
    seconds = [compile_seconds(row) for row in rows]
    pair = {
        execution: cell(record, KERNELS_AT, execution=execution)
        for execution in EXECUTIONS
    }
    longest = cell(record, LENGTHS[-1])
    two = "{:.2f}".format
    return {
        "speedup_least": fact(min(found, default=None), two),
        "speedup_most": fact(max(found, default=None), two),
        "speedup_forward": fact(speedup(record, longest, "forward"), two),
        "speedup_backward": fact(speedup(record, longest, "backward"), two),
        "compile_least": fact(min(seconds, default=None), "{:.1f} s".format),
        "compile_most": fact(max(seconds, default=None), "{:.1f} s".format),
        "recompiles": fact(
            sum(row.metrics["recompiles"] for row in rows) if rows else None,
            "{:.0f}".format,
        ),
        **{
            f"{name}_kernels_{execution}": fact(
                row.metrics.get(f"{name}_kernels") if row else None, "{:.0f}".format
            )
            for execution, row in pair.items()
            for name in PASSES
        },
    }
