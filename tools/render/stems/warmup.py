"""Table and figure of `warmup`: the first steps of a process beside the later ones."""

from systems.records.record import Record, Row
from systems.records.summary import summarize
from tools.render.figures import MARKERS, SERIES, canvas, plain_log_scale, svg_pair
from tools.render.markdown import fact, figure, mean_std, per_device, table

PHASES = ("forward_ms", "loss_ms", "backward_ms")


def step_times(row: Row) -> list[float]:
    """Forward, loss and backward of each measured step together, in ms."""
    return [
        sum(phases)
        for phases in zip(*(row.metrics[name] for name in PHASES), strict=True)
    ]


def fragments(records: list[Record]) -> dict[str, str]:
    """`table.md` for all devices, and a figure for each measured one."""
    figures: dict[str, str] = {}
    for record in records:
        if record.kind == "measured":
            figures |= steps_figure(record)
    return {"table.md": per_device(records, body), **figures}


def body(record: Record) -> str:
    if record.kind == "reported":
        rows = [
            [
                str(row.config["warmup"]),
                f"{m['mean_ms']:.2f} ± {m['std_ms']:.2f}",
                *(f"{t:.2f}" for t in m["first_ms"]),
            ]
            for row in record.rows
            for m in (row.metrics,)
        ]
        return table(
            ["warm-up steps", "mean ± std, ms", "1st step, ms", "2nd step, ms"], rows
        )
    rows = []
    for row in record.rows:
        times = step_times(row)
        first = [f"{time:.2f}" for time in times[:3]]
        rows.append(
            [
                str(row.config["warmup"]),
                mean_std(times),
                f"{summarize(times).median:.2f}",
                *first,
            ]
        )
    header = [
        "warm-up steps",
        "mean ± std, ms",
        "median, ms",
        "1st step, ms",
        "2nd step, ms",
        "3rd step, ms",
    ]
    cold, settled = (
        step_times(record.rows[0])[0],
        summarize(step_times(record.rows[-1])).median,
    )
    alt = f"Without warm-up the first step takes {cold / settled:.0f} times as long as a settled one."
    drawn = figure(
        f"warmup-steps-{record.device.slug}",
        alt,
        "Time of each measured step; the vertical axis is logarithmic.",
    )
    return f"{table(header, rows)}\n\n{drawn}"


def steps_figure(record: Record) -> dict[str, str]:
    with canvas() as fig:
        axes = fig.subplots()
        for row, color, marker in zip(record.rows, SERIES, MARKERS, strict=False):
            times, skipped = step_times(row), row.config["warmup"]
            label = f"{skipped} warm-up steps"
            axes.plot(
                range(skipped + 1, skipped + 1 + len(times)),
                times,
                color=color,
                marker=marker,
                label=label,
            )
        plain_log_scale(axes.yaxis)
        axes.set_xlabel("step of the process")
        axes.set_ylabel("forward and backward, ms")
        axes.legend()
        return svg_pair(f"steps-{record.device.slug}", fig)


def mean_after(record: Record | None, warmup: int) -> float | None:
    """Mean of the steps measured after so many warm-up steps."""
    row = record.find(warmup=warmup) if record else None
    return summarize(step_times(row)).mean if row else None


def facts(record: Record | None) -> dict[str, str]:
    """The first step of a cold process against settled ones."""
    cold = record.find(warmup=0) if record else None
    warm = record.find(warmup=5) if record else None
    first, second, *_ = step_times(cold) if cold else (None, None)
    all_cold = summarize(step_times(cold)) if cold else None
    settled = summarize(step_times(warm)) if warm else None
    ms, ratio = "{:.1f} ms".format, "{:.1f}".format
    return {
        "first_step": fact(first, ms),
        "second_step": fact(second, ms),
        "cold_std": fact(all_cold and all_cold.std, ms),
        "settled_median": fact(settled and settled.median, ms),
        "first_over_settled": fact(
            first / settled.median if first and settled else None, "{:.0f}".format
        ),
        "mean_over_settled": fact(
            all_cold.mean / settled.median if all_cold and settled else None, ratio
        ),
        **{f"mean_after_{n}": fact(mean_after(record, n), ms) for n in (1, 2, 5)},
        "setup": fact(cold.metrics["setup_ms"][0] if cold else None, ms),
    }
