"""Tables, figures and facts of `end_to_end`: passes and steps of every size, context
and precision.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from systems.formulas.costs import forward_flops, peak_of
from systems.model.sizes import SIZES, VOCAB_SIZE
from systems.records.record import Record, Row
from systems.records.summary import summarize
from tools.render.figures import MARKERS, SERIES, canvas, plain_log_scale, svg_pair
from tools.render.markdown import (
    fact,
    figure,
    gib,
    mean_std,
    per_device,
    percent,
    table,
)
from tools.render.stems.end_to_end import gains
from tools.render.stems.end_to_end.rows import (
    BATCH,
    CONTEXTS,
    PHASES,
    PRECISIONS,
    cell,
    flops,
    median_ms,
    samples_ms,
    share_of_peak,
    tokens_per_second,
)

# The columns that name a cell.
CELL = ["size", "context", "batch", "precision"]


# Tables -------------------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    """Tables by precision for all devices, one long table of everything, two figures
    for each measured device.
    """
    measured = [record for record in records if record.kind == "measured"]
    figures: dict[str, str] = {}
    for record in measured:
        figures |= times_figure(record)
        if peak_of(record.device.slug):
            figures |= shares_figure(record)
    grid = [(size, context, BATCH) for size in SIZES for context in CONTEXTS]
    return {
        "fp32.md": per_device(records, lambda r: passes_table(r, grid, ["fp32"])),
        "bf16.md": per_device(measured, lambda r: passes_table(r, grid, ["bf16"])),
        "tf32.md": per_device(
            measured,
            lambda r: passes_table(
                r, [(size, 512, BATCH) for size in SIZES], PRECISIONS
            ),
        ),
        "batches.md": per_device(
            records,
            lambda r: passes_table(
                r, [("small", 256, 64), ("large", 256, 32)], PRECISIONS
            ),
        ),
        "phases.md": per_device(measured, phases_table),
        "headline.md": per_device(measured, headline_table),
        "figures.md": per_device(measured, figures_body),
        "all.md": per_device(measured, all_table),
        **gains.fragments(measured),
        **figures,
    }


def figures_body(record: Record) -> str:
    """The figures of one device. Where no data sheet gives its peak, there is no share
    of it to draw.
    """
    drawn = [figure(f"end_to_end-times-{record.device.slug}", times_alt(record), TIMES)]
    if peak_of(record.device.slug):
        drawn.append(
            figure(
                f"end_to_end-shares-{record.device.slug}", shares_alt(record), SHARES
            )
        )
    return "\n\n".join(drawn)


def passes_table(
    record: Record, cells: Iterable[tuple[str, int, int]], precisions: Iterable[str]
) -> str:
    """A line for each cell and precision; empty where the record has none of them."""
    if record.kind == "reported":
        return reported_table(record, set(cells), set(precisions))
    rows = []
    for size, context, batch in cells:
        for precision in precisions:
            modes = ("forward", "forward_graph", "forward_backward", "step")
            found = [
                cell(record, size, context, mode, precision, batch) for mode in modes
            ]
            if any(found):
                rows.append(
                    [
                        size,
                        str(context),
                        str(batch),
                        precision,
                        *passes_cells(record, *found),
                    ]
                )
    header = [
        *CELL,
        "forward, ms",
        "forward, graph kept, ms",
        "forward + backward, ms",
        "step, ms",
    ]
    return without_constants([*header, "tokens/s", "share of peak", "peak GiB"], rows)


def without_constants(header: list[str], rows: list[list[str]]) -> str:
    """The table without those columns of its cell's name that say the same in each
    line.
    """
    if not rows:
        return ""
    varies = [
        i >= len(CELL) or len({row[i] for row in rows}) > 1 for i in range(len(header))
    ]
    shown, *lines = (
        [text for text, keep in zip(line, varies, strict=True) if keep]
        for line in (header, *rows)
    )
    return table(shown, lines)


def passes_cells(
    record: Record,
    forward: Row | None,
    graph: Row | None,
    both: Row | None,
    step: Row | None,
) -> list[str]:
    times = [time_or_status(row) for row in (forward, graph, both, step)]
    tokens, share = tokens_per_second(step), share_of_peak(record, step)
    memory = step.metrics.get("peak_allocated_bytes") if step else None
    return [
        *times,
        f"{tokens:,.0f}" if tokens else "",
        percent(share) if share else "",
        gib(memory) if memory else "",
    ]


def time_or_status(row: Row | None) -> str:
    """Mean ± standard deviation, or why there is none."""
    if row is None:
        return ""
    return (
        mean_std(samples_ms(row))
        if row.status == "ok"
        else row.status.replace("_", " ")
    )


def reported_table(
    record: Record, cells: set[tuple[str, int, int]], precisions: set[str]
) -> str:
    """What others report, as they report it: a mean and a deviation for each pass."""
    rows = []
    for row in record.rows:
        c, m = row.config, row.metrics
        if (c["size"], c["context"], c["batch"]) in cells and c[
            "precision"
        ] in precisions:
            passes = [
                f"{m[f'{name}_mean_ms']:.2f} ± {m[f'{name}_std_ms']:.2f}"
                if f"{name}_mean_ms" in m
                else ""
                for name in ("forward", "backward", "total")
            ]
            status = "" if row.status == "ok" else row.status.replace("_", " ")
            rows.append(
                [
                    c["size"],
                    str(c["context"]),
                    str(c["batch"]),
                    c["precision"],
                    *passes,
                    status,
                ]
            )
    header = [
        "size",
        "context",
        "batch",
        "precision",
        "forward, ms",
        "backward, ms",
        "forward + backward, ms",
        "status",
    ]
    return table(header, rows) if rows else ""


def phases_table(record: Record) -> str:
    """Median of each phase of a step at context 512."""
    rows = []
    for size in SIZES:
        for precision in PRECISIONS:
            row = cell(record, size, 512, "step", precision)
            if row is not None and row.status == "ok":
                times = [median_ms(row, phase) or 0.0 for phase in PHASES]
                ratio = f"{times[2] / times[0]:.2f}"
                rows.append(
                    [
                        size,
                        precision,
                        *(f"{time:.2f}" for time in times),
                        f"{median_ms(row):.2f}",
                        ratio,
                    ]
                )
    header = [
        "size",
        "precision",
        *(f"{phase}, ms" for phase in PHASES),
        "step, ms",
        "backward / forward",
    ]
    return table(header, rows)


def headline_table(record: Record) -> str:
    """A training step of each size at context 512."""
    rows = []
    for size in SIZES:
        steps = {
            precision: cell(record, size, 512, "step", precision)
            for precision in PRECISIONS
        }
        times = {precision: median_ms(row) for precision, row in steps.items()}
        shown = [f"{time:.0f}" if time else "" for time in times.values()]
        speedup = (
            f"{times['fp32'] / times['bf16']:.1f}"
            if times["fp32"] and times["bf16"]
            else ""
        )
        share = share_of_peak(record, steps["bf16"])
        fp32 = steps["fp32"]
        memory = fp32.metrics.get("peak_allocated_bytes") if fp32 else None
        rows.append(
            [
                size,
                *shown,
                speedup,
                percent(share) if share else "",
                gib(memory) if memory else "",
            ]
        )
    header = [
        "size",
        *(f"step in {p}, ms" for p in PRECISIONS),
        "fp32 / bf16",
        "bf16 share of peak",
        "fp32 memory, GiB",
    ]
    return table(header, rows)


def all_table(record: Record) -> str:
    """Every row with every statistic."""
    rows = []
    for row in record.rows:
        c = row.config
        name = [
            c["size"],
            str(c["context"]),
            str(c["batch"]),
            c["precision"],
            c["mode"].replace("_", " "),
        ]
        if row.status != "ok":
            rows.append([*name, row.status.replace("_", " "), *[""] * 10])
            continue
        s, tokens, share = (
            summarize(samples_ms(row)),
            tokens_per_second(row),
            share_of_peak(record, row),
        )
        times = [
            f"{value:.2f}"
            for value in (s.mean, s.std, s.median, s.p20, s.p80, s.min, s.max)
        ]
        memory = [
            gib(row.metrics[key])
            for key in ("peak_allocated_bytes", "peak_reserved_bytes")
        ]
        rows.append(
            [
                *name,
                *times,
                percent(s.variation),
                f"{tokens:,.0f}",
                percent(share) if share else "",
                *memory,
            ]
        )
    header = [*CELL, "mode", "mean, ms", "std", "median", "p20", "p80", "min", "max"]
    header += [
        "variation",
        "tokens/s",
        "share of peak",
        "allocated, GiB",
        "reserved, GiB",
    ]
    return table(header, rows, left=5)


# Figures ------------------------------------------------------------------------------

TIMES = "Median time of a forward pass (no gradients) against context. Solid: fp32; dashed: bf16."
SHARES = "Share of the data-sheet peak against the FLOPs of a forward pass. Filled: fp32; hollow: bf16."


def times_alt(record: Record) -> str:
    grown = [
        f"that of {size} in {precision} by {factor:.2f}"
        for size, precision in (("small", "bf16"), ("2.7B", "fp32"))
        if (factor := growth(record, size, precision)) is not None
    ]
    return f"Forward time from context 128 to 512 grows by a factor: {', '.join(grown) or 'not measured'}."


def growth(record: Record | None, size: str, precision: str) -> float | None:
    """Forward time at context 512 over that at 128; None where either is missing."""
    if record is None:
        return None
    short, long = (
        median_ms(cell(record, size, context, "forward", precision))
        for context in (128, 512)
    )
    return long / short if short and long else None


def times_figure(record: Record) -> dict[str, str]:
    with canvas(height=4.4) as fig:
        axes = fig.subplots()
        for size, color, marker in zip(SIZES, SERIES, MARKERS, strict=True):
            for precision, dash in (("fp32", "-"), ("bf16", "--")):
                times = [
                    median_ms(cell(record, size, context, "forward", precision))
                    for context in CONTEXTS
                ]
                points = [
                    (context, time)
                    for context, time in zip(CONTEXTS, times, strict=True)
                    if time
                ]
                if points:
                    label = size if precision == "fp32" else None
                    axes.plot(
                        *zip(*points, strict=True),
                        dash,
                        color=color,
                        marker=marker,
                        label=label,
                    )
        axes.set_xscale("log", base=2)
        plain_log_scale(axes.yaxis)
        axes.set_xticks(CONTEXTS, [str(context) for context in CONTEXTS])
        axes.set_xlabel("context, tokens")
        axes.set_ylabel("forward pass, ms")
        fig.legend(
            loc="outside upper center", ncols=5, columnspacing=1.0, handlelength=1.6
        )
        return svg_pair(f"times-{record.device.slug}", fig)


def shares_alt(record: Record) -> str:
    cells = (
        (cell(record, s, c, "forward", p))
        for s, c, p in (("small", 128, "bf16"), ("2.7B", 1024, "bf16"))
    )
    least, most = (share_of_peak(record, row) for row in cells)
    if least is None or most is None:
        return "The share of the peak rises with the FLOPs of a pass."
    return f"In bf16 the share of the peak rises from {percent(least)} (small, 128) to {percent(most)} (2.7B, 1024)."


def shares_figure(record: Record) -> dict[str, str]:
    with canvas(height=4.4) as fig:
        axes = fig.subplots()
        for size, color, marker in zip(SIZES, SERIES, MARKERS, strict=True):
            for precision in ("fp32", "bf16"):
                found = [
                    cell(record, size, context, "forward", precision)
                    for context in CONTEXTS
                ]
                points = [
                    (flops(r), 100 * s)
                    for r in found
                    if r and (s := share_of_peak(record, r)) is not None
                ]
                if points:
                    filled = precision == "fp32"
                    face: dict[str, Any] = {
                        "color": color,
                        "markerfacecolor": color if filled else "none",
                    }
                    label = size if filled else None
                    axes.plot(
                        *zip(*points, strict=True),
                        linestyle=":",
                        linewidth=1,
                        marker=marker,
                        label=label,
                        **face,
                    )
        axes.set_xscale("log")
        axes.set_xlabel("matrix FLOPs of one forward pass")
        axes.set_ylabel("share of peak, %")
        axes.set_ylim(bottom=0)
        fig.legend(
            loc="outside upper center", ncols=5, columnspacing=1.0, handlelength=1.6
        )
        return svg_pair(f"shares-{record.device.slug}", fig)


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """Medians, shares and memory of every cell of the grid, and the ratios that the
    page speaks of.
    """
    found: dict[str, str] = {}
    ms = "{:.1f} ms".format
    for size in SIZES:
        for context in CONTEXTS:
            for precision in ("fp32", "bf16"):
                key = f"{size.replace('.', '_')}_{context}_{precision}"
                forward = (
                    cell(record, size, context, "forward", precision)
                    if record
                    else None
                )
                step = (
                    cell(record, size, context, "step", precision) if record else None
                )
                memory = (
                    step.metrics.get("peak_allocated_bytes")
                    if step and step.status == "ok"
                    else None
                )
                found[f"forward_{key}"] = in_words(
                    forward, fact(median_ms(forward), ms)
                )
                found[f"step_{key}"] = in_words(step, fact(median_ms(step), ms))
                found[f"backward_{key}"] = in_words(
                    step, fact(median_ms(step, "backward"), ms)
                )
                found[f"memory_{key}"] = in_words(
                    step, fact(memory, lambda v: f"{gib(v)} GiB")
                )
                found[f"share_{key}"] = fact(
                    share_of_peak(record, forward) if record else None, percent
                )
    return found | ratio_facts(record) | gains.facts(record)


def in_words(row: Row | None, text: str) -> str:
    return (
        "out of memory" if row is not None and row.status == "out_of_memory" else text
    )


def ratio_facts(record: Record | None) -> dict[str, str]:
    rows = (
        [
            row
            for row in record.rows
            if row.status == "ok" and row.config["batch"] == BATCH
        ]
        if record
        else []
    )
    fp32_steps = [
        row
        for row in rows
        if row.config["mode"] == "step" and row.config["precision"] == "fp32"
    ]
    backward = [
        (median_ms(row, "backward") or 0) / time
        for row in fp32_steps
        if (time := median_ms(row, "forward"))
    ]
    variation = [summarize(samples_ms(row)).variation for row in rows]
    timed = [
        row for row in rows if row.config["mode"] in ("forward", "forward_backward")
    ]
    steady = [v for row in timed if (v := summarize(samples_ms(row)).variation) < 0.02]
    two = "{:.2f}".format
    return {
        "backward_over_forward_least": fact(min(backward, default=None), two),
        "backward_over_forward_most": fact(max(backward, default=None), two),
        "variation_most": fact(max(variation, default=None), percent),
        "steady_rows": fact(len(steady) / len(timed) if timed else None, percent),
        "growth_small_bf16": fact(growth(record, "small", "bf16"), two),
        "growth_2_7B_fp32": fact(growth(record, "2.7B", "fp32"), two),
        "flops_growth_small": two(grid_flops("small", 512) / grid_flops("small", 128)),
        "share_step_bf16_most": fact(
            max(step_shares(record, "bf16"), default=None) if record else None, percent
        ),
        **speedup_facts(record),
    }


def step_shares(record: Record, precision: str) -> list[float]:
    """Share of peak of each training step in this precision."""
    rows = (
        row
        for row in record.rows
        if (row.config["mode"], row.config["precision"]) == ("step", precision)
    )
    return [share for row in rows if (share := share_of_peak(record, row)) is not None]


def grid_flops(size: str, context: int) -> int:
    shape = {"vocab_size": VOCAB_SIZE, **asdict(SIZES[size])}
    return sum(forward_flops(**shape, context=context, batch=BATCH).values())


def speedup_facts(record: Record | None) -> dict[str, str]:
    """fp32 step time over bf16 step time at the cells that the pages name."""
    return {
        "speedup_2_7B_512": fact(speedup(record, "2.7B", 512), "{:.1f}".format),
        "speedup_small_128": fact(speedup(record, "small", 128), "{:.2f}".format),
    }


def speedup(record: Record | None, size: str, context: int) -> float | None:
    """None where either step is missing."""
    if record is None:
        return None
    fp32, bf16 = (
        median_ms(cell(record, size, context, "step", precision))
        for precision in ("fp32", "bf16")
    )
    return fp32 / bf16 if fp32 and bf16 else None
