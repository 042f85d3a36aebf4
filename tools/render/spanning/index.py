"""Draw the figures of docs/index.md: memory over a step, and its peak by context."""

from matplotlib.figure import Figure

from systems.formulas.memory_costs import Pass, weight_bytes
from systems.formulas.memory_peak import bytes_at_peak
from tools.render import plots
from tools.render.load import Found, primary_record
from tools.render.markdown import gib, missing_notice, typeset
from tools.render.rows import fmt
from tools.render.standalone import standalone_svg
from tools.render.stems.peak_memory.figures import COLORS, timeline_figure
from tools.render.stems.peak_memory.rows import PLAIN, passes

CONTEXTS = (128, 256, 512, 1024)
# Width and height of the bar chart.
SIZE = 340, 230
HOOK = (
    "The allocator rounds the drawn bytes up to {allocated}. "
    '<a href="peak_memory.html">Peak memory</a> explains each part.'
)


def fragments(found: Found) -> dict[str, str]:
    """Return the memory figure (for the page, and as SVG), and the peaks by context."""
    shown = memory_figure(found)
    return {
        "index-hook.md": shown,
        "index-hook.svg": standalone_svg(shown),
        "index-contexts.md": contexts_figure(),
    }


def memory_figure(found: Found) -> str:
    """Return the memory timeline of a step on the primary GPU, or a notice."""
    record = primary_record(found, "peak_memory")
    steps = passes(record).where(size="2.7B", context=512, mode="step", **PLAIN)
    allocated = steps.one(precision="fp32")["peak"]
    weights = weight_bytes(Pass("2.7B", 512, "step", "fp32"))
    finding = (
        f"At its peak in fp32, a training step of 2.7B (in fact {weights / 4e9:.1f} "
        f"billion parameters) holds {gib(weights)} GiB of weights and twice that in "
        "optimizer state; the rest is mostly saved activations."
    )
    rounded = typeset(fmt(allocated, lambda v: f"{gib(v)} GiB"))
    more = HOOK.format(allocated=rounded)
    drawn = timeline_figure(record, "step", finding, more) if record else ""
    return drawn or missing_notice([record] if record else [])


def contexts_figure() -> str:
    """Return a bar chart of predicted peak memory by context length and category."""
    peaks = [bytes_at_peak(Pass("2.7B", n, "step", "fp32")) for n in CONTEXTS]
    colors = {name: c for name, c in COLORS.items() if any(x[name] for x in peaks)}
    totals = [sum(parts.values()) / 2**30 for parts in peaks]

    def draw(figure: Figure) -> None:
        axes, left = figure.subplots(), [0.0] * len(peaks)
        for name, color in colors.items():
            sizes = [parts[name] / 2**30 for parts in peaks]
            axes.barh(range(len(peaks)), sizes, 0.7, left=left, color=color)
            left = [a + b for a, b in zip(left, sizes, strict=True)]
        plots.label_bars(axes, [f"{n:,}" for n in CONTEXTS])
        for y, total in enumerate(totals):
            plots.label_bar(axes, f"{total:.0f}", total, y)
        axes.set_xlim(0, 1.15 * max(totals))
        axes.set(ylabel="context, tokens", xlabel="GiB")
        plots.draw_legend(figure, colors)

    texts = (f"{gib:.0f} GiB at {n}" for gib, n in zip(totals, CONTEXTS, strict=True))
    svg = plots.draw_svg(draw, "index-contexts", f"{', '.join(texts)}.", "small", *SIZE)
    caption = (
        "<strong>At long contexts, saved activations take most memory.</strong> Peak "
        "of one step of <code>2.7B</code>, fp32, batch 4, by formula."
    )
    return f"<figure>\n{svg}\n<figcaption>{caption}</figcaption>\n</figure>\n"
