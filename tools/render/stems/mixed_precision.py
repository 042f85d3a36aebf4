"""Figure, tables and facts of `mixed_precision`: loss curves and lost updates. How much
faster bf16 is, the record of `end_to_end` says.
"""

from statistics import fmean, median

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render import plots
from tools.render.frame import Frame, Line, frame
from tools.render.markdown import captioned, gib, in_words, per_device
from tools.render.plots import ACCENT, DARK, GREY
from tools.render.rows import MISSING, NOT_MEASURED, known, measured, say

PRECISIONS = {"fp32": "fp32", "bf16": "bf16 autocast", "bf16_pure": "pure bf16"}
WATCHED = {
    "embedding": "embedding",
    "matrix": "feed-forward matrix",
    "gain": "norm's gain",
}
# The loss of one batch is noisy: what a run ends with is the mean over this many steps.
LAST = 20
CAPTIONS = {
    "rates.md": f"The loss, mean of the last {LAST} steps, by learning rate; in "
    "brackets the least and the most of the seeds. A best rate at either end could "
    "have a better one beyond.",
    "unchanged.md": "Share of each weight's elements that a step leaves as they were, "
    "in the second half of training.",
}


def all_runs(record: Record | None) -> Frame:
    """Training runs, each beside the fp32 run with its seed and learning rate."""
    found = frame(record).derive(
        final=lambda x: fmean(x["loss"][-LAST:]) if x else x.missing
    )
    found.join("fp32", precision="fp32")
    return found.derive(against=lambda x: x["final"] - x["fp32.final"])


def runs(record: Record | None) -> Frame:
    """Those at the learning rate of curves and sentences, by seed: autocast's."""
    found = all_runs(record)
    rate = found.one(precision="bf16").get("learning_rate")
    return Frame(sorted(found.where(learning_rate=rate), key=lambda x: x["seed"]))


def differences(record: Record | None, precision: str) -> list[float]:
    """Final loss minus that of fp32 with the same seed: the same weights and data."""
    return known(runs(record).where(precision=precision).column("against"))


def say_final_loss(found: Frame) -> str:
    """ "2.107 (2.098 to 2.115)": the mean over seeds, the least and the most."""
    if not (losses := known(found.column("final"))):
        return say(found.one().missing)
    return f"{fmean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})"


def by_precision(record: Record | None) -> Frame:
    """A row for each precision: its runs together."""
    found = Frame()
    for precision, name in PRECISIONS.items():
        tried = runs(record).where(precision=precision)
        ran = tried.where(bool)
        x = summarize(ran) if ran else tried.one()
        against = differences(record, precision) if precision != "fp32" else []
        x["name"] = name
        x["against"] = in_words(", ".join(f"{apart:+.4f}" for apart in against))
        found.append(x)
    return found


def summarize(ran: Frame) -> Line:
    """Medians and means over seeds; of times and lost updates, of the second half."""
    return Line(
        ended=say_final_loss(ran),
        above=fmean(ran.column("final")) - ran[0]["floor"],
        step_ms=median(t for x in ran for t in half(x.samples("step"))),
        # A CPU tells no peak.
        peak=max((x.get("peak_allocated_bytes") for x in ran), default=MISSING),
        **{name: unchanged(ran, name) for name in WATCHED},
    )


def unchanged(ran: Frame, name: str) -> float:
    """The mean percentage of elements that a step leaves as they were."""
    shares = [share for x in ran for share in half(x[f"unchanged_{name}"])]
    return 100 * fmean(shares) if shares else MISSING


def half(values: list[float]) -> list[float]:
    """The second half."""
    return values[len(values) // 2 :]


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
    if not differences or len(fp32) < 2:
        return NOT_MEASURED
    near = max(map(abs, differences)) <= max(fp32) - min(fp32)
    nearer = "closer to fp32" if near else "farther from fp32"
    return f"{nearer} than runs with different seeds are to one another"


# Tables and figure --------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    ours = measured(records)
    return {
        "loss.md": per_device(ours, loss_body),
        "rates.md": per_device(ours, rates_table),
        "unchanged.md": per_device(ours, unchanged_table),
    }


def loss_body(record: Record) -> str:
    caption = "Training in each precision: the loss it ends at, time and memory."
    return f"{loss_figure(record)}\n\n{captioned(caption, loss_table(record))}"


def loss_table(record: Record) -> str:
    return by_precision(record).table(
        ("precision", "name"),
        (f"loss, mean of the last {LAST} steps", "ended"),
        ("above the entropy", "above", "{:.3f}"),
        ("against fp32, by seed", "against"),
        ("step, ms", "step_ms", "{:.1f}"),
        ("peak GiB", "peak", gib),
    )


def rates_table(record: Record) -> str:
    found = all_runs(record)
    rates = sorted({x["learning_rate"] for x in found})
    return Frame(Line(rate=rate) for rate in rates).table(
        ("learning rate", "rate", "{:g}"),
        *(
            (
                PRECISIONS[precision],
                lambda x, p=precision: say_final_loss(
                    found.where(precision=p, learning_rate=x["rate"])
                ),
            )
            for precision in ("fp32", "bf16_pure")
        ),
    )


def unchanged_table(record: Record) -> str:
    return by_precision(record).table(
        ("precision", "name"),
        *((words, name, "{:.1f} %") for name, words in WATCHED.items()),
    )


def smoothed(losses: list[float]) -> list[float]:
    """The mean over the last steps at each, from the first that has so many."""
    return [fmean(losses[end - LAST : end]) for end in range(LAST, len(losses) + 1)]


def loss_gaps(record: Record, precision: str) -> list[list[float]]:
    """The smoothed losses minus those of fp32 with the same seed, step by step."""
    return [
        [a - b for a, b in zip(*map(smoothed, both), strict=True)]
        for x in runs(record).where(bool, precision=precision)
        if (both := (x["loss"], x["fp32.loss"]))[1]
    ]


def loss_figure(record: Record) -> str:
    def draw(figure: Figure) -> None:
        loss, apart = plots.panels(figure, 2)
        ran = runs(record).where(bool, precision="fp32")
        fp32 = list(zip(*ran.column("loss"), strict=True))
        plain = {"marker": ""}
        plots.line(
            loss, range(1, len(fp32) + 1), map(fmean, fp32), **plain, label="fp32"
        )
        if entropy := ran.one()["floor"]:
            level = {"color": DARK, "linewidth": 1, **plain}
            plots.line(loss, (1, len(fp32)), (entropy, entropy), label="floor", **level)
        loss.set_ylim(bottom=0)
        loss.set(xlabel="step", title="training loss, nats per token")
        for precision, color in (("bf16", GREY), ("bf16_pure", ACCENT)):
            by_step = list(zip(*loss_gaps(record, precision), strict=True))
            steps = range(LAST, LAST + len(by_step))
            least, mean, most = (list(map(of, by_step)) for of in (min, fmean, max))
            apart.fill_between(steps, least, most, color=color, alpha=0.2, lw=0)
            label = PRECISIONS[precision]
            plots.line(apart, steps, mean, **plain, color=color, label=label)
        level = {"color": DARK, "linewidth": 1, **plain}
        plots.line(apart, (1, len(fp32)), (0, 0), **level)
        apart.set(xlabel="step", title="minus that of fp32")

    told = [
        f"{text} ends {nats_apart(found)} fp32"
        for precision, text in list(PRECISIONS.items())[1:]
        if (found := differences(record, precision))
    ]
    return plots.plot(
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


def facts(record: Record | None) -> dict[str, str]:
    found = runs(record).where(precision="fp32")
    autocast, pure = (differences(record, p) for p in ("bf16", "bf16_pure"))
    return {
        "floor": say(found.one()["floor"], "{:.3f}"),
        "bf16_against_fp32": nats_apart(autocast),
        "bf16_verdict": verdict(autocast, known(found.column("final"))),
        "bf16_pure_against_fp32": nats_apart(pure),
    }
