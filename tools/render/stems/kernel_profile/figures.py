"""Figures of `kernel_profile`: time by kernel category, and attention on a roofline."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from systems.formulas.costs import PEAKS, Peak
from systems.records.record import Record
from tools.render import plots
from tools.render.fragments import Drawn
from tools.render.frame import Frame
from tools.render.markdown import percent
from tools.render.plots import ACCENT, DARK, PALE, TINT
from tools.render.rows import fmt, nanmax
from tools.render.stems.kernel_profile import rows

NAMES = {
    "idle": "idle",
    "matmuls": "matmuls",
    "copies": "copies and casts",
    "rest": "element-wise and reductions",
}
COLORS = {"idle": PALE, "matmuls": DARK, "copies": ACCENT, "rest": TINT}
PANELS = [(size, p) for size in ("small", "2.7B") for p in ("fp32", "bf16")]


def category_figure(record: Record) -> str:
    """Draw forward + backward wall time split by cause, per size and precision."""
    found = rows.steps(record).where(lambda x: x["idle"])
    parts = [found.where(size=size, precision=precision) for size, precision in PANELS]
    if not all(parts):
        return ""
    small, fp32, bf16 = parts[1][0], parts[2][-1], parts[3][-1]

    def draw(figure: Figure) -> None:
        shown = plots.panels(figure, len(parts), sharey=True)
        for axes, part in zip(shown, parts, strict=True):
            draw_bars(axes, part)
        legend = {NAMES[cause]: color for cause, color in COLORS.items()}
        plots.draw_legend(figure, legend)

    idle = percent(small["idle"] / small["wall_ms"])
    matmuls = (percent(x["matmuls"] / x["wall_ms"]) for x in (fp32, bf16))
    shown = plots.plot(
        record,
        "causes",
        draw,
        f"In bf16 at context {small['context']} `small` leaves the GPU idle for "
        f"{idle} of the time. At {plots.format_number(bf16['context'])}, matmuls take "
        f"{' and '.join(matmuls)} of `2.7B`'s time in fp32 and bf16.",
        "Bars split forward + backward by cause. Above each: its wall-clock time in "
        "ms, uncertain where the GPU idles; below: context.",
        height=290,
        narrow=860,
    )
    return rows.add_timing_link(record, shown)


def draw_bars(axes: Axes, found: Frame) -> None:
    for place, x in enumerate(found):
        bottom = 0.0
        for cause, color in COLORS.items():
            # Idle time is negative if kernels, timed in another run, exceed wall time.
            height = max(0.0, 100 * x[cause] / x["wall_ms"])
            axes.bar(place, height, 0.9, bottom, color=color)
            bottom += height
        ms = x["wall_ms"]
        text = f"{ms:.0f}" if ms < 999.5 else f"{ms / 1e3:.1f} s"
        axes.text(place, 101, text, ha="center", va="bottom")
    contexts = [plots.format_number(x["context"]) for x in found]
    axes.set_xticks(range(len(found)), contexts)
    axes.set_title(f"{found[0]['size']}, {found[0]['precision']}: %")
    axes.set_ylim(0, 112)
    axes.set_yticks(range(0, 101, 25))


POINTS = {
    "attention scores": PALE,
    "attention mask": TINT,
    rows.SOFTMAX_PART: ACCENT,
    "attention output": DARK,
}


def roofline_figure(record: Record) -> Drawn:
    peak = PEAKS.get(record.device.slug)
    found = rows.attention_parts(record).derive(
        intensity=lambda x: x["flops"] / x["moved"], tflops=lambda x: x["rate"] / 1e12
    )
    if peak is None or not found:
        return None
    softmax = found.where(part=rows.SOFTMAX_PART)
    reached = fmt(nanmax(softmax.column("of_bandwidth")), percent)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        draw_roofs(axes, peak, found.column("intensity"))
        parts = {
            name: color for name, color in POINTS.items() if found.where(part=name)
        }
        for name, color in parts.items():
            part = found.where(part=name)
            ends = part.column("intensity"), part.column("tflops")
            axes.plot(*ends, "o", color=color, markeredgewidth=0)
        short = {n.removeprefix("attention "): color for n, color in parts.items()}
        plots.draw_legend(figure, short)

    return (
        draw,
        f"Softmax reaches at most {reached} of the data sheet's bandwidth; the matmuls "
        "do more FLOPs per byte.",
        "Each point is a part of attention in an fp32 forward pass. Lines show what "
        "the data sheet allows. FLOPs per byte count all bytes that the operations "
        "must move; the cache may save some.",
    )


def draw_roofs(axes: Axes, peak: Peak, intensities: list[float]) -> None:
    """Draw the roofline: the bandwidth limit up to the ridge, then the peak rate."""
    ridge = peak.fp32 / peak.bandwidth
    left, right = 0.6 * min(intensities), 3 * max(ridge, *intensities)
    ends = [left, ridge, right]
    roof = [min(peak.fp32, x * peak.bandwidth) / 1e12 for x in ends]
    axes.plot(ends, roof, color=DARK, linewidth=1.5)
    plots.set_log_scale(axes.xaxis, subs=(1,))
    plots.set_log_scale(axes.yaxis, subs=(1,))
    axes.set_xlim(left, right)
    axes.set(xlabel="FLOP per byte moved", title="TFLOP/s")
    middle = (left * ridge) ** 0.5
    text = f"memory: {peak.bandwidth / 1e12:.1f} TB/s "
    look = {"ha": "right", "color": DARK, "offset": (0, 5)}
    plots.label_point(axes, text, middle, middle * peak.bandwidth / 1e12, **look)
    text = f"fp32: {peak.fp32 / 1e12:.0f} TFLOP/s"
    plots.label_point(axes, text, right, roof[-1], **look)
