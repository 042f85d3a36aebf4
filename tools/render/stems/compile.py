"""Tables, figure and facts of `compile`: training steps eager and compiled, and how
many steps pay for compiling.
"""

import math

from systems.model.sizes import SIZES
from systems.records.record import Record, Row
from systems.records.summary import summarize
from tools.render.figures import MARKERS, SERIES, canvas, svg_pair
from tools.render.markdown import fact, figure, gib, mean_std, per_device, table

PRECISIONS = ("fp32", "bf16")
PHASES = ("forward", "loss", "backward", "optimizer")
# What the column "compiled" says.
EXECUTIONS = {
    "eager": "nothing",
    "compiled": "model",
    "compiled_optimizer": "model, AdamW",
}


# What a row says ----------------------------------------------------------------------


def cell(
    record: Record | None, size: str, precision: str, execution: str = "eager"
) -> Row | None:
    return (
        record.find(size=size, precision=precision, execution=execution)
        if record
        else None
    )


def samples_ms(row: Row, *phases: str) -> list[float]:
    """The named phases of each measured step added up; without names, all of them."""
    return [
        sum(step)
        for step in zip(
            *(row.metrics[f"{phase}_ms"] for phase in phases or PHASES), strict=True
        )
    ]


def median_ms(row: Row | None, *phases: str) -> float | None:
    """None where there is no such row or it ran out of memory."""
    return (
        summarize(samples_ms(row, *phases)).median
        if row is not None and row.status == "ok"
        else None
    )


def speedup(record: Record | None, row: Row | None, *phases: str) -> float | None:
    """Eager time over the time of this row; None where either is missing."""
    if row is None:
        return None
    eager, ours = (
        median_ms(cell(record, row.config["size"], row.config["precision"]), *phases),
        median_ms(row, *phases),
    )
    return eager / ours if eager and ours else None


COMPILED_PHASES = {
    "compiled": ("forward", "backward"),
    "compiled_optimizer": ("forward", "backward", "optimizer"),
}


def compile_seconds(row: Row | None, *phases: str) -> float | None:
    """What the warm-up steps took beyond as many settled ones: in these phases, or in
    all that this row compiles.
    """
    if (
        row is None
        or row.status != "ok"
        or row.config["execution"] not in COMPILED_PHASES
    ):
        return None
    chosen = phases or COMPILED_PHASES[row.config["execution"]]
    pairs = [
        (row.metrics[f"warmup_{phase}_ms"], summarize(samples_ms(row, phase)).median)
        for phase in chosen
    ]
    return sum(sum(warm) - len(warm) * settled for warm, settled in pairs) / 1e3


def steps_to_pay(record: Record | None, row: Row | None) -> int | None:
    """Steps after which compiling has paid for itself; None where it never does or
    something is missing.
    """
    seconds, ours = compile_seconds(row), median_ms(row)
    eager = (
        median_ms(cell(record, row.config["size"], row.config["precision"]))
        if row
        else None
    )
    if seconds is None or eager is None or ours is None or eager <= ours:
        return None
    return math.ceil(seconds / ((eager - ours) / 1e3))


def steps_in_words(record: Record | None, row: Row | None) -> str | None:
    """How many steps, or "never"; None where that was not measured."""
    if speedup(record, row) is None:
        return None
    steps = steps_to_pay(record, row)
    return f"{steps:,}" if steps is not None else "never"


def rows_of(record: Record) -> list[Row]:
    """Rows by size, precision and execution, so that those to compare stand together."""
    cells = [(s, p, e) for s in SIZES for p in PRECISIONS for e in EXECUTIONS]
    return [row for c in cells if (row := cell(record, *c)) is not None]


# Tables -------------------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    """Times, speed-ups and price for each measured device, and the figure; the reported
    comparison among the times.
    """
    measured = [record for record in records if record.kind == "measured"]
    figures: dict[str, str] = {}
    for record in measured:
        figures |= speedup_figure(record)
    return {
        "table.md": per_device(records, times_table),
        "speedups.md": per_device(measured, speedups_body),
        "price.md": per_device(measured, price_table),
        **figures,
    }


def name_of(row: Row) -> list[str]:
    return [
        row.config["size"],
        row.config["precision"],
        EXECUTIONS[row.config["execution"]],
    ]


NAME = ["size", "precision", "compiled"]


def times_table(record: Record) -> str:
    """Mean ± standard deviation of each phase and of the step."""
    if record.kind == "reported":
        return reported_table(record)
    rows = []
    for row in rows_of(record):
        if row.status == "ok":
            times = [
                mean_std(samples_ms(row, *phases)) for phases in ((p,) for p in PHASES)
            ]
            rows.append([*name_of(row), *times, mean_std(samples_ms(row))])
        else:
            rows.append(
                [*name_of(row), *[""] * len(PHASES), row.status.replace("_", " ")]
            )
    return table(
        [*NAME, *(f"{phase}, ms" for phase in PHASES), "step, ms"], rows, left=3
    )


def reported_table(record: Record) -> str:
    """What others report, as they report it: one number for each."""
    parts = ("forward", "backward_and_optimizer", "step")
    rows = [
        [*name_of(row), *(f"{row.metrics[f'{part}_mean_ms']:.2f}" for part in parts)]
        for row in record.rows
    ]
    return table(
        [*NAME, *(f"{part.replace('_', ' ')}, ms" for part in parts)], rows, left=3
    )


def speedups_body(record: Record) -> str:
    """Figure and table of eager time over compiled time."""
    rows = []
    for row in rows_of(record):
        if row.config["execution"] != "eager" and speedup(record, row):
            ratios = [
                speedup(record, row, phase)
                for phase in ("forward", "backward", "optimizer")
            ]
            cells = [
                f"{ratio:.2f}" if ratio else ""
                for ratio in (*ratios, speedup(record, row))
            ]
            rows.append([*name_of(row), *cells])
    drawn = figure(
        f"compile-speedup-{record.device.slug}", speedup_alt(record), SPEEDUP
    )
    return f"{drawn}\n\n{table([*NAME, 'forward', 'backward', 'AdamW', 'step'], rows, left=3)}"


def price_table(record: Record) -> str:
    """What compiling takes, what it saves per step, and when that is even; kernels and
    memory, eager and compiled.
    """
    rows = []
    for row in rows_of(record):
        seconds = compile_seconds(row)
        if seconds is None:
            continue
        eager = cell(record, row.config["size"], row.config["precision"])
        times, steps = (median_ms(eager), median_ms(row)), steps_in_words(record, row)
        saved = f"{times[0] - times[1]:.2f}" if times[0] and times[1] else ""
        pairs = [pair_of(eager, row, kernels_of), pair_of(eager, row, peak_of)]
        graphs = str(row.metrics["graphs"])
        rows.append(
            [*name_of(row), f"{seconds:.1f}", graphs, saved, steps or "", *pairs]
        )
    header = ["compiling, s", "graphs", "saved per step, ms", "pays after steps"]
    return table([*NAME, *header, "kernels per step", "peak, GiB"], rows, left=3)


def pair_of(eager: Row | None, ours: Row, read) -> str:
    """ "before to after", or nothing where one is missing."""
    texts = [read(row) if row is not None else "" for row in (eager, ours)]
    return " to ".join(texts) if all(texts) else ""


def kernels_of(row: Row) -> str:
    counts = [
        row.metrics[f"{phase}_kernels"]
        for phase in PHASES
        if f"{phase}_kernels" in row.metrics
    ]
    return f"{sum(counts):,}" if counts else ""


def peak_of(row: Row) -> str:
    return (
        gib(row.metrics["peak_allocated_bytes"])
        if "peak_allocated_bytes" in row.metrics
        else ""
    )


# Figure -------------------------------------------------------------------------------

SPEEDUP = "Eager time over compiled time of each size at context 512. Solid: fp32; dashed: bf16. Above 1 compiling gains."


def step_speedups(record: Record | None) -> list[float]:
    """Of the whole step, where the model is compiled and AdamW is not."""
    rows = [cell(record, size, p, "compiled") for size in SIZES for p in PRECISIONS]
    return [ratio for row in rows if (ratio := speedup(record, row)) is not None]


def phase_speedups(record: Record) -> list[float]:
    """Of forward and backward, for the same rows."""
    rows = [cell(record, size, p, "compiled") for size in SIZES for p in PRECISIONS]
    pairs = [(row, phase) for row in rows for phase in ("forward", "backward")]
    return [
        ratio
        for row, phase in pairs
        if (ratio := speedup(record, row, phase)) is not None
    ]


def speedup_alt(record: Record) -> str:
    found = step_speedups(record)
    span = (
        f"goes from {min(found):.2f} to {max(found):.2f}"
        if found
        else "was not measured"
    )
    return (
        f"Eager time over compiled time of a whole step {span}, by size and precision."
    )


def speedup_figure(record: Record) -> dict[str, str]:
    with canvas(height=4.2) as fig:
        axes = fig.subplots()
        lines = {"forward": ("forward",), "backward": ("backward",), "step": ()}
        for (name, phases), color, marker in zip(
            lines.items(), SERIES, MARKERS, strict=False
        ):
            for precision, dash in zip(PRECISIONS, ("-", "--"), strict=True):
                ratios = [
                    speedup(record, cell(record, size, precision, "compiled"), *phases)
                    for size in SIZES
                ]
                points = [
                    (i, ratio if ratio is not None else math.nan)
                    for i, ratio in enumerate(ratios)
                ]
                label = name if precision == "fp32" else None
                axes.plot(
                    *zip(*points, strict=True),
                    dash,
                    color=color,
                    marker=marker,
                    label=label,
                )
        axes.axhline(1.0, color=SERIES[3], linewidth=1, linestyle=":")
        axes.set_xticks(range(len(SIZES)), list(SIZES))
        axes.set_ylim(
            0, 1.1 * max([1.0, *step_speedups(record), *phase_speedups(record)])
        )
        axes.set_xlabel("model size")
        axes.set_ylabel("eager time / compiled time")
        fig.legend(
            loc="outside upper center", ncols=3, columnspacing=1.0, handlelength=1.6
        )
        return svg_pair(f"speedup-{record.device.slug}", fig)


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """The range of the gains, the largest and smallest model in words, and what
    compiling AdamW does.
    """
    found = step_speedups(record)
    two, ms, seconds = "{:.2f}".format, "{:.1f} ms".format, "{:.0f} s".format
    ends: dict[str, str] = {}
    for size in ("small", "2.7B"):
        for precision in PRECISIONS:
            key, row = (
                f"{size.replace('.', '_')}_{precision}",
                cell(record, size, precision, "compiled"),
            )
            ends[f"speedup_{key}"] = fact(speedup(record, row), two)
            ends[f"compile_{key}"] = fact(compile_seconds(row), seconds)
            ends[f"steps_{key}"] = steps_in_words(record, row) or "not measured"
    optimizer = cell(record, "small", "fp32", "compiled_optimizer")
    rows = [row for row in record.rows if row.status == "ok"] if record else []
    return {
        **ends,
        "speedup_least": fact(min(found, default=None), two),
        "speedup_most": fact(max(found, default=None), two),
        "recompiles": fact(
            sum(row.metrics["recompiles"] for row in rows) if rows else None,
            "{:.0f}".format,
        ),
        "optimizer_eager": fact(
            median_ms(cell(record, "small", "fp32"), "optimizer"), ms
        ),
        "optimizer_compiled": fact(median_ms(optimizer, "optimizer"), ms),
        "optimizer_compile": fact(compile_seconds(optimizer, "optimizer"), seconds),
        "optimizer_steps": steps_in_words(record, optimizer) or "not measured",
    }
