"""Figures, tables and facts of `mixed_precision`: loss curves, updates that are lost,
and what others report.

How much faster bf16 is stands in the record of `end_to_end`: see its `gains`.
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from statistics import fmean, median
from typing import Any

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import at_most, captioned, columns, gib, in_words, per_device
from tools.render.plots import ACCENT, DARK, GREY, family, line, panels, plot
from tools.render.rows import (
    MISSING,
    NOT_MEASURED,
    Cell,
    cell,
    cells,
    measured,
    most,
    say,
)

PRECISIONS = {"fp32": "fp32", "bf16": "bf16 autocast", "bf16_pure": "pure bf16"}
WATCHED = {
    "embedding": "embedding",
    "matrix": "feed-forward matrix",
    "gain": "norm's gain",
}
WATCH_EVERY = 10
# Those trained at several learning rates, each to be judged at its own best.
BY_RATE = ("fp32", "bf16_pure")
# The loss of one batch is noisy: what a run ends with is the mean over this many steps.
LAST = 20


def shared_rate(record: Record | None) -> float | None:
    """The learning rate that all precisions are trained at, of curves and sentences:
    autocast's only one. None of a record whose rows name none.
    """
    found = [*cells(record, precision="bf16"), *cells(record)]
    return next((c.config.get("learning_rate") for c in found), None)


def rates(record: Record | None) -> list[float]:
    """The learning rates that rows of BY_RATE name, finished or not, rising."""
    found = (c.config for p in BY_RATE for c in cells(record, precision=p))
    return sorted({c["learning_rate"] for c in found if "learning_rate" in c})


def runs(
    record: Record | None, precision: str, rate: float | None = None
) -> list[Cell]:
    """The finished runs in this precision and at this learning rate, or the shared
    one; by seed.
    """
    rate = rate or shared_rate(record)
    found = [
        c
        for c in cells(record, precision=precision)
        if c and c.config.get("learning_rate") == rate
    ]
    return sorted(found, key=lambda c: c.config["seed"])


def half(values: list[float]) -> list[float]:
    """The second one."""
    return values[len(values) // 2 :]


def finals(
    record: Record | None, precision: str, rate: float | None = None
) -> dict[int, float]:
    """The final loss of each run, by seed."""
    found = runs(record, precision, rate)
    return {c.config["seed"]: fmean(c["loss"][-LAST:]) for c in found}


def against_fp32(record: Record | None, precision: str) -> list[float]:
    """Final loss minus that of fp32 with the same seed: the same weights and data."""
    ours, fp32 = finals(record, precision), finals(record, "fp32")
    return [loss - fp32[seed] for seed, loss in ours.items() if seed in fp32]


def best_rate(record: Record | None, precision: str) -> float:
    """The learning rate at which training ends lowest, on average over the seeds;
    none unless each has runs.
    """
    ended = {r: finals(record, precision, r).values() for r in rates(record)}
    if not ended or not all(ended.values()):
        return MISSING
    return min(ended, key=lambda rate: fmean(ended[rate]))


def floor(record: Record | None) -> float:
    """The entropy of the language."""
    return next((c["floor"] for c in cells(record) if c), MISSING)


def numbers(record: Record | None, precision: str) -> Mapping[str, Any]:
    """What the runs in this precision say together; for a tensor that was watched, the
    mean percentage of its elements that a step of the second half leaves as they are.
    """
    found, losses = runs(record, precision), [*finals(record, precision).values()]
    if not found:
        why = cell(record, precision=precision).missing
        return defaultdict(lambda: why)
    mean = fmean(losses)
    steps = [time for c in found for time in half(c.samples("step"))]
    kept = {n: [s for c in found for s in half(c[f"unchanged_{n}"])] for n in WATCHED}
    # Few steps are none that was watched.
    return {n: 100 * (fmean(s) if s else MISSING) for n, s in kept.items()} | {
        "ended": f"{mean:.3f} ({min(losses):.3f} to {max(losses):.3f})",
        "above": mean - floor(record),
        "step": median(steps),
        "peak": most(c.get("peak_allocated_bytes") for c in found),
    }


def nats_apart(differences: list[float]) -> str:
    """ "within 0.0003 nats of", or "0.0179 to 0.0184 nats below", to stand before what
    they are differences from.
    """
    if not differences:
        return NOT_MEASURED
    sizes = sorted(round(abs(difference), 4) for difference in differences)
    if sizes[0] < 1e-4 or len({difference > 0 for difference in differences}) > 1:
        return f"within {max(sizes[-1], 1e-4):.4f} nats of"
    ends = " to ".join(f"{size:.4f}" for size in dict.fromkeys([sizes[0], sizes[-1]]))
    return f"{ends} nats {'above' if differences[0] > 0 else 'below'}"


def verdict(differences: list[float], fp32: list[float]) -> str:
    """How the differences from fp32 compare with what a seed changes there."""
    if not differences:
        return NOT_MEASURED
    seeds = max(fp32) - min(fp32)
    if all(abs(difference) <= seeds for difference in differences):
        return "closer to fp32 than runs with different seeds are to one another"
    if all(difference > seeds for difference in differences):
        return "worse than fp32 with every seed, by more than a seed changes"
    if all(difference > 0 for difference in differences):
        return "worse than fp32 with every seed"
    if all(difference < 0 for difference in differences):
        return "better than fp32 with every seed"
    return "better than fp32 with one seed and worse with another"


def fragments(records: list[Record]) -> dict[str, str]:
    """Curves and tables of measured devices; the speed-ups that others report."""
    ours = measured(records)
    theirs = [record for record in records if record not in ours]
    return {
        "loss.md": per_device(ours, loss_body),
        "rates.md": per_device(ours, rates_table),
        "unchanged.md": per_device(ours, unchanged_body),
        "reported.md": per_device(theirs, reported_table),
    }


def loss_body(record: Record) -> str:
    caption = "Training in each precision: the loss it ends at, time and memory."
    return f"{loss_figure(record)}\n\n{captioned(caption, loss_table(record))}"


def loss_table(record: Record) -> str:
    def against(precision: str) -> str:
        found = against_fp32(record, precision) if precision != "fp32" else []
        return in_words(", ".join(f"{difference:+.4f}" for difference in found))

    return columns(
        PRECISIONS,
        ("precision", PRECISIONS.__getitem__),
        (
            f"loss, mean of the last {LAST} steps",
            lambda p: numbers(record, p)["ended"],
        ),
        ("above the entropy", lambda p: numbers(record, p)["above"], "{:.3f}"),
        ("against fp32, by seed", against),
        ("step, ms", lambda p: numbers(record, p)["step"], "{:.1f}"),
        ("peak GiB", lambda p: numbers(record, p)["peak"], gib),
    )


def rates_table(record: Record) -> str:
    def ended(precision: str):
        def told(rate: float) -> Any:
            losses = finals(record, precision, rate).values()
            if not losses:
                return NOT_MEASURED
            return f"{fmean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})"

        return told

    shown = columns(
        rates(record),
        ("learning rate", lambda rate: f"{rate:g}"),
        *((PRECISIONS[p], ended(p)) for p in BY_RATE),
    )
    caption = (
        f"The loss, mean of the last {LAST} steps, by learning rate; in brackets the "
        "least and the most of the seeds. A best rate at either end could have a "
        "better one beyond."
    )
    return captioned(caption, shown)


def smoothed(losses: list[float]) -> list[float]:
    """The mean over the last steps at each, from the first that has so many."""
    return [fmean(losses[end - LAST : end]) for end in range(LAST, len(losses) + 1)]


def differences(record: Record, precision: str) -> list[list[float]]:
    """Of the smoothed losses from those of fp32 with the same seed, step by step."""
    fp32 = {c.config["seed"]: smoothed(c["loss"]) for c in runs(record, "fp32")}
    return [
        [ours - theirs for ours, theirs in zip(smoothed(c["loss"]), wide, strict=True)]
        for c in runs(record, precision)
        if (wide := fp32.get(c.config["seed"]))
    ]


def loss_figure(record: Record) -> str:
    def draw(figure: Figure) -> None:
        loss, apart = panels(figure, 2)
        fp32 = list(zip(*(c["loss"] for c in runs(record, "fp32")), strict=True))
        plain = {"marker": ""}
        line(loss, range(1, len(fp32) + 1), map(fmean, fp32), **plain, label="fp32")
        if entropy := floor(record):
            level = {"color": DARK, "linewidth": 1, **plain}
            line(loss, (1, len(fp32)), (entropy, entropy), label="floor", **level)
        loss.set_ylim(bottom=0)
        loss.set(xlabel="step", title="training loss, nats per token")
        for precision, color in (("bf16", GREY), ("bf16_pure", ACCENT)):
            by_step = list(zip(*differences(record, precision), strict=True))
            steps = range(LAST, LAST + len(by_step))
            least, mean, most = (list(map(of, by_step)) for of in (min, fmean, max))
            apart.fill_between(steps, least, most, color=color, alpha=0.2, lw=0)
            label = PRECISIONS[precision]
            line(apart, steps, mean, **plain, color=color, label=label)
        level = {"color": DARK, "linewidth": 1, **plain}
        line(apart, (1, len(fp32)), (0, 0), **level)
        apart.set(xlabel="step", title="minus that of fp32")

    told = [
        f"{text} ends {nats_apart(found)} fp32"
        for precision, text in list(PRECISIONS.items())[1:]
        if (found := against_fp32(record, precision))
    ]
    return plot(
        record,
        "loss",
        draw,
        f"{'; '.join(told) or 'Not all precisions were measured'}.",
        "First: the mean over the seeds in fp32, above the entropy of the language. "
        f"Second: the difference, mean of {LAST} steps, between the same seeds; lines: "
        "their mean, bands: the least and the most.",
        height=280,
        narrow=520,
    )


def unchanged_body(record: Record) -> str:
    shown = columns(
        WATCHED,
        ("weights", WATCHED.__getitem__),
        *(
            (f"unchanged in a step, {text}", numbers(record, p).__getitem__, "{:.1f} %")
            for p, text in PRECISIONS.items()
        ),
    )
    caption = "Share of each weight's elements that a step leaves as they were."
    return f"{unchanged_figure(record)}\n\n{captioned(caption, shown)}"


def unchanged_figure(record: Record) -> str:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        curves = {}
        for name, text in WATCHED.items():
            found = [c[f"unchanged_{name}"] for c in runs(record, "bf16_pure")]
            means = [100 * fmean(values) for values in zip(*found, strict=True)]
            curves[text] = [WATCH_EVERY * (i + 1) for i in range(len(means))], means
        family(axes, curves, WATCHED["matrix"])
        axes.set_ylim(0, 105)
        axes.set(xlabel="step", title="elements left as they were, %")

    shares = numbers(record, "bf16_pure")
    told = [f"{say(shares[n], '{:.0f} %')} of the {WATCHED[n]}" for n in WATCHED]
    return plot(
        record,
        "unchanged",
        draw,
        "In the second half of training a step in pure bf16 leaves unchanged "
        f"{', '.join(told)}.",
        "Share of the elements that a step leaves exactly as they were; mean over the "
        "seeds.",
        height=240,
    )


def reported_table(record: Record) -> str:
    """Mean ± deviation of each pass, as reported, and the ratio of the means."""

    def both(phase: str, precision: str, c: Cell) -> Any:
        found = cell(record, **c.config | {"precision": precision})
        mean, std = found[f"{phase}_mean_ms"], found[f"{phase}_std_ms"]
        return f"{mean:.1f} ± {std:.1f}" if found else found.missing

    def gain(phase: str, c: Cell) -> float:
        fp32 = cell(record, **c.config | {"precision": "fp32"})
        return fp32[f"{phase}_mean_ms"] / c[f"{phase}_mean_ms"]

    passes = [
        column
        for phase in ("forward", "backward")
        for column in (
            (f"{phase}, fp32, ms", partial(both, phase, "fp32")),
            (f"{phase}, bf16, ms", partial(both, phase, "bf16")),
            (f"{phase}, fp32 / bf16", partial(gain, phase), "{:.2f}"),
        )
    ]
    return columns(cells(record, precision="bf16"), "size", "context", *passes)


def facts(record: Record | None) -> dict[str, str]:
    """How final losses differ from those of fp32, and lost updates."""
    found = {"floor": say(floor(record), "{:.3f}"), "rates_tried": rates_tried(record)}
    for precision in BY_RATE:
        rate = best_rate(record, precision)
        ended = fmean(finals(record, precision, rate).values()) if rate else MISSING
        found[f"best_{precision}"] = say(ended, f"{{:.3f}} (rate {rate:g})")
        found[f"next_{precision}"] = say(next_best(record, precision), "{:.3f}")
    for precision in PRECISIONS:
        of = numbers(record, precision)
        if precision != "fp32":
            differences = against_fp32(record, precision)
            fp32 = list(finals(record, "fp32").values())
            found[f"{precision}_against_fp32"] = nats_apart(differences)
            if precision == "bf16":
                found["bf16_verdict"] = verdict(differences, fp32)
                kept = most(of[name] for name in WATCHED) / 100
                found["unchanged_bf16_most"] = say(kept, at_most)
            else:
                for name in WATCHED:
                    found[f"unchanged_bf16_pure_{name}"] = say(of[name], kept_of)
    return found


def next_best(record: Record | None, precision: str) -> float:
    """How far the second best of the learning rates ends above the best."""
    ended = sorted(
        fmean(found.values())
        for rate in rates(record)
        if (found := finals(record, precision, rate))
    )
    return ended[1] - ended[0] if len(ended) > 1 else MISSING


def rates_tried(record: Record | None) -> str:
    """ "0.0001, 0.0003 and 0.001", where runs at several learning rates can be compared
    in each precision.
    """
    found = [f"{rate:g}" for rate in rates(record)]
    if len(found) < 2 or not all(best_rate(record, p) for p in BY_RATE):
        return NOT_MEASURED
    return f"{', '.join(found[:-1])} and {found[-1]}"


def kept_of(percentage: float) -> str:
    """ "61.3 %", or "all"."""
    return "all" if percentage > 99.95 else f"{percentage:.1f} %"


@claim(
    "benchmarking_mixed_precision",
    "In a short training bf16 autocast ends closer to fp32 than runs with different "
    "seeds are to one another.",
)
def autocast_trains_alike(record: Record) -> Judgement:
    fp32, differences = finals(record, "fp32").values(), against_fp32(record, "bf16")
    if not differences or len(fp32) < 2:
        return None
    worst, seeds = max(map(abs, differences)), max(fp32) - min(fp32)
    told = f"Final losses differ by {worst:.4f} at most, the seeds by {seeds:.4f}."
    return worst <= seeds, told


@claim(
    "benchmarking_mixed_precision",
    "Each at its best of three learning rates, fp32 ends lower than pure bf16 with "
    "every seed.",
    "Each at its best of three learning rates, fp32 does not end lower than pure bf16 "
    "with every seed.",
)
def fp32_ends_lower_at_its_best(record: Record) -> Judgement:
    tried = rates(record)
    best_rates = [best_rate(record, precision) for precision in BY_RATE]
    if len(tried) != 3 or not all(best_rates):
        return None
    fp32, pure = map(partial(finals, record), BY_RATE, best_rates)
    over = [pure[seed] - fp32[seed] for seed in fp32 if seed in pure]
    if not over:
        # No seed ended in both.
        return None
    best = ", ".join(
        f"{PRECISIONS[precision]} {rate:g}" + (" (of the three the last)" * edge)
        for precision, rate in zip(BY_RATE, best_rates, strict=True)
        for edge in [rate in (tried[0], tried[-1])]
    )
    return min(over) > 0, f"Best rates: {best}. Pure bf16 ends {nats_apart(over)} fp32."
