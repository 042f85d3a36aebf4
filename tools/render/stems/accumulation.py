"""Tables, figures and facts of `accumulation`: running sums, and what adding costs."""

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from matplotlib.figure import Figure

from systems.precision.number_formats import FORMATS, find_stall
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import columns, per_device
from tools.render.plots import ACCENT, DARK, GREY, INK, line, note, panels, plot
from tools.render.rows import Cell, axis, cell, cells, counted, measured, ran, say

# The sums in their order, by the names of their facts; the four snippets first.
NAMED = (
    *("fp32_in_fp32", "fp16_in_fp16", "fp16_in_fp32", "fp16_cast_to_fp32"),
    *("bf16_in_bf16", "bf16_in_fp32"),
    *("fp32_small_steps", "fp16_small_steps", "bf16_small_steps"),
)


def named(record: Record | None) -> Mapping[str, Cell]:
    """The sums by name."""
    found = defaultdict(lambda: Cell(None))
    for c in cells(record):
        value, how = (
            c.config["value"],
            "in" if c.config["cast"] == "implicit" else "cast_to",
        )
        small = c.config["term"] < 0.01
        found[
            f"{value}_small_steps"
            if small
            else f"{value}_{how}_{c.config['accumulator']}"
        ] = c
    return found


def label(c: Cell) -> str:
    value, accumulator = c.config["value"], c.config["accumulator"]
    by_hand = ", cast by hand" if c.config["cast"] == "explicit" else ""
    return f"{value} {'in' if value == accumulator else 'into'} {accumulator}{by_hand}"


def numbers(c: Cell) -> Mapping[str, Any]:
    """What follows from a sum, exactly: its error, of it what rounding the term made
    and what adding did; and the last step that adds with the sum there, as the
    accumulator's format alone would have it.
    """
    if not c:
        return defaultdict(lambda: c.missing)
    # 0.01 is meant to be one hundredth, whatever a format makes of it.
    steps, meant = c.config["steps"], Fraction(str(c.config["term"]))
    total = Fraction(c.get("device_result", c.get("result")))
    found = {"total": float(total), "error": total - steps * meant}
    if "stored" in c.metrics:
        stored, number = Fraction(c["stored"]), FORMATS[c.config["accumulator"]]
        last, top = find_stall(number, stored)
        found |= {
            "of_term": steps * (stored - meant),
            "of_adding": total - steps * stored,
        }
        found |= {
            "last": last,
            "top": float(top),
            "spacing": float(number.spacing(top)),
        }
        found |= {
            "stalled": c["last_change"] < steps,
            "as_predicted": c["last_change"] == min(last, steps),
        }
    return found


def column(head: str, key: str, text: Any) -> tuple[Any, ...]:
    return head, lambda c: numbers(c)[key], text


def signed(value: Fraction) -> str:
    """Six decimals, or the size of what they would not show."""
    shown = "{:+.6f}" if abs(value) >= Fraction(1, 10**5) else "{:+.1e}"
    return shown.format(float(value)) if value else "0"


CAPTIONS = {
    "results.md": (
        "Sums of a thousand times 0.01: where they end, and how much of the error "
        "comes from rounding the term, how much from adding. Snippets 1 to 4 are the "
        "assignment's."
    ),
    "formats.md": "What each format can hold, and how far apart its numbers stand.",
}


def fragments(records: list[Record]) -> dict[str, str]:
    """The formats, which nobody measures; results and stalls; two figures."""
    ours = measured(records)
    return {
        "formats.md": formats_table() + "\n",
        "results.md": per_device(ours, lambda r: results_table(r, steps=1000)),
        "results-all.md": per_device(records, results_table),
        "stalls.md": per_device(ours, stalls_table),
        "sums.md": per_device(ours, sums_figure),
        "errors.md": per_device(ours, errors_figure),
    }


def formats_table() -> str:
    def bits(name: str) -> str:
        return f"1 + {FORMATS[name].exponent_bits} + {FORMATS[name].fraction_bits}"

    def spacing(name: str, at: int) -> float:
        return float(FORMATS[name].spacing(Fraction(at)))

    return columns(
        FORMATS,
        ("format", str),
        ("sign + exponent + fraction bits", bits),
        ("largest", lambda f: float(FORMATS[f].max_finite), "{:.3g}"),
        ("smallest normal", lambda f: float(FORMATS[f].smallest_normal), "{:.3g}"),
        ("smallest", lambda f: float(FORMATS[f].smallest_subnormal), "{:.3g}"),
        ("spacing at 1", lambda f: spacing(f, 1), "{:.3g}"),
        ("spacing at 8", lambda f: spacing(f, 8), "{:.3g}"),
        (
            "0.01 becomes",
            lambda f: float(FORMATS[f].round_to_nearest(Fraction("0.01"))),
            "{:.9f}",
        ),
    )


SUM = (
    ("sum", label),
    ("added", lambda c: f"{c.config['steps']:,} × {c.config['term']:g}"),
)


def results_table(record: Record, **wanted: int) -> str:
    """Each sum with its error, and whether the devices agree."""
    snippets = [named(record)[name] for name in NAMED[:4]]

    def agreement(c: Cell) -> Any:
        if c and c["device"] == "cpu":
            return "one device only"
        return (
            f"{c['differing_steps']} steps differ"
            if c["differing_steps"]
            else "yes"
            if c
            else c.missing
        )

    here = (
        column("of it, rounding the term", "of_term", signed),
        column("of it, adding", "of_adding", signed),
        ("same bits on CPU and GPU", agreement),
    )
    return columns(
        cells(record, **wanted),
        ("snippet", lambda c: snippets.index(c) + 1 if c in snippets else ""),
        *SUM,
        column("result", "total", "{:.6f}"),
        column("error", "error", signed),
        *(here if record.kind == "measured" else ()),
        left=2,
        alike=("added", "same bits on CPU and GPU"),
    )


def stalls_table(record: Record) -> str:
    def found(c: Cell) -> Any:
        late = c and not numbers(c)["stalled"]
        return (
            f"not within {c.config['steps']:,}"
            if late
            else say(c["last_change"], "{:,}")
        )

    return columns(
        cells(record, cast="implicit"),
        *SUM,
        column("stalls at", "top", "{:,.6g}"),
        column("spacing there", "spacing", "{:.4g}"),
        column("last step that adds, predicted", "last", "{:,}"),
        ("found", found),
        left=2,
    )


COLORS = {"fp32": GREY, "fp16": DARK, "bf16": ACCENT}


def sums_figure(record: Record) -> str:
    if not (terms := axis(record, "term")):
        return ""

    def draw(figure: Figure) -> None:
        for axes, term in zip(panels(figure, len(terms)), terms, strict=True):
            for name in axis(record, "accumulator"):
                c = cell(record, value=name, accumulator=name, term=term)
                look = {"marker": "", "color": COLORS.get(name, GREY), "label": name}
                if c:
                    line(axes, *kept(c), **look)
                if numbers(c)["stalled"]:
                    end = c["last_change"], numbers(c)["total"]
                    axes.plot(*end, "x", color=INK, markersize=8, markeredgewidth=2)
                    # Off the sums that still rise.
                    low = end[1] < 1
                    place = {"ha": "right", "offset": (-6, 6)}
                    if low:
                        place = {"ha": "left", "offset": (44, 6)}
                    note(axes, f"step {end[0]:,}", *end, color=INK, **place)
            axes.set_ylim(bottom=0)
            axes.set(xlabel="step", title=f"running sum, adding {term:g}")

    stops = [
        f"{c.config['accumulator']} stops at {numbers(c)['total']:g} when adding "
        f"{c.config['term']:g}"
        for c in cells(record)
        if numbers(c)["stalled"]
    ]
    return plot(
        record,
        "sums",
        draw,
        f"Where all sums should reach 10, {', '.join(stops) or 'none stops'}.",
        "A cross marks the last step that changed the sum.",
        height=280,
        narrow=520,
    )


def kept(c: Cell) -> tuple[list[int], list[float]]:
    """Steps, and the sums there that the record keeps."""
    return [c["kept_every"] * (i + 1) for i in range(len(c["sums"]))], c["sums"]


def errors_figure(record: Record) -> str:
    def draw(figure: Figure) -> None:
        term, adding = panels(figure, 2, sharey=True)
        for c in filter(None, cells(record, term=0.01, cast="implicit")):
            (steps, sums), stored = kept(c), Fraction(c["stored"])
            made = [float(n * abs(stored - Fraction("0.01"))) for n in steps]
            added = [
                abs(float(Fraction(s) - n * stored))
                for n, s in zip(steps, sums, strict=True)
            ]
            color = ACCENT if label(c) == "fp16 into fp32" else GREY
            look = {"marker": "", "color": color, "label": label(c)}
            line(term, steps, made, **look)
            line(adding, steps, added, **look)
        for axes, title in ((term, "rounding the term"), (adding, "adding")):
            # Zero, which some sums keep to, is on a scale that is linear near it.
            axes.set_yscale("symlog", linthresh=1e-7)
            axes.set_yticks(
                [0, 1e-6, 1e-4, 1e-2, 1], ["0", "10⁻⁶", "10⁻⁴", "10⁻²", "1"]
            )
            axes.set(ylim=(0, 20), xlabel="step")
            axes.set_title(f"absolute error from {title}")

    exact = numbers(named(record)["fp16_in_fp32"])["of_adding"] == 0
    return plot(
        record,
        "errors",
        draw,
        "Rounding the term gives errors that grow evenly, rounding the sums gives "
        "errors whose rate, even its sign, changes at powers of two"
        f"{', and fp16 terms into an fp32 sum have none of the second' * exact}.",
        "Error of the running sum of 1,000 × 0.01. First: what rounding the term "
        "alone would cost. Second: what adding cost.",
        narrow=560,
    )


def facts(record: Record | None) -> dict[str, str]:
    """Results and errors of the sums, and whether devices and predictions agree."""
    of, found = named(record), ran(record)
    agreeing = [c["differing_steps"] == 0 for c in found if c["device"] != "cpu"]
    return {
        **{name: say(numbers(of[name])["total"], "{:.6f}") for name in NAMED},
        **{
            f"{name}_error": say(numbers(of[name])["error"], signed)
            for name in NAMED[:3]
        },
        "fp16_in_fp32_adding": say(numbers(of["fp16_in_fp32"])["of_adding"], signed),
        "bf16_last_change": say(of["bf16_in_bf16"]["last_change"], "step {:,}"),
        "agreeing": say(counted(agreeing)),
        "stalls_as_predicted": say(counted(numbers(c)["as_predicted"] for c in found)),
    }


@claim(
    "mixed_precision_accumulation",
    "Formats alone decide these sums: on the GPU each step gives the sum that it gives "
    "on the CPU, and the last step that changes a sum is the one that the spacing of "
    "its format predicts.",
)
def sums_follow_from_formats(record: Record) -> Judgement:
    found = ran(record)
    alike = [c["differing_steps"] == 0 for c in found]
    stalls = [numbers(c)["as_predicted"] for c in found]
    told = f"Alike on both {counted(alike)} sums, as predicted {counted(stalls)}."
    return (all(alike) and all(stalls), told) if found else []
