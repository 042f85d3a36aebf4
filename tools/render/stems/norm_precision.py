"""Heat maps, facts and claims of `norm_precision`: rounding errors in a layer norm."""

import math
from functools import partial

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.fragments import Drawn, Fragments
from tools.render.frame import Line, frame
from tools.render.rows import fmt

STAGES = {
    "mean": "mean",
    "square": "x²",
    "variance": "mean of x²",
    "eps": "+ eps",
    "rsqrt": "rsqrt",
    "output": "output",
}
DTYPES = ("fp16", "bf16", "fp32")
MAGNITUDES = tuple(10.0**exponent for exponent in range(-4, 6))
AT_ONE = MAGNITUDES.index(1.0)
COMPUTE = {
    "running": "in the dtype, running sum",
    "library": "in the dtype, torch.mean",
    "upcast": "in fp32, output rounded",
    "fused": "PyTorch's own kernel",
}
# The width in the figure over magnitudes; the largest width in the other figure.
WIDTH, WIDEST = 4096, 16384
# The ends of the colour scale of errors, as powers of ten.
WORST, BEST = 0, -8
# Marks for results that are infinite or NaN, or wrongly underflow to zero.
LOST = ("∞", "=0")
LEGEND = (
    "Each cell shows the power of ten nearest to the relative error; ∞: not finite; "
    "=0: wrongly zero. The stronger the colour, the larger the error."
)
fragments = Fragments()


def norm_row(
    record: Record | None, dtype: str, compute: str, width: int = WIDTH
) -> Line:
    """Return the row of a layer norm, computed as `compute` (see COMPUTE)."""
    return frame(record).one(norm="layer", dtype=dtype, compute=compute, width=width)


def error_labels(x: Line, stage: str) -> list[str]:
    """Return a label per input magnitude: "∞" if an input or result is not finite, "=0"
    if most results underflow, "exact", or the power of ten of the relative error.
    """
    if not x:
        return [""] * len(MAGNITUDES)

    def mark(inputs: float, nonfinite: float, zero: float, error: float | None) -> str:
        # Test for overflowed inputs: their float64 reference is not finite either.
        if inputs > 0 or nonfinite > 0 or zero > 0.5:
            return "∞" if inputs > 0 or nonfinite > 0 else "=0"
        return str(round(math.log10(error))) if error else "exact"

    kinds = (x[f"{stage}_{kind}"] for kind in ("nonfinite", "zero", "error"))
    return list(map(mark, x["input_nonfinite"], *kinds))


def first_magnitude(x: Line, stage: str, text: str) -> str:
    """Return the smallest magnitude whose `error_labels` entry is `text`, or "none"."""
    found = zip(MAGNITUDES, error_labels(x, stage), strict=True)
    first = next((f"{size:,.6g}" for size, mark in found if mark == text), "none")
    return fmt(first if x else x.missing)


def output_error(x: Line, magnitude: int = AT_ONE) -> float | None:
    """Return the output's error at MAGNITUDES[magnitude]; None if it is not finite."""
    return x["output_error"][magnitude]


def error_text(error: float | None) -> str:
    if error is None:
        return "not finite"
    return f"{100 * error:.0f} %" if error >= 0.1 else f"{100 * error:.2f} %"


@fragments.figure("layer.md", "layer", height=500)
def intermediates_figure(record: Record) -> Drawn:
    lines = {
        dtype: {
            text: error_labels(norm_row(record, dtype, "library"), stage)
            for stage, text in STAGES.items()
        }
        for dtype in DTYPES
    }
    sizes = [format_power(str(round(math.log10(size)))) for size in MAGNITUDES]
    fp16, bf16 = (norm_row(record, dtype, "library") for dtype in ("fp16", "bf16"))
    if not (fp16 or bf16):
        return None
    fits = first_magnitude(bf16, "square", "∞")
    return (
        partial(draw_heat_maps, lines, sizes, "magnitude of x"),
        f"In fp16 x² overflows from magnitude {first_magnitude(fp16, 'square', '∞')} "
        f"on; the output is zero from {first_magnitude(fp16, 'output', '=0')} on, or "
        f"NaN where x overflows too. In bf16 x² "
        f"{'never overflows' if fits == 'none' else f'overflows from {fits} on'}.",
        f"Width {WIDTH:,}. Magnitude is both mean and standard deviation of x. Each "
        f"stage is rounded to its format; `torch.mean` takes means. {LEGEND}",
    )


@fragments.figure("layer-widths.md", "layer-widths", height=400)
def widths_figure(record: Record) -> Drawn:
    if not (widths := frame(record).values("width")):
        return None

    def format_row(dtype: str, compute: str) -> list[str]:
        found = (norm_row(record, dtype, compute, width) for width in widths)
        return [error_labels(x, "output")[AT_ONE] for x in found]

    lines = {
        dtype: {
            COMPUTE[compute]: format_row(dtype, compute)
            for compute in frame(record, norm="layer", dtype=dtype).values("compute")
        }
        for dtype in DTYPES
    }
    running, library = (
        fmt(output_error(norm_row(record, "bf16", compute, WIDEST)), error_text)
        for compute in ("running", "library")
    )
    return (
        partial(draw_heat_maps, lines, [f"{width:,}" for width in widths], "width"),
        f"At width {WIDEST:,} the output of LayerNorm in bf16 is off by {running} "
        f"with a running sum in bf16, and by {library} if the sum is kept in fp32.",
        f"Inputs have magnitude 1. Each row computes the norm differently. {LEGEND}",
    )


def draw_heat_maps(
    lines: dict[str, dict[str, list[str]]], heads: list[str], label: str, figure: Figure
) -> None:
    for axes, (dtype, of) in zip(
        plots.panels(figure, len(lines), beside=1), lines.items(), strict=True
    ):
        rows = {
            name: [(format_power(text), cell_shade(text)) for text in line]
            for name, line in of.items()
        }
        plots.fill_heat_map(axes, rows, heads)
        axes.set_title(f"{dtype}, by {label}")


def format_power(mark: str) -> str:
    """Return "10⁻⁴" for "-4"; return other marks unchanged."""
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return mark if mark in (*LOST, "", "exact") else f"10{mark.translate(digits)}"


def cell_shade(text: str) -> float:
    """Return the shade of a cell with this label: from 0 (exact) to 1 (∞ or =0)."""
    if text in (*LOST, "", "exact"):
        return float(text in LOST)
    return 0.75 * min(1.0, max(0.0, (int(text) - BEST) / (WORST - BEST)))


def facts(record: Record | None) -> dict[str, str]:
    """Return {name: number as text}: where fp16 squares overflow, output errors."""
    fp16 = norm_row(record, "fp16", "library")
    widest = {
        way: output_error(norm_row(record, "bf16", way, WIDEST))
        for way in ("running", "library")
    }
    return {f"bf16_{way}": fmt(error, error_text) for way, error in widest.items()} | {
        "fp16_square_overflows": first_magnitude(fp16, "square", "∞"),
        "fp16_smallest_output": fmt(output_error(fp16, 0), error_text),
    }


@claim(
    "benchmarking_mixed_precision",
    "At the magnitudes measured, the squares in a layer norm overflow in fp16 but not "
    "in bf16.",
)
def bf16_squares_fit(record: Record) -> Judgement:
    both = [norm_row(record, dtype, "library") for dtype in ("fp16", "bf16")]
    first = [first_magnitude(x, "square", "∞") for x in both]
    fp16, bf16 = (size if size == "none" else f"from {size}" for size in first)
    numbers = f"Magnitudes that overflow: fp16 {fp16}, bf16 {bf16}."
    return all(both) and (bf16 == "none" != fp16, numbers)


@claim(
    "benchmarking_mixed_precision",
    "Sums kept in bf16 spoil a wide layer norm: its error is more than ten times the "
    "error with sums in fp32.",
    because="a bf16 sum of equal terms stops growing after 256 of them, so most of "
    f"{WIDEST:,} terms are lost.",
)
def bf16_sums_need_fp32(record: Record) -> Judgement:
    ways = (norm_row(record, "bf16", way, WIDEST) for way in ("running", "library"))
    running, library = map(output_error, ways)
    if not (running and library):
        return None
    texts = f"The error is {error_text(running)}, with fp32 sums {error_text(library)},"
    return running > 10 * library, f"{texts} at width {WIDEST:,}."
