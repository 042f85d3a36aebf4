"""Draw the figures of docs/index.md: memory over a step, and its peak by context."""

from systems.formulas.memory_costs import Pass, weight_bytes
from systems.formulas.memory_peak import bytes_at_peak
from tools.render.drawing import SMALL, Drawing
from tools.render.load import Found, primary_record
from tools.render.markdown import gib, missing_notice, typeset
from tools.render.rows import fmt
from tools.render.standalone import standalone_svg
from tools.render.stems.peak_memory.figures import timeline_figure
from tools.render.stems.peak_memory.rows import PLAIN, passes

CONTEXTS = (128, 256, 512, 1024)
OPENS_AT = 512
WIDTH, ROW = 340, 24
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
        "index-slider.md": slider_figure(),
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


def slider_figure() -> str:
    """Return HTML bar charts of peak memory by context length, with a slider."""
    peaks = {n: bytes_at_peak(Pass("2.7B", n, "step", "fp32")) for n in CONTEXTS}
    longest = max(max(parts.values()) for parts in peaks.values())
    charts = (peak_chart(context, peaks[context], longest) for context in CONTEXTS)
    opens = CONTEXTS.index(OPENS_AT)
    lines = [
        '<figure class="hero" markdown="0">',
        '<label>Context length <input type="range" min="0" '
        f'max="{len(CONTEXTS) - 1}" value="{opens}" '
        f'aria-valuetext="{OPENS_AT} tokens"></label>',
        *charts,
        "<figcaption>Peak memory of one step of <code>2.7B</code>, fp32, batch 4, by "
        "formula.</figcaption>",
        "</figure>",
    ]
    return "\n".join(lines) + "\n"


def peak_chart(context: int, parts: dict[str, int], longest: int) -> str:
    """Return the bar chart of one context length; `longest` sets the scale in bytes."""
    drawing, left, right = Drawing(WIDTH), 118, 62
    total = sum(parts.values())
    drawing.text(0, 15, f"{context:,} tokens: {gib(total)} GiB", SMALL, bold=True)
    shown = {name: size for name, size in parts.items() if size > longest / 1000}
    for i, (name, size) in enumerate(shown.items(), 1):
        y = ROW * i
        length = (WIDTH - left - right) * size / longest
        drawing.text(0, y + 15, name, SMALL)
        drawing.box(left, y + 3, max(length, 1), ROW - 8, "fill-blue")
        drawing.text(left + length + 6, y + 15, f"{gib(size)} GiB", SMALL)
    words = ", ".join(f"{name} {gib(size)} GiB" for name, size in shown.items())
    now = " now" if context == OPENS_AT else ""
    svg = drawing.svg(f"At {context:,} tokens: {words}.", "small")
    return f'<div class="frame{now}" data-tokens="{context:,}">{svg}</div>'
