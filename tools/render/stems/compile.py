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
from tools.render.claims import Judgement, claim
from tools.render.markdown import captioned, columns, gib, per_device
from tools.render.plots import DARK, family, line, note, panels, plot
from tools.render.rows import (
    NOT_MEASURED,
    PHASES,
    Cell,
    at_ends,
    cell,
    cells,
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
# The sizes that sentences and the first table name.
TOLD = ("small", "2.7B")
# What the column "compiled" says; a graph is launched otherwise, and compiled no more
# than eager code.
EXECUTIONS = {
    "eager": "nothing",
    "graph": "nothing; as a graph",
    "compiled": "model",
    "eager_optimizer": "nothing, in turns with the next",
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
    """With "compiled_optimizer": where AdamW's step is compiled too; it has an eager
    row of its own. Both stand behind the others.
    """
    named = {"size": size, "precision": precision}
    way = execution.removesuffix("_optimizer")
    both = cell(record, **named, execution=way, optimizer=True)
    if way != execution and both.row:
        return both
    return cell(record, **named, execution=execution)


def execution_of(c: Cell) -> str:
    """One of EXECUTIONS."""
    way = c.config.get("execution", "")
    return f"{way}_optimizer" if c.config.get("optimizer") else way


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
    if not found:
        # Why there is none, this row or the eager one knows.
        return c.ms() / eager_of(record, c).ms()
    return median(found)


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
        "deviation."
    ),
    "price.md": "What compiling takes, and after how many steps it pays.",
}


def fragments(records: list[Record]) -> dict[str, str]:
    """Times, speed-ups, graphs and price for each measured device, and the figure; the
    reported comparison among the times.
    """
    ours = measured(records)
    return {
        "table.md": per_device(records, times_table),
        "speedups.md": per_device(ours, speedup_figure),
        "speedup-table.md": per_device(ours, speedups_body),
        "graphs.md": per_device(ours, graphs_body),
        "price.md": per_device(ours, lambda record: price_body(record, *TOLD)),
        "price-all.md": per_device(ours, price_body),
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

    def telling(c: Cell) -> bool:
        return at_ends(c) and execution_of(c) in ("eager", "compiled")

    steps = ("step, ms", Cell.mean_std)
    return columns(grid(record), *NAME, *phases, steps, left=3, telling=telling)


COMPARED = {"forward": "forward", "backward": "backward", "optimizer": "AdamW"}


def speedups_body(record: Record) -> str:
    """Eager time over compiled time."""
    found = [c for c in grid(record, *COMPILED_PHASES) if speedup(record, c)]

    shown = columns(
        found,
        *NAME,
        *(
            (head, lambda c, phase=phase: speedup(record, c, phase), "{:.2f}")
            for phase, head in COMPARED.items()
        ),
        ("step", lambda c: speedup(record, c), "{:.2f}"),
        left=3,
        telling=at_ends,
    )
    return captioned("Eager time over compiled time of each phase, context 512.", shown)


def graph_of(record: Record | None, c: Cell) -> Cell:
    """The same eager step, as CUDA graphs."""
    return at(record, c.config["size"], c.config["precision"], "graph")


def graphs_body(record: Record) -> str:
    """Nothing where no step was launched as graphs."""
    if not ran(record, execution="graph"):
        return ""
    caption = (
        "A step launched by the host, the same kernels launched as CUDA graphs, and "
        "the compiled step."
    )
    return captioned(caption, graphs_table(record))


def graphs_table(record: Record) -> str:
    """Where the host may decide: the eager step, the same as graphs, compiled."""

    def graph(c: Cell) -> Cell:
        return graph_of(record, c)

    found = [c for c in grid(record, "compiled") if graph(c).row]
    return columns(
        found,
        "size",
        "precision",
        ("eager, ms", lambda c: eager_of(record, c).ms(), "{:.2f}"),
        ("as graphs, ms", lambda c: say(graph(c).ms(), "{:.2f}")),
        ("compiled, ms", lambda c: c.ms(), "{:.2f}"),
        ("eager / graphs", lambda c: speedup(record, graph(c)), "{:.2f}"),
        ("eager / compiled", lambda c: speedup(record, c), "{:.2f}"),
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


def price_body(record: Record, *sizes: str) -> str:
    """The table, and what its column of cells compiled at once means."""
    shown = price_table(record, *sizes)
    if "| at once |" not in shown:
        return shown
    return f"{shown}\n\n{AT_ONCE}\n{{ .provenance }}"


def price_table(record: Record, *sizes: str) -> str:
    """What compiling takes, what it saves per step, and when that is even; kernels and
    memory, eager and compiled. Of these sizes, or of all.
    """

    def pair(read):
        def both(c: Cell) -> str:
            eager = eager_of(record, c)
            return f"{read(eager)} to {read(c)}" if eager else ""

        return both

    found = [
        c
        for c in filter(None, grid(record, *COMPILED_PHASES))
        if not sizes or c.config["size"] in sizes
    ]
    again = ("again, from its cache, s", again_seconds, "{:.1f}")
    more = [
        ("graphs", lambda c: c["graphs"]),
        ("kernels per step", pair(kernels_of)),
        ("peak, GiB", pair(lambda c: gib(c["peak_allocated_bytes"]))),
    ]
    return columns(
        found,
        *NAME,
        ("compiling, s", compile_seconds, "{:.1f}"),
        *([("at once", at_once)] if any(at_once(c) > 1 for c in found) else []),
        *([again] if known(map(again_seconds, found)) else []),
        ("saved per step, ms", lambda c: saved_ms(record, c), "{:.1f}"),
        ("pays after steps", lambda c: steps_to_pay(record, c), "{:,.0f}"),
        *([] if sizes else more),
        left=3,
    )


def kernels_of(c: Cell) -> str:
    return say(sum(c.get(f"{phase}_kernels", 0) for phase in PHASES), "{:,}")


# Figure -------------------------------------------------------------------------------


def step_speedups(record: Record | None, *phases: str) -> list[float]:
    """Return the gains where the model is compiled and AdamW is not."""
    return known(speedup(record, c, *phases) for c in grid(record, "compiled"))


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
            for place, ratio in zip(places, curves["step"], strict=True):
                if ratio:
                    # Below the line at 1 too, and the last keeps off the names.
                    side = "right" if place == places[-1] else "center"
                    below = {"va": "top", "ha": side, "offset": (0, -7)}
                    line_at = ratio if ratio > 1.5 else min(ratio, 1)
                    note(axes, f"{ratio:.1f}", place, line_at, **below)
            line(axes, places, [1] * len(places), marker="", color=DARK, linewidth=1)
            axes.set_xticks(places, list(TABLE_1))
            axes.set_title(f"{precision}: eager time / compiled time")
        # Once both are drawn: a limit of one ends the search for the other's.
        both[0].set_ylim(bottom=0)

    gains = ranges(step_speedups(record))
    return plot(
        record,
        "speedup",
        draw,
        f"Eager time over compiled time of a whole step {gains}.",
        "Each model size at context 512. At 1 compiling changes nothing.",
        narrow=520,
    )


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """The range of the gains, the largest and smallest model in words, and what
    compiling AdamW does.
    """
    found: dict[str, str] = {}
    for size in TOLD:
        for precision in PRECISIONS:
            key, c = (
                f"{size.replace('.', '_')}_{precision}",
                at(record, size, precision),
            )
            found[f"speedup_{key}"] = say(speedup(record, c), "{:.2f}")
            found[f"compile_{key}"] = say(compile_seconds(c), "{:.0f} s")
            found[f"steps_{key}"] = say(steps_to_pay(record, c), "{:,.0f}")
    for size in TOLD:
        c = at(record, size, "bf16", "graph")
        graph = say(speedup(record, c), "{:.2f}")
        found[f"graph_{size.replace('.', '_')}"] = graph
    rounds = max((c.config.get("rounds", 1) for c in ran(record)), default=1)
    adamw = at(record, "small", "fp32", "compiled_optimizer")
    alone, graph = (at(record, "small", "fp32", way) for way in ("eager", "graph"))
    # What took turns with it, and without it any eager step.
    eager = eager_of(record, adamw) if adamw else alone
    return {
        **found,
        "rounds": str(rounds) if rounds > 1 else NOT_MEASURED,
        "speedup_least": say(least(step_speedups(record)), "{:.2f}"),
        "speedup_most": say(most(step_speedups(record)), "{:.2f}"),
        "falls": say(falls_with_size(record)),
        "optimizer_eager": say(eager.ms("optimizer"), "{:.1f} ms"),
        "optimizer_eager_alone": say(alone.ms("optimizer"), "{:.1f} ms"),
        "optimizer_graph": say(graph.ms("optimizer"), "{:.1f} ms"),
        **{
            f"{phase}_gains": " to ".join(
                say(end(step_speedups(record, phase)), "{:.2f}")
                for end in (least, most)
            )
            for phase in ("forward", "backward")
        },
        "optimizer_compiled": say(adamw.ms("optimizer"), "{:.1f} ms"),
        "optimizer_compile": say(compile_seconds(adamw, "optimizer"), "{:.0f} s"),
    }


def falls_with_size(record: Record | None) -> bool:
    """Whether in fp32 each larger model gains less."""
    gains = known(speedup(record, at(record, size, "fp32")) for size in TABLE_1)
    return len(gains) > 1 and all(a > b for a, b in pairwise(gains))


# Claims -------------------------------------------------------------------------------


@claim(
    "torch_compile",
    "Compiling the model makes the training step faster in every size and precision "
    "measured.",
)
def compiling_gains(record: Record) -> Judgement:
    found = step_speedups(record)
    numbers = f"Eager time over compiled time of a step: {span(found)}."
    return found and (min(found) > 1, numbers)


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
    because="this guide calls a step launch-bound where its wall-clock time exceeds "
    "its GPU time by more than a tenth.",
)
def launches_are_part_of_small(record: Record) -> Judgement:
    small, large = (
        1 / speedup(record, at(record, size, "bf16", "graph"))
        for size in ("small", "2.7B")
    )
    told = f"Time as graphs over eager time: small {small:.2f}, 2.7B {large:.2f}."
    return small * large and (small < 0.9 < large, told)
