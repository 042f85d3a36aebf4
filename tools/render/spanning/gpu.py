"""Draw CPU and GPU timelines of the three bottlenecks, for docs/gpu.md."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render import plots
from tools.render.frame import Line
from tools.render.load import Found, primary_record
from tools.render.markdown import NOTHING_YET, format_significant, percent
from tools.render.plots import ACCENT, DARK, FAINT, GREY, GROUND
from tools.render.rows import dropna
from tools.render.spanning.envelope import bottleneck_examples

KEY = (
    "Above, the CPU launches; below, the GPU runs the kernels. Printed times are "
    "measured averages of one kernel and of one launch (the first panel's); each panel "
    "has its own scale. The other bars show shares of the data sheet's rates; the "
    "longer one is the bottleneck. First panel: context 128, bf16; others: 512, fp32."
)
# For each panel: title, and number of kernels to draw.
PANELS = (
    ("Launch-bound: {:.0f} kernels of small", 5),
    ("Memory-bound: softmax of small", 5),
    ("Compute-bound: matmuls of 2.7B", 3),
)


def fragments(found: Found) -> dict[str, str]:
    return {"gpu-timelines.md": draw_timelines(primary_record(found, "kernel_profile"))}


def draw_timelines(record: Record | None) -> str:
    launches, softmax, _ = found = bottleneck_examples(record)
    rates = [x[name] for x in found[1:] for name in ("of_memory", "of_fp32")]
    if record is None or len(dropna([launches["busy"], *rates])) < 5:
        return NOTHING_YET

    def draw(figure: Figure) -> None:
        grid = (6, 1) if plots.is_narrow(figure) else (3, 2)
        widths = (5, 2)[: grid[1]]
        every = iter(figure.subplots(*grid, width_ratios=widths).flat)
        for (title, count), x in zip(PANELS, found, strict=True):
            axes = next(every)
            draw_lanes(axes, x, count, launches["launch_us"])
            axes.set_title(title.format(x["calls"]), weight="bold")
            draw_utilization(next(every), x)

    return plots.plot(
        record,
        "timelines",
        draw,
        f"Launch-bound, a GPU is {percent(1 - launches['busy'])} idle; memory-bound, "
        f"it reaches {percent(softmax['of_fp32'])} of its arithmetic peak; only large "
        "matmuls are compute-bound.",
        KEY,
        height=330,
        narrow=580,
    )


def draw_lanes(axes: Axes, x: Line, count: int, launch_us: float) -> None:
    """Draw `count` CPU launches of `launch_us` each; below, the kernels of row `x`."""
    kernel_us = x["each_us"]
    starts, free = [], 0.0
    for i in range(count):
        starts.append(max((i + 1) * launch_us, free))
        free = starts[-1] + kernel_us
    launches = [(i * launch_us, launch_us) for i in range(count)]
    kernels = [(start, kernel_us) for start in starts]
    for lane, spans, color in ((0, launches, GREY), (1, kernels, ACCENT)):
        look = {"color": color, "edgecolor": GROUND, "linewidth": 0.6}
        axes.broken_barh(spans, (lane - 0.3, 0.6), **look)
    if count * launch_us < 0.6 * free:
        plots.label_bar(axes, "is done, runs ahead", count * launch_us, 0)
    launch, kernel = map(format_significant, (launch_us, kernel_us))
    plots.label_bars(axes, [f"CPU, {launch} µs", f"GPU, {kernel} µs"])
    axes.xaxis.set_visible(False)


def draw_utilization(axes: Axes, x: Line) -> None:
    """Draw shares of peak bandwidth and FLOP/s; if launch-bound, share of busy time."""
    shares = {"memory": x["of_memory"], "arithmetic": x["of_fp32"]}
    if not x["of_memory"]:
        shares = {"GPU busy": x["busy"]}
    plots.label_bars(axes, list(shares))
    for y, share in enumerate(shares.values()):
        axes.barh(y, 1, 0.6, color=FAINT)
        axes.barh(y, share, 0.6, color=DARK)
        plots.label_bar(axes, percent(share), 1, y)
    axes.set_xlim(0, 1.4)
    axes.set_ylim(1.6, -0.6)
    axes.xaxis.set_visible(False)
