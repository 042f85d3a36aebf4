"""Figure, tables and facts of `mixed_precision`: losses, and unchanged weights."""

from statistics import fmean, median

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render import plots
from tools.render.fragments import Drawn, Fragments
from tools.render.frame import Frame, Line, frame
from tools.render.markdown import gib, typeset
from tools.render.plots import ACCENT, DARK, GREY
from tools.render.rows import MISSING, NOT_MEASURED, dropna, fmt

PRECISIONS = {"fp32": "fp32", "bf16": "bf16 autocast", "bf16_pure": "pure bf16"}
WATCHED = dict(embedding="embedding", matrix="feed-forward matrix", gain="norm's gain")
# The final loss is the mean of this many last steps, because single losses are noisy.
LAST = 20
fragments = Fragments()


def all_runs(record: Record | None) -> Frame:
    """Return training runs: `final` loss, `against` (final minus fp32's, same seed)."""
    found = frame(record).derive(
        final=lambda x: fmean(x["loss"][-LAST:]) if x else x.missing
    )
    found.join("fp32", precision="fp32")
    return found.derive(against=lambda x: x["final"] - x["fp32.final"])


def runs(record: Record | None) -> Frame:
    """Return training runs at bf16 autocast's learning rate, sorted by seed."""
    found = all_runs(record)
    rate = found.one(precision="bf16").get("learning_rate")
    return Frame(sorted(found.where(learning_rate=rate), key=lambda x: x["seed"]))


def loss_differences(record: Record | None, precision: str) -> list[float]:
    """Return each run's final loss minus fp32's for the same seed (weights, data)."""
    return dropna(runs(record).where(precision=precision).column("against"))


def format_final_loss(found: Frame) -> str:
    """Return "2.107 (2.098 to 2.115)": the mean, minimum and maximum over seeds."""
    if not (losses := dropna(found.column("final"))):
        return fmt(found.one().missing)
    return f"{fmean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})"


def precision_rows(record: Record | None) -> Frame:
    """Return a row for each precision that summarizes its runs."""
    found = Frame()
    for precision, name in PRECISIONS.items():
        tried = runs(record).where(precision=precision)
        ran = tried.where(bool)
        x = summarize_runs(ran) if ran else tried.one()
        against = loss_differences(record, precision) if precision != "fp32" else []
        x["name"] = name
        x["against"] = typeset(", ".join(f"{apart:+.4f}" for apart in against))
        found.append(x)
    return found


def summarize_runs(ran: Frame) -> Line:
    """Summarize runs over seeds in a row: loss, ms, peak bytes, % unchanged weights."""
    return Line(
        final=format_final_loss(ran),
        above=fmean(ran.column("final")) - ran[0]["floor"],
        step_ms=median(t for x in ran for t in second_half(x.samples("step"))),
        gpu_ms=median(x.get("step_gpu_ms") for x in ran),
        # Rows measured on a CPU have no peak.
        peak=max((x.get("peak_allocated_bytes") for x in ran), default=MISSING),
        **{name: unchanged_percent(ran, name) for name in WATCHED},
    )


def unchanged_percent(ran: Frame, name: str) -> float:
    """Return the mean % of weight `name` that steps of the second half don't change."""
    shares = [share for x in ran for share in second_half(x[f"unchanged_{name}"])]
    return 100 * fmean(shares) if shares else MISSING


def second_half(values: list[float]) -> list[float]:
    return values[len(values) // 2 :]


def format_difference(differences: list[float]) -> str:
    """Compare losses with fp32's: "within 0.0003 nats of" or "0.0021 nats above"."""
    if not differences:
        return NOT_MEASURED
    sizes = sorted(round(abs(difference), 4) for difference in differences)
    if sizes[0] < 1e-4 or len({difference > 0 for difference in differences}) > 1:
        return f"within {max(sizes[-1], 1e-4):.4f} nats of"
    ends = " to ".join(f"{size:.4f}" for size in dict.fromkeys([sizes[0], sizes[-1]]))
    return f"{ends} nats {'above' if differences[0] > 0 else 'below'}"


def compare_spread(differences: list[float], fp32: list[float]) -> str:
    """Compare `differences` of losses from fp32 with the range of `fp32` over seeds:
    "closer to (farther from) fp32 than runs with different seeds are to one another".
    """
    if not differences or len(fp32) < 2:
        return NOT_MEASURED
    near = max(map(abs, differences)) <= max(fp32) - min(fp32)
    nearer = "closer to fp32" if near else "farther from fp32"
    return f"{nearer} than runs with different seeds are to one another"


@fragments.add(
    "losses.md",
    "Training in each precision. Times of steps are medians over all seeds; wall-clock "
    "times are of each run's second half.",
)
def loss_table(record: Record) -> str:
    return precision_rows(record).table(
        ("precision", "name"),
        (f"loss, mean of last {LAST} steps, nats", "final"),
        ("loss − entropy", "above", "{:.3f}"),
        ("loss − fp32's, by seed", "against"),
        ("step, wall, ms", "step_ms", "{:.1f}"),
        ("step, GPU, ms", "gpu_ms", "{:.1f}"),
        ("peak GiB", "peak", gib),
    )


@fragments.add(
    "rates.md",
    f"Mean loss of the last {LAST} steps by learning rate, with the range over seeds "
    "in brackets. Rates beyond the table could be better.",
)
def learning_rate_table(record: Record) -> str:
    found = all_runs(record)

    def loss_text(rate: float, precision: str) -> str:
        return format_final_loss(found.where(precision=precision, learning_rate=rate))

    rates = sorted({x["learning_rate"] for x in found})
    return Frame(Line(rate=rate) for rate in rates).table(
        ("learning rate", "rate", "{:g}"),
        *(
            (PRECISIONS[p], lambda x, p=p: loss_text(x["rate"], p))
            for p in ("fp32", "bf16_pure")
        ),
    )


@fragments.add(
    "unchanged.md",
    "Share of each weight's elements that a step leaves unchanged, in the second "
    "half of training.",
)
def unchanged_weights_table(record: Record) -> str:
    return precision_rows(record).table(
        ("precision", "name"),
        *((words, name, "{:.1f} %") for name, words in WATCHED.items()),
    )


def running_means(losses: list[float]) -> list[float]:
    """Return the means over each window of LAST steps."""
    return [fmean(losses[end - LAST : end]) for end in range(LAST, len(losses) + 1)]


def loss_gaps(record: Record, precision: str) -> list[list[float]]:
    """Return each run's `running_means` minus those of fp32's run of the same seed."""
    return [
        [a - b for a, b in zip(*map(running_means, both), strict=True)]
        for x in runs(record).where(bool, precision=precision)
        if (both := (x["loss"], x["fp32.loss"]))[1]
    ]


@fragments.figure("loss.md", "loss", height=280, narrow=520)
def loss_figure(record: Record) -> Drawn:
    def draw(figure: Figure) -> None:
        loss, apart = plots.panels(figure, 2)
        ran = runs(record).where(bool, precision="fp32")
        fp32 = list(zip(*ran.column("loss"), strict=True))
        plain = {"marker": ""}
        flat = {"color": DARK, "linewidth": 1, **plain}
        plots.curve(
            loss, range(1, len(fp32) + 1), map(fmean, fp32), **plain, label="fp32"
        )
        if entropy := ran.one()["floor"]:
            plots.curve(loss, (1, len(fp32)), [entropy] * 2, label="entropy", **flat)
        loss.set_ylim(bottom=0)
        loss.set(xlabel="step", title="training loss, nats per token")
        for precision, color in (("bf16", GREY), ("bf16_pure", ACCENT)):
            by_step = list(zip(*loss_gaps(record, precision), strict=True))
            steps = range(LAST, LAST + len(by_step))
            least, mean, most = (list(map(of, by_step)) for of in (min, fmean, max))
            apart.fill_between(steps, least, most, color=color, alpha=0.2, lw=0)
            label = PRECISIONS[precision]
            plots.curve(apart, steps, mean, **plain, color=color, label=label)
        plots.curve(apart, (1, len(fp32)), (0, 0), **flat)
        apart.set(xlabel="step", title="loss minus fp32's")

    ends = [
        f"{text} ends {format_difference(found)} fp32"
        for precision, text in list(PRECISIONS.items())[1:]
        if (found := loss_differences(record, precision))
    ]
    return (
        draw,
        f"{'; '.join(ends) or 'Not all precisions were measured'}.",
        "First panel: the fp32 loss and the language's entropy. Second panel: loss "
        f"minus fp32's with the same seed, a mean of {LAST} steps. Lines: means over "
        "seeds; bands: ranges.",
    )


def facts(record: Record | None) -> dict[str, str]:
    found = runs(record).where(precision="fp32")
    autocast, pure = (loss_differences(record, p) for p in ("bf16", "bf16_pure"))
    return {
        "floor": fmt(found.one()["floor"], "{:.3f}"),
        "bf16_against_fp32": format_difference(autocast),
        "bf16_verdict": compare_spread(autocast, dropna(found.column("final"))),
        "bf16_pure_against_fp32": format_difference(pure),
    }
