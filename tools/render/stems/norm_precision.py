"""Heat maps, tables and facts of `norm_precision`: where norms lose digits."""

import math
from functools import partial

from matplotlib import colormaps

from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.figures import canvas, of_each, svg_pair
from tools.render.markdown import columns, figure, per_device, table
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
        drawn = partial(stages_figure, norm), partial(widths_figure, norm)
        files |= of_each(records, *drawn) | {
            f"{norm}.md": per_device(records, partial(stages_body, norm)),
            f"{norm}-widths.md": per_device(records, partial(widths_body, norm)),
        }
    return files


def stages_body(norm: str, record: Record) -> str:
    fp16, bf16 = (at(record, norm, dtype, "library") for dtype in ("fp16", "bf16"))
    return figure(
        f"norm_precision-{norm}-{record.device.slug}",
        f"{NORMS[norm]}, stage by stage: in fp16 x² overflows from magnitude "
        f"{first_with(fp16, 'square', '∞')} on and the output is zero from "
        f"{first_with(fp16, 'output', '=0')} on; in bf16 x² overflows from "
        f"{first_with(bf16, 'square', '∞')} on.",
        f"{NORMS[norm]} of width {WIDTH}, each stage rounded to its format, means by "
        "torch.mean. A number n says that the relative error is about 10ⁿ; "
        "∞: not finite; =0: wrongly zero. Darker is worse.",
    )


def stages_figure(norm: str, record: Record) -> dict[str, str]:
    panels = {dtype: {} for dtype in DTYPES}
    for dtype, lines in panels.items():
        c = at(record, norm, dtype, "library")
        stages = (s for s in STAGES if norm == "layer" or s != "mean")
        lines |= {STAGES[stage]: marks(c, stage) for stage in stages}
    sizes = [f"1e{round(math.log10(size))}" for size in MAGNITUDES]
    name = f"{norm}-{record.device.slug}"
    return heat_maps(name, panels, sizes, "magnitude of x", height=7.2)


def widths_body(norm: str, record: Record) -> str:
    running, library = (
        say(output_error(at(record, norm, "bf16", c, WIDEST)), power)
        for c in ("running", "library")
    )
    return figure(
        f"norm_precision-{norm}-widths-{record.device.slug}",
        f"Error of the output of {NORMS[norm]} in bf16 at width {WIDEST}: {running} "
        f"with a running sum in bf16, {library} where the sum is kept in fp32.",
        f"Output of {NORMS[norm]} at magnitude 1 by width. Rows of a panel: where it "
        "was computed; numbers and shades as above.",
    )


def widths_figure(norm: str, record: Record) -> dict[str, str]:
    widths, panels = axis(record, "width"), {dtype: {} for dtype in DTYPES}
    for dtype, lines in panels.items():
        for compute in axis(record, "compute", norm=norm, dtype=dtype):
            found = (at(record, norm, dtype, compute, width) for width in widths)
            lines[COMPUTE[compute]] = [marks(c, "output")[ONE] for c in found]
    name = f"{norm}-widths-{record.device.slug}"
    return heat_maps(name, panels, list(map(str, widths)), "width", height=6.2)


def heat_maps(
    name: str,
    panels: dict[str, dict[str, list[str]]],
    heads: list[str],
    label: str,
    height: float,
) -> dict[str, str]:
    """A panel for each dtype, in it a line of shaded marks for each key, under these
    heads. The shade is the same by day and by night, and so is its text.
    """
    with canvas(height=height) as fig:
        drawn = zip(fig.subplots(len(panels), 1), panels.items(), strict=True)
        for axes, (dtype, lines) in drawn:
            shades = [[darkness(text) for text in line] for line in lines.values()]
            if any(shades):
                look = {"edgecolors": "#ffffff", "linewidth": 1}
                axes.pcolormesh(
                    shades, cmap=colormaps["YlOrBr"], vmin=0, vmax=1.15, **look
                )
            for y, line in enumerate(lines.values()):
                for x, text in enumerate(line):
                    color = "#ffffff" if shades[y][x] > 0.75 else "#000000"
                    place = {"ha": "center", "va": "center", "fontsize": 9}
                    axes.text(
                        x + 0.5, y + 0.5, text.replace("-", "−"), color=color, **place
                    )
            axes.set_yticks([i + 0.5 for i in range(len(lines))], list(lines))
            axes.set_xticks([i + 0.5 for i in range(len(heads))], heads)
            axes.set_title(dtype, fontsize=11)
            axes.invert_yaxis()
            axes.grid(False)
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
        fig.supxlabel(label, fontsize=11)
        return svg_pair(name, fig)


def darkness(text: str) -> float:
    """Of a cell with this mark, from 0 (exact) to 1."""
    if text in (*LOST, "", "exact"):
        return float(text in LOST)
    return min(1.0, max(0.0, (int(text) - BEST) / (WORST - BEST)))


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
    smallest = output_error(at(record, "rms", "fp16", "library"), 0)
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
)
def bf16_sums_need_fp32(record: Record) -> Judgement:
    ways = (at(record, "layer", "bf16", way, WIDEST) for way in ("running", "library"))
    running, library = map(output_error, ways)
    if not (running and library):
        return None
    texts = f"Off by {in_percent(running)} and by {in_percent(library)}"
    return running > 10 * library, f"{texts} at width {WIDEST:,}."
