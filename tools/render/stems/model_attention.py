"""Tables, figure and facts of `model_attention`: a training step with each attention in
the model's slot.
"""

from functools import partial
from typing import Any

from matplotlib.figure import Figure

from systems.formulas.memory_costs import Pass
from systems.formulas.memory_peak import peak
from systems.records.record import Record
from tools.render.drawing import SMALL, Drawing, drawn
from tools.render.markdown import columns, gib, milliseconds, per_device
from tools.render.plots import (
    ACCENT,
    DARK,
    GREY,
    line,
    panels,
    plain_log_scale,
    plot,
    power_of_two_axis,
)
from tools.render.rows import (
    MISSING,
    Cell,
    axis,
    cell,
    cells,
    ran,
    say,
    span,
)
from tools.render.stems.kernel_profile.rows import graphs_ms

NAMES = {"eager": "eager", "sdpa": "SDPA", "flash": "ours"}
PEAK = "peak_allocated_bytes"
# What sentences name.
NAMED = (("2.7B", 1024), ("small", 4096), ("small", 16384))
CONTEXTS = (1024, 4096, 16384)


def beside(record: Record | None, c: Cell, attention: str) -> Cell:
    """The same step with another attention."""
    same = {key: c.config.get(key) for key in ("size", "context")}
    return cell(record, **same, attention=attention)


def gain(record: Record | None, c: Cell, over: str = "eager") -> float:
    """Time of a step with another attention over this one's."""
    return beside(record, c, over).ms() / c.ms()


def gain_as_graphs(record: Record | None, c: Cell, over: str = "eager") -> float:
    """The same of steps as CUDA graphs, each launched by one call."""
    return graphs_ms(beside(record, c, over)) / graphs_ms(c)


def fragments(records: list[Record]) -> dict[str, str]:
    """`small` over contexts, each cell with all three attentions, every step, and the
    memory that formulas predict.
    """
    return {
        "memory.md": memory(),
        "figure.md": per_device(records, contexts_figure),
        "table.md": per_device(records, cells_table),
        "steps.md": per_device(records, steps_table),
    }


# Tables -------------------------------------------------------------------------------


def cells_table(record: Record) -> str:
    """A line for each size and context."""

    def step(c: Cell, attention: str) -> str:
        return say(beside(record, c, attention).ms(), milliseconds)

    def over(c: Cell) -> Any:
        return gain(record, beside(record, c, "flash")) or ""

    def as_graphs(c: Cell) -> Any:
        return gain_as_graphs(record, beside(record, c, "flash")) or ""

    def kept(c: Cell, attention: str) -> str:
        return say(beside(record, c, attention).get(PEAK), gib)

    firsts = {(c.config["size"], c.config["context"]): c for c in cells(record)}
    return columns(
        firsts.values(),
        "size",
        "context",
        *((f"{name}, ms", partial(step, attention=a)) for a, name in NAMES.items()),
        ("eager / ours", over, "{:.2f}"),
        ("as CUDA graphs", as_graphs, "{:.2f}"),
        *((f"{NAMES[a]}, GiB", partial(kept, attention=a)) for a in ("eager", "flash")),
    )


def steps_table(record: Record) -> str:
    return columns(
        cells(record),
        "size",
        ("attention", name_of),
        "context",
        ("step, ms", Cell.ms, milliseconds),
        ("spread", lambda c: c.spread, "{:.2f}"),
        ("forward, ms", lambda c: c.ms("forward"), milliseconds),
        ("backward, ms", lambda c: c.ms("backward"), milliseconds),
        ("as graphs, ms", lambda c: graphs_ms(c) or "", milliseconds),
        ("tokens/s", tokens_per_second, "{:,.0f}"),
        ("eager / this", lambda c: gain(record, c), "{:.2f}"),
        ("peak GiB", lambda c: c.get(PEAK), gib),
        left=2,
    )


def name_of(c: Cell) -> str:
    attention = c.config["attention"]
    ran = "" if attention == "eager" else say(c["ran"]).removesuffix("_attention")
    return NAMES[attention] + (f" ({ran})" if c and ran else "")


def tokens_per_second(c: Cell) -> float:
    return c.config["batch"] * c.config["context"] / (c.ms() / 1e3)


# Figures ------------------------------------------------------------------------------


def contexts_figure(record: Record) -> str:
    """Nothing where no step of `small` ran."""
    found = {name: ran(record, size="small", attention=name) for name in NAMES}
    ends = {name: steps[-1] for name, steps in found.items() if steps}
    if not ends:
        return ""

    def draw(figure: Figure) -> None:
        times, sizes = panels(figure, 2)
        # Ours last, over the others.
        for name in ("eager", "sdpa", "flash"):
            steps = found[name]
            contexts = [c.config["context"] for c in steps]
            color = {"flash": ACCENT, "sdpa": GREY, "eager": DARK}[name]
            look = {"color": color, "label": NAMES[name] + beyond(record, name)}
            line(times, contexts, [c.ms() for c in steps], **look)
            # SDPA needs the same to the byte: dashes over its line let both show.
            look |= {"ls": "--"} if name == "flash" else {}
            line(sizes, contexts, [c.get(PEAK) / 2**30 for c in steps], **look)
        for axes, title in ((times, "step, ms"), (sizes, "peak memory, GiB")):
            plain_log_scale(axes.yaxis)
            ticks = axis(record, "context", size="small")
            power_of_two_axis(axes.xaxis, ticks, "context, tokens")
            axes.set_title(title)

    told = [
        f"{whose} attention reaches context {c.config['context']:,} with "
        f"{gib(c.get(PEAK))} GiB"
        for name, whose in (("eager", "eager"), ("flash", "our"))
        if (c := ends.get(name))
    ]
    return plot(
        record,
        "contexts",
        draw,
        f"In a training step of small, {', '.join(told)}.",
        "Batch 4, bf16. The dashed line of ours lies on SDPA's, which needs the same "
        "memory.",
        height=280,
        narrow=520,
    )


def beyond(record: Record, attention: str) -> str:
    """What is said at the end of a line of `small` of the next context."""
    tried = cells(record, size="small", attention=attention)
    full = any(c.row and c.row.status == "out_of_memory" for c in tried)
    return ", then out of memory" if full else ""


def predicted_bytes(size: str, context: int, attention: str) -> int:
    """The peak of a step by formula."""
    return sum(peak(Pass(size, context, "step", "bf16", attention)).values())


def memory() -> str:
    """Predicted peaks of `small`, eager and fused, beside what a GPU has."""
    fused = {"eager": "eager", "flash": "fused"}
    found = {
        (context, name): predicted_bytes("small", context, attention) / 2**30
        for context in CONTEXTS
        for attention, name in fused.items()
    }
    has = 80

    def draw(d: Drawing) -> None:
        left = 108 if d.wide else 96
        scale = (d.width - left - 70) / max(found.values())
        y = 14.0
        d.text(left + has * scale, 10, f"{has} GiB", SMALL, "middle")
        for (context, name), needed in found.items():
            d.text(0, y + 14, f"{context:,}, {name}", SMALL)
            style = "fill-orange" if name == "eager" else "fill-blue"
            length = max(needed * scale, 1)
            d.box(left, y + 3, length, 16, style)
            after = left + (max(length, has * scale) if needed < has else length)
            d.text(after + 6, y + 15, f"{needed:,.0f} GiB", SMALL)
            y += 24 if name == "eager" else 30
        d.line(left + has * scale, 14, left + has * scale, y - 8, "ink")

    long = found[CONTEXTS[-1], "eager"], found[CONTEXTS[-1], "fused"]
    return drawn(
        draw,
        f"At context {CONTEXTS[-1]} a step needs {long[0]:,.0f} GiB with eager "
        f"attention and {long[1]:,.0f} GiB with a fused one.",
        "Only eager attention's memory grows with the square of the context.",
        "A training step of small, batch 4, bf16, as `systems.formulas` predicts it; "
        f"the line is a GPU of {has} GiB.",
    )


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """Steps, speed-ups and memory of the cells that the pages name."""
    found: dict[str, str] = {}
    for size, context in NAMED:
        key = f"{size.replace('.', '_')}_{context}"
        of = {a: cell(record, size=size, context=context, attention=a) for a in NAMES}
        for name, c in of.items():
            found[f"step_{name}_{key}"] = say(c.ms(), "{:.0f} ms")
            if name != "sdpa":
                found[f"memory_{name}_{key}"] = say(c.get(PEAK) / 2**30, "{:.1f} GiB")
                needed = predicted_bytes(size, context, name) / 2**30
                found[f"predicted_{name}_{key}"] = f"{needed:,.1f} GiB"
        ratio = of["eager"].ms() / of["flash"].ms()
        found[f"faster_{key}"] = say(ratio, "{:.2f}")
    pairs = [
        (beside(record, c, "sdpa"), c)
        for c in cells(record, attention="flash")
        if record and c and beside(record, c, "sdpa")
    ]
    ratios = [sdpa.ms() / c.ms() for sdpa, c in pairs]
    lost = [c.missing for c in cells(record, attention="flash") if not c]
    of_small = cell(record, size="small", context=1024, attention="flash")
    as_graphs = gain_as_graphs(record, of_small)
    of_long = cell(record, size="small", context=16384, attention="flash")
    growth = of_long.get(PEAK) / of_small.get(PEAK)
    return found | {
        "memory_growth": say(growth, "{:.1f}"),
        "graphs_small_1024": say(as_graphs or MISSING, "{:.2f}"),
        "sdpa_over_ours": span([*ratios, *lost]),
    }
