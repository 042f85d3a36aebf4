"""Tables, figures and facts of `accumulation`: what running sums give, and which of
their errors adding made.
"""

from fractions import Fraction

from matplotlib.axes import Axes

from systems.precision.number_formats import FORMATS, stall
from systems.records.record import Record, Row
from tools.render.figures import INK, MARKERS, SERIES, canvas, svg_pair
from tools.render.markdown import NOT_MEASURED, fact, figure, per_device, table

# The rows that the page names, by the name of their facts: value, accumulator, cast,
# term; the four snippets first.
NAMED = {
    "fp32_in_fp32": ("fp32", "fp32", "implicit", 0.01),
    "fp16_in_fp16": ("fp16", "fp16", "implicit", 0.01),
    "fp16_in_fp32": ("fp16", "fp32", "implicit", 0.01),
    "fp16_cast_to_fp32": ("fp16", "fp32", "explicit", 0.01),
    "bf16_in_bf16": ("bf16", "bf16", "implicit", 0.01),
    "bf16_in_fp32": ("bf16", "fp32", "implicit", 0.01),
    "fp32_small_steps": ("fp32", "fp32", "implicit", 0.001),
    "fp16_small_steps": ("fp16", "fp16", "implicit", 0.001),
    "bf16_small_steps": ("bf16", "bf16", "implicit", 0.001),
}
SNIPPETS = tuple(NAMED)[:4]
PURE = ("fp32", "fp16", "bf16")


# What a row says ----------------------------------------------------------------------


def named(record: Record | None, name: str) -> Row | None:
    value, accumulator, cast, term = NAMED[name]
    return (
        record.find(value=value, accumulator=accumulator, cast=cast, term=term)
        if record
        else None
    )


def label(row: Row) -> str:
    c = row.config
    if c["value"] == c["accumulator"]:
        return f"{c['value']} in {c['accumulator']}"
    return f"{c['value']} into {c['accumulator']}" + (
        ", cast by hand" if c["cast"] == "explicit" else ""
    )


def term(row: Row) -> Fraction:
    """The term as it was meant: 0.01 is one hundredth here, whatever a format makes of
    it.
    """
    return Fraction(str(row.config["term"]))


def result(row: Row) -> float:
    return row.metrics["device_result"]


def errors(
    stored: float, total: float, meant: Fraction, step: int
) -> tuple[Fraction, Fraction]:
    """Error of the sum after this step, in its two parts: from rounding the term, and
    from rounding the sums.
    """
    exact = Fraction(stored)
    return step * (exact - meant), Fraction(total) - step * exact


def final_errors(row: Row) -> tuple[Fraction, Fraction]:
    """The two parts of the error of the last sum."""
    return errors(row.metrics["stored"], result(row), term(row), row.config["steps"])


def error(row: Row) -> Fraction:
    before, adding = final_errors(row)
    return before + adding


def predicted(row: Row) -> tuple[int, Fraction]:
    """The last step that changes the sum, and the sum there, from the spacing of the
    accumulator's format alone.
    """
    return stall(FORMATS[row.config["accumulator"]], Fraction(row.metrics["stored"]))


def as_predicted(row: Row) -> bool:
    return row.metrics["last_change"] == min(predicted(row)[0], row.config["steps"])


# Tables -------------------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    """The formats, which nobody measures; results and stalls for all devices; two
    figures for each measured one.
    """
    measured = [record for record in records if record.kind == "measured"]
    figures: dict[str, str] = {}
    for record in measured:
        figures |= sums_figure(record) | errors_figure(record)
    return {
        "formats.md": formats_table() + "\n",
        "results.md": per_device(records, results_table),
        "stalls.md": per_device(measured, stalls_table),
        "sums.md": per_device(measured, sums_body),
        "errors.md": per_device(measured, errors_body),
        **figures,
    }


def formats_table() -> str:
    rows = []
    for name, f in FORMATS.items():
        sizes = [float(x) for x in (f.largest, f.smallest_normal, f.smallest)]
        spacings = [float(f.spacing(Fraction(x))) for x in (1, 8)]
        bits = f"1 + {f.exponent_bits} + {f.fraction_bits}"
        hundredth = float(f.nearest(Fraction(1, 100)))
        rows.append(
            [name, bits, *(f"{x:.3g}" for x in (*sizes, *spacings)), f"{hundredth:.9f}"]
        )
    header = [
        "format",
        "sign + exponent + fraction bits",
        "largest",
        "smallest normal",
        "smallest",
    ]
    return table([*header, "spacing at 1", "spacing at 8", "0.01 becomes"], rows)


def results_table(record: Record) -> str:
    """Each sum with its error; for those measured here also the two parts of it and
    whether the devices agree.
    """
    rows = []
    for row in record.rows:
        c, meant = row.config, term(row)
        total = row.metrics["result"] if record.kind == "reported" else result(row)
        name = next((n for n in SNIPPETS if named(record, n) is row), None)
        cells = [
            str(SNIPPETS.index(name) + 1) if name else "",
            label(row),
            f"{c['steps']:,} × {c['term']:g}",
        ]
        cells += [f"{total:.6f}", signed(Fraction(total) - c["steps"] * meant)]
        if record.kind == "measured":
            before, adding = final_errors(row)
            agree = (
                "yes"
                if row.metrics["differing_steps"] == 0
                else f"{row.metrics['differing_steps']} steps differ"
            )
            cells += [
                signed(before),
                signed(adding),
                agree if row.metrics["device"] != "cpu" else "one device only",
            ]
        rows.append(cells)
    header = ["snippet", "sum", "added", "result", "error"]
    if record.kind == "measured":
        header += [
            "of it, rounding the term",
            "of it, adding",
            "same bits on CPU and GPU",
        ]
    return table(header, rows, left=2)


def signed(value: Fraction) -> str:
    """Six decimals, or the size of what they would not show."""
    if not value:
        return "0"
    return (
        f"{float(value):+.6f}"
        if abs(value) >= Fraction(1, 10**5)
        else f"{float(value):+.1e}"
    )


def stalls_table(record: Record) -> str:
    rows = []
    for row in record.rows:
        c = row.config
        if c["cast"] == "explicit":
            continue
        step, total = predicted(row)
        found = row.metrics["last_change"]
        rows.append(
            [
                label(row),
                f"{c['steps']:,} × {c['term']:g}",
                f"{float(total):,.6g}",
                f"{float(FORMATS[c['accumulator']].spacing(total)):.4g}",
                f"{step:,}",
                f"{found:,}" if found < c["steps"] else f"not within {c['steps']:,}",
            ]
        )
    header = [
        "sum",
        "added",
        "stalls at",
        "spacing there",
        "last step that adds, predicted",
        "found",
    ]
    return table(header, rows, left=2)


# Figures ------------------------------------------------------------------------------


def pure_rows(record: Record, meant: float) -> list[Row]:
    """The sums of one term in one format each, in the order of PURE."""
    found = (record.find(value=name, accumulator=name, term=meant) for name in PURE)
    return [row for row in found if row is not None]


def steps_kept(row: Row) -> list[int]:
    every = row.metrics["kept_every"]
    return [every * (i + 1) for i in range(len(row.metrics["sums"]))]


def sums_body(record: Record) -> str:
    stalled = [
        f"{row.config['accumulator']} stops at {result(row):g} when adding {row.config['term']:g}"
        for row in record.rows
        if row.metrics["last_change"] < row.config["steps"]
    ]
    alt = f"Running sums against the step: {'; '.join(stalled) or 'none stops'}; the others reach about 10."
    caption = (
        "Running sum in each format. A cross marks the last step that changed the sum."
    )
    return figure(f"accumulation-sums-{record.device.slug}", alt, caption)


def sums_figure(record: Record) -> dict[str, str]:
    with canvas(height=5.6) as fig:
        for axes, meant in zip(fig.subplots(2, 1), (0.01, 0.001), strict=True):
            for row, color, marker in zip(
                pure_rows(record, meant), SERIES, MARKERS, strict=False
            ):
                steps, sums = steps_kept(row), row.metrics["sums"]
                name = row.config["accumulator"]
                axes.plot(
                    steps,
                    sums,
                    color=color,
                    marker=marker,
                    markevery=0.2,
                    label=name if meant == 0.01 else None,
                )
                if row.metrics["last_change"] < row.config["steps"]:
                    axes.plot(
                        row.metrics["last_change"],
                        result(row),
                        "x",
                        color=INK,
                        markersize=9,
                        markeredgewidth=2,
                    )
            axes.set_title(f"adding {meant:g}", fontsize=11)
            axes.set_xlabel("step")
            axes.set_ylabel("running sum")
        fig.legend(loc="outside upper center", ncols=3)
        return svg_pair(f"sums-{record.device.slug}", fig)


def errors_body(record: Record) -> str:
    row = named(record, "fp16_in_fp32")
    exact = row is not None and final_errors(row)[1] == 0
    alt = (
        "Error of the running sum of 0.01, split in two: rounding the term gives errors that grow evenly, "
        "rounding the sums gives errors that grow in jumps"
        + (
            ", and fp16 terms into an fp32 sum have none of the second."
            if exact
            else "."
        )
    )
    caption = "Error against the step, 1,000 × 0.01. Above: what rounding the term alone would cost. Below: what adding cost."
    return figure(f"accumulation-errors-{record.device.slug}", alt, caption)


def errors_figure(record: Record) -> dict[str, str]:
    drawn = [
        row
        for row in record.rows
        if row.config["term"] == 0.01 and row.config["cast"] == "implicit"
    ]
    with canvas(height=5.6) as fig:
        before, adding = fig.subplots(2, 1, sharex=True)
        for row, color, marker in zip(drawn, SERIES, MARKERS, strict=False):
            steps, sums = steps_kept(row), row.metrics["sums"]
            parts = [
                errors(row.metrics["stored"], s, term(row), n)
                for n, s in zip(steps, sums, strict=True)
            ]
            style = {"color": color, "marker": marker, "markevery": 0.2}
            before.plot(
                steps, [abs(float(p)) for p, _ in parts], label=label(row), **style
            )
            adding.plot(steps, [abs(float(a)) for _, a in parts], **style)
        for axes, title in (
            (before, "from rounding the term"),
            (adding, "from adding"),
        ):
            draw_error_axes(axes, title)
        adding.set_xlabel("step")
        fig.legend(loc="outside upper center", ncols=2)
        return svg_pair(f"errors-{record.device.slug}", fig)


def draw_error_axes(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=11)
    # Zero, which some sums keep to, is on a scale that is linear near it.
    axes.set_yscale("symlog", linthresh=1e-7)
    axes.set_yticks([0, 1e-6, 1e-4, 1e-2, 1])
    axes.set_ylim(0, 20)
    axes.set_ylabel("absolute error")


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """Results and errors of the rows that the page names, one stall, and whether
    devices and predictions agree.
    """
    found: dict[str, str] = {}
    for name in NAMED:
        row = named(record, name)
        found[name] = fact(result(row) if row else None, "{:.6f}".format)
    for name in SNIPPETS[:3]:
        row = named(record, name)
        found[f"{name}_error"] = signed(error(row)) if row else NOT_MEASURED
    wide, stalled = named(record, "fp16_in_fp32"), named(record, "bf16_in_bf16")
    rows = record.rows if record else []
    on_gpu = [row for row in rows if row.metrics["device"] != "cpu"]
    agreeing = sum(row.metrics["differing_steps"] == 0 for row in on_gpu)
    return found | {
        "fp16_in_fp32_adding": signed(final_errors(wide)[1]) if wide else NOT_MEASURED,
        "bf16_last_change": f"step {stalled.metrics['last_change']:,}"
        if stalled
        else NOT_MEASURED,
        "agreeing": f"{agreeing} of {len(on_gpu)}" if on_gpu else NOT_MEASURED,
        "stalls_as_predicted": f"{sum(map(as_predicted, rows))} of {len(rows)}"
        if rows
        else NOT_MEASURED,
    }
