"""Tables, figure and facts of `model_attention`: a training step with each attention in
the model's slot.
"""

from typing import Any

from systems.records.record import Record
from tools.render.figures import (
    MARKERS,
    SERIES,
    canvas,
    legend_above,
    of_each,
    plain_log_scale,
    power_of_two_axis,
    svg_pair,
)
from tools.render.markdown import columns, figure, gib, milliseconds, per_device
from tools.render.rows import MISSING, Cell, axis, cell, cells, least, most, say

NAMES = {"eager": "eager", "sdpa": "SDPA", "flash": "ours"}
PEAK = "peak_allocated_bytes"
# What sentences name.
NAMED = (("small", 1024), ("2.7B", 1024), ("small", 4096), ("small", 16384))


def beside(record: Record, c: Cell, attention: str) -> Cell:
    """The same step with another attention."""
    same = {key: c.config[key] for key in ("size", "context")}
    return cell(record, **same, attention=attention)


def marked(*cells: Cell) -> str:
    """What is put behind a number that a step's spread makes doubtful."""
    return " (unsteady)" if any(c.unsteady for c in cells) else ""


def fragments(records: list[Record]) -> dict[str, str]:
    """`table.md`: the figure of `small` over contexts, and every step."""
    shown = per_device(records, lambda r: f"{drawn(r)}\n\n{steps_table(r)}".strip())
    return {"table.md": shown, **of_each(records, contexts_figure)}


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
        ("tokens/s", tokens_per_second, "{:,.0f}"),
        (
            "eager / this",
            lambda c: beside(record, c, "eager").ms() / c.ms(),
            "{:.2f}",
        ),
        ("peak GiB", lambda c: c[PEAK], gib),
        left=2,
    )


def name_of(c: Cell) -> str:
    attention = c.config["attention"]
    ran = "" if attention == "eager" else say(c["ran"]).removesuffix("_attention")
    return NAMES[attention] + (f" ({ran})" if c and ran else "")


def tokens_per_second(c: Cell) -> float:
    return c.config["batch"] * c.config["context"] / (c.ms() / 1e3)


def drawn(record: Record) -> str:
    """The figure; nothing where no step of `small` ran."""
    if not any(of_small(record, attention) for attention in NAMES):
        return ""
    return figure(
        f"model_attention-contexts-{record.device.slug}",
        contexts_alt(record),
        "A training step of `small`, batch 4, bf16, by context. A line ends where "
        "memory or the grid does; hollow marks are steps that are not steady.",
    )


def of_small(record: Record, attention: str) -> list[Cell]:
    """Those that ran, by context."""
    return [c for c in cells(record, size="small", attention=attention) if c]


def contexts_alt(record: Record) -> str:
    ends = [(NAMES[a], f[-1]) for a in NAMES if (f := of_small(record, a))]
    parts = [
        f"{name} reaches context {c.config['context']} with {c.ms():.0f} ms and "
        f"{gib(c[PEAK])} GiB"
        for name, c in ends
    ]
    return f"{'; '.join(parts)}."


def contexts_figure(record: Record) -> dict[str, str]:
    if not drawn(record):
        return {}
    with canvas(width=7.2, height=3.8) as fig:
        times, memory = fig.subplots(1, 2)
        looks = zip(NAMES.items(), SERIES, MARKERS, strict=False)
        for (attention, label), color, marker in looks:
            found = of_small(record, attention)
            dash = "--" if attention == "sdpa" else "-"
            style: dict[str, Any] = {"ls": dash, "marker": marker, "color": color}
            contexts = [c.config["context"] for c in found]
            steps, unsteady = [c.ms() for c in found], [c.unsteady for c in found]
            filled = [not mark for mark in unsteady]
            times.plot(contexts, steps, **style, label=label, markevery=filled)
            hollow = style | {"ls": "none", "markerfacecolor": "none"}
            times.plot(contexts, steps, **hollow, markevery=unsteady)
            memory.plot(contexts, [c[PEAK] / 2**30 for c in found], **style)
        ticks = axis(record, "context", size="small")
        for axes, text in ((times, "step, ms"), (memory, "peak memory, GiB")):
            plain_log_scale(axes.yaxis)
            power_of_two_axis(axes.xaxis, ticks, "context, tokens")
            axes.set_ylabel(text)
        legend_above(fig, ncols=3)
        return svg_pair(f"contexts-{record.device.slug}", fig)


def facts(record: Record | None) -> dict[str, str]:
    """Steps, speed-ups and memory of the cells that the pages name; what is not steady
    says so.
    """
    found: dict[str, str] = {}
    for size, context in NAMED:
        key = f"{size.replace('.', '_')}_{context}"
        of = {a: cell(record, size=size, context=context, attention=a) for a in NAMES}
        for name, c in of.items():
            found[f"step_{name}_{key}"] = say(c.ms(), "{:.0f} ms") + marked(c)
            if name != "sdpa":
                found[f"memory_{name}_{key}"] = say(c[PEAK] / 2**30, "{:.1f} GiB")
        gain = say(of["eager"].ms() / of["flash"].ms(), "{:.2f}")
        found[f"faster_{key}"] = gain + marked(of["eager"], of["flash"])
    pairs = [
        (beside(record, c, "sdpa"), c)
        for c in cells(record, attention="flash")
        if record and c and beside(record, c, "sdpa")
    ]
    ratios = [sdpa.ms() / c.ms() for sdpa, c in pairs if not marked(sdpa, c)]
    doubtful = len(pairs) - len(ratios) if pairs else MISSING
    return found | {
        "sdpa_over_ours_least": say(least(ratios), "{:.2f}"),
        "sdpa_over_ours_most": say(most(ratios), "{:.2f}"),
        "unsteady": say(doubtful, f"{{}} of {len(pairs)}"),
    }
