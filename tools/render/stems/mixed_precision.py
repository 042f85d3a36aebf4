"""Figures, tables and facts of `mixed_precision`: loss curves, updates that are lost,
and what others report.

How much faster bf16 is stands in `end_to_end`'s record: see `tools/render/stems/end_to_end/speedup.py`.
"""

import statistics

from systems.records.record import Record, Row
from systems.records.summary import summarize
from tools.render.figures import FAINT, INK, MARKERS, SERIES, canvas, svg_pair
from tools.render.markdown import NOT_MEASURED, fact, figure, gib, per_device, table

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


def runs(record: Record | None, precision: str) -> list[Row]:
    """The finished runs in this precision, by seed."""
    rows = (
        [
            r
            for r in record.rows
            if r.config["precision"] == precision and r.status == "ok"
        ]
        if record
        else []
    )
    return sorted(rows, key=lambda row: row.config["seed"])


def final(row: Row) -> float:
    return statistics.fmean(row.metrics["loss"][-LAST:])


def finals(record: Record | None, precision: str) -> list[float]:
    return [final(row) for row in runs(record, precision)]


def against_fp32(record: Record | None, precision: str) -> list[float]:
    """Final loss minus that of fp32 with the same seed, so with the same weights to
    start from and the same data.
    """
    fp32 = {row.config["seed"]: final(row) for row in runs(record, "fp32")}
    return [
        final(row) - fp32[row.config["seed"]]
        for row in runs(record, precision)
        if row.config["seed"] in fp32
    ]


def unchanged(record: Record | None, precision: str, name: str) -> float | None:
    """Mean share of the elements that a step leaves as they are, over the second half
    of the steps watched.
    """
    shares = [
        s
        for row in runs(record, precision)
        for s in half(row.metrics[f"unchanged_{name}"])
    ]
    return statistics.fmean(shares) if shares else None


def half(values: list[float]) -> list[float]:
    return values[len(values) // 2 :]


def spread(values: list[float]) -> str:
    """Mean, least and most."""
    return f"{statistics.fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


# Fragments ----------------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    """Curves and tables of measured devices; the speed-ups that others report."""
    measured = [record for record in records if record.kind == "measured"]
    figures: dict[str, str] = {}
    for record in measured:
        figures |= loss_figure(record) | unchanged_figure(record)
    return {
        "loss.md": per_device(measured, loss_body),
        "unchanged.md": per_device(measured, unchanged_body),
        "reported.md": per_device(
            [r for r in records if r.kind == "reported"], reported_table
        ),
        **figures,
    }


def loss_body(record: Record) -> str:
    parts = [
        f"{text} ends at {spread(finals(record, p))}"
        for p, text in PRECISIONS.items()
        if runs(record, p)
    ]
    alt = f"Training loss: {', '.join(parts)}; the floor is {floor(record):.3f}."
    caption = (
        "Training loss in nats per token. Lines: mean over the seeds; bands: least to most; dotted: the entropy of the "
        "language, below which no model can stay."
    )
    drawn = figure(f"mixed_precision-loss-{record.device.slug}", alt, caption)
    return f"{drawn}\n\n{loss_table(record)}"


def floor(record: Record) -> float:
    return record.rows[0].metrics["floor"]


def loss_table(record: Record) -> str:
    rows = []
    for precision, text in PRECISIONS.items():
        of_precision = runs(record, precision)
        if not of_precision:
            continue
        losses = finals(record, precision)
        differences = (
            [f"{d:+.4f}" for d in against_fp32(record, precision)]
            if precision != "fp32"
            else []
        )
        steps = [t for row in of_precision for t in half(row.metrics["step_ms"])]
        peak = max(
            (row.metrics.get("peak_allocated_bytes", 0) for row in of_precision),
            default=0,
        )
        cells = [
            spread(losses),
            f"{statistics.fmean(losses) - floor(record):.3f}",
            ", ".join(differences),
        ]
        rows.append(
            [text, *cells, f"{summarize(steps).median:.1f}", gib(peak) if peak else ""]
        )
    header = [
        "precision",
        f"loss, mean of the last {LAST} steps",
        "above the floor",
        "against fp32, by seed",
    ]
    return table([*header, "step, ms", "peak GiB"], rows)


def loss_figure(record: Record) -> dict[str, str]:
    with canvas(height=4.4) as fig:
        axes = fig.subplots()
        for (precision, text), color, dash in zip(
            PRECISIONS.items(), SERIES, ("-", "--", "-."), strict=False
        ):
            curves = [row.metrics["loss"] for row in runs(record, precision)]
            if curves:
                steps = range(1, len(curves[0]) + 1)
                by_step = list(zip(*curves, strict=True))
                axes.fill_between(
                    steps,
                    [min(v) for v in by_step],
                    [max(v) for v in by_step],
                    color=color,
                    alpha=0.25,
                    lw=0,
                )
                axes.plot(
                    steps,
                    [statistics.fmean(v) for v in by_step],
                    dash,
                    color=color,
                    label=text,
                )
        axes.axhline(floor(record), color=INK, linestyle=":", linewidth=1.2)
        axes.set_xlabel("step")
        axes.set_ylabel("training loss, nats per token")
        axes.set_ylim(bottom=0)
        fig.legend(loc="outside upper center", ncols=3)
        return svg_pair(f"loss-{record.device.slug}", fig)


def unchanged_body(record: Record) -> str:
    shares = [
        (text, unchanged(record, "bf16_pure", name)) for name, text in WATCHED.items()
    ]
    alt = (
        "Pure bf16 leaves unchanged in a step, in the second half of training: "
        + ", ".join(
            f"{100 * share:.0f} percent of the {text}"
            for text, share in shares
            if share is not None
        )
    )
    caption = (
        "Share of the elements that a training step leaves exactly as they were, in pure bf16; mean over the seeds. "
        "The table has the second half of the steps, and the other precisions."
    )
    drawn = figure(
        f"mixed_precision-unchanged-{record.device.slug}", f"{alt}.", caption
    )
    return f"{drawn}\n\n{unchanged_table(record)}"


def unchanged_table(record: Record) -> str:
    rows = []
    for name, text in WATCHED.items():
        shares = [unchanged(record, precision, name) for precision in PRECISIONS]
        rows.append(
            [
                text,
                *("" if share is None else f"{100 * share:.1f} %" for share in shares),
            ]
        )
    return table(
        ["weights", *(f"unchanged in a step, {text}" for text in PRECISIONS.values())],
        rows,
    )


def unchanged_figure(record: Record) -> dict[str, str]:
    with canvas(height=3.8) as fig:
        axes = fig.subplots()
        for (name, text), color, marker in zip(
            WATCHED.items(), SERIES, MARKERS, strict=False
        ):
            curves = [
                row.metrics[f"unchanged_{name}"] for row in runs(record, "bf16_pure")
            ]
            if curves:
                means = [
                    100 * statistics.fmean(values)
                    for values in zip(*curves, strict=True)
                ]
                steps = [WATCH_EVERY * (i + 1) for i in range(len(means))]
                axes.plot(
                    steps, means, color=color, marker=marker, markevery=0.1, label=text
                )
        axes.axhline(100, color=FAINT, linewidth=1)
        axes.set_xlabel("step")
        axes.set_ylabel("unchanged elements, %")
        axes.set_ylim(0, 105)
        fig.legend(loc="outside upper center", ncols=2)
        return svg_pair(f"unchanged-{record.device.slug}", fig)


def reported_table(record: Record) -> str:
    """Mean ± deviation of each pass, as they report it, and the ratio of their means."""
    rows = []
    for row in record.rows:
        if row.config["precision"] != "bf16":
            continue
        c, fp32 = row.config, record.row(row.config | {"precision": "fp32"})
        cells = [c["size"], str(c["context"])]
        for phase in ("forward", "backward"):
            theirs = [r.metrics if r else {} for r in (fp32, row)]
            cells += [
                f"{m[f'{phase}_mean_ms']:.1f} ± {m[f'{phase}_std_ms']:.1f}" if m else ""
                for m in theirs
            ]
            if all(theirs):
                cells.append(
                    f"{theirs[0][f'{phase}_mean_ms'] / theirs[1][f'{phase}_mean_ms']:.2f}"
                )
            else:
                cells.append("")
        rows.append(cells)
    header = ["size", "context"]
    header += [
        f"{phase}, {text}"
        for phase in ("forward", "backward")
        for text in ("fp32, ms", "bf16, ms", "fp32 / bf16")
    ]
    return table(header, rows)


def facts(record: Record | None) -> dict[str, str]:
    """Final losses, differences from fp32, whether those are larger than what a seed
    changes, and lost updates.
    """
    found: dict[str, str] = {
        "floor": f"{floor(record):.3f}" if record else NOT_MEASURED
    }
    for precision in PRECISIONS:
        losses = finals(record, precision)
        found[f"final_{precision}"] = spread(losses) if losses else NOT_MEASURED
    for precision in ("bf16", "bf16_pure"):
        for name in WATCHED:
            share = unchanged(record, precision, name)
            found[f"unchanged_{precision}_{name}"] = fact(
                share, lambda value: f"{100 * value:.1f} %"
            )
        differences = against_fp32(record, precision)
        found[f"{precision}_against_fp32"] = NOT_MEASURED
        found[f"{precision}_verdict"] = NOT_MEASURED
        if differences:
            found[f"{precision}_against_fp32"] = (
                f"{min(differences):+.4f} to {max(differences):+.4f}"
            )
            found[f"{precision}_verdict"] = verdict(differences, finals(record, "fp32"))
    return found


def verdict(differences: list[float], fp32: list[float]) -> str:
    """How the differences from fp32 compare with what a seed changes: the distance of
    the seeds in fp32.
    """
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
