"""Tables, figures and facts of `accumulation`: running sums, and what adding costs."""

from fractions import Fraction
from typing import Any

from systems.precision.number_formats import FORMATS, stall
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.figures import (
    INK,
    MARKERS,
    SERIES,
    canvas,
    legend_above,
    of_each,
    svg_pair,
)
from tools.render.markdown import columns, figure, per_device
from tools.render.rows import Cell, axis, cell, cells, counted, measured, say

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


# What a row says ----------------------------------------------------------------------


def named(record: Record | None, name: str) -> Cell:
    keys = ("value", "accumulator", "cast", "term")
    return cell(record, **dict(zip(keys, NAMED[name], strict=True)))


def label(c: Cell) -> str:
    value, accumulator = c.config["value"], c.config["accumulator"]
    by_hand = ", cast by hand" if c.config["cast"] == "explicit" else ""
    return f"{value} {'in' if value == accumulator else 'into'} {accumulator}{by_hand}"


def added(c: Cell) -> str:
    return f"{c.config['steps']:,} × {c.config['term']:g}"


def total(c: Cell) -> float:
    return c.get("device_result", c.get("result"))


def meant(c: Cell) -> Fraction:
    """The term: 0.01 is one hundredth here, whatever a format makes of it."""
    return Fraction(str(c.config["term"]))


def error(c: Cell) -> Any:
    """Of the last sum, exactly."""
    return Fraction(total(c)) - c.config["steps"] * meant(c) if c else c.missing


def parts(c: Cell, step: int, reached: float) -> tuple[Fraction, Fraction]:
    """Of the error of the sum at this step: from rounding the term, and from adding."""
    stored = Fraction(c["stored"])
    return step * (stored - meant(c)), Fraction(reached) - step * stored


def final_parts(c: Cell) -> tuple[Any, Any]:
    return parts(c, c.config["steps"], total(c)) if c else (c.missing, c.missing)


def predicted(c: Cell) -> tuple[Any, Any]:
    """The last step that changes the sum, and the sum there, from the spacing of the
    accumulator's format alone.
    """
    if not c:
        return c.missing, c.missing
    return stall(FORMATS[c.config["accumulator"]], Fraction(c["stored"]))


def as_predicted(c: Cell) -> bool:
    return c["last_change"] == min(predicted(c)[0], c.config["steps"])


def stalled(c: Cell) -> bool:
    return bool(c) and c["last_change"] < c.config["steps"]


# Tables -------------------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    """The formats, which nobody measures; results and stalls; two figures."""
    ours = measured(records)
    return {
        "formats.md": formats_table() + "\n",
        "results.md": per_device(records, results_table),
        "stalls.md": per_device(ours, stalls_table),
        "sums.md": per_device(ours, sums_body),
        "errors.md": per_device(ours, errors_body),
        **of_each(ours, sums_figure, errors_figure),
    }


def formats_table() -> str:
    return columns(
        FORMATS.items(),
        ("format", lambda f: f[0]),
        (
            "sign + exponent + fraction bits",
            lambda f: f"1 + {f[1].exponent_bits} + {f[1].fraction_bits}",
        ),
        ("largest", lambda f: float(f[1].largest), "{:.3g}"),
        ("smallest normal", lambda f: float(f[1].smallest_normal), "{:.3g}"),
        ("smallest", lambda f: float(f[1].smallest), "{:.3g}"),
        ("spacing at 1", lambda f: float(f[1].spacing(Fraction(1))), "{:.3g}"),
        ("spacing at 8", lambda f: float(f[1].spacing(Fraction(8))), "{:.3g}"),
        ("0.01 becomes", lambda f: float(f[1].nearest(Fraction(1, 100))), "{:.9f}"),
    )


def results_table(record: Record) -> str:
    """Each sum with its error; for those measured here also the two parts of it and
    whether the devices agree.
    """
    snippets = [named(record, name) for name in SNIPPETS]
    here = (
        ("of it, rounding the term", lambda c: final_parts(c)[0], signed),
        ("of it, adding", lambda c: final_parts(c)[1], signed),
        ("same bits on CPU and GPU", agreement),
    )
    return columns(
        cells(record),
        ("snippet", lambda c: snippets.index(c) + 1 if c in snippets else ""),
        ("sum", label),
        ("added", added),
        ("result", total, "{:.6f}"),
        ("error", error, signed),
        *(here if record.kind == "measured" else ()),
        left=2,
    )


def agreement(c: Cell) -> Any:
    if not c or c["device"] == "cpu":
        return "one device only" if c else c.missing
    differing = c["differing_steps"]
    return f"{differing} steps differ" if differing else "yes"


def signed(value: Fraction) -> str:
    """Six decimals, or the size of what they would not show."""
    shown = "{:+.6f}" if abs(value) >= Fraction(1, 10**5) else "{:+.1e}"
    return shown.format(float(value)) if value else "0"


def stalls_table(record: Record) -> str:
    def spacing(c: Cell) -> float:
        accumulator = FORMATS[c.config["accumulator"]]
        return float(accumulator.spacing(predicted(c)[1])) if c else c.missing

    def found(c: Cell) -> Any:
        late = c and not stalled(c)
        return f"not within {c.config['steps']:,}" if late else c["last_change"]

    return columns(
        cells(record, cast="implicit"),
        ("sum", label),
        ("added", added),
        ("stalls at", lambda c: predicted(c)[1], lambda s: f"{float(s):,.6g}"),
        ("spacing there", spacing, "{:.4g}"),
        ("last step that adds, predicted", lambda c: predicted(c)[0], "{:,}"),
        ("found", found, lambda step: step if isinstance(step, str) else f"{step:,}"),
        left=2,
    )


# Figures ------------------------------------------------------------------------------


def kept(c: Cell) -> list[tuple[int, float]]:
    """(step, sum) of the sums that the record keeps."""
    return [(c["kept_every"] * (i + 1), s) for i, s in enumerate(c["sums"])]


def sums_body(record: Record) -> str:
    stops = [
        f"{c.config['accumulator']} stops at {total(c):g} when adding "
        f"{c.config['term']:g}"
        for c in cells(record)
        if stalled(c)
    ]
    return figure(
        f"accumulation-sums-{record.device.slug}",
        f"Running sums against the step: {'; '.join(stops) or 'none stops'}; the "
        "others reach about 10.",
        "Running sum in each format. A cross marks the last step that changed the sum.",
    )


def sums_figure(record: Record) -> dict[str, str]:
    with canvas(height=5.6) as fig:
        panels = zip(fig.subplots(2, 1), axis(record, "term"), strict=False)
        looks = list(zip(axis(record, "accumulator"), SERIES, MARKERS, strict=False))
        for i, (axes, term) in enumerate(panels):
            for name, color, marker in looks:
                c = cell(record, value=name, accumulator=name, term=term)
                if c:
                    style = {"color": color, "marker": marker, "markevery": 0.2}
                    axes.plot(
                        *zip(*kept(c), strict=True), **style, label=None if i else name
                    )
                if stalled(c):
                    cross = {"color": INK, "markersize": 9, "markeredgewidth": 2}
                    axes.plot(c["last_change"], total(c), "x", **cross)
            axes.set_title(f"adding {term:g}", fontsize=11)
            axes.set_xlabel("step")
            axes.set_ylabel("running sum")
        legend_above(fig, ncols=3)
        return svg_pair(f"sums-{record.device.slug}", fig)


def errors_body(record: Record) -> str:
    exact = final_parts(named(record, "fp16_in_fp32"))[1] == 0
    return figure(
        f"accumulation-errors-{record.device.slug}",
        "Error of the running sum of 0.01, split in two: rounding the term gives "
        "errors that grow evenly, rounding the sums gives errors that grow in jumps"
        f"{', and fp16 terms into an fp32 sum have none of the second' * exact}.",
        "Error against the step, 1,000 × 0.01. Above: what rounding the term alone "
        "would cost. Below: what adding cost.",
    )


def errors_figure(record: Record) -> dict[str, str]:
    with canvas(height=5.6) as fig:
        panels = fig.subplots(2, 1, sharex=True)
        drawn = cells(record, term=0.01, cast="implicit")
        for c, color, marker in zip(drawn, SERIES, MARKERS, strict=False):
            for i, axes in enumerate(panels if c else ()):
                steps = [step for step, _ in kept(c)]
                ys = [abs(float(parts(c, *point)[i])) for point in kept(c)]
                style = {"color": color, "marker": marker, "markevery": 0.2}
                axes.plot(steps, ys, **style, label=None if i else label(c))
        titles = ("from rounding the term", "from adding")
        for axes, title in zip(panels, titles, strict=True):
            axes.set_title(title, fontsize=11)
            # Zero, which some sums keep to, is on a scale that is linear near it.
            axes.set_yscale("symlog", linthresh=1e-7)
            axes.set_yticks([0, 1e-6, 1e-4, 1e-2, 1])
            axes.set_ylim(0, 20)
            axes.set_ylabel("absolute error")
        panels[1].set_xlabel("step")
        legend_above(fig, ncols=2)
        return svg_pair(f"errors-{record.device.slug}", fig)


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """Results and errors of the rows that the page names, one stall, and whether
    devices and predictions agree.
    """
    ran = [c for c in cells(record) if c]
    found = {name: say(total(named(record, name)), "{:.6f}") for name in NAMED}
    for name in SNIPPETS[:3]:
        found[f"{name}_error"] = say(error(named(record, name)), signed)
    adding = final_parts(named(record, "fp16_in_fp32"))[1]
    last = named(record, "bf16_in_bf16")["last_change"]
    on_gpu = [c["differing_steps"] == 0 for c in ran if c["device"] != "cpu"]
    return found | {
        "fp16_in_fp32_adding": say(adding, signed),
        "bf16_last_change": say(last, "step {:,}"),
        "agreeing": say(counted(on_gpu)),
        "stalls_as_predicted": say(counted(map(as_predicted, ran))),
    }


# Claims -------------------------------------------------------------------------------


@claim(
    "mixed_precision_accumulation",
    "fp16 terms in an fp32 sum lose nothing by adding: the whole error was made when "
    "the term was stored.",
)
def wide_sums_add_no_error(record: Record) -> Judgement:
    c = named(record, "fp16_in_fp32")
    term, adding = map(float, final_parts(c))
    numbers = f"Error from the term {term:+.6f}, from adding {adding:+.6f}."
    return bool(c) and (adding == 0, numbers)


@claim(
    "mixed_precision_accumulation",
    "The same fp16 terms summed in fp16 end further from the truth than summed in "
    "fp32.",
)
def narrow_sums_worse(record: Record) -> Judgement:
    both = [named(record, name) for name in ("fp16_in_fp16", "fp16_in_fp32")]
    narrow, wide = (abs(float(error(c))) for c in both)
    numbers = f"Off by {narrow:.6f} in fp16, by {wide:.6f} in fp32."
    return all(both) and (narrow > wide, numbers)


@claim(
    "mixed_precision_accumulation",
    "A bf16 sum stops growing before the last term.",
    "A bf16 sum grows up to the last term.",
)
def bf16_stalls(record: Record) -> Judgement:
    c = named(record, "bf16_in_bf16")
    steps = c.config.get("steps", 0)
    return bool(c) and (
        stalled(c),
        f"The last step that changes the sum is {c['last_change']:,} of {steps:,}; it "
        f"ends at {total(c):g}.",
    )
