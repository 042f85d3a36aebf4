"""Draw the figures of docs/index.md: memory over a step, and its peak by context."""

from matplotlib.figure import Figure

from systems.formulas.memory_costs import Pass, weight_bytes
from systems.formulas.memory_peak import bytes_at_peak
from tools.render import plots
from tools.render.load import Found, primary_record
from tools.render.markdown import gib, missing_notice, typeset
from tools.render.plots import ACCENT
from tools.render.rows import fmt
from tools.render.standalone import standalone_svg
from tools.render.stems.peak_memory.figures import timeline_figure
from tools.render.stems.peak_memory.rows import PLAIN, passes

CONTEXTS = (128, 256, 512, 1024)
OPENS_AT = 512
# Width and height of a bar chart.
SIZE = 340, 170
HOOK = (
    "The allocator rounds the drawn bytes up to {allocated}. "
    '<a href="peak_memory.html">Peak memory</a> explains each part.'
)


def fragments(found: Found) -> dict[str, str]:
    """Return {file: text}: the memory figure (HTML and SVG), and peaks by context."""
    shown = memory_figure(found)
    return {
        "index-hook.md": shown,
        "index-hook.svg": standalone_svg(shown),
        "index-slider.md": slider_figure(),
    }


def memory_figure(found: Found) -> str:
    """Return the memory timeline of a step on the primary GPU, or a notice."""
    record = primary_record(found, "peak_memory")
    steps = passes(record).where(size="2.7B", context=512, mode="step", **PLAIN)
    allocated = steps.one(precision="fp32")["peak"]
    weights = weight_bytes(Pass("2.7B", 512, "step", "fp32"))
    finding = (
        "At its peak in fp32, a training step of the model 2.7B (in fact "
        f"{weights / 4e9:.1f} billion parameters) holds {gib(weights)} GiB of weights "
        "and twice that in optimizer state; the rest is mostly saved activations."
    )
    more = HOOK.format(allocated=typeset(fmt(allocated, lambda v: f"{gib(v)} GiB")))
    drawn = timeline_figure("step", 512, record, finding, more) if record else ""
    return drawn or missing_notice([record] if record else [])


def slider_figure() -> str:
    """Return HTML bar charts of peak memory by context length, with a slider."""
    peaks = {n: bytes_at_peak(Pass("2.7B", n, "step", "fp32")) for n in CONTEXTS}
    longest = max(max(parts.values()) for parts in peaks.values())
    charts = []
    for context, parts in peaks.items():
        # A step in fp32 has no copies of weights.
        copies = parts.pop("weight copies")
        assert copies == 0
        charts.append(peak_chart(context, parts, longest))
    opens = CONTEXTS.index(OPENS_AT)
    lines = [
        '<figure class="hero" markdown="0">',
        '<label>Context length <input type="range" min="0" '
        f'max="{len(CONTEXTS) - 1}" value="{opens}" '
        f'autocomplete="off" aria-valuetext="{OPENS_AT} tokens"></label>',
        *charts,
        "<figcaption>Peak memory of a training step of the model <code>2.7B</code>, in "
        "fp32 at batch 4, by formula.</figcaption>",
        "</figure>",
    ]
    return "\n".join(lines) + "\n"


def peak_chart(context: int, parts: dict[str, int], longest: int) -> str:
    """Return a bar chart of bytes by category (`parts`); `longest` sets the scale."""
    title = f"{context:,} tokens: {gib(sum(parts.values()))} GiB"

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.barh(range(len(parts)), list(parts.values()), 0.6, color=ACCENT)
        plots.label_bars(axes, list(parts))
        for y, size in enumerate(parts.values()):
            plots.label_bar(axes, f"{gib(size)} GiB", size, y)
        axes.set_xlim(0, 1.4 * longest)
        axes.xaxis.set_visible(False)
        axes.set_title(title)

    words = ", ".join(f"{name} {gib(size)} GiB" for name, size in parts.items())
    now = " now" if context == OPENS_AT else ""
    svg = plots.draw_svg(draw, f"peak-{context}", f"{title}: {words}.", "small", *SIZE)
    return f'<div class="frame{now}" data-tokens="{context:,}">{svg}</div>'
