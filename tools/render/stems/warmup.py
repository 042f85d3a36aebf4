"""Table, figure, facts and claim of `warmup`: how slow first steps of a process are."""

from statistics import median

from matplotlib.figure import Figure

from systems.records.record import Record
from systems.records.summary import summarize
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.fragments import Fragments
from tools.render.frame import Frame, frame
from tools.render.plots import ACCENT, GREY
from tools.render.rows import dropna, fmt, span

PASSES = ("forward", "loss", "backward")
MEDIANS = ("first", "second", "settled", "halves")
ORDINALS = {"1st step, ms": "first", "2nd step, ms": "second"}
fragments = Fragments()


def processes(record: Record | None) -> Frame:
    """Return a row per process with wall ms of forward + backward: `first` and `second`
    step, `settled` (median after the first), `halves` (first half's median / second's).
    """
    found = frame(record)
    for x in found:
        times = x.samples(*PASSES)
        x |= dict.fromkeys(MEDIANS, x.missing)
        if times:
            x["first"] = times[0]
        if middle := len(times) // 2:
            x["second"], x["settled"] = times[1], median(times[1:])
            x["halves"] = median(times[:middle]) / median(times[middle:])
    return found


def medians_by_warmup(record: Record | None) -> Frame:
    """Return a row per number of warm-up steps: medians, mean, range over processes."""
    found = processes(record)
    rows = []
    for warmup in found.values("warmup"):
        same = found.where(warmup=warmup)
        line = next((x for x in same if x), same[0])
        line |= dict.fromkeys(("mean", "range", "spread"), line.missing)
        if samples := [time for x in same for time in x.samples(*PASSES)]:
            s = summarize(samples)
            line |= {"mean": s.mean, "std": s.std}
            line["range"] = span(same.column("settled"), "{:.1f}")
            line["spread"] = f"{s.mean:.1f}" + f" ± {s.std:.1f}" * (s.std >= 0)
            columns = {name: dropna(same.column(name)) for name in MEDIANS}
            line |= {name: median(values) for name, values in columns.items() if values}
        rows.append(line)
    return Frame(rows)


@fragments.add(
    "table.md",
    "Steps after warm-up: mean ± standard deviation over the steps of all "
    "processes; other columns are medians over steps, then over processes.",
    reported=True,
)
def steps_table(record: Record) -> str:
    if record.kind == "reported":
        return frame(record).table(
            ("warm-up steps", "warmup"),
            ("mean ± std, ms", lambda x: f"{x['mean_ms']:.2f} ± {x['std_ms']:.2f}"),
            *(
                (head, lambda x, n=n: x.row.metrics["first_ms"][n], "{:.2f}")
                for n, head in enumerate(ORDINALS)
            ),
        )
    shown = medians_by_warmup(record).table(
        ("warm-up steps", "warmup"),
        ("mean ± std, ms", "spread"),
        *((head, name, "{:.1f}") for head, name in ORDINALS.items()),
        ("steps 2 to 10, ms", "settled", "{:.1f}"),
        ("steps 2 to 10, process range, ms", "range"),
        ("steps 1 to 5 / steps 6 to 10", "halves", "{:.2f}"),
    )
    return f"{shown}\n\n{steps_figure(record)}"


def steps_figure(record: Record) -> str:
    found = processes(record)
    cold = medians_by_warmup(record).one(warmup=0)
    if not (growth := cold["first"] / cold["settled"]):
        return ""
    ratio = fmt(growth, "{:.0f}")
    first, count = cold["first"], len(found.where(warmup=0))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for x in reversed(found):
            times, skipped = x.samples(*PASSES), x["warmup"]
            steps = range(skipped + 1, skipped + 1 + len(times))
            plots.curve(axes, steps, times, color=GREY if skipped else ACCENT)
        text = f"{first:,.0f} ms (median of {count}), {ratio} × a later step"
        plots.label_point(axes, text, 1, first, ha="left", va="center", offset=(10, 0))
        plots.set_log_scale(axes.yaxis)
        axes.set(title="forward and backward, ms", xlabel="step of the process")

    return plots.plot(
        record,
        "steps",
        draw,
        f"Without warm-up the first step takes {ratio} times as long as later ones.",
        "Blue: a process without warm-up. Grey: processes whose first steps were "
        "warm-up and were not timed. The vertical axis is logarithmic.",
        height=260,
    )


def facts(record: Record | None) -> dict[str, str]:
    cell = {"size": "small", "context": 128, "batch": 4}
    found = medians_by_warmup(record).where(**cell)
    cold = found.one(warmup=0)
    warm = processes(record).where(lambda x: x["warmup"] > 0, **cell)
    spread = "{0[mean]:.0f} ± {0[std]:.0f} ms"
    return {
        **{
            name: fmt((x := found.one(warmup=steps))["mean"] and x, spread)
            for steps, name in {0: "cold", 1: "one", 2: "two", 5: "warm"}.items()
        },
        "first_step": fmt(cold["first"], "{:.0f} ms"),
        "first_over_settled": fmt(cold["first"] / cold["settled"], "{:.0f}"),
        "mean_over_settled": fmt(cold["mean"] / cold["settled"], "{:.5f}"),
        "range_warm": span(warm.column("settled"), "{:.0f}"),
    }


@claim(
    "benchmarking_script",
    "After one, two or five warm-up steps no slow start remains: the median of the "
    "first half of the steps is at most 5 % above the median of the second half.",
    because="times of the compared sizes and precisions differ by far more than 5 %.",
)
def warm_up_suffices(record: Record) -> Judgement:
    found = medians_by_warmup(record).where(warmup=(1, 2, 5)).column("halves")
    ratios = dropna(found)
    return ratios and (max(ratios) <= 1.05, f"First half over second: {span(found)}.")
