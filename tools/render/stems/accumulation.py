"""Tables, figure and facts of `accumulation`: running sums, and what adding costs."""

from fractions import Fraction
from typing import Any

from matplotlib.figure import Figure

from systems.precision.number_formats import FORMATS, find_stall
from systems.records.record import Record
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.frame import Frame, Line, frame, texts
from tools.render.markdown import columns, per_device
from tools.render.plots import ACCENT, DARK, GREY, INK
from tools.render.rows import axis, counted, measured, say

# The assignment's snippets, by the names of their facts.
SNIPPETS = ("fp32_in_fp32", "fp16_in_fp16", "fp16_in_fp32", "fp16_cast_to_fp32")


def sums(record: Record | None) -> Frame:
    """A row for each sum: its error, how much of it comes from rounding the term and
    how much from adding, and where the accumulator's format alone would let it stall.
    """
    found = frame(record).derive(name=name_of, sum=label)
    for x in filter(None, found):
        # 0.01 is meant to be one hundredth, whatever a format makes of it.
        meant, stored = Fraction(str(x["term"])), Fraction(x["stored"])
        steps, form = x["steps"], FORMATS[x["accumulator"]]
        total = Fraction(x.get("device_result", x.get("result")))
        last, top = find_stall(form, stored)
        x |= {
            "total": float(total),
            "error": total - steps * meant,
            "of_term": steps * (stored - meant),
            "of_adding": total - steps * stored,
            "last": last,
            "top": float(top),
            "spacing": float(form.spacing(top)),
            "stalled": x["last_change"] < steps,
            "as_predicted": x["last_change"] == min(last, steps),
            "alike": x["device"] != "cpu" and x["differing_steps"] == 0,
        }
    return found


def name_of(x: Line) -> str:
    """The name of its facts."""
    if x["term"] < 0.01:
        return f"{x['value']}_small_steps"
    how = "in" if x["cast"] == "implicit" else "cast_to"
    return f"{x['value']}_{how}_{x['accumulator']}"


def label(x: Line) -> str:
    value, accumulator = x["value"], x["accumulator"]
    by_hand = ", cast by hand" if x["cast"] == "explicit" else ""
    return f"{value} {'in' if value == accumulator else 'into'} {accumulator}{by_hand}"


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
    ours = measured(records)
    return {
        "formats.md": formats_table() + "\n",
        "results.md": per_device(ours, results_table),
        "stalls.md": per_device(ours, stalls_table),
        "sums.md": per_device(ours, sums_figure),
    }


def formats_table() -> str:
    """The formats, which nobody measures."""

    def number(of: Any) -> Any:
        return lambda name: float(of(FORMATS[name]))

    def bits(name: str) -> str:
        return f"1 + {FORMATS[name].exponent_bits} + {FORMATS[name].fraction_bits}"

    return columns(
        FORMATS,
        ("format", str),
        ("sign + exponent + fraction bits", bits),
        ("largest", number(lambda f: f.max_finite), "{:.3g}"),
        ("smallest normal", number(lambda f: f.smallest_normal), "{:.3g}"),
        ("smallest", number(lambda f: f.smallest_subnormal), "{:.3g}"),
        ("spacing at 1", number(lambda f: f.spacing(Fraction(1))), "{:.3g}"),
        ("spacing at 8", number(lambda f: f.spacing(Fraction(8))), "{:.3g}"),
        (
            "0.01 becomes",
            number(lambda f: f.round_to_nearest(Fraction("0.01"))),
            "{:.9f}",
        ),
    )


ADDED = ("added", lambda x: f"{x['steps']:,} × {x['term']:g}")


def results_table(record: Record) -> str:
    number = {name: n for n, name in enumerate(SNIPPETS, start=1)}
    same = "same bits on CPU and GPU"
    return (
        sums(record)
        .where(steps=1000)
        .table(
            ("snippet", lambda x: number.get(x["name"], "")),
            ("sum", "sum"),
            ADDED,
            ("result", "total", "{:.6f}"),
            ("error", "error", signed),
            ("of it, rounding the term", "of_term", signed),
            ("of it, adding", "of_adding", signed),
            (same, "alike"),
            left=2,
            alike=("added", same),
        )
    )


def stalls_table(record: Record) -> str:
    def found(x: Line) -> Any:
        late = x and not x["stalled"]
        return f"not within {x['steps']:,}" if late else say(x["last_change"], "{:,}")

    return (
        sums(record)
        .where(cast="implicit")
        .table(
            ("sum", "sum"),
            ADDED,
            ("stalls at", "top", "{:,.6g}"),
            ("spacing there", "spacing", "{:.4g}"),
            ("last step that adds, predicted", "last", "{:,}"),
            ("found", found),
            left=2,
        )
    )


COLORS = {"fp32": GREY, "fp16": DARK, "bf16": ACCENT}


def sums_figure(record: Record) -> str:
    if not (terms := axis(record, "term")):
        return ""
    found = sums(record)

    def draw(figure: Figure) -> None:
        for axes, term in zip(plots.panels(figure, len(terms)), terms, strict=True):
            for name in axis(record, "accumulator"):
                x = found.one(value=name, accumulator=name, term=term)
                if x:
                    # The record keeps some of the sums.
                    steps = [x["kept_every"] * (i + 1) for i in range(len(x["sums"]))]
                    color = COLORS.get(name, GREY)
                    plots.line(
                        axes, steps, x["sums"], marker="", color=color, label=name
                    )
                if x["stalled"]:
                    end = x["last_change"], x["total"]
                    axes.plot(*end, "x", color=INK, markersize=8, markeredgewidth=2)
                    # Off the sums that still rise.
                    place = {"ha": "right", "offset": (-6, 6)}
                    if end[1] < 1:
                        place = {"ha": "left", "offset": (44, 6)}
                    plots.note(axes, f"step {end[0]:,}", *end, color=INK, **place)
            axes.set_ylim(bottom=0)
            axes.set(xlabel="step", title=f"running sum, adding {term:g}")

    stops = [
        f"{x['accumulator']} stops at {x['total']:g} when adding {x['term']:g}"
        for x in found
        if x["stalled"]
    ]
    return plots.plot(
        record,
        "sums",
        draw,
        f"Where all sums should reach 10, {', '.join(stops) or 'none stops'}.",
        "A cross marks the last step that changed the sum.",
        height=280,
        narrow=520,
    )


def facts(record: Record | None) -> dict[str, str]:
    """Results and errors of the sums, and whether devices and predictions agree."""
    found = sums(record)
    ran = found.where(bool)
    names = (*SNIPPETS, "bf16_in_bf16", "bf16_in_fp32")
    of = {name: found.one(name=name) for name in names}
    return {
        **texts("{:.6f}", {name: x["total"] for name, x in of.items()}),
        "agreeing": say(counted(ran.column("alike"))),
        "stalls_as_predicted": say(counted(ran.column("as_predicted"))),
    }


@claim(
    "mixed_precision_accumulation",
    "Formats alone decide these sums: on the GPU each step gives the sum that it gives "
    "on the CPU, and the last step that changes a sum is the one that the spacing of "
    "its format predicts.",
)
def sums_follow_from_formats(record: Record) -> Judgement:
    found = sums(record).where(bool)
    alike, stalls = found.column("alike"), found.column("as_predicted")
    told = f"Alike on both {counted(alike)} sums, as predicted {counted(stalls)}."
    return (all(alike) and all(stalls), told) if found else []
