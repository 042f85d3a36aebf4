"""Tables, figure and facts of `model_attention`: a training step with each attention in
the model's slot.
"""

from typing import Any

from systems.model.sizes import SIZES
from systems.records.record import Record, Row
from systems.records.summary import Summary, summarize
from tools.render.figures import MARKERS, SERIES, canvas, plain_log_scale, svg_pair
from tools.render.markdown import (
    fact,
    figure,
    gib,
    in_words,
    milliseconds,
    per_device,
    status,
    table,
)

NAMES = {"eager": "eager", "sdpa": "SDPA", "flash": "ours"}
PHASES = ("forward", "loss", "backward", "optimizer")
CONTEXTS = (1024, 4096, 16384)
# A step whose spread is above this says more about the host than about attention.
STEADY = 1.05
CELLS = [(size, 1024) for size in SIZES] + [
    ("small", context) for context in CONTEXTS[1:]
]


def cell(record: Record | None, size: str, context: int, attention: str) -> Row | None:
    return (
        record.find(size=size, context=context, attention=attention) if record else None
    )


def step(row: Row | None) -> Summary | None:
    """The whole step in ms; None where there is no such row or it has no numbers."""
    if row is None or row.status != "ok":
        return None
    return summarize(
        [
            sum(phases)
            for phases in zip(*(row.metrics[f"{p}_ms"] for p in PHASES), strict=True)
        ]
    )


def step_ms(row: Row | None) -> float | None:
    """Its median."""
    found = step(row)
    return found.median if found else None


def spread(row: Row | None) -> float | None:
    """A slow step over a fast one, p80 over p20: near one where the GPU alone decides."""
    found = step(row)
    return found.p80 / found.p20 if found else None


def steady(row: Row | None) -> bool:
    wide = spread(row)
    return wide is not None and wide <= STEADY


def unsteady(row: Row | None) -> str:
    """What is put behind a number that a step's spread makes doubtful."""
    return "" if spread(row) is None or steady(row) else " (unsteady)"


def peak_bytes(row: Row | None) -> int | None:
    return (
        row.metrics["peak_allocated_bytes"]
        if row is not None and row.status == "ok"
        else None
    )


def speedup(
    record: Record | None, size: str, context: int, over: str, attention: str = "flash"
) -> float | None:
    """Step time with another attention over that with this one."""
    ours, theirs = (
        step_ms(cell(record, size, context, name)) for name in (attention, over)
    )
    return theirs / ours if ours and theirs else None


def fragments(records: list[Record]) -> dict[str, str]:
    """`table.md`: the figure of `small` over contexts, and every step."""
    figures: dict[str, str] = {}
    for record in records:
        figures |= contexts_figure(record)
    return {
        "table.md": per_device(records, lambda r: f"{drawn(r)}\n\n{steps_table(r)}"),
        **figures,
    }


def steps_table(record: Record) -> str:
    rows = []
    for size, context in CELLS:
        for attention, label in NAMES.items():
            row = cell(record, size, context, attention)
            if row is None:
                continue
            if row.status != "ok":
                rows.append([size, label, str(context), status(row), *[""] * 6])
                continue
            phases = [
                milliseconds(summarize(row.metrics[f"{p}_ms"]).median)
                for p in ("forward", "backward")
            ]
            time, wide, peak = step_ms(row), spread(row), peak_bytes(row)
            assert time is not None and wide is not None and peak is not None
            faster = speedup(record, size, context, "eager", attention)
            tokens = row.config["batch"] * context / (time / 1e3)
            cells = [
                milliseconds(time),
                f"{wide:.2f}",
                *phases,
                f"{tokens:,.0f}",
                f"{faster:.2f}" if faster else "",
            ]
            ran = row.metrics["ran"].removesuffix("_attention")
            rows.append(
                [
                    size,
                    label if attention == "eager" else f"{label} ({ran})",
                    str(context),
                    *cells,
                    gib(peak),
                ]
            )
    times = [
        "step, ms",
        "spread",
        "forward, ms",
        "backward, ms",
        "tokens/s",
        "eager / this",
    ]
    return table(["size", "attention", "context", *times, "peak GiB"], rows, left=2)


def drawn(record: Record) -> str:
    return figure(
        f"model_attention-contexts-{record.device.slug}",
        contexts_alt(record),
        "A training step of `small`, batch 4, bf16, by context. A line ends where memory or the grid does; hollow "
        "marks are steps that are not steady.",
    )


def contexts_alt(record: Record) -> str:
    parts = []
    for attention, label in NAMES.items():
        found = [
            context
            for context in CONTEXTS
            if peak_bytes(cell(record, "small", context, attention)) is not None
        ]
        if found:
            row = cell(record, "small", found[-1], attention)
            time, peak = step_ms(row), peak_bytes(row)
            assert time is not None and peak is not None
            parts.append(
                f"{label} reaches context {found[-1]} with {time:.0f} ms and {gib(peak)} GiB"
            )
    return f"{'; '.join(parts) or 'Not measured'}."


def contexts_figure(record: Record) -> dict[str, str]:
    with canvas(width=7.2, height=3.8) as fig:
        axes = fig.subplots(1, 2)
        for (attention, label), color, marker in zip(
            NAMES.items(), SERIES, MARKERS, strict=False
        ):
            found = [
                (context, cell(record, "small", context, attention))
                for context in CONTEXTS
            ]
            measured = [
                (c, time, peak)
                for c, row in found
                if (time := step_ms(row)) and (peak := peak_bytes(row))
            ]
            style: dict[str, Any] = {
                "ls": "--" if attention == "sdpa" else "-",
                "marker": marker,
                "color": color,
            }
            contexts, times = (
                [context for context, *_ in measured],
                [time for _, time, _ in measured],
            )
            filled = [
                steady(cell(record, "small", context, attention))
                for context in contexts
            ]
            axes[0].plot(contexts, times, **style, label=label, markevery=filled)
            hollow = style | {"ls": "none", "markerfacecolor": "none"}
            axes[0].plot(
                contexts, times, **hollow, markevery=[not mark for mark in filled]
            )
            axes[1].plot(contexts, [peak / 2**30 for *_, peak in measured], **style)
        for axis, text in zip(axes, ("step, ms", "peak memory, GiB"), strict=True):
            axis.set_xscale("log", base=2)
            plain_log_scale(axis.yaxis)
            axis.set_xticks(CONTEXTS, [str(context) for context in CONTEXTS])
            axis.set_xlabel("context, tokens")
            axis.set_ylabel(text)
        fig.legend(loc="outside upper center", ncols=3)
        return svg_pair(f"contexts-{record.device.slug}", fig)


def facts(record: Record | None) -> dict[str, str]:
    """Steps, speed-ups and memory of the cells that the pages name; what is not steady
    says so.
    """
    found: dict[str, str] = {}
    for size, context in (
        ("small", 1024),
        ("2.7B", 1024),
        ("small", 4096),
        ("small", 16384),
    ):
        key = f"{size.replace('.', '_')}_{context}"
        for attention in NAMES:
            row = cell(record, size, context, attention)
            found[f"step_{attention}_{key}"] = in_words(
                row, fact(step_ms(row), "{:.0f} ms".format)
            ) + unsteady(row)
            found[f"memory_{attention}_{key}"] = in_words(
                row, fact(peak_bytes(row), lambda b: f"{gib(b)} GiB")
            )
        eager = cell(record, size, context, "eager")
        ours = cell(record, size, context, "flash")
        faster = in_words(
            eager, fact(speedup(record, size, context, "eager"), "{:.2f}".format)
        )
        found[f"faster_{key}"] = faster + (unsteady(eager) or unsteady(ours))
    both = [
        (size, context)
        for size, context in CELLS
        if speedup(record, size, context, "sdpa") is not None
    ]
    trusted = [
        place
        for place in both
        if all(steady(cell(record, *place, name)) for name in ("sdpa", "flash"))
    ]
    ratios = [
        r for place in trusted if (r := speedup(record, *place, "sdpa")) is not None
    ]
    return found | {
        "sdpa_over_ours_least": fact(min(ratios, default=None), "{:.2f}".format),
        "sdpa_over_ours_most": fact(max(ratios, default=None), "{:.2f}".format),
        "unsteady": fact(
            len(both) - len(trusted) if both else None, f"{{}} of {len(both)}".format
        ),
    }
