"""What bf16 buys, from the record of `end_to_end`: fp32 over bf16 by phase, and why it
is large or small.

A step's phases are compared, each timed in the same run; both passes together by the
shorter of two times. Why a gain is what it is, a
profile tells: `tools/render/spanning/causes.py`.
"""

from itertools import pairwise

from matplotlib.figure import Figure

from systems.model.sizes import TABLE_1
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import columns, per_device, percent
from tools.render.plots import DARK, family, note, plain_log_scale, plot
from tools.render.rows import (
    MISSING,
    NOT_MEASURED,
    Cell,
    known,
    most,
    say,
)
from tools.render.stems.end_to_end.rows import (
    PASSES,
    at,
    flops,
    of_grid,
    share_of_peak,
    steps_at_512,
)

# What is compared in a table: its name and its phases.
COMPARED = (("forward", ("forward",)), ("backward", ("backward",)), ("step", ()))
Place = tuple[str, int]


def step(record: Record | None, place: Place, precision: str) -> Cell:
    return at(record, *place, "step", precision)


def places(record: Record | None) -> list[Place]:
    """Size and context of each step that was tried in bf16."""
    steps = of_grid(record, mode="step", precision="bf16")
    return [(c.config["size"], c.config["context"]) for c in steps]


def speedup(
    record: Record | None,
    place: Place,
    *phases: str,
    of: str = "fp32",
    to: str = "bf16",
) -> float:
    """Time of these phases of a step in one precision over that in another."""
    return step(record, place, of).ms(*phases) / step(record, place, to).ms(*phases)


def gain(record: Record | None, place: Place) -> float:
    """Return the speedup of both passes together in bf16."""
    return speedup(record, place, *PASSES)


def share(record: Record | None, place: Place, precision: str) -> float:
    return share_of_peak(record, step(record, place, precision), *PASSES)


# Fragments ----------------------------------------------------------------------------


def fragments(measured: list[Record]) -> dict[str, str]:
    """Speed-ups of every cell with a figure for each device, the reasons beside them,
    and TF32 as a third precision.
    """
    return {
        "speedup.md": per_device(measured, speedup_figure),
        "speedup-table.md": per_device(measured, speedup_table),
        "speedup-reasons.md": per_device(measured, reasons_table),
        "speedup-tf32.md": per_device(measured, lambda r: tf32_table(r, *TOLD)),
        "speedup-tf32-all.md": per_device(measured, tf32_table),
    }


SIZE = ("size", lambda place: place[0])
NAME = (SIZE, ("context", lambda place: place[1]))


def short(ms: float) -> str:
    """For the widest table: tenths of a time below 100 ms."""
    return f"{ms:.1f}" if ms < 100 else f"{ms:.0f}"


def speedup_table(record: Record) -> str:
    def time(precision: str, phases: tuple[str, ...]):
        return lambda place: step(record, place, precision).ms(*phases)

    described = [
        column
        for name, phases in COMPARED
        for column in (
            (f"{name} fp32, ms", time("fp32", phases), short),
            (f"{name} bf16, ms", time("bf16", phases), short),
            (
                f"{name} fp32 / bf16",
                lambda p, of=phases: speedup(record, p, *of),
                "{:.2f}",
            ),
        )
    ]
    return columns(places(record), *NAME, *described, telling=lambda p: p[1] == 512)


def reasons_table(record: Record) -> str:
    return columns(
        [place for place in places(record) if gain(record, place)],
        *NAME,
        ("fp32 / bf16, forward and backward", lambda p: gain(record, p), "{:.2f}"),
        ("fp32: share of peak", lambda p: share(record, p, "fp32"), percent),
        ("bf16: share of peak", lambda p: share(record, p, "bf16"), percent),
    )


# Sizes that are shown first.
TOLD = ("small", "2.7B")


def tf32_table(record: Record, *sizes: str) -> str:
    """Of these sizes, or of all."""
    found = [c for c in steps_at_512(record) if not sizes or c.config["size"] in sizes]
    described = [
        column
        for name, phases in COMPARED
        for column in (
            (f"{name}, ms", lambda c, of=phases: c.ms(*of), "{:.2f}"),
            (
                f"{name}, gain over fp32",
                lambda c, of=phases: over(record, c, *of),
                "{:.2f}",
            ),
        )
    ]
    return columns(found, "size", "precision", *described, left=2)


def over(record: Record, c: Cell, *phases: str) -> float:
    fp32 = step(record, (c.config["size"], c.config["context"]), "fp32")
    return fp32.ms(*phases) / c.ms(*phases)


def speedup_figure(record: Record) -> str:
    """Nothing where no cell was measured in both."""
    found = {place: g for place in places(record) if (g := gain(record, place))}
    if not found:
        return ""
    least, most = (pick(found, key=lambda place: found[place]) for pick in (min, max))
    work = {place: flops(step(record, place, "bf16")) / 1e12 for place in found}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        curves = {
            size: zip(
                *((work[p], found[p]) for p in found if p[0] == size), strict=True
            )
            for size in dict.fromkeys(size for size, _ in found)
        }
        family(axes, {s: (x, y) for s, (x, y) in curves.items()}, "2.7B")
        note(axes, f"{found[most]:.1f} ×", work[most], found[most])
        axes.axhline(1, color=DARK, linewidth=1)
        axes.set_ylim(bottom=0)
        plain_log_scale(axes.xaxis, subs=(1,))
        axes.set(xlabel="TFLOP of both passes", title="fp32 time / bf16 time")

    return plot(
        record,
        "speedup",
        draw,
        f"In bf16 a pass is {found[least]:.2f} ({least[0]} at context {least[1]}) to "
        f"{found[most]:.2f} times ({most[0]} at context {most[1]}) as fast.",
        "Time in fp32 divided by time in bf16, forward and backward together. Each "
        "line is a model size, its points are the contexts. Below 1, bf16 is slower.",
    )


def facts(record: Record | None) -> dict[str, str]:
    """The extremes, the trend, and TF32 at context 512."""
    ratios: dict[str, float] = {}
    shares: dict[str, float] = {}
    for p in ("fp32", "bf16"):
        shares[f"pass_share_{p}_2_7B_512"] = share(record, ("2.7B", 512), p)
    for size in ("small", "2.7B"):
        key, place = size.replace(".", "_"), (size, 512)
        ratios[f"gain_tf32_{key}"] = speedup(record, place, to="tf32")
        ratios[f"gain_bf16_over_tf32_{key}"] = speedup(record, place, of="tf32")
    gains = known(gain(record, place) for place in places(record))
    slower = sum(g < 1 for g in gains) if gains else MISSING
    return {
        **{name: say(ratio, "{:.2f}") for name, ratio in ratios.items()},
        **{name: say(value, percent) for name, value in shares.items()},
        "slower_cells": say(slower, f"{{}} of {len(gains)}"),
        "gain_most": say(most(gains), "{:.2f}"),
        **{
            f"gains_{context}": gains_by_size(record, context)
            for context in (128, 1024)
        },
        "gains_grow": say(gains_grow(record, 1024)),
    }


def gains_grow(record: Record | None, context: int) -> bool:
    """Whether each larger model gains more."""
    found = known(gain(record, (size, context)) for size in TABLE_1)
    return len(found) > 1 and all(a < b for a, b in pairwise(found))


def gains_by_size(record: Record | None, context: int) -> str:
    """ "2.17, 2.42" of both passes, the smallest model first."""
    told = [gain(record, (size, context)) for size in TABLE_1]
    return ", ".join(say(ratio, "{:.2f}") for ratio in known(told)) or NOT_MEASURED


# Claims -------------------------------------------------------------------------------


@claim(
    "benchmarking_mixed_precision",
    "At context 512 the gain from bf16 (forward and backward) grows with each step "
    "from small to 2.7B.",
)
def gain_grows(record: Record) -> Judgement:
    found = known(gain(record, (size, 512)) for size in TABLE_1)
    texts = ", ".join(f"{g:.2f}" for g in found)
    whole = len(found) == len(TABLE_1)
    return whole and (found == sorted(found), f"fp32 time over bf16 time: {texts}.")
