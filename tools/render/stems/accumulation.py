"""Tables, figure, facts and claim of `accumulation`: errors of running sums."""

from fractions import Fraction
from typing import Any

from matplotlib.figure import Figure

from systems.precision.number_formats import FORMATS, Format, find_stall
from systems.records.record import Record
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.fragments import Drawn, Fragments
from tools.render.frame import Frame, Line, frame
from tools.render.markdown import items_table
from tools.render.plots import ACCENT, DARK, GREY, INK
from tools.render.rows import MISSING, count_true, dropna, fmt

# Names of the facts for the four code snippets of the assignment.
SNIPPETS = ("fp32_in_fp32", "fp16_in_fp16", "fp16_in_fp32", "fp16_cast_to_fp32")
COLORS = {"fp32": GREY, "fp16": DARK, "bf16": ACCENT}
ADDED = ("added", lambda x: f"{x['steps']:,} × {x['term']:g}")
fragments = Fragments()


def sums(record: Record | None) -> Frame:
    """Return a row per running sum: `error`, the parts of it from rounding the term and
    from adding, when it stops growing (predicted, real), and if CPU and GPU agree.
    """
    found = frame(record).derive(name=fact_name, sum=describe_sum)
    for x in filter(None, found):
        # The exact decimal term, and the term as rounded to its number format.
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
            "alike": MISSING if x["device"] == "cpu" else x["differing_steps"] == 0,
        }
    return found


def fact_name(x: Line) -> str:
    if x["term"] < 0.01:
        return f"{x['value']}_small_steps"
    how = "in" if x["cast"] == "implicit" else "cast_to"
    return f"{x['value']}_{how}_{x['accumulator']}"


def describe_sum(x: Line) -> str:
    value, accumulator = x["value"], x["accumulator"]
    by_hand = ", cast by hand" if x["cast"] == "explicit" else ""
    return f"{value} {'in' if value == accumulator else 'into'} {accumulator}{by_hand}"


def format_signed(value: Fraction) -> str:
    """Return six decimals with a sign, or scientific notation for small values."""
    shown = "{:+.6f}" if abs(value) >= Fraction(1, 10**5) else "{:+.1e}"
    return shown.format(float(value)) if value else "0"


@fragments.add_file(
    "formats.md", "What each format can hold, and how far apart its numbers are."
)
def formats_table(_: list[Record]) -> str:
    def format_bits(form: Format) -> str:
        return f"1 + {form.exponent_bits} + {form.fraction_bits}"

    one, eight, hundredth = Fraction(1), Fraction(8), Fraction("0.01")
    return items_table(
        FORMATS.items(),
        ("format", lambda x: x[0]),
        ("sign + exponent + fraction bits", lambda x: format_bits(x[1])),
        ("largest", lambda x: float(x[1].max_finite), "{:.3g}"),
        ("smallest normal", lambda x: float(x[1].smallest_normal), "{:.3g}"),
        ("smallest", lambda x: float(x[1].smallest_subnormal), "{:.3g}"),
        ("spacing at 1", lambda x: float(x[1].spacing(one)), "{:.3g}"),
        ("spacing at 8", lambda x: float(x[1].spacing(eight)), "{:.3g}"),
        ("0.01 becomes", lambda x: float(x[1].round_to_nearest(hundredth)), "{:.9f}"),
    )


@fragments.add(
    "results.md",
    "The results of adding 0.01 a thousand times, and the parts of each error that "
    "come from rounding the term and from adding. Snippets 1 to 4 are the "
    "assignment's.",
)
def results_table(record: Record) -> str:
    number = {name: n for n, name in enumerate(SNIPPETS, start=1)}
    same = "same bits on CPU and GPU"
    found = sums(record).where(steps=1000)
    return found.table(
        ("snippet", lambda x: number.get(x["name"], "")),
        ("sum", "sum"),
        ADDED,
        ("result", "total", "{:.6f}"),
        ("error", "error", format_signed),
        ("error from rounding the term", "of_term", format_signed),
        ("error from adding", "of_adding", format_signed),
        (same, "alike"),
        left=2,
        alike=("added", same),
    )


@fragments.add("stalls.md")
def stalls_table(record: Record) -> str:
    def last_change_text(x: Line) -> Any:
        late = x and not x["stalled"]
        return f"not within {x['steps']:,}" if late else fmt(x["last_change"], "{:,}")

    found = sums(record).where(cast="implicit")
    return found.table(
        ("sum", "sum"),
        ADDED,
        ("stalls at", "top", "{:,.6g}"),
        ("spacing there", "spacing", "{:.4g}"),
        ("last step that adds, predicted", "last", "{:,}"),
        ("the same, measured", last_change_text),
        left=2,
    )


@fragments.figure("sums.md", "sums", height=280, narrow=520)
def sums_figure(record: Record) -> Drawn:
    found = sums(record)
    if not (terms := found.values("term")):
        return None

    def draw(figure: Figure) -> None:
        for axes, term in zip(plots.panels(figure, len(terms)), terms, strict=True):
            for name in found.values("accumulator"):
                x = found.one(value=name, accumulator=name, term=term)
                if x:
                    # The record keeps every n-th sum.
                    steps = [x["kept_every"] * (i + 1) for i in range(len(x["sums"]))]
                    look = {"color": COLORS.get(name, GREY), "label": name}
                    plots.curve(axes, steps, x["sums"], marker="", **look)
                if x["stalled"]:
                    end = x["last_change"], x["total"]
                    axes.plot(*end, "x", color=INK, markersize=8, markeredgewidth=2)
                    # Keep the note clear of the curves that still rise.
                    place = {"color": INK, "ha": "right", "offset": (-6, 6)}
                    if end[1] < 1:
                        place |= {"ha": "left", "offset": (44, 6)}
                    plots.label_point(axes, f"step {end[0]:,}", *end, **place)
            axes.set_ylim(bottom=0)
            axes.set(xlabel="step", title=f"running sum, adding {term:g}")

    target = found[0]["term"] * found[0]["steps"]
    stops = [
        f"{x['accumulator']} stops at {x['total']:g} when adding {x['term']:g}"
        for x in found
        if x["stalled"]
    ]
    return (
        draw,
        f"All sums should reach {target:g}; {', '.join(stops) or 'none stops before'}.",
        "A cross marks the last step that changed the sum.",
    )


def facts(record: Record | None) -> dict[str, str]:
    found = sums(record)
    ran = found.where(bool)
    return {
        **{
            name: fmt(found.one(name=name, steps=1000)["total"], "{:.6f}")
            for name in (*SNIPPETS, "bf16_in_bf16", "bf16_in_fp32")
        },
        "agreeing": fmt(count_true(dropna(ran.column("alike")))),
        "stalls_as_predicted": fmt(count_true(ran.column("as_predicted"))),
    }


@claim(
    "mixed_precision_accumulation",
    "Formats alone decide our sums: each step gives the same sum on the GPU and on "
    "the CPU, and the last step that changes a sum is the one that the spacing of its "
    "format predicts.",
)
def sums_follow_from_formats(record: Record) -> Judgement:
    found = sums(record).where(bool)
    alike, stalls = dropna(found.column("alike")), found.column("as_predicted")
    text = f"Equal sums: {count_true(alike)}; stall as predicted: {count_true(stalls)}."
    return (all(alike) and all(stalls), text) if alike else []
