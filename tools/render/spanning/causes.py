"""Where forward and backward go, by cause: products, copies and casts, everything
element-wise, and what no kernel fills.

Kernel times are those of `kernel_profile`. The wall time is that of the step in
`end_to_end`, because a profiler slows launches and makes no kernel longer: what it adds
must not count as idle GPU. Times in ms.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from systems.profiling.kernel_names import (
    ATTENTION,
    COPY,
    ELEMENTWISE,
    MATMUL,
    OTHER,
    REDUCTION,
    SOFTMAX,
    short_name,
)
from systems.records.record import Record
from tools.render.load import Found, of_gpu, ours
from tools.render.markdown import columns, per_device, percent, provenance
from tools.render.plots import (
    ACCENT,
    DARK,
    GROUND,
    INK,
    PALE,
    TINT,
    is_narrow,
    number,
    panels,
    plot,
    spread,
)
from tools.render.rows import (
    Cell,
    axis,
    cell,
    cells,
    data_sheet,
    least,
    measured,
    most,
    say,
)
from tools.render.stems.end_to_end.rows import BATCH, PASSES
from tools.render.stems.end_to_end.rows import at as timed
from tools.render.stems.kernel_profile.rows import at as profiled
from tools.render.stems.kernel_profile.rows import kernels, total_ms

PRECISIONS = ("fp32", "bf16")
# What the GPU did, by category of kernel. Softmax and the loss are element-wise kernels
# and reductions too.
IDLE, PRODUCTS, COPIES, REST = (
    "idle",
    "products",
    "copies and casts",
    "element-wise and reductions",
)
CATEGORIES = {
    PRODUCTS: (MATMUL,),
    COPIES: (COPY,),
    REST: (ELEMENTWISE, SOFTMAX, REDUCTION, ATTENTION, OTHER),
}
CAUSES = (IDLE, *CATEGORIES)
LOOKS = {IDLE: PALE, PRODUCTS: DARK, COPIES: ACCENT, REST: TINT}
# The passes that a reader sees first: what changes when the context grows, and when the
# precision does.
TOLD = [
    *[("small", context, "bf16") for context in (128, 1024)],
    *[("2.7B", context, "bf16") for context in (128, 512, 1024)],
    *[("2.7B", context, "fp32") for context in (128, 512)],
]
DRAWN = ("small", "2.7B")
# A cast of fp32 numbers, which only autocast makes.
CAST = "elementwise copy to bf16"


class Pass(NamedTuple):
    """Forward and backward of one configuration."""

    size: str
    context: int
    precision: str
    wall_ms: float
    # By cause; those of kernels, and what is left of the wall time.
    ms: Mapping[str, float]

    def share(self, cause: str) -> float:
        return self.ms[cause] / self.wall_ms

    def of_kernels(self, cause: str) -> float:
        """The share of kernel time, which is the same on every host."""
        return self.ms[cause] / sum(self.ms[name] for name in CATEGORIES)


# --8<-- [start:split]
def split(
    profile: Record | None,
    clock: Record | None,
    size: str,
    context: int,
    precision: str,
) -> Pass:
    """One pass by cause. What was not measured is Missing."""
    at = {"size": size, "context": context, "precision": precision, "mode": "step"}
    step = cell(profile, **at)
    batch = step.config.get("batch", BATCH)
    wall = timed(clock, size, context, "step", precision, batch).ms(*PASSES)
    busy = {
        cause: sum(total_ms(step, PASSES, name) for name in names)
        for cause, names in CATEGORIES.items()
    }
    idle = wall - sum(busy.values())
    return Pass(size, context, precision, wall, {IDLE: idle, **busy})


# --8<-- [end:split]


def passes(profile: Record, clock: Record | None) -> list[Pass]:
    """Every pass that both records have."""
    found = [
        split(
            profile, clock, *(c.config[key] for key in ("size", "context", "precision"))
        )
        for c in cells(profile, mode="step")
    ]
    return [p for p in found if p.ms[IDLE]]


# What only the products' gain would give ----------------------------------------------


class Gain(NamedTuple):
    """A pass in fp32 and in bf16, and what bf16 would take if products alone got
    faster, by the ratio of the data sheet's rates.
    """

    fp32: Pass
    bf16: Pass
    rates: float

    @property
    def expected_ms(self) -> float:
        return self.fp32.wall_ms - self.fp32.ms[PRODUCTS] * (1 - 1 / self.rates)

    @property
    def expected(self) -> float:
        return self.fp32.wall_ms / self.expected_ms

    @property
    def measured(self) -> float:
        return self.fp32.wall_ms / self.bf16.wall_ms

    def more(self, cause: str) -> float:
        """How much longer this cause took than expected, in ms. They add up to the
        difference of the two times.
        """
        share = 1 / self.rates if cause == PRODUCTS else 1.0
        return self.bf16.ms[cause] - share * self.fp32.ms[cause]


def gain(profile: Record | None, clock: Record | None, size: str, context: int) -> Gain:
    fp32, bf16 = (split(profile, clock, size, context, p) for p in PRECISIONS)
    peak = data_sheet(profile.device.slug if profile else "")
    return Gain(fp32, bf16, peak.bf16 / peak.fp32)


def gains(profile: Record, clock: Record | None) -> list[Gain]:
    """Every size and context that both records have in both precisions."""
    found = [
        gain(profile, clock, size, context)
        for size in axis(profile, "size", precision="bf16")
        for context in axis(profile, "context", size=size, precision="bf16")
    ]
    return [g for g in found if g.measured and g.fp32.ms[IDLE] and g.bf16.ms[IDLE]]


# Fragments ----------------------------------------------------------------------------


def fragments(found: Found) -> dict[str, str]:
    """The figure, and a table for each question, by GPU."""
    profiles = measured(found.get("kernel_profile", []))
    bodies: dict[str, Callable[[Record, Record | None], str]] = {
        "causes-shares.md": shares_body,
        "causes-told.md": told_table,
        "causes-all.md": all_table,
        "causes-gain.md": gain_table,
    }

    def of_both(profile: Record, body: Callable[[Record, Record | None], str]) -> str:
        clock = of_gpu(found, "end_to_end", profile.device.slug)
        text = body(profile, clock)
        return f"{text}\n\nWall time: {provenance(clock)}" if text and clock else text

    return {
        **{
            name: per_device(profiles, lambda r, body=body: of_both(r, body))
            for name, body in bodies.items()
        },
        "causes-copies.md": per_device(profiles, copies_table),
    }


NAME = (
    ("size", lambda p: p.size),
    ("context", lambda p: p.context),
    ("precision", lambda p: p.precision),
)


def causes_table(found: list[Pass]) -> str:
    def both(p: Pass, cause: str) -> Any:
        ms = p.ms[cause]
        return f"{ms:.1f} ({percent(p.share(cause))})" if ms else ms

    each = [(f"{name}, ms", lambda p, name=name: both(p, name)) for name in CAUSES]
    return columns(
        found, *NAME, ("wall, ms", lambda p: p.wall_ms, "{:.1f}"), *each, left=3
    )


def told_table(profile: Record, clock: Record | None) -> str:
    found = (split(profile, clock, *place) for place in TOLD)
    return causes_table([p for p in found if p.ms[IDLE]])


def all_table(profile: Record, clock: Record | None) -> str:
    return causes_table(passes(profile, clock))


def gain_table(profile: Record, clock: Record | None) -> str:
    more = [
        (f"{name}, ms", lambda g, name=name: g.more(name), "{:+.1f}") for name in CAUSES
    ]
    return columns(
        gains(profile, clock),
        ("size", lambda g: g.fp32.size),
        ("context", lambda g: g.fp32.context),
        ("expected gain", lambda g: g.expected, "{:.1f}"),
        ("measured gain", lambda g: g.measured, "{:.1f}"),
        *more,
        telling=lambda g: g.fp32.size in DRAWN,
    )


def copies_ms(c: Cell, phase: str, name: str = "") -> float:
    """Copies and casts of one phase; with a name, those of that kernel."""
    if not c:
        return c.missing
    return sum(
        k["total_ms"]
        for k in kernels(c, (phase,))
        if k["category"] == COPY and (not name or short_name(k["name"]) == name)
    )


def copies_table(profile: Record) -> str:
    """Copies of a forward and of a backward pass in both precisions."""

    def copied(precision: str, phase: str, name: str = ""):
        return lambda place: copies_ms(
            profiled(profile, place[0], place[1], "step", precision), phase, name
        )

    places = [
        (c.config["size"], c.config["context"])
        for c in cells(profile, mode="step", precision="bf16")
        if c
    ]
    return columns(
        places,
        ("size", lambda place: place[0]),
        ("context", lambda place: place[1]),
        ("forward in fp32, ms", copied("fp32", "forward"), "{:.1f}"),
        ("forward in bf16, ms", copied("bf16", "forward"), "{:.1f}"),
        ("casts to bf16 in it, ms", copied("bf16", "forward", CAST), "{:.1f}"),
        ("backward in fp32, ms", copied("fp32", "backward"), "{:.1f}"),
        ("backward in bf16, ms", copied("bf16", "backward"), "{:.1f}"),
    )


# The figure ---------------------------------------------------------------------------


def drawn(profile: Record, clock: Record | None) -> list[list[Pass]]:
    """The panels: passes by context, of a size and a precision each."""
    found = passes(profile, clock)
    panels = [
        [p for p in found if (p.size, p.precision) == (size, precision)]
        for size in DRAWN
        for precision in PRECISIONS
    ]
    return panels if all(panels) else []


def shares_body(profile: Record, clock: Record | None) -> str:
    """The figure: a panel for each size and precision, a bar for each context."""
    found = drawn(profile, clock)
    if not found:
        return ""
    small, large, last = found[1][0], found[3][0], found[3][-1]

    def draw(fig: Figure) -> None:
        shown = panels(fig, len(found), sharey=True)
        for axes, panel in zip(shown, found, strict=True):
            stack(axes, panel)
        for axes, p, cause in ((shown[1], small, IDLE), (shown[3], large, COPIES)):
            middle = 100 * (before(p, cause) + p.share(cause) / 2)
            look: dict[str, Any] = {"ha": "center", "va": "center", "weight": "bold"}
            look["color"] = GROUND if cause == COPIES else INK
            axes.text(0, middle, percent(p.share(cause)), **look)
        # Names are read where a reader begins, or where there is room for them.
        at = 0 if is_narrow(fig) else -1
        name_causes(shown[at], found[at][-1], len(found[at]) - 0.5)

    return plot(
        profile,
        "causes",
        draw,
        f"In bf16 at context {small.context} `small` leaves the GPU idle for "
        f"{percent(small.share(IDLE))} of the time, and `2.7B` spends "
        f"{percent(large.share(COPIES))} on copies and casts, "
        f"{percent(last.share(COPIES))} at context {number(last.context)}.",
        "Forward and backward by cause, as shares of the wall time. Below each bar the "
        "context, above it the time, in ms unless it names another unit.",
        height=270,
        narrow=860,
    )


def before(p: Pass, cause: str) -> float:
    """The shares of the causes that are drawn below this one."""
    return sum(max(0.0, p.share(c)) for c in CAUSES[: CAUSES.index(cause)])


def name_causes(axes: Axes, p: Pass, x: float) -> None:
    """Beside the last bar."""
    middles = [100 * (before(p, c) + p.share(c) / 2) for c in reversed(CAUSES)]
    # The lowest stands above the axis.
    heights = spread([max(4.0, middle) for middle in middles], 12)
    for cause, y in zip(reversed(CAUSES), heights, strict=True):
        lines = [cause] if len(cause) < 20 else re.split("(?<= and) ", cause)
        for i, words in enumerate(lines):
            down = 14 * ((len(lines) - 1) / 2 - i)
            place = {"xytext": (5, down), "textcoords": "offset points"}
            axes.annotate(words, (x, y), va="center", annotation_clip=False, **place)


def stack(axes: Axes, found: list[Pass]) -> None:
    """A bar for each of these passes."""
    for place, p in enumerate(found):
        bottom = 0.0
        # A busy time a little above the wall time leaves nothing idle.
        for cause, color in LOOKS.items():
            height = max(0.0, 100 * p.share(cause))
            axes.bar(place, height, 0.9, bottom, color=color)
            bottom += height
        short = p.wall_ms < 999.5
        told = f"{p.wall_ms:.0f}" if short else f"{p.wall_ms / 1e3:.1f} s"
        axes.text(place, 101, told, ha="center", va="bottom")
    axes.set_xticks(range(len(found)), [number(p.context) for p in found])
    axes.set_title(f"{found[0].size}, {found[0].precision}: %")
    axes.set_ylim(0, 112)
    axes.set_yticks(range(0, 101, 25))


# Facts --------------------------------------------------------------------------------


def per_weight(profile: Record | None, clock: Record | None) -> float:
    """Of copies and casts of 2.7B at 128 in bf16, the share that a straight line
    through 128 and 1024 leaves for no tokens at all: what is paid for each weight.
    """
    few, many = (
        split(profile, clock, "2.7B", context, "bf16").ms[COPIES]
        for context in (128, 1024)
    )
    return (few - (many - few) * 128 / (1024 - 128)) / few


def facts(found: Found) -> dict[str, str]:
    """What pages say of single passes, of the worst, and of the gain that products
    alone would give; of the GPU whose numbers stand in sentences.
    """
    profile, clock = (ours(found, s) for s in ("kernel_profile", "end_to_end"))
    told: dict[str, str] = {}
    for size, context, precision, causes in (
        ("small", 128, "bf16", (IDLE, COPIES)),
        ("2.7B", 128, "fp32", (PRODUCTS, COPIES)),
        ("2.7B", 128, "bf16", (IDLE, COPIES)),
        ("2.7B", 512, "bf16", (IDLE, COPIES)),
        ("2.7B", 1024, "bf16", (COPIES,)),
        ("2.7B", 512, "fp32", (PRODUCTS,)),
    ):
        p = split(profile, clock, size, context, precision)
        key = f"{size.replace('.', '_')}_{context}_{precision}"
        for cause in causes:
            name = cause.split()[0].replace("-", "_")
            share = p.of_kernels(cause) if cause == COPIES else p.share(cause)
            told[f"{name}_{key}"] = say(share, percent)
    for size, context in (("small", 128), ("2.7B", 128), ("2.7B", 512)):
        g = gain(profile, clock, size, context)
        key = f"{size.replace('.', '_')}_{context}"
        told[f"expected_{key}"] = say(g.expected, "{:.1f}")
        told[f"measured_{key}"] = say(g.measured, "{:.1f}")
    place = ("small", 128, "forward", "fp32")
    busy = total_ms(profiled(profile, *place), ("forward",))
    idle = 1 - busy / timed(clock, *place).ms("forward")
    told["idle_forward_small_128"] = say(idle, percent)
    for context in (128, 1024):
        copied = split(profile, clock, "2.7B", context, "bf16").ms[COPIES]
        told[f"copies_ms_2_7B_{context}_bf16"] = say(copied, "{:.0f} ms")
    short = gain(profile, clock, "2.7B", 128)
    told["more_copies_2_7B_128"] = say(short.more(COPIES), "{:.0f} ms")
    told["more_idle_2_7B_128"] = say(short.more(IDLE), "{:.0f} ms")
    casts = [
        copies_ms(profiled(profile, "2.7B", context, "step", "bf16"), "forward", CAST)
        for context in axis(profile, "context", size="2.7B", precision="bf16")
    ]
    in_bf16 = [
        p.of_kernels(PRODUCTS)
        for p in (passes(profile, clock) if profile else [])
        if p.precision == "bf16"
    ]
    told["products_bf16_most"] = say(most(in_bf16), percent)
    for context in (128, 1024):
        copies = split(profile, clock, "2.7B", context, "bf16").ms[COPIES]
        told[f"copied_2_7B_{context}_bf16"] = say(copies, "{:.0f} ms")
    told["per_weight_2_7B_128_bf16"] = say(per_weight(profile, clock), percent)
    copied = copies_ms(profiled(profile, "2.7B", 128, "step"), "backward")
    told["copied_2_7B_128_fp32"] = say(copied, "{:.0f} ms")
    told["casts_2_7B_least"] = say(least(casts), "{:.1f}")
    told["casts_2_7B_most"] = say(most(casts), "{:.1f} ms")
    return told
