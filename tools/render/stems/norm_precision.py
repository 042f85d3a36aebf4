"""Heat maps, tables and facts of `norm_precision`: where each stage of a norm loses
digits, overflows or vanishes.
"""

import math

from matplotlib import colormaps
from matplotlib.axes import Axes

from systems.records.record import Record, Row
from tools.render.figures import canvas, svg_pair
from tools.render.markdown import NOT_MEASURED, fact, figure, per_device, table

STAGES = {
    "mean": "mean",
    "square": "x²",
    "variance": "mean of x²",
    "eps": "+ eps",
    "rsqrt": "rsqrt",
    "output": "output",
}
DTYPES = ("fp16", "bf16", "fp32")
WIDTHS = (64, 256, 1024, 4096, 16384)
MAGNITUDES = tuple(10.0**exponent for exponent in range(-4, 6))
NORMS = {"layer": "LayerNorm", "rms": "RMSNorm"}
COMPUTE = {
    "running": "in the dtype, running sum",
    "library": "in the dtype, torch.mean",
    "upcast": "in fp32, output rounded",
    "fused": "PyTorch's own kernel",
}
# What the stage figures and the facts speak of.
WIDTH = 4096
# The size of the error from which a cell is darkest and lightest, in powers of ten.
WORST, BEST = 0, -8


# What a row says ----------------------------------------------------------------------


def row_of(
    record: Record | None, norm: str, dtype: str, compute: str, width: int = WIDTH
) -> Row | None:
    return (
        record.find(norm=norm, dtype=dtype, compute=compute, width=width)
        if record
        else None
    )


def mark(row: Row, stage: str, magnitude: int) -> str:
    """A cell: "∞" where something is not finite, "=0" where most of it vanished, else
    the error's power of ten.
    """
    m = row.metrics
    # Where inputs overflowed already, float64 has nothing finite to compare with
    # either.
    if m["input_nonfinite"][magnitude] > 0 or m[f"{stage}_nonfinite"][magnitude] > 0:
        return "∞"
    if m[f"{stage}_zero"][magnitude] > 0.5:
        return "=0"
    error = m[f"{stage}_error"][magnitude]
    return str(round(math.log10(error))) if error else "exact"


def darkness(text: str) -> float:
    """Of a cell with this mark, from 0 (exact) to 1."""
    if text in ("∞", "=0"):
        return 1.0
    return (
        0.0
        if text == "exact"
        else min(1.0, max(0.0, (int(text) - BEST) / (WORST - BEST)))
    )


def first_with(row: Row | None, stage: str, text: str) -> float | None:
    """The smallest magnitude at which the stage has this mark."""
    if row is None:
        return None
    return next(
        (size for i, size in enumerate(MAGNITUDES) if mark(row, stage, i) == text), None
    )


def error_at_one(row: Row | None, stage: str) -> float | None:
    return row.metrics[f"{stage}_error"][MAGNITUDES.index(1.0)] if row else None


# Figures ------------------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    """For each norm its stages, for both the output by width, and the numbers as
    tables.
    """
    figures: dict[str, str] = {}
    for record in records:
        for norm in NORMS:
            figures |= stages_figure(record, norm) | widths_figure(record, norm)
    return {
        **{
            f"{norm}.md": per_device(records, lambda r, n=norm: stages_body(r, n))
            for norm in NORMS
        },
        **{
            f"{norm}-widths.md": per_device(
                records, lambda r, n=norm: widths_body(r, n)
            )
            for norm in NORMS
        },
        "output.md": per_device(records, output_table),
        "all.md": per_device(records, all_table),
        **figures,
    }


def stages_body(record: Record, norm: str) -> str:
    row = row_of(record, norm, "fp16", "library")
    overflow, zero = first_with(row, "square", "∞"), first_with(row, "output", "=0")
    fits = first_with(row_of(record, norm, "bf16", "library"), "square", "∞")
    alt = (
        f"{NORMS[norm]}, stage by stage: in fp16 x² overflows from magnitude {in_words(overflow)} on and the output is "
        f"zero from {in_words(zero)} on; in bf16 x² overflows from {in_words(fits, 'none')} on."
    )
    caption = (
        f"{NORMS[norm]} of width {WIDTH}, each stage rounded to its format, means by torch.mean. A number n says that "
        "the relative error is about 10<sup>n</sup>; ∞: not finite; =0: wrongly zero. Darker is worse."
    )
    return figure(f"norm_precision-{norm}-{record.device.slug}", alt, caption)


def widths_body(record: Record, norm: str) -> str:
    running, library = (
        error_at_one(row_of(record, norm, "bf16", c, WIDTHS[-1]), "output")
        for c in ("running", "library")
    )
    alt = (
        f"Error of the output of {NORMS[norm]} in bf16 at width {WIDTHS[-1]}: {power(running)} with a running sum in "
        f"bf16, {power(library)} where the sum is kept in fp32."
    )
    caption = (
        f"Output of {NORMS[norm]} at magnitude 1 by width. Rows of a panel: where it was computed; numbers and shades "
        "as above."
    )
    return figure(f"norm_precision-{norm}-widths-{record.device.slug}", alt, caption)


def stages_figure(record: Record, norm: str) -> dict[str, str]:
    stages = [stage for stage in STAGES if norm == "layer" or stage != "mean"]
    with canvas(height=7.2) as fig:
        for axes, dtype in zip(fig.subplots(len(DTYPES), 1), DTYPES, strict=True):
            row = row_of(record, norm, dtype, "library")
            if row is not None:
                draw_cells(
                    axes,
                    [
                        [mark(row, stage, i) for i in range(len(MAGNITUDES))]
                        for stage in stages
                    ],
                )
            axes.set_yticks(
                [i + 0.5 for i in range(len(stages))],
                [STAGES[stage] for stage in stages],
            )
            axes.set_xticks(
                [i + 0.5 for i in range(len(MAGNITUDES))],
                [f"1e{round(math.log10(size))}" for size in MAGNITUDES],
            )
            axes.set_title(dtype, fontsize=11)
        fig.supxlabel("magnitude of x", fontsize=11)
        return svg_pair(f"{norm}-{record.device.slug}", fig)


def widths_figure(record: Record, norm: str) -> dict[str, str]:
    one = MAGNITUDES.index(1.0)
    with canvas(height=6.2) as fig:
        for axes, dtype in zip(fig.subplots(len(DTYPES), 1), DTYPES, strict=True):
            found = {
                compute: [
                    row_of(record, norm, dtype, compute, width) for width in WIDTHS
                ]
                for compute in COMPUTE
                if row_of(record, norm, dtype, compute)
            }
            cells = [
                [mark(row, "output", one) if row else "" for row in rows]
                for rows in found.values()
            ]
            draw_cells(axes, cells)
            axes.set_yticks(
                [i + 0.5 for i in range(len(found))],
                [COMPUTE[compute] for compute in found],
            )
            axes.set_xticks(
                [i + 0.5 for i in range(len(WIDTHS))], [str(width) for width in WIDTHS]
            )
            axes.set_title(dtype, fontsize=11)
        fig.supxlabel("width", fontsize=11)
        return svg_pair(f"{norm}-widths-{record.device.slug}", fig)


def draw_cells(axes: Axes, cells: list[list[str]]) -> None:
    """A grid of shaded marks, the first row on top. The shade is the same by day and by
    night, and so is its text.
    """
    shades = [[darkness(text) if text else 0.0 for text in line] for line in cells]
    axes.pcolormesh(
        shades,
        cmap=colormaps["YlOrBr"],
        vmin=0,
        vmax=1.15,
        edgecolors="#ffffff",
        linewidth=1,
    )
    for y, line in enumerate(cells):
        for x, text in enumerate(line):
            color = "#ffffff" if shades[y][x] > 0.75 else "#000000"
            shown = text.replace("-", "−")
            axes.text(
                x + 0.5,
                y + 0.5,
                shown,
                ha="center",
                va="center",
                color=color,
                fontsize=9,
            )
    axes.invert_yaxis()
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


# Tables and facts ---------------------------------------------------------------------


def power(error: float | None) -> str:
    return "not finite" if error is None else f"{error:.1e}"


def in_percent(error: float) -> str:
    return f"{100 * error:.0f} %" if error >= 0.1 else f"{100 * error:.2f} %"


def in_words(magnitude: float | None, otherwise: str = "none measured") -> str:
    return otherwise if magnitude is None else f"{magnitude:,.6g}"


def output_table(record: Record) -> str:
    """Error of the output at magnitude 1, a line for each norm, format and way to
    compute.
    """
    rows = []
    for norm, norm_name in NORMS.items():
        for dtype in DTYPES:
            for compute, text in COMPUTE.items():
                found = [
                    row_of(record, norm, dtype, compute, width) for width in WIDTHS
                ]
                if any(found):
                    errors = [
                        power(error_at_one(row, "output")) if row else ""
                        for row in found
                    ]
                    rows.append([norm_name, dtype, text, *errors])
    return table(
        ["norm", "format", "computed", *(f"width {width}" for width in WIDTHS)],
        rows,
        left=3,
    )


def all_table(record: Record) -> str:
    """Every stage at every magnitude, at the width of the figures."""
    rows = []
    for row in record.rows:
        c = row.config
        if c["width"] == WIDTH:
            for stage, text in STAGES.items():
                if f"{stage}_error" in row.metrics:
                    errors = [
                        power(error)
                        if (m := mark(row, stage, i)) not in ("∞", "=0")
                        else m
                        for i, error in enumerate(row.metrics[f"{stage}_error"])
                    ]
                    rows.append(
                        [
                            NORMS[c["norm"]],
                            c["dtype"],
                            COMPUTE[c["compute"]],
                            text,
                            *errors,
                        ]
                    )
    return table(
        ["norm", "format", "computed", "stage", *(f"{size:g}" for size in MAGNITUDES)],
        rows,
        left=4,
    )


def facts(record: Record | None) -> dict[str, str]:
    """From which magnitude what fails in a layer norm, and what each way to compute
    makes of the widest one.
    """
    fp16, bf16 = (
        row_of(record, "layer", dtype, "library") for dtype in ("fp16", "bf16")
    )
    vanished = row_of(record, "rms", "fp16", "library")
    found = {
        f"bf16_{compute}": fact(
            error_at_one(
                row_of(record, "layer", "bf16", compute, WIDTHS[-1]), "output"
            ),
            in_percent,
        )
        for compute in COMPUTE
    }
    return found | {
        "fp16_square_overflows": in_words(first_with(fp16, "square", "∞"), "none")
        if fp16
        else NOT_MEASURED,
        "fp16_output_zero": in_words(first_with(fp16, "output", "=0"), "none")
        if fp16
        else NOT_MEASURED,
        "bf16_square_overflows": in_words(first_with(bf16, "square", "∞"), "none")
        if bf16
        else NOT_MEASURED,
        "fp16_smallest_output": fact(
            vanished.metrics["output_error"][0] if vanished else None, in_percent
        ),
    }
