"""Figure of `peak_memory`: memory over a pass, stacked by category."""

from bisect import bisect

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from systems.profiling.memory.snapshot import CATEGORIES
from systems.records.record import Record
from tools.render import plots
from tools.render.frame import Line
from tools.render.markdown import gib
from tools.render.plots import ACCENT, DARK, GREY, INK, MUTED, PALE, TINT
from tools.render.stems.peak_memory.rows import (
    PLAIN,
    PRECISIONS,
    SIZE,
    passes,
    used_categories,
)

# The colours let saved activations stand out, because they grow with the context.
COLORS: dict[str, str] = dict(
    zip(CATEGORIES, (DARK, PALE, TINT, GREY, ACCENT, INK), strict=True)
)
PHASE_LABELS = {"second_forward": "forward", "loss": "", "optimizer": "AdamW"}
TITLES = {
    "forward": "a forward pass without a graph",
    "step": "a full training step with AdamW",
}
FORWARD = (
    "In fp32 memory returns to the weights' size after each block; under autocast it "
    "climbs from block to block, as copies of the weights add up."
)


def timeline_figure(
    mode: str, context: int, record: Record, finding: str = "", more: str = ""
) -> str:
    """Return the HTML of a pass's memory timeline, or "" if it was not measured.
    `finding` and `more`, if given, are its caption.
    """
    tried = passes(record).where(size=SIZE, context=context, mode=mode, **PLAIN)
    timed = tried.where(lambda x: x.metrics.get("timeline"))
    found = timed.arrange(precision=PRECISIONS)
    if not found:
        return ""
    if mode == "forward" and len(found) == len(PRECISIONS):
        finding = finding or FORWARD
    sizes = [f"{gib(x['requested'])} GiB in {x['precision']}" for x in found]
    places = [x["place"] for x in found]
    peaks = f"Memory peaks {places[0]}: {', '.join(sizes)}."
    if len({*places}) > 1:
        peaks = f"Memory peaks: {'; '.join(map('{} {}'.format, sizes, places))}."
    rounded = " and ".join(f"{gib(x['peak'])} GiB" for x in found)
    text = (
        f"Memory over {TITLES[mode]}: {SIZE}, context {context}, batch 4. The "
        f"allocator rounds the peaks up to {rounded}. The horizontal axis counts "
        "allocations and frees."
    )
    if any(len(x["phases"]) > 1 for x in found):
        text += " Vertical lines mark where a phase begins."

    def draw(figure: Figure) -> None:
        height = 1.2 * max(x["requested"] / 2**30 for x in found)
        shown = plots.panels(figure, len(found), sharey=True)
        for axes, x in zip(shown, found, strict=True):
            draw_timeline(axes, x, height)
        legend = {name: COLORS[name] for name in used_categories(found)}
        plots.draw_legend(figure, legend)

    return plots.plot(
        record,
        f"{mode}-{context}-timeline",
        draw,
        finding or peaks,
        more or text,
        height=290,
        narrow=260 * len(found),
    )


def draw_timeline(axes: Axes, x: Line, height: float) -> None:
    timeline: dict[str, list[int]] = x.metrics["timeline"]
    events = timeline["event"]
    used = used_categories([x])
    sizes = [[n / 2**30 for n in timeline[name]] for name in used]
    axes.stackplot(events, *sizes, colors=[COLORS[n] for n in used], linewidth=0)
    top = [sum(at) for at in zip(*sizes, strict=True)]
    peak = max(range(len(top)), key=top.__getitem__)
    # Write beside the peak, because a line between phases may be at the peak.
    side = "right" if events[peak] > 0.6 * events[-1] else "left"
    look = {"offset": (-4 if side == "right" else 4, 3), "ha": side}
    plots.label_point(axes, f"{top[peak]:.1f} GiB", events[peak], top[peak], **look)
    for phase in x["phases"]:
        begin = phase["first_event"]
        first = min(bisect(events, begin), len(events) - 1)
        # Draw the line where a phase begins, above the stacked memory.
        ends = [begin] * 2, [top[first], height]
        axes.plot(*ends, color=MUTED, linewidth=0.8, label="_")
        name = PHASE_LABELS.get(str(phase["phase"]), str(phase["phase"]))
        middle = (begin + phase["last_event"]) / 2
        above = {"xycoords": ("data", "axes fraction"), "va": "bottom", "ha": "center"}
        axes.annotate(name, (middle, 1), color=MUTED, **above)
    axes.set_xlim(events[0], events[-1])
    axes.set_ylim(0, height)
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    axes.set_title(f"{x['precision']}, GiB", pad=20)
    axes.set_xlabel("allocations and frees, in order")
