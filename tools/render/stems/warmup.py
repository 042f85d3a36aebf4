"""Table, figure, facts and claim of `warmup`: how slow a process's first steps are."""

from statistics import median

from matplotlib.figure import Figure

from systems.records.record import Record
from systems.records.summary import summarize
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.fragments import Fragments
from tools.render.frame import Frame, Line, frame
from tools.render.plots import ACCENT, GREY
from tools.render.rows import dropna, fmt, most, span

PASSES = ("forward", "loss", "backward")
MEDIANS = ("first", "second", "third", "median", "settled", "halves", "mean")
ORDINALS = {"1st step, ms": "first", "2nd step, ms": "second", "3rd step, ms": "third"}
fragments = Fragments()


def processes(record: Record | None) -> Frame:
    """Return a row for each process with the times of its steps."""
    return frame(record).derive(
        first=lambda x: step_ms(x, 0),
        second=lambda x: step_ms(x, 1),
        third=lambda x: step_ms(x, 2),
        median=lambda x: x.ms(*PASSES),
        settled=settled_ms,
        halves=first_over_second_half,
        mean=lambda x: x.summary(*PASSES).mean,
        spread=lambda x: x.missing,
    )


def medians_by_warmup(record: Record | None) -> Frame:
    """Return a row with medians over processes for each number of warm-up steps."""
    found = processes(record)
    rows = []
    for warmup in found.values("warmup"):
        same = found.where(warmup=warmup)
        line = next((x for x in same if x), same[0])
        samples = [time for x in same for time in x.samples(*PASSES)]
        if samples:
            of_all = summarize(samples)
            line["spread"] = f"{of_all.mean:.1f} ± {of_all.std:.1f}"
            columns = {name: dropna(same.column(name)) for name in MEDIANS}
            line |= {name: median(values) for name, values in columns.items() if values}
        rows.append(line)
    return Frame(rows)


def step_ms(x: Line, n: int) -> float:
    """Return the time of the n-th measured step, counted from 0."""
    return dict(enumerate(x.samples(*PASSES))).get(n, x.missing)


def settled_ms(x: Line) -> float:
    """Return the median time of the measured steps after the first."""
    steps = x.samples(*PASSES)[1:]
    return median(steps) if steps else x.missing


def first_over_second_half(x: Line) -> float:
    """Return the median time of the first half of the steps over that of the second."""
    times = x.samples(*PASSES)
    middle = len(times) // 2
    return median(times[:middle]) / median(times[middle:]) if middle else x.missing


@fragments.add(
    "table.md",
    "Ten steps after each number of warm-up steps: mean ± standard deviation over all "
    "processes; the other columns are medians over processes.",
    reported=True,
)
def steps_table(record: Record) -> str:
    if record.kind == "reported":
        return frame(record).table(
            ("warm-up steps", "warmup"),
            ("mean ± std, ms", lambda x: f"{x['mean_ms']:.2f} ± {x['std_ms']:.2f}"),
            *(
                (head, lambda x, n=n: x.row.metrics["first_ms"][n], "{:.2f}")
                for n, head in enumerate([*ORDINALS][:2])
            ),
        )
    shown = medians_by_warmup(record).table(
        ("warm-up steps", "warmup"),
        ("mean ± std, ms", "spread"),
        ("median, ms", "median", "{:.1f}"),
        *((head, name, "{:.1f}") for head, name in ORDINALS.items()),
        ("steps 1 to 5 over 6 to 10", "halves", "{:.2f}"),
    )
    return f"{shown}\n\n{steps_figure(record)}"


def steps_figure(record: Record) -> str:
    found = processes(record)
    cold = medians_by_warmup(record).one(warmup=0)
    ratio = fmt(cold["first"] / cold["settled"], "{:.0f}")
    slowest = most(found.where(warmup=0).column("first"))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for x in reversed(found):
            times, skipped = x.samples(*PASSES), x["warmup"]
            steps = range(skipped + 1, skipped + 1 + len(times))
            plots.curve(axes, steps, times, color=GREY if skipped else ACCENT)
        text = f"{slowest:,.0f} ms; median: {ratio} times a later step"
        if slowest:
            plots.label(axes, text, 1, slowest, ha="left", va="center", offset=(10, 0))
        plots.set_log_scale(axes.yaxis)
        axes.set(title="forward and backward, ms", xlabel="step of the process")

    return plots.plot(
        record,
        "steps",
        draw,
        f"Without warm-up the first step takes {ratio} times as long as "
        "a steady-state one.",
        "Blue: a process without warm-up. Grey: processes whose first steps were "
        "warm-up and were not timed. The vertical axis is logarithmic.",
        height=260,
    )


def facts(record: Record | None) -> dict[str, str]:
    found = medians_by_warmup(record)
    cold = found.one(warmup=0)
    return {
        "first_step": fmt(cold["first"], "{:.0f} ms"),
        "first_over_settled": fmt(cold["first"] / cold["settled"], "{:.0f}"),
        "mean_over_settled": fmt(cold["mean"] / cold["settled"], "{:.5f}"),
        "halves": span(found.column("halves")[1:], "{:.2f}"),
    }


@claim(
    "benchmarking_script",
    "After two warm-up steps there is no trend: the first half of the steps takes as "
    "long as the second, within a twentieth.",
    because="the sizes and precisions that the script compares differ by far more.",
)
def two_steps_warm_up(record: Record) -> Judgement:
    ratio = medians_by_warmup(record).one(warmup=2)["halves"]
    return ratio and (abs(ratio - 1) < 0.05, f"First half over second: {ratio:.2f}.")
