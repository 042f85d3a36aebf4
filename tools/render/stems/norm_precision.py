"""Heat maps, tables and facts of `norm_precision`: where norms lose digits."""

import math
from functools import partial

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import columns, per_device, table
from tools.render.plots import heat_map, panels, plot
from tools.render.rows import Cell, axis, cell, cells, say

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
ONE = MAGNITUDES.index(1.0)
NORMS = {"layer": "LayerNorm", "rms": "RMSNorm"}
COMPUTE = {
    "running": "in the dtype, running sum",
    "library": "in the dtype, torch.mean",
    "upcast": "in fp32, output rounded",
    "fused": "PyTorch's own kernel",
}
# What the stage figures speak of, and what the others and the facts.
WIDTH, WIDEST = 4096, 16384
# The size of the error from which a cell is darkest and lightest, in powers of ten.
WORST, BEST = 0, -8
# The marks of what is no number any more.
LOST = ("∞", "=0")


def at(
    record: Record | None, norm: str, dtype: str, compute: str, width: int = WIDTH
) -> Cell:
    return cell(record, norm=norm, dtype=dtype, compute=compute, width=width)


def marks(c: Cell, stage: str) -> list[str]:
    """By magnitude: "∞" where something is not finite, "=0" where most of it vanished,
    else the error's power of ten; empty where there are no numbers.
    """
    if not c:
        return [""] * len(MAGNITUDES)

    def mark(inputs: float, nonfinite: float, zero: float, error: float | None) -> str:
        # Where inputs overflowed already, float64 has nothing finite to compare with
        # either.
        if inputs > 0 or nonfinite > 0 or zero > 0.5:
            return "∞" if inputs > 0 or nonfinite > 0 else "=0"
        return str(round(math.log10(error))) if error else "exact"

    kinds = (c[f"{stage}_{kind}"] for kind in ("nonfinite", "zero", "error"))
    return list(map(mark, c["input_nonfinite"], *kinds))


def first_with(c: Cell, stage: str, text: str) -> str:
    """The smallest magnitude at which the stage has this mark."""
    found = zip(MAGNITUDES, marks(c, stage), strict=True)
    first = next((f"{size:,.6g}" for size, mark in found if mark == text), "none")
    return say(first if c else c.missing)


def output_error(c: Cell, magnitude: int = ONE) -> float | None:
    """None where it is not finite."""
    return c["output_error"][magnitude] if c else c.missing


def power(error: float | None) -> str:
    return "not finite" if error is None else f"{error:.1e}"


def in_percent(error: float | None) -> str:
    if error is None:
        return power(error)
    return f"{100 * error:.0f} %" if error >= 0.1 else f"{100 * error:.2f} %"


def fragments(records: list[Record]) -> dict[str, str]:
    """For each norm its stages and its output by width, and the numbers as tables."""
    files = {
        "output.md": per_device(records, output_table),
        "all.md": per_device(records, all_table),
    }
    for norm in NORMS:
        files[f"{norm}.md"] = per_device(records, partial(stages_figure, norm))
        widths = per_device(records, partial(widths_figure, norm))
        files[f"{norm}-widths.md"] = widths
    return files


def stages_figure(norm: str, record: Record) -> str:
    lines = {
        dtype: {
            STAGES[stage]: marks(at(record, norm, dtype, "library"), stage)
            for stage in STAGES
            if norm == "layer" or stage != "mean"
        }
        for dtype in DTYPES
    }
    sizes = [in_tens(str(round(math.log10(size)))) for size in MAGNITUDES]
    fp16, bf16 = (at(record, norm, dtype, "library") for dtype in ("fp16", "bf16"))
    fits = first_with(bf16, "square", "∞")
    return plot(
        record,
        norm,
        partial(draw_maps, lines, sizes, "magnitude of x"),
        f"In fp16 x² overflows from magnitude {first_with(fp16, 'square', '∞')} on and "
        f"the output is zero from {first_with(fp16, 'output', '=0')} on, until x "
        f"overflows, too; in bf16 x² "
        f"{'never overflows' if fits == 'none' else f'overflows from {fits} on'}.",
        f"{NORMS[norm]} of width {WIDTH:,}, each stage rounded to its format, means by "
        f"`torch.mean`. {READ}",
        height=500,
    )


READ = (
    "Each cell shows the power of ten nearest to the relative error; ∞: not finite; "
    "=0: wrongly zero. The stronger the colour, the larger the error."
)


def widths_figure(norm: str, record: Record) -> str:
    if not (widths := axis(record, "width")):
        return ""

    def line(dtype: str, compute: str) -> list[str]:
        found = (at(record, norm, dtype, compute, width) for width in widths)
        return [marks(c, "output")[ONE] for c in found]

    lines = {
        dtype: {
            COMPUTE[compute]: line(dtype, compute)
            for compute in axis(record, "compute", norm=norm, dtype=dtype)
        }
        for dtype in DTYPES
    }
    running, library = (
        say(output_error(at(record, norm, "bf16", c, WIDEST)), in_percent)
        for c in ("running", "library")
    )
    return plot(
        record,
        f"{norm}-widths",
        partial(draw_maps, lines, [f"{width:,}" for width in widths], "width"),
        f"At width {WIDEST:,} the output of {NORMS[norm]} in bf16 is off by {running} "
        f"with a running sum in bf16, by {library} where the sum is kept in fp32.",
        f"At magnitude 1. Each line of a panel is a way to compute it. {READ}",
        height=400,
    )


def draw_maps(
    lines: dict[str, dict[str, list[str]]], heads: list[str], label: str, figure: Figure
) -> None:
    """A panel for each dtype."""
    for axes, (dtype, of) in zip(
        panels(figure, len(lines), beside=1), lines.items(), strict=True
    ):
        rows = {
            name: [(in_tens(text), darkness(text)) for text in line]
            for name, line in of.items()
        }
        heat_map(axes, rows, heads)
        axes.set_title(f"{dtype}, by {label}")


def in_tens(mark: str) -> str:
    """ "-4" -> "10⁻⁴"."""
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return mark if mark in (*LOST, "", "exact") else f"10{mark.translate(digits)}"


def darkness(text: str) -> float:
    """Of a cell with this mark, from 0 (exact) to 1."""
    if text in (*LOST, "", "exact"):
        return float(text in LOST)
    return 0.75 * min(1.0, max(0.0, (int(text) - BEST) / (WORST - BEST)))


def output_table(record: Record) -> str:
    """Error of the output at magnitude 1, for each norm, format and way to compute."""

    def of(line: tuple[str, str, str], width: int) -> float | None:
        return output_error(at(record, *line, width=width))

    return columns(
        [
            (n, d, c)
            for n in NORMS
            for d in DTYPES
            for c in axis(record, "compute", norm=n, dtype=d)
        ],
        ("norm", lambda line: NORMS[line[0]]),
        ("format", lambda line: line[1]),
        ("computed", lambda line: COMPUTE[line[2]]),
        *((f"width {w}", partial(of, width=w), power) for w in axis(record, "width")),
        left=3,
    )


def all_table(record: Record) -> str:
    """Every stage at every magnitude, at the width of the figures."""
    rows = []
    for c in cells(record, width=WIDTH):
        named = [
            NORMS[c.config["norm"]],
            c.config["dtype"],
            COMPUTE[c.config["compute"]],
        ]
        for stage, text in STAGES.items():
            if errors := c.get(f"{stage}_error", None):
                both = zip(marks(c, stage), errors, strict=True)
                shown = [mark if mark in LOST else power(error) for mark, error in both]
                rows.append([*named, text, *shown])
    header = ["norm", "format", "computed", "stage", *(f"{m:g}" for m in MAGNITUDES)]
    return table(header, rows, left=4)


def facts(record: Record | None) -> dict[str, str]:
    """Where a layer norm fails, and what each way makes of the widest one."""
    fp16, bf16 = (at(record, "layer", dtype, "library") for dtype in ("fp16", "bf16"))
    widest = {c: output_error(at(record, "layer", "bf16", c, WIDEST)) for c in COMPUTE}
    smallest = output_error(at(record, "layer", "fp16", "library"), 0)
    return {f"bf16_{c}": say(error, in_percent) for c, error in widest.items()} | {
        "fp16_square_overflows": first_with(fp16, "square", "∞"),
        "fp16_output_zero": first_with(fp16, "output", "=0"),
        "bf16_square_overflows": first_with(bf16, "square", "∞"),
        "fp16_smallest_output": say(smallest, in_percent),
    }


@claim(
    "benchmarking_mixed_precision",
    "The squares in a layer norm overflow in fp16 and not in bf16, over the magnitudes "
    "measured.",
)
def bf16_squares_fit(record: Record) -> Judgement:
    both = [at(record, "layer", dtype, "library") for dtype in ("fp16", "bf16")]
    first = [first_with(c, "square", "∞") for c in both]
    fp16, bf16 = (size if size == "none" else f"from {size}" for size in first)
    numbers = f"Magnitudes that overflow: fp16 {fp16}, bf16 {bf16}."
    return all(both) and (bf16 == "none" != fp16, numbers)


@claim(
    "benchmarking_mixed_precision",
    "Sums kept in bf16 still spoil a wide layer norm: its error is more than ten times "
    "that with sums in fp32.",
    because="a bf16 sum of equal terms stops growing after 256 of them, so most of a "
    "row this wide is lost.",
)
def bf16_sums_need_fp32(record: Record) -> Judgement:
    ways = (at(record, "layer", "bf16", way, WIDEST) for way in ("running", "library"))
    running, library = map(output_error, ways)
    if not (running and library):
        return None
    texts = f"Off by {in_percent(running)} and by {in_percent(library)}"
    return running > 10 * library, f"{texts} at width {WIDEST:,}."
