"""Table and figure of `warmup`: the first steps of a process beside the later ones."""

from statistics import median

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import columns, per_device
from tools.render.plots import ACCENT, GREY, line, note, plain_log_scale, plot
from tools.render.rows import Cell, cell, cells, say, span

PASSES = ("forward", "loss", "backward")
ORDINALS = ("1st step, ms", "2nd step, ms", "3rd step, ms")

CAPTIONS = {
    "table.md": "Ten steps after each number of warm-up steps.",
}


def fragments(records: list[Record]) -> dict[str, str]:
    return {"table.md": per_device(records, body)}


def nth(c: Cell, n: int) -> float:
    """The time of one measured step: forward, loss and backward."""
    steps = dict(enumerate(c.samples(*PASSES)))
    return steps.get(n, c.missing)


def body(record: Record) -> str:
    skipped = ("warm-up steps", lambda c: c.config["warmup"])
    if record.kind == "reported":
        return columns(
            cells(record),
            skipped,
            ("mean ± std, ms", lambda c: f"{c['mean_ms']:.2f} ± {c['std_ms']:.2f}"),
            *(
                (head, lambda c, n=n: c["first_ms"][n], "{:.2f}")
                for n, head in enumerate(ORDINALS[:2])
            ),
        )
    shown = columns(
        cells(record),
        skipped,
        ("mean ± std, ms", lambda c: c.mean_std(*PASSES)),
        ("median, ms", lambda c: c.ms(*PASSES), "{:.2f}"),
        *(
            (head, lambda c, n=n: nth(c, n), "{:.2f}")
            for n, head in enumerate(ORDINALS)
        ),
    )
    return f"{shown}\n\n{steps_figure(record)}"


def steps_figure(record: Record) -> str:
    cold = cell(record, warmup=0)
    ratio = nth(cold, 0) / later(cold)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for c in reversed(cells(record)):
            times, skipped = c.samples(*PASSES), c.config["warmup"]
            steps = range(skipped + 1, skipped + 1 + len(times))
            line(axes, steps, times, color=GREY if skipped else ACCENT)
            if times and not skipped:
                times_as_long = say(ratio, "{:.0f}")
                told = f"{times[0]:,.0f} ms, {times_as_long} times a steady-state step"
                note(axes, told, 1, times[0], ha="left", va="center", offset=(10, 0))
        plain_log_scale(axes.yaxis)
        axes.set(title="forward and backward, ms", xlabel="step of the process")

    return plot(
        record,
        "steps",
        draw,
        f"Without warm-up the first step takes {say(ratio, '{:.0f}')} times as long as "
        "a steady-state one.",
        "Blue: a process without warm-up. Grey: processes whose first steps were "
        "warm-up and were not timed. The vertical axis is logarithmic.",
        height=260,
    )


def later(c: Cell) -> float:
    """Return the median of the measured steps after the first of a process."""
    steps = c.samples(*PASSES)[1:]
    return median(steps) if steps else c.missing


def mean_after(record: Record | None, warmup: int) -> float:
    """Mean of the steps measured after so many warm-up steps."""
    return cell(record, warmup=warmup).summary(*PASSES).mean


def halves(record: Record | None, warmup: int) -> float:
    """Return the median of the first half of the steps after so many warm-up steps,
    divided by that of the second half.
    """
    c = cell(record, warmup=warmup)
    times = c.samples(*PASSES)
    middle = len(times) // 2
    return median(times[:middle]) / median(times[middle:]) if middle else c.missing


def facts(record: Record | None) -> dict[str, str]:
    """The first step of a cold process against settled ones."""
    cold = cell(record, warmup=0)
    settled = later(cold)
    passes = cold.samples(*PASSES)
    times = {
        "first_step": nth(cold, 0),
        **{f"mean_after_{n}": mean_after(record, n) for n in (1, 2, 5)},
        "setup": cold.ms("setup"),
    }
    return {name: say(time, "{:.1f} ms") for name, time in times.items()} | {
        "setups": span(
            (c.ms("setup") for c in cells(record) if c.config["warmup"]), "{:.0f}"
        ),
        "first_over_settled": say(nth(cold, 0) / settled, "{:.0f}"),
        "halves_after_2": say(halves(record, 2), "{:.2f}"),
        "steps_2_to_5": span(passes[1:5], "{:.1f}"),
        "steps_6_to_10": span(passes[5:], "{:.1f}"),
        "mean_over_settled": say(cold.summary(*PASSES).mean / settled, "{:.1f}"),
    }


# Claims -------------------------------------------------------------------------------


@claim(
    "benchmarking_script",
    "Two warm-up steps are enough: of the steps after them the first half takes as "
    "long as the second, within a twentieth.",
    because="the sizes and precisions that the script compares differ by far more.",
)
def two_steps_warm_up(record: Record) -> Judgement:
    ratio = halves(record, 2)
    numbers = f"First half over second: {ratio:.2f}."
    return ratio and (abs(ratio - 1) < 0.05, numbers)
