"""What bf16 buys, from the record of `end_to_end`: fp32 over bf16 by phase, and why it
is large or small.

A step's phases are compared, each timed in the same run. A time that does not grow with
the work was spent on launches.
"""

from systems.formulas.costs import peak_of
from systems.model.sizes import SIZES
from systems.records.record import Record
from tools.render.figures import INK, MARKERS, SERIES, canvas, svg_pair
from tools.render.markdown import NOT_MEASURED, fact, figure, per_device, percent, table
from tools.render.stems.end_to_end.rows import (
    CONTEXTS,
    PRECISIONS,
    cell,
    flops,
    median_ms,
)

PASSES = ("forward", "backward")
CAPTION = (
    "fp32 time over bf16 time of forward and backward pass against their matrix FLOPs; each line is a model size, its "
    "points are the contexts. The dotted line is no change."
)


def time_ms(
    record: Record | None, size: str, context: int, precision: str, *phases: str
) -> float | None:
    """Median time of these phases of a training step; all of them without names."""
    return (
        median_ms(cell(record, size, context, "step", precision), *phases)
        if record
        else None
    )


def ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def speedup(
    record: Record | None,
    size: str,
    context: int,
    *phases: str,
    of: str = "fp32",
    over: str = "bf16",
) -> float | None:
    times = (
        time_ms(record, size, context, precision, *phases) for precision in (of, over)
    )
    return ratio(*times)


def doubling(
    record: Record | None, size: str, context: int, precision: str
) -> float | None:
    """Time of forward and backward at twice the context over that at this one: 1 where
    only launches count.
    """
    return ratio(
        *(time_ms(record, size, c, precision, *PASSES) for c in (2 * context, context))
    )


def share(
    record: Record | None, size: str, context: int, precision: str
) -> float | None:
    """Matrix FLOPs of forward and backward over their time, as a share of the data
    sheet's rate in this precision.
    """
    row = cell(record, size, context, "step", precision) if record else None
    peak, time = (
        peak_of(record.device.slug) if record else None,
        median_ms(row, *PASSES),
    )
    if row is None or peak is None or time is None:
        return None
    return flops(row) / (time / 1e3) / getattr(peak, precision)


# Fragments ----------------------------------------------------------------------------


def fragments(measured: list[Record]) -> dict[str, str]:
    """Speed-ups of every cell with a figure for each device, the reasons beside them,
    and TF32 as a third precision.
    """
    figures: dict[str, str] = {}
    for record in measured:
        figures |= speedup_figure(record)
    return {
        "speedup.md": per_device(measured, speedup_body),
        "speedup-reasons.md": per_device(measured, reasons_table),
        "speedup-tf32.md": per_device(measured, tf32_table),
        **figures,
    }


def shown(value: float | None, text: str = ".2f") -> str:
    return "" if value is None else format(value, text)


def speedup_table(record: Record) -> str:
    rows = []
    for size in SIZES:
        for context in CONTEXTS:
            cells = []
            for phases in (("forward",), ("backward",), ()):
                fp32, bf16 = (
                    time_ms(record, size, context, precision, *phases)
                    for precision in ("fp32", "bf16")
                )
                cells += [shown(fp32), shown(bf16), shown(ratio(fp32, bf16))]
            if any(cells):
                rows.append([size, str(context), *cells])
    header = ["size", "context"]
    for phase in ("forward", "backward", "step"):
        header += [f"{phase} in fp32, ms", "in bf16, ms", "fp32 / bf16"]
    return table(header, rows)


def reasons_table(record: Record) -> str:
    rows = []
    for size in SIZES:
        for context in CONTEXTS:
            shares = [
                share(record, size, context, precision)
                for precision in ("fp32", "bf16")
            ]
            doublings = [
                doubling(record, size, context, precision)
                for precision in ("fp32", "bf16")
            ]
            gain = speedup(record, size, context, *PASSES)
            if gain is not None:
                cells = [shown(gain), *(shown(value) for value in doublings)]
                rows.append(
                    [
                        size,
                        str(context),
                        *cells,
                        *(percent(value) if value else "" for value in shares),
                    ]
                )
    header = ["size", "context", "fp32 / bf16, forward and backward"]
    header += [f"{p}: time at twice the context over this" for p in ("fp32", "bf16")]
    return table([*header, "fp32: share of peak", "bf16: share of peak"], rows)


def tf32_table(record: Record) -> str:
    """Context 512, where TF32 was measured."""
    rows = []
    for size in SIZES:
        for precision in PRECISIONS:
            cells = []
            for phases in (("forward",), ("backward",), ()):
                time = time_ms(record, size, 512, precision, *phases)
                cells += [
                    shown(time),
                    shown(ratio(time_ms(record, size, 512, "fp32", *phases), time)),
                ]
            if any(cells):
                rows.append([size, precision, *cells])
    header = ["size", "precision"]
    for phase in ("forward", "backward", "step"):
        header += [f"{phase}, ms", "fp32 over it"]
    return table(header, rows, left=2)


def speedup_body(record: Record) -> str:
    """The figure with its table; nothing where no cell was measured in both precisions."""
    gains = {
        (size, c): speedup(record, size, c, *PASSES) for size in SIZES for c in CONTEXTS
    }
    found = {where: gain for where, gain in gains.items() if gain is not None}
    if not found:
        return ""
    (least, low), (most, high) = (
        pick(found.items(), key=lambda item: item[1]) for pick in (min, max)
    )
    alt = (
        f"fp32 time over bf16 time of forward and backward ranges from {low:.2f} for {least[0]} at context {least[1]} "
        f"to {high:.2f} for {most[0]} at context {most[1]}."
    )
    return f"{figure(f'end_to_end-speedup-{record.device.slug}', alt, CAPTION)}\n\n{speedup_table(record)}"


def speedup_figure(record: Record) -> dict[str, str]:
    with canvas(height=4.2) as fig:
        axes = fig.subplots()
        for size, color, marker in zip(SIZES, SERIES, MARKERS, strict=True):
            points = [
                (flops(row), gain)
                for context in CONTEXTS
                if (row := cell(record, size, context, "step", "bf16")) is not None
                and (gain := speedup(record, size, context, *PASSES)) is not None
            ]
            if points:
                axes.plot(
                    *zip(*points, strict=True), color=color, marker=marker, label=size
                )
        axes.axhline(1, color=INK, linestyle=":", linewidth=1.2)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("matrix FLOPs of forward and backward")
        axes.set_ylabel("fp32 time / bf16 time")
        fig.legend(
            loc="outside upper center", ncols=5, columnspacing=1.0, handlelength=1.6
        )
        return svg_pair(f"speedup-{record.device.slug}", fig)


def facts(record: Record | None) -> dict[str, str]:
    """Two corners of the table with the reasons beside them, the extremes, and TF32 at
    context 512.
    """
    two = "{:.2f}".format
    found: dict[str, str] = {}
    for size, context in (("small", 128), ("2.7B", 512)):
        key = f"{size.replace('.', '_')}_{context}"
        for phase in PASSES:
            found[f"gain_{phase}_{key}"] = fact(
                speedup(record, size, context, phase), two
            )
        for precision in ("fp32", "bf16"):
            found[f"doubling_{precision}_{key}"] = fact(
                doubling(record, size, context, precision), two
            )
            found[f"pass_share_{precision}_{key}"] = fact(
                share(record, size, context, precision), percent
            )
    for size in ("small", "2.7B"):
        key = size.replace(".", "_")
        found[f"gain_tf32_{key}"] = fact(speedup(record, size, 512, over="tf32"), two)
        found[f"gain_bf16_over_tf32_{key}"] = fact(
            speedup(record, size, 512, of="tf32"), two
        )
    gains = [
        gain
        for size in SIZES
        for c in CONTEXTS
        if (gain := speedup(record, size, c, *PASSES)) is not None
    ]
    slower = sum(gain < 1 for gain in gains)
    return found | {
        "slower_cells": f"{slower} of {len(gains)}" if gains else NOT_MEASURED,
        "gain_most": fact(max(gains, default=None), two),
    }
