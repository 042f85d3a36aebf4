"""Figures of `end_to_end`: forward times, shares of the peak, speedup by bf16."""

from matplotlib.figure import Figure

from systems.formulas.costs import find_peak
from systems.model.sizes import TABLE_1
from systems.records.record import Record
from tools.render.frame import Frame
from tools.render.markdown import percent
from tools.render.plots import (
    DARK,
    family,
    note,
    panels,
    plain_log_scale,
    plot,
    power_of_two_axis,
)
from tools.render.stems.end_to_end.rows import BATCH, passes, steps


def figures(record: Record) -> str:
    """Without a data sheet there is no share of its peak."""
    drawn = [times_figure(record)]
    if find_peak(record.device.slug):
        drawn.append(shares_figure(record))
    return "\n".join(drawn)


def forward_passes(record: Record) -> Frame:
    return passes(record).where(mode="forward", batch=BATCH, size=TABLE_1)


def times_figure(record: Record) -> str:
    found = forward_passes(record)
    contexts = list(dict.fromkeys(found.column("context")))

    def draw(figure: Figure) -> None:
        both = panels(figure, 2, sharey=True)
        for axes, precision in zip(both, ("fp32", "bf16"), strict=True):
            curves = found.where(precision=precision).curves(
                "size", "context", "step_ms"
            )
            family(axes, curves, "2.7B")
            plain_log_scale(axes.yaxis)
            power_of_two_axis(axes.xaxis, contexts, "context, tokens")
            axes.set_title(f"{precision}, ms")

    grown = [
        f"by {factor:.2f} for {size} in {precision}"
        for size, precision in (("small", "bf16"), ("2.7B", "fp32"))
        if (factor := found.one(size=size, precision=precision, context=512)["growth"])
    ]
    return plot(
        record,
        "times",
        draw,
        "From context 128 to 512 the time of a forward pass is multiplied "
        f"{' and '.join(grown) or 'by a factor not measured'}.",
        "Median time without gradients, for each model size. Both axes are "
        "logarithmic.",
        narrow=520,
    )


def shares_figure(record: Record) -> str:
    found = forward_passes(record).where(bool)
    found.derive(percent=lambda x: 100 * x["share"])

    def draw(figure: Figure) -> None:
        for axes, precision in zip(panels(figure, 2), ("fp32", "bf16"), strict=True):
            curves = found.where(precision=precision).curves("size", "tflop", "percent")
            family(axes, curves, "2.7B")
            plain_log_scale(axes.xaxis, subs=(1,))
            axes.set_ylim(bottom=0)
            axes.set(xlabel="TFLOP of the pass", title=f"{precision}, % of its peak")

    bf16 = sorted(found.where(precision="bf16"), key=lambda x: x["share"])
    ends = [f"{percent(x['share'])} ({x['size']}, {x['context']})" for x in bf16]
    risen = f" from {ends[0]} to {ends[-1]}" if ends else " with the FLOPs of a pass"
    return plot(
        record,
        "shares",
        draw,
        f"In bf16 the share of the peak rises{risen}.",
        "Share of the data sheet's peak that a forward pass reaches, for each model "
        "size; the points of a line are its contexts. Where it falls at the longest "
        "context, mask and softmax take over: their time grows with the square of the "
        "context, and they do hardly any FLOPs.",
        narrow=520,
    )


def speedup_figure(record: Record) -> str:
    """Nothing where no cell was measured in both precisions."""
    found = steps(record).where(lambda x: x["pass_gain"], precision="bf16")
    if not found:
        return ""
    least, most = (pick(found, key=lambda x: x["pass_gain"]) for pick in (min, max))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        family(axes, found.curves("size", "tflop", "pass_gain"), "2.7B")
        note(axes, f"{most['pass_gain']:.1f} ×", most["tflop"], most["pass_gain"])
        axes.axhline(1, color=DARK, linewidth=1)
        axes.set_ylim(bottom=0)
        plain_log_scale(axes.xaxis, subs=(1,))
        axes.set(xlabel="TFLOP of both passes", title="fp32 time / bf16 time")

    return plot(
        record,
        "speedup",
        draw,
        f"In bf16 a pass is {least['pass_gain']:.2f} ({least['size']} at context "
        f"{least['context']}) to {most['pass_gain']:.2f} times ({most['size']} at "
        f"context {most['context']}) as fast.",
        "Time in fp32 divided by time in bf16, forward and backward together. Each "
        "line is a model size, its points are the contexts. Below 1, bf16 is slower.",
    )
