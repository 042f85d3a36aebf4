"""Figures, tables and facts of `mixed_precision`: loss curves, updates that are lost,
and what others report.

How much faster bf16 is stands in the record of `end_to_end`: see its `gains`.
"""

from collections.abc import Callable
from statistics import fmean, median
from typing import Any

from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.figures import (
    FAINT,
    INK,
    MARKERS,
    SERIES,
    canvas,
    legend_above,
    line,
    of_each,
    svg_pair,
)
from tools.render.markdown import columns, figure, gib, per_device
from tools.render.rows import (
    MISSING,
    NOT_MEASURED,
    Cell,
    cell,
    cells,
    measured,
    most,
    say,
    span,
)

PRECISIONS = {"fp32": "fp32", "bf16": "bf16 autocast", "bf16_pure": "pure bf16"}
WATCHED = {
    "embedding": "embedding",
    "matrix": "matrix of the feed-forward layer",
    "gain": "gain of a norm",
}
WATCH_EVERY = 10
# The loss of one batch is noisy: what a run ends with is the mean over this many steps.
LAST = 20


# What a record says -------------------------------------------------------------------


def runs(record: Record | None, precision: str) -> list[Cell]:
    """The finished runs in this precision, by seed."""
    found = [c for c in cells(record, precision=precision) if c]
    return sorted(found, key=lambda c: c.config["seed"])


def together(
    record: Record | None, precision: str, of: Callable[[list[Cell]], Any]
) -> Any:
    """What the runs in this precision say together, or why there are none."""
    found = runs(record, precision)
    return of(found) if found else cell(record, precision=precision).missing


def final(c: Cell) -> float:
    return fmean(c["loss"][-LAST:])


def finals(record: Record | None, precision: str) -> list[float]:
    return [final(c) for c in runs(record, precision)]


def against_fp32(record: Record | None, precision: str) -> list[float]:
    """Final loss minus that of fp32 with the same seed, so with the same weights to
    start from and the same data.
    """
    fp32 = {c.config["seed"]: final(c) for c in runs(record, "fp32")}
    ended = {c.config["seed"]: final(c) for c in runs(record, precision)}
    return [loss - fp32[seed] for seed, loss in ended.items() if seed in fp32]


def half(values: list[float]) -> list[float]:
    """The second one."""
    return values[len(values) // 2 :]


def unchanged(record: Record | None, precision: str, name: str) -> float:
    """Mean percentage of the elements that a step leaves as they are, over the second
    half of the steps watched.
    """

    def mean(found: list[Cell]) -> float:
        return 100 * fmean(s for c in found for s in half(c[f"unchanged_{name}"]))

    return together(record, precision, mean)


def floor(record: Record | None) -> float:
    """The entropy of the language."""
    return next((c["floor"] for c in cells(record) if c), MISSING)


def spread(values: list[float]) -> str:
    """Mean, least and most."""
    return f"{fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def ended(record: Record | None, precision: str) -> Any:
    return together(record, precision, lambda found: spread([final(c) for c in found]))


def verdict(differences: list[float], fp32: list[float]) -> str:
    """How the differences from fp32 compare with what a seed changes: the distance of
    the seeds in fp32.
    """
    if not differences:
        return NOT_MEASURED
    seeds = max(fp32) - min(fp32)
    if all(abs(difference) <= seeds for difference in differences):
        return "closer to fp32 than the seeds are to one another"
    if all(difference > seeds for difference in differences):
        return "worse than fp32 with every seed, by more than a seed changes"
    if all(difference > 0 for difference in differences):
        return "worse than fp32 with every seed"
    if all(difference < 0 for difference in differences):
        return "better than fp32 with every seed"
    return "better than fp32 with one seed and worse with another"


# Fragments ----------------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    """Curves and tables of measured devices; the speed-ups that others report."""
    ours = measured(records)
    theirs = [record for record in records if record not in ours]
    return {
        "loss.md": per_device(ours, loss_body),
        "unchanged.md": per_device(ours, unchanged_body),
        "reported.md": per_device(theirs, reported_table),
        **of_each(ours, loss_figure, unchanged_figure),
    }


def loss_body(record: Record) -> str:
    ends = [f"{text} ends at {ended(record, p)}" for p, text in PRECISIONS.items()]
    drawn = figure(
        f"mixed_precision-loss-{record.device.slug}",
        f"Training loss: {', '.join(ends)}; the floor is {floor(record):.3f}.",
        "Training loss in nats per token. Lines: mean over the seeds; bands: least to "
        "most; dotted: the entropy of the language, below which no model can stay.",
    )
    return f"{drawn}\n\n{loss_table(record)}"


def loss_table(record: Record) -> str:
    def column(head: str, of: Callable[[list[Cell]], Any], text: Any) -> tuple:
        return head, lambda precision: together(record, precision, of), text

    return columns(
        PRECISIONS,
        ("precision", PRECISIONS.__getitem__),
        (f"loss, mean of the last {LAST} steps", lambda p: ended(record, p)),
        column(
            "above the floor",
            lambda found: fmean(map(final, found)) - floor(record),
            "{:.3f}",
        ),
        (
            "against fp32, by seed",
            lambda p: ", ".join(
                f"{d:+.4f}" for d in against_fp32(record, p) if p != "fp32"
            ),
        ),
        column(
            "step, ms",
            lambda found: median(t for c in found for t in half(c.samples("step"))),
            "{:.1f}",
        ),
        column(
            "peak GiB",
            lambda found: most(c.get("peak_allocated_bytes") for c in found),
            gib,
        ),
    )


def loss_figure(record: Record) -> dict[str, str]:
    with canvas(height=4.4) as fig:
        axes = fig.subplots()
        looks = zip(PRECISIONS.items(), SERIES, ("-", "--", "-."), strict=False)
        for (precision, text), color, dash in looks:
            curves = [c["loss"] for c in runs(record, precision)]
            by_step = list(zip(*curves, strict=True))
            least, mean, most = (list(map(of, by_step)) for of in (min, fmean, max))
            if curves:
                steps = range(1, len(by_step) + 1)
                axes.fill_between(steps, least, most, color=color, alpha=0.25, lw=0)
                axes.plot(steps, mean, dash, color=color, label=text)
        if entropy := floor(record):
            axes.axhline(entropy, color=INK, linestyle=":", linewidth=1.2)
        axes.set_xlabel("step")
        axes.set_ylabel("training loss, nats per token")
        axes.set_ylim(bottom=0)
        legend_above(fig, ncols=3)
        return svg_pair(f"loss-{record.device.slug}", fig)


def unchanged_body(record: Record) -> str:
    shares = {text: unchanged(record, "bf16_pure", n) for n, text in WATCHED.items()}
    told = (f"{say(s, '{:.0f} percent')} of the {text}" for text, s in shares.items())
    drawn = figure(
        f"mixed_precision-unchanged-{record.device.slug}",
        "Pure bf16 leaves unchanged in a step, in the second half of training: "
        f"{', '.join(told)}.",
        "Share of the elements that a training step leaves exactly as they were, in "
        "pure bf16; mean over the seeds. The table has the second half of the steps, "
        "and the other precisions.",
    )
    shown = columns(
        WATCHED,
        ("weights", WATCHED.__getitem__),
        *(
            (
                f"unchanged in a step, {text}",
                lambda n, p=p: unchanged(record, p, n),
                "{:.1f} %",
            )
            for p, text in PRECISIONS.items()
        ),
    )
    return f"{drawn}\n\n{shown}"


def unchanged_figure(record: Record) -> dict[str, str]:
    with canvas(height=3.8) as fig:
        axes = fig.subplots()
        for (name, text), color, marker in zip(
            WATCHED.items(), SERIES, MARKERS, strict=False
        ):
            curves = [c[f"unchanged_{name}"] for c in runs(record, "bf16_pure")]
            means = [100 * fmean(values) for values in zip(*curves, strict=True)]
            steps = [WATCH_EVERY * (i + 1) for i in range(len(means))]
            style = {"color": color, "marker": marker, "markevery": 0.1}
            line(axes, steps, means, label=text, **style)
        axes.axhline(100, color=FAINT, linewidth=1)
        axes.set_xlabel("step")
        axes.set_ylabel("unchanged elements, %")
        axes.set_ylim(0, 105)
        legend_above(fig, ncols=2)
        return svg_pair(f"unchanged-{record.device.slug}", fig)


def reported_table(record: Record) -> str:
    """Mean ± deviation of each pass, as reported, and the ratio of the means."""

    def passes(phase: str) -> list[tuple[Any, ...]]:
        def fp32(c: Cell) -> Cell:
            return cell(record, **c.config | {"precision": "fp32"})

        def mean(c: Cell) -> float:
            return c[f"{phase}_mean_ms"]

        def shown(c: Cell) -> Any:
            return f"{mean(c):.1f} ± {c[f'{phase}_std_ms']:.1f}" if c else c.missing

        return [
            (f"{phase}, fp32, ms", lambda c: shown(fp32(c))),
            (f"{phase}, bf16, ms", shown),
            (f"{phase}, fp32 / bf16", lambda c: mean(fp32(c)) / mean(c), "{:.2f}"),
        ]

    both = [*passes("forward"), *passes("backward")]
    return columns(cells(record, precision="bf16"), "size", "context", *both)


def facts(record: Record | None) -> dict[str, str]:
    """Final losses, differences from fp32, whether those are larger than what a seed
    changes, and lost updates.
    """
    found = {"floor": say(floor(record), "{:.3f}")}
    for precision in PRECISIONS:
        found[f"final_{precision}"] = say(ended(record, precision))
    for p in ("bf16", "bf16_pure"):
        for name in WATCHED:
            found[f"unchanged_{p}_{name}"] = say(unchanged(record, p, name), "{:.1f} %")
        differences = against_fp32(record, p)
        found[f"{p}_against_fp32"] = span(differences, "{:+.4f}")
        found[f"{p}_verdict"] = verdict(differences, finals(record, "fp32"))
    return found


@claim(
    "benchmarking_mixed_precision",
    "In a short training bf16 autocast ends closer to fp32 than the seeds are to one "
    "another.",
    "In a short training bf16 autocast ends further from fp32 than the seeds are from "
    "one another.",
)
def autocast_trains_alike(record: Record) -> Judgement:
    differences, fp32 = against_fp32(record, "bf16"), finals(record, "fp32")
    if not differences or len(fp32) < 2:
        return None
    worst, seeds = max(map(abs, differences)), max(fp32) - min(fp32)
    numbers = f"Final losses differ by {worst:.4f} at most, the seeds by {seeds:.4f}."
    return worst <= seeds, numbers
