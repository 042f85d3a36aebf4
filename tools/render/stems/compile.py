"""Tables, figure and facts of `compile`: training steps eager and compiled, and how
many steps pay for compiling.
"""

import math
from itertools import pairwise
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from systems.model.sizes import TABLE_1
from systems.records.record import Record
from systems.records.summary import summarize
from tools.render.claims import Judgement, claim
from tools.render.markdown import captioned, columns, gib, per_device
from tools.render.plots import DARK, family, note, panels, plot
from tools.render.rows import (
    MISSING,
    PHASES,
    STEADY,
    Cell,
    at_ends,
    cell,
    cells,
    counted,
    known,
    least,
    measured,
    most,
    ran,
    ranges,
    say,
    span,
)

PRECISIONS = ("fp32", "bf16")
# What the column "compiled" says; a graph is launched otherwise, and compiled no more
# than eager code.
EXECUTIONS = {
    "eager": "nothing",
    "graph": "nothing; as a graph",
    "compiled": "model",
    "compiled_optimizer": "model, AdamW",
}
COMPILED_PHASES = {
    "compiled": ("forward", "backward"),
    "compiled_optimizer": ("forward", "backward", "optimizer"),
}


# What a row says ----------------------------------------------------------------------


def at(
    record: Record | None, size: Any, precision: Any, execution: str = "compiled"
) -> Cell:
    """With "compiled_optimizer": where AdamW's step is compiled too. Its eager row
    stands behind that of the others.
    """
    named = {"size": size, "precision": precision}
    both = cell(record, **named, execution="compiled", optimizer=True)
    if execution == "compiled_optimizer" and both.row:
        return both
    return cell(record, **named, execution=execution)


def execution_of(c: Cell) -> str:
    """One of EXECUTIONS."""
    compiled = c.config.get("execution", "")
    return "compiled_optimizer" if c.config.get("optimizer") else compiled


def eager_of(record: Record | None, c: Cell) -> Cell:
    """The same step, eager: of the rows that took turns with this one."""
    same = {key: c.config.get(key) for key in ("size", "precision")}
    if "optimizer" in c.config:
        same["optimizer"] = c.config["optimizer"]
    return cell(record, **same, execution="eager")


def ratios(record: Record | None, c: Cell, *phases: str) -> list[float]:
    """Eager time over the time of this row, round by round: of the medians of a round,
    in which both met the same host. A record without rounds has one.
    """
    rounds = c.config.get("rounds", 1)
    eager, ours = (
        in_rounds(of.samples(*phases), rounds) for of in (eager_of(record, c), c)
    )
    return [
        median(theirs) / median(mine)
        for theirs, mine in zip(eager, ours, strict=True)
        if theirs and mine
    ]


def in_rounds(samples: list[float], rounds: int) -> list[list[float]]:
    """The samples of each round."""
    ends = [len(samples) * i // rounds for i in range(rounds + 1)]
    return [samples[start:end] for start, end in pairwise(ends)]


def speedup(record: Record | None, c: Cell, *phases: str) -> float:
    """Eager time over the time of this row: the median of the rounds."""
    found = ratios(record, c, *phases)
    # Why there is none, this row or the eager one knows.
    return median(found) if found else c.ms() / eager_of(record, c).ms()


def unsteady(record: Record | None, c: Cell) -> bool:
    """Whether rounds disagree; of a record without rounds, whether the host decided
    some of these steps, or of the eager ones that they are compared with.
    """
    if c.config.get("rounds", 1) == 1:
        return c.unsteady or eager_of(record, c).unsteady
    found = ratios(record, c)
    if not found:
        # One of the two has no numbers.
        return False
    rounds = summarize(found)
    return rounds.p80 / rounds.p20 > STEADY


def with_unsteady(record: Record, caption: str, shown: str) -> str:
    """The caption of a table of ratios, with what `unsteady` means of them, where one
    is so marked.
    """
    if "(unsteady)" not in shown:
        return caption
    # All have the same rounds; compiled rows may all be without numbers.
    c = next(filter(None, grid(record, *EXECUTIONS)))
    rounds = c.config.get("rounds", 1)
    if rounds == 1:
        of = "of its steps, or of the eager ones, the 80th percentile is"
    else:
        each = len(c.samples()) // rounds
        of = f"of the ratios of its {rounds} rounds of {each} steps (medians), the "
        of += "80th percentile is"
    return f"{caption} Unsteady: {of} more than {STEADY} times the 20th."


def step_speedup(record: Record | None, c: Cell) -> str:
    """ "1.56", or "2.60 (unsteady)"."""
    ratio = speedup(record, c)
    mark = " (unsteady)" if known([ratio]) and unsteady(record, c) else ""
    return say(ratio, "{:.2f}") + mark


def saved_ms(record: Record | None, c: Cell) -> float:
    return eager_of(record, c).ms() - c.ms()


def compile_seconds(c: Cell, *phases: str) -> float:
    """What the warm-up steps took beyond as many settled ones: in these phases, or in
    all that this row compiles.
    """
    return beyond_settled(c, "warmup", phases)


def again_seconds(c: Cell) -> float:
    """The same of a second start, which finds what was compiled on disk."""
    timed = c and c.get("again_forward_ms", None)
    return beyond_settled(c, "again") if timed else c.missing


def beyond_settled(c: Cell, steps: str, phases: tuple[str, ...] = ()) -> float:
    compiled = phases or COMPILED_PHASES.get(execution_of(c), ())
    seconds = sum(c.beyond(f"{steps}_{phase}", phase) for phase in compiled)
    return seconds if c else c.missing


def steps_to_pay(record: Record | None, c: Cell) -> Any:
    """Steps after which compiling has paid for itself, or "never"."""
    saved = saved_ms(record, c)
    return (
        math.ceil(compile_seconds(c) / (saved / 1e3))
        if saved > 0
        else ("never" if saved <= 0 else saved)
    )


def grid(record: Record | None, *executions: str) -> list[Cell]:
    """By size, precision and execution, so that those to compare stand together."""
    found = [
        at(record, size, precision, execution)
        for size in TABLE_1
        for precision in PRECISIONS
        for execution in executions or EXECUTIONS
    ]
    return [c for c in found if c.row]


# Tables -------------------------------------------------------------------------------

CAPTIONS = {
    "table.md": (
        "A training step at context 512 by phase, eager and compiled: mean ± standard "
        "deviation. Unsteady: the 80th percentile of its steps is more than "
        f"{STEADY} times the 20th."
    ),
    "price.md": (
        "What compiling takes, what it saves in each step, and after how many steps "
        "it pays."
    ),
}


def fragments(records: list[Record]) -> dict[str, str]:
    """Times, speed-ups, graphs and price for each measured device, and the figure; the
    reported comparison among the times.
    """
    ours = measured(records)
    return {
        "table.md": per_device(records, times_table),
        "speedups.md": per_device(ours, speedups_body),
        "graphs.md": per_device(ours, graphs_body),
        "price.md": per_device(ours, price_body),
    }


NAME = (
    "size",
    "precision",
    ("compiled", lambda c: EXECUTIONS.get(execution_of(c), "")),
)


def times_table(record: Record) -> str:
    """Mean ± standard deviation of each phase and of the step."""
    if record.kind == "reported":
        # What others report, as they report it: one number for each.
        parts = ("forward", "backward_and_optimizer", "step")
        shown = [
            (f"{p.replace('_', ' ')}, ms", lambda c, p=p: c[f"{p}_mean_ms"], "{:.2f}")
            for p in parts
        ]
        return columns(cells(record), *NAME, *shown, left=3)
    # The loss takes a fifth of a millisecond, and the table is wide.
    shown = [p for p in PHASES if p != "loss"]
    phases = [(f"{p}, ms", lambda c, p=p: c.mean_std(p)) for p in shown]

    def step(c: Cell) -> Any:
        return f"{c.mean_std()} (unsteady)" if c.unsteady else c.mean_std()

    def telling(c: Cell) -> bool:
        return at_ends(c) and execution_of(c) != "compiled_optimizer"

    steps = ("step, ms", step)
    return columns(grid(record), *NAME, *phases, steps, left=3, telling=telling)


COMPARED = {"forward": "forward", "backward": "backward", "optimizer": "AdamW"}


def speedups_body(record: Record) -> str:
    """Figure and table of eager time over compiled time."""
    found = [c for c in grid(record, *COMPILED_PHASES) if speedup(record, c)]

    shown = columns(
        found,
        *NAME,
        *(
            (head, lambda c, phase=phase: speedup(record, c, phase), "{:.2f}")
            for phase, head in COMPARED.items()
        ),
        ("step", lambda c: step_speedup(record, c)),
        left=3,
        telling=at_ends,
    )
    caption = "Eager time over compiled time of each phase, context 512."
    caption = with_unsteady(record, caption, shown)
    return f"{speedup_figure(record)}\n\n{captioned(caption, shown)}"


def graphs_body(record: Record) -> str:
    shown = graphs_table(record)
    caption = (
        "A step launched by the host, the same kernels launched as CUDA graphs, and "
        "the compiled step."
    )
    return captioned(with_unsteady(record, caption, shown), shown)


def graphs_table(record: Record) -> str:
    """Where the host may decide: the eager step, the same as graphs, compiled."""

    def graph(c: Cell) -> Cell:
        return at(record, c.config["size"], c.config["precision"], "graph")

    found = [
        c
        for c in grid(record, "compiled")
        if graph(c).row or c.config["precision"] == "bf16"
    ]
    return columns(
        found,
        "size",
        "precision",
        ("eager, ms", lambda c: eager_of(record, c).ms(), "{:.2f}"),
        ("as graphs, ms", lambda c: say(graph(c).ms(), "{:.2f}")),
        ("compiled, ms", lambda c: c.ms(), "{:.2f}"),
        ("eager / graphs", lambda c: step_speedup(record, graph(c))),
        ("eager / compiled", lambda c: step_speedup(record, c)),
    )


AT_ONCE = (
    "At once: up to so many cells were compiled at a time, each by a process of its "
    "own. They share the host and the GPU, so prices compare at the same number alone."
)


def at_once(c: Cell) -> int:
    """How many cells were compiled while this one was; 1 where it was compiled alone,
    as it was measured.
    """
    return c.get("compiled_at_once", 1)


def price_body(record: Record) -> str:
    """The table, and what its column of cells compiled at once means."""
    shown = price_table(record)
    if "| at once |" not in shown:
        return shown
    return f"{shown}\n\n{AT_ONCE}\n{{ .provenance }}"


def price_table(record: Record) -> str:
    """What compiling takes, what it saves per step, and when that is even; kernels and
    memory, eager and compiled.
    """

    def pair(read):
        def both(c: Cell) -> str:
            eager = eager_of(record, c)
            return f"{read(eager)} to {read(c)}" if eager else ""

        return both

    found = list(filter(None, grid(record, *COMPILED_PHASES)))
    again = ("again, from its cache, s", again_seconds, "{:.1f}")
    return columns(
        found,
        *NAME,
        ("compiling, s", compile_seconds, "{:.1f}"),
        *([("at once", at_once)] if any(at_once(c) > 1 for c in found) else []),
        *([again] if known(map(again_seconds, found)) else []),
        ("graphs", lambda c: c["graphs"]),
        ("saved per step, ms", lambda c: saved_ms(record, c), "{:.2f}"),
        ("pays after steps", lambda c: steps_to_pay(record, c), "{:,}"),
        ("kernels per step", pair(kernels_of)),
        ("peak, GiB", pair(lambda c: gib(c["peak_allocated_bytes"]))),
        left=3,
        telling=at_ends,
    )


def kernels_of(c: Cell) -> str:
    return say(sum(c.get(f"{phase}_kernels", 0) for phase in PHASES), "{:,}")


# Figure -------------------------------------------------------------------------------


def step_speedups(record: Record | None, *phases: str) -> list[float]:
    """Where the model is compiled and AdamW is not, and the host decided neither
    step.
    """
    steady = [c for c in grid(record, "compiled") if not unsteady(record, c)]
    return known(speedup(record, c, *phases) for c in steady)


def speedup_figure(record: Record) -> str:
    phases = {"forward": ("forward",), "backward": ("backward",), "step": ()}

    def draw(figure: Figure) -> None:
        both = panels(figure, 2, sharey=True)
        for axes, precision in zip(both, PRECISIONS, strict=True):
            steps = [at(record, size, precision) for size in TABLE_1]
            curves = {
                name: [speedup(record, c, *of) for c in steps]
                for name, of in phases.items()
            }
            places = range(len(TABLE_1))
            family(axes, {n: (places, ratios) for n, ratios in curves.items()}, "step")
            for place in places:
                if ratio := curves["step"][place]:
                    # The last one keeps off the names at the ends.
                    side = "right" if place == places[-1] else "center"
                    below = {"va": "top", "ha": side, "offset": (0, -7)}
                    note(axes, f"{ratio:.1f}", place, ratio, **below)
            axes.axhline(1, color=DARK, linewidth=1)
            axes.set_xticks(places, list(TABLE_1))
            axes.set_title(f"{precision}: eager time / compiled time")
        # Once both are drawn: a limit of one ends the search for the other's.
        both[0].set_ylim(bottom=0)

    told = ranges(step_speedups(record))
    if any(unsteady(record, c) for c in grid(record, "compiled")):
        told += " where that is steady"
    return plot(
        record,
        "speedup",
        draw,
        f"Eager time over compiled time of a whole step {told}.",
        "Each model size at context 512. At 1 compiling changes nothing.",
        narrow=520,
    )


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """The range of the gains, the largest and smallest model in words, and what
    compiling AdamW does.
    """
    found: dict[str, str] = {}
    for size in ("small", "2.7B"):
        for precision in PRECISIONS:
            key, c = (
                f"{size.replace('.', '_')}_{precision}",
                at(record, size, precision),
            )
            found[f"speedup_{key}"] = step_speedup(record, c)
            found[f"compile_{key}"] = say(compile_seconds(c), "{:.0f} s")
            found[f"steps_{key}"] = say(steps_to_pay(record, c), "{:,}")
    adamw = at(record, "small", "fp32", "compiled_optimizer")
    # What took turns with it, and without it any eager step.
    eager = eager_of(record, adamw) if adamw else at(record, "small", "fp32", "eager")
    # A graph has nothing that could compile again.
    recompiles = sum(c.get("recompiles", 0) for c in ran(record))
    return {
        **found,
        "unsteady": say(
            counted(
                unsteady(record, c)
                for c in grid(record, "compiled")
                if known([speedup(record, c)])
            )
        ),
        "speedup_least": say(least(step_speedups(record)), "{:.2f}"),
        "speedup_most": say(most(step_speedups(record)), "{:.2f}"),
        "recompiles": say((recompiles or "no") if ran(record) else MISSING),
        "optimizer_eager": say(eager.ms("optimizer"), "{:.1f} ms"),
        "optimizer_compiled": say(adamw.ms("optimizer"), "{:.1f} ms"),
        "optimizer_compile": say(compile_seconds(adamw, "optimizer"), "{:.0f} s"),
    }


# Claims -------------------------------------------------------------------------------


@claim(
    "torch_compile",
    "Compiling the model makes the training step faster in every size and precision "
    "measured.",
)
def compiling_gains(record: Record) -> Judgement:
    # Unsteady ones too: such a step may be the slower one.
    compiled = [c for c in grid(record, "compiled") if speedup(record, c)]
    found = [speedup(record, c) for c in compiled]
    numbers = f"Eager time over compiled time of a step: {span(found)}"
    if torn := sum(unsteady(record, c) for c in compiled):
        numbers += f", {torn} of {len(found)} unsteady"
    return found and (min(found) > 1, f"{numbers}.")


@claim(
    "torch_compile",
    "For 2.7B, compiling gains more in bf16 than in fp32, where products take most of "
    "the time.",
)
def bf16_gains_more(record: Record) -> Judgement:
    fp32, bf16 = (speedup(record, at(record, "2.7B", p)) for p in PRECISIONS)
    return fp32 / bf16 and (bf16 > fp32, f"fp32 {fp32:.2f}, bf16 {bf16:.2f}.")


@claim(
    "torch_compile",
    "Launched as CUDA graphs an eager step of small in bf16 takes less than nine "
    "tenths of its time, so much of it is launching; one of 2.7B takes more.",
)
def launches_are_part_of_small(record: Record) -> Judgement:
    small, large = (
        1 / speedup(record, at(record, size, "bf16", "graph"))
        for size in ("small", "2.7B")
    )
    told = f"Time as graphs over eager time: small {small:.2f}, 2.7B {large:.2f}."
    return small * large and (small < 0.9 < large, told)
