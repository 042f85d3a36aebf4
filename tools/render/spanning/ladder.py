"""The ladder of `flash_ablation`: what each step gains, how far that is from cuDNN and
from the floor, and what the compiled kernel says of why.

Two records of one GPU are read: the steps, and ours beside cuDNN at the same shape.
What was compiled and not timed stands in a file of its own (`tools/compile_steps.py`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from systems.formulas.chips import KIB
from systems.formulas.costs import EXPONENTIALS_PER_CLOCK, count_scores
from systems.records.record import Record
from systems.records.source_hash import hash_of
from tools.render.compiled_files import STEPS as COMPILED
from tools.render.load import Found, of_gpu, ours
from tools.render.markdown import Markup, columns, per_device, percent, table
from tools.render.plots import (
    ACCENT,
    GREY,
    GROUND,
    INK,
    WARN,
    bars,
    is_narrow,
    plot,
    value,
    without_numbers,
)
from tools.render.rows import MISSING, cell, known, say
from tools.render.stems.flash_ablation import (
    BACKWARD,
    FORWARD,
    LAUNCHERS,
    PATH_OF_HOPPER,
    STEPS,
    Step,
    gain,
    gain_at_the_end,
)
from tools.render.stems.flash_ablation import ms as fastest_ms
from tools.render.stems.flash_leaderboard import FLOOR, SHAPE, limits_ms, rates_of
from tools.render.stems.flash_peers.rows import TEST, ratio

REGISTERS, LANES = 65536, 32
UNKNOWN = (
    "The compiled loop does not say why; the next experiment is a profile of what its "
    "warps wait for."
)
# Gains that differ by more are both told: the clock fell in one of two steps alone.
CLOCKS_APART = 0.03
# Threads whose instructions an SM can start in a cycle: four warps.
ISSUED = 4 * LANES
# What `flash_peers` calls the kernels of a step, which it times in turns with cuDNN's.
IN_TURNS = {
    "plain_forward": "ours_triton",
    "forward": "ours",
    "plain_backward": "ours_triton",
    "backward": "ours",
}
# Left out of the figure and the tables of times where there is no time.
UNTIMED = ("first_forward", "first_backward", *PATH_OF_HOPPER)


@dataclass(frozen=True)
class Needs:
    """What the kernels of a step need of an SM; None where there are several of them.
    `text` is for a table.
    """

    text: tuple[str, ...]
    each_per_score: tuple[float, ...]
    registers: int | None
    warps: int
    programs: int

    @property
    def warps_on_sm(self) -> int:
        return self.warps * self.programs


def fragments(found: Found) -> dict[str, str]:
    """Bars, a table for each pass, what was compiled, and the reasons."""
    records, record = found.get("flash_ablation", []), ours(found, "flash_ablation")
    return {
        "ladder-bars.md": per_device(records, lambda r: bars_figure(found, r)),
        "ladder-forward.md": per_device(records, lambda r: times(found, r, FORWARD)),
        "ladder-backward.md": per_device(records, lambda r: times(found, r, BACKWARD)),
        "ladder-needs.md": needs_table(record),
        "ladder-why.md": reasons(record, FORWARD),
        "ladder-why-backward.md": reasons(record, BACKWARD),
    }


# What the records say ----------------------------------------------------------------


def ms(record: Record | None, step: str) -> float:
    """Where the kernels for Hopper don't run, their step repeats the one before."""
    c = cell(record, step=step)
    repeats = c and step in PATH_OF_HOPPER and c["ran"] != "hopper"
    return MISSING if repeats else fastest_ms(record, step)


def floor_of(record: Record | None, name: str) -> float:
    """The least that the products of this pass take: five in a backward pass."""
    if record is None:
        return MISSING
    kernel = {"forward": "forward", "backward": "one_pass"}[name]
    return limits_ms(rates_of(record), kernel, SHAPE)[FLOOR]


def of_cudnn(found: Found, record: Record | None, step: str) -> float:
    """cuDNN's time of this pass over that of a step's kernels, in turns. Missing where
    these kernels were not timed so: at another clock a ratio says little.
    """
    if record is None or step not in IN_TURNS:
        return MISSING
    peers = of_gpu(found, "flash_peers", record.device.slug)
    c = cell(peers, implementation=IN_TURNS[step], **TEST)
    return 1 / ratio(peers, c, pass_of(FORWARD if step in FORWARD else BACKWARD))


def pass_of(steps: Mapping[str, Step]) -> str:
    return "forward" if steps is FORWARD else "backward"


def compared(steps: Mapping[str, Step]) -> list[tuple[str, str]]:
    """Each step with the one that it is measured against; "" where it starts anew. The
    first kernel's forward pass is no step, but a sibling of the second.
    """
    return [*pairwise(["", *(step for step in steps if step != "first_forward")])]


def timed(record: Record | None, steps: Mapping[str, Step]) -> list[str]:
    """Those that are shown: of what need not be there only what was measured."""
    return [s for s in steps if s not in UNTIMED or known([ms(record, s)])]


def times(found: Found, record: Record, steps: Mapping[str, Step]) -> str:
    """A line for each step."""
    floor = floor_of(record, pass_of(steps))
    before = {step: earlier for earlier, step in compared(steps)}

    def gained(by: Callable[..., float]) -> Callable[[str], float | str]:
        return lambda s: by(record, before[s], s) if before.get(s) else ""

    def in_turns(step: str) -> float | str:
        return of_cudnn(found, record, step) or ""

    def metric(name: str) -> Callable[[str], Any]:
        return lambda step: cell(record, step=step)[name]

    return columns(
        timed(record, steps),
        ("step", lambda step: steps[step].name),
        ("predicted gain", lambda step: steps[step].factor),
        ("ms", lambda step: ms(record, step), "{:.3f}"),
        ("gain", gained(gain), "{:.2f}"),
        ("gain at the end", gained(gain_at_the_end), "{:.2f}"),
        ("of the floor", lambda s: floor / ms(record, s) or "", percent),
        ("of cuDNN's speed, in turns", in_turns, percent),
        ("error", metric("relative_error"), "{:.1e}"),
        (
            "same bits in two calls",
            metric("repeats"),
            lambda same: "yes" if same else "no",
        ),
        alike=("error", "same bits in two calls"),
    )


# What was compiled -------------------------------------------------------------------


def needs(record: Record | None) -> dict[str, Needs]:
    """What each step needs with the version of Triton that was measured, if the GPU is
    of the kind that it was compiled for.
    """
    if record is None or record.device.capability != "9.0":
        return {}
    version = record.software.get("triton", "")
    steps = COMPILED.versions().get(version, {}).get("steps", {})
    return {step: needs_of(steps[step]) for step in STEPS if step in steps}


def needs_of(kernels: Sequence[Mapping[str, Any]]) -> Needs:
    def each(show: Any) -> str:
        return " / ".join(str(show(kernel)) for kernel in kernels)

    first = kernels[0]
    return Needs(
        (
            each(lambda k: k["registers"]),
            each(lambda k: k["stack_bytes"]),
            each(lambda k: f"{k['shared_bytes'] / KIB:.0f}"),
            each(lambda k: f"{k['programs']} × {k['warps']}"),
            each(lambda k: f"{k['per_score']:.1f}"),
        ),
        tuple(kernel["per_score"] for kernel in kernels),
        first["registers"] if len(kernels) == 1 else None,
        first["warps"],
        first["programs"],
    )


def issued_ms(record: Record, step: str, needs: Needs) -> float:
    """How long an SM's four schedulers take for the loops' instructions, one of a warp
    in each cycle. The first step visits the tiles above the diagonal, too.
    """
    entries = count_scores(
        batch=1, heads=SHAPE["heads"], n=SHAPE["n"], causal=step != "tiles"
    )
    per_second = rates_of(record).exponentials / EXPONENTIALS_PER_CLOCK * ISSUED
    return 1e3 * sum(needs.each_per_score) * entries / per_second


def needs_table(record: Record | None) -> str:
    """Registers, spills, shared memory, warps on an SM and instructions."""
    found = needs(record)
    if not found or record is None:
        version = record.software.get("triton") if record else None
        tried = f" with Triton {version}" if version else ""
        return COMPILED.missing(f"Not compiled{tried}")
    version = record.software["triton"]
    there = COMPILED.versions()[version]["source_hash"]
    fresh = there == hash_of(LAUNCHERS)
    stale = "**Stale:** compiled from an earlier version of the code.\n{ .stale }\n\n"
    head = ["step", "registers", "spilled, bytes", "shared memory, KiB"]
    head += ["programs × warps on an SM"]
    head += ["instructions for a score", "ms to issue them"]
    lines = [
        [STEPS[step].name, *it.text, f"{issued_ms(record, step, it):.2f}"]
        for step, it in found.items()
    ]
    link = Markup("[file](results/flash_ablation-compiled.json)")
    return (
        f"{'' if fresh else stale}{table(head, lines)}\n\n"
        f"Compiled for an H100 with Triton {version}, not timed · {link}\n"
        "{ .provenance }\n"
    )


# Why ---------------------------------------------------------------------------------


def reasons(record: Record | None, steps: Mapping[str, Step]) -> str:
    """Each step's cause, what was predicted of it, and what the compiled kernels say
    about its gain.
    """
    found = needs(record)
    items = []
    for before, step in compared(steps):
        if not known([ms(record, step)]) or not steps[step].cause:
            continue
        name, cause, predicted, short = steps[step]
        told = [f"**{name[0].upper()}{name[1:]}.** {cause}"]
        gained = Gain(gain(record, before, step), gain_at_the_end(record, before, step))
        if before and known(gained):
            factor, _, why = predicted.partition(": ")
            told.append(f"Predicted {factor} ({why}), measured {gained}.")
            if before in found and step in found:
                both = found[before], found[step]
                told += evidence(*both, gained, float(factor), short)
        items.append(f"1. {' '.join(told)}")
    return "\n".join(items) + "\n" if items else "Not measured yet.\n"


class Gain(NamedTuple):
    """How many times as fast a step is: near the highest clock, and at the end of some
    twenty calls.
    """

    first: float
    last: float

    @property
    def differ(self) -> bool:
        return abs(self.last / self.first - 1) > CLOCKS_APART

    def __str__(self) -> str:
        later = f", and {self.last:.2f} once the clock has fallen"
        return f"{self.first:.2f}{later if self.differ else ''}"


def saved(gained: float, predicted: float) -> float:
    """Of the time that a step should save, the share that it saves."""
    return (1 - 1 / gained) / (1 - 1 / predicted)


def falls_short(gained: float, predicted: float) -> bool:
    """Less than half of that."""
    return predicted > 1.02 and saved(gained, predicted) < 0.5


def in_words(gained: Gain, predicted: float) -> str:
    """What stands where a step falls short."""
    if max(gained) < 1.02:
        return "**It gains nothing.**"
    first, last = (percent(saved(each, predicted)) for each in gained)
    if gained.first < 1.02:
        return (
            "**It gains nothing at first, and saves "
            f"{last} of the time that it should once the clock has fallen.**"
        )
    later = f" ({last} once the clock has fallen)" if gained.differ else ""
    return f"**It saves {first} of the time that it should{later}.**"


def evidence(
    a: Needs, b: Needs, gained: Gain, predicted: float, short: str = ""
) -> list[str]:
    """What the compiled kernels say about a step from a to b; and what is in the way,
    where that is known to be something else.
    """
    told = []
    before, after = (sum(needs.each_per_score) for needs in (a, b))
    one = a.registers is not None and b.registers is not None
    if abs(after / before - 1) > 0.05:
        told.append(
            f"The {'loop' if one else 'loops together'} went from {before:.1f} to "
            f"{after:.1f} instructions for a score."
        )
    if a.registers is None or b.registers is None:
        if falls_short(gained.first, predicted):
            told.append(f"{in_words(gained, predicted)} {short or UNKNOWN}")
        return told
    fewer = b.warps_on_sm < a.warps_on_sm
    limit = REGISTERS // (a.programs * b.warps * LANES)
    if fewer and a.warps == b.warps and b.registers > limit:
        left = "one is" if b.programs == 1 else f"{b.programs} are"
        told.append(
            f"But a thread needs {b.registers} registers, and {a.programs} programs "
            f"of {b.warps} warps fit on an SM only with {limit}: {left} left."
        )
    elif b.warps_on_sm != a.warps_on_sm:
        told.append(
            f"Warps on an SM went from {a.warps_on_sm} to {b.warps_on_sm}"
            + (f", at {b.registers} registers." if not fewer else ".")
        )
    if gained.first < 0.98 and fewer:
        waits = (
            "these warps wait for a tile, nobody else computes."
            if b.programs == 1
            else "some warps wait for a tile, fewer others are left to compute."
        )
        told.append(f"**It loses.** The likely cause: while {waits}")
    elif gained.first < 0.98:
        told.append(f"**It loses.** {UNKNOWN}")
    elif falls_short(gained.first, predicted):
        why = short or UNKNOWN
        if fewer:
            why = (
                "The likely cause: what the loop saves is lost again, since fewer "
                "warps are left to hide each other's waits."
            )
        told.append(f"{in_words(gained, predicted)} {why}")
    elif gained.first > 1.2 * predicted and b.warps_on_sm > a.warps_on_sm:
        told.append(
            "It gains more than predicted. Likely it gains twice: by what it saves, "
            "and by more warps that hide waits."
        )
    return told


# The figure --------------------------------------------------------------------------


def bar_chart(
    figure: Figure,
    shown: Mapping[str, tuple[str, float]],
    slower: Collection[str],
    marks: Mapping[str, float],
) -> None:
    """A bar in ms for each step, the last in the accent; and marks across all bars."""
    axes = figure.subplots()
    longest = max(known(time for _, time in shown.values()), default=1.0)
    longest *= 1.35 if is_narrow(figure) else 1.12
    times = [time or 0.0 for _, time in shown.values()]
    looks = [WARN if step in slower else GREY for step in shown]
    axes.barh(range(len(shown)), times, 0.68, color=[*looks[:-1], ACCENT])
    bars(axes, [words for words, _ in shown.values()])
    across = {name: time for name, time in marks.items() if known([time])}
    for name, time in across.items():
        # Seen on bars and between them.
        axes.axvline(time, color=GROUND, lw=3.5)
        axes.axvline(time, color=INK, lw=1.2)
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        place |= {"ha": "right", "xytext": (3, 4)}
        axes.annotate(f"{name} {time:.2f}", (time, 1), **place)
    for y, (_, time) in enumerate(shown.values()):
        # Behind a mark that would go through it.
        near = [at for at in across.values() if 0 <= at - (time or 0) < 0.16 * longest]
        value(axes, say(time, "{:.2f}"), max([time or 0.0, *near]), y)
    without_numbers(axes)
    axes.set_xlim(0, longest)
    axes.set_title("ms", pad=18 if across else 4)


def bars_figure(found: Found, record: Record) -> str:
    """The forward pass, step by step, with cuDNN's time and the floor across."""
    floor = floor_of(record, "forward")
    shown = {s: (STEPS[s].name, ms(record, s)) for s in timed(record, FORWARD)}
    lost = {
        step
        for before, step in compared(FORWARD)
        if before and gain(record, before, step) < 0.98
    }
    start, end = ms(record, "tiles"), fastest(record)
    first = ms(record, "first_forward")
    return plot(
        record,
        "ladder",
        lambda figure: bar_chart(figure, shown, lost, {"floor": floor}),
        f"Technique by technique the forward pass goes from {say(start, '{:.2f} ms')} "
        f"to {say(end, '{:.2f} ms')}, {say(first / end, '{:.1f}')} times as fast as "
        "the first kernel.",
        "16 heads of 16,384 tokens, head dimension 64, bf16, causal. Each step keeps "
        "the techniques of those above it, not always their tiles; the first kernel is "
        "the second step with other tiles, two in flight. Orange: slower than the "
        "step above.",
        height=60 + 26 * len(shown),
    )


def fastest(record: Record | None) -> float:
    return min(known(ms(record, step) for step in FORWARD), default=MISSING)


def facts(found: Found) -> dict[str, str]:
    """From the first step to the fastest, beside cuDNN and the floors."""
    record = ours(found, "flash_ablation")
    start, end = ms(record, "tiles"), fastest(record)
    back = ms(record, "backward")
    floor, back_floor = (floor_of(record, name) for name in ("forward", "backward"))
    limits = limits_ms(rates_of(record), "forward", SHAPE) if record else {}
    products, exponentials = (
        limits.get(name, MISSING) for name in (FLOOR, "exponentials")
    )
    first = ms(record, "first_forward")
    time = "{:.2f} ms"
    found_needs = needs(record)

    def issued(step: str) -> float:
        if record is None or step not in found_needs:
            return MISSING
        return issued_ms(record, step, found_needs[step])

    return {
        "stops": say(ms(record, "skip"), time),
        "stops_issued": say(issued("skip"), time),
        "end_issued": say(issued("forward"), time),
        "start": say(start, time),
        "first": say(first, time),
        "end": say(end, time),
        "gain": say(first / end, "{:.1f}"),
        "of_cudnn": say(of_cudnn(found, record, "forward"), percent),
        "of_floor": say(floor / end, percent),
        "backward_of_cudnn": say(of_cudnn(found, record, "backward"), percent),
        "backward_of_floor": say(back_floor / back, percent),
        "products": say(products, time),
        "exponentials": say(exponentials, time),
        "in_turn": say(products + exponentials, time),
        "any_shape": say(ms(record, "plain_forward"), time),
    }
