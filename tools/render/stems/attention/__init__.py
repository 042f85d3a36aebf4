"""Tables, figures and facts of `attention`: time and memory of plain attention over d
and N.

Two pages include them. `attention_memory` builds what is about memory,
`attention_compiled` what compares eager with compiled.
"""

from systems.records.record import Record, Row
from systems.records.summary import summarize
from tools.render.figures import MARKERS, SERIES, canvas, plain_log_scale, svg_pair
from tools.render.markdown import (
    NOT_MEASURED,
    fact,
    figure,
    mean_std,
    per_device,
    table,
)
from tools.render.stems.attention import compiled as attention_compiled
from tools.render.stems.attention import memory as attention_memory
from tools.render.stems.attention.rows import (
    EXECUTIONS,
    LENGTHS,
    VARIANTS,
    WIDTH,
    WIDTHS,
    cell,
    gib3,
    in_words,
    median_ms,
    samples_ms,
)

PASSES = ("forward", "backward")
MEMORY = ("before_backward_bytes", "peak_allocated_bytes")
HEADER = ["forward, ms", "backward, ms", "memory before backward, GiB", "peak, GiB"]


def fragments(records: list[Record]) -> dict[str, str]:
    """Tables for all devices; figures for each measured one."""
    measured = [record for record in records if record.kind == "measured"]
    figures: dict[str, str] = {}
    for record in measured:
        figures |= times_figure(record)
    return {
        "table.md": per_device(records, grid_table),
        "variants.md": per_device(measured, variants_table),
        "times.md": per_device(measured, times_body),
        "all.md": per_device(measured, all_table),
        **attention_memory.fragments(measured),
        **attention_compiled.fragments(records),
        **figures,
    }


# Tables -------------------------------------------------------------------------------


def grid_table(record: Record) -> str:
    """The assignment's 20 cells: fp32, no mask, eager; those of others as they report
    them.
    """
    cells = reported_cells if record.kind == "reported" else measured_cells
    found = [row for d in WIDTHS for n in LENGTHS if (row := cell(record, n, d))]
    rows = [
        [str(row.config["d"]), str(row.config["n"]), *cells(record, row)]
        for row in found
    ]
    return table(["d", "N", *HEADER], rows, left=0) if rows else ""


def measured_cells(record: Record, row: Row) -> list[str]:
    if row.status != "ok":
        return [in_words(record, row), "", "", ""]
    return [
        *(mean_std(samples_ms(row, p)) for p in PASSES),
        *(gib3(row.metrics.get(key)) for key in MEMORY),
    ]


def reported_cells(record: Record, row: Row) -> list[str]:
    m = row.metrics
    deviation = {
        p: f" ± {m[f'{p}_std_ms']:.2f}" if f"{p}_std_ms" in m else "" for p in PASSES
    }
    return [
        *(f"{m[f'{p}_mean_ms']:.2f}{deviation[p]}" for p in PASSES),
        *(gib3(m.get(key)) for key in MEMORY),
    ]


def variants_table(record: Record) -> str:
    """Both dtypes, with and without a mask, at one width."""
    rows = [
        [dtype, causal, str(n), *measured_cells(record, row)]
        for dtype, causal in VARIANTS
        for n in LENGTHS
        if (row := cell(record, n, WIDTH, dtype, causal))
    ]
    return table(["dtype", "causal mask", "N", *HEADER], rows, left=2)


def all_table(record: Record) -> str:
    """Every row with every statistic."""
    rows = []
    for row in record.rows:
        name = [
            str(row.config[key]) for key in ("dtype", "causal", "execution", "d", "n")
        ]
        if row.status != "ok":
            rows.append([*name, in_words(record, row), *[""] * 11])
            continue
        summaries = [summarize(samples_ms(row, name)) for name in PASSES]
        times = [
            f"{value:.3f}"
            for s in summaries
            for value in (s.mean, s.std, s.median, s.min, s.max)
        ]
        rows.append([*name, *times, *(gib3(row.metrics.get(key)) for key in MEMORY)])
    times = [
        f"{name} {statistic}"
        for name in PASSES
        for statistic in ("mean, ms", "std", "median", "min", "max")
    ]
    return table(
        ["dtype", "causal mask", "execution", "d", "N", *times, *HEADER[2:]],
        rows,
        left=3,
    )


# Figure -------------------------------------------------------------------------------

TIMES = (
    f"Median time of a pass against N: fp32, d = {WIDTH}, no mask. Solid: eager; dashed: compiled. What grows with N² "
    "runs parallel to the dotted line."
)


def growth(record: Record | None, name: str) -> float | None:
    """Eager time at the longest length of the grid over that at half of it: 4 where it
    grows with N².
    """
    half, whole = (median_ms(cell(record, n), name) for n in LENGTHS[-2:])
    return whole / half if half and whole else None


def times_body(record: Record) -> str:
    grown = [
        f"{name} by {factor:.2f}"
        for name in PASSES
        if (factor := growth(record, name)) is not None
    ]
    factors = ", ".join(grown) or NOT_MEASURED
    alt = f"From N = {LENGTHS[-2]} to twice that, the time of an eager pass grows by a factor: {factors}."
    return figure(f"attention-times-{record.device.slug}", alt, TIMES)


def times_figure(record: Record) -> dict[str, str]:
    with canvas(height=4.4) as fig:
        axes = fig.subplots()
        for name, color, markers in zip(
            PASSES, SERIES, (MARKERS[:2], MARKERS[2:]), strict=False
        ):
            for execution, dash, marker in zip(
                EXECUTIONS, ("-", "--"), markers, strict=False
            ):
                rows = ((n, cell(record, n, execution=execution)) for n in LENGTHS)
                points = [
                    (n, time) for n, row in rows if (time := median_ms(row, name))
                ]
                if points:
                    label = f"{name}, {execution}"
                    axes.plot(
                        *zip(*points, strict=True),
                        dash,
                        color=color,
                        marker=marker,
                        label=label,
                    )
        if time := median_ms(cell(record, 4096), "forward"):
            slope = [(n, time / 2 * (n / 4096) ** 2) for n in LENGTHS[1:]]
            axes.plot(
                *zip(*slope, strict=True), ":", color=SERIES[2], label="slope of N²"
            )
        axes.set_xscale("log", base=2)
        plain_log_scale(axes.yaxis)
        axes.set_xticks(LENGTHS, [str(n) for n in LENGTHS])
        axes.set_xlabel("sequence length N")
        axes.set_ylabel("one pass, ms")
        fig.legend(
            loc="outside upper center", ncols=3, columnspacing=1.0, handlelength=2.2
        )
        return svg_pair(f"times-{record.device.slug}", fig)


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """Times at one width and the longest length, and how they grow; what memory and
    compiling have to say.
    """
    longest = cell(record, LENGTHS[-1])
    ms, two = "{:.1f} ms".format, "{:.2f}".format
    return {
        "forward": fact(median_ms(longest, "forward"), ms),
        "backward": fact(median_ms(longest, "backward"), ms),
        "growth_forward": fact(growth(record, "forward"), two),
        "growth_backward": fact(growth(record, "backward"), two),
        **attention_memory.facts(record),
        **attention_compiled.facts(record),
    }
