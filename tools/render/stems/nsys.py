"""Tables and facts of `nsys`: the same step under Nsight Systems and torch.profiler;
the steps that kernels fill most come first.
"""

from typing import Any

from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import columns, per_device, percent
from tools.render.rows import (
    MISSING,
    NOT_MEASURED,
    PHASES,
    Cell,
    cells,
    known,
    most,
    ran,
    say,
    span,
)

# How far two readers of the same activity records may lie apart.
AGREE = 0.03

CAPTIONS = {
    "kernels.md": "The kernels of one training step under nsys, copies and fills of "
    "memory included, and their time divided by that under torch.profiler (*torch*).",
    "cost.md": "Wall-clock time of a step without a profiler (by *end_to_end*, another "
    "process on the same GPU), and how many times as long it takes under each.",
}


def fragments(records: list[Record]) -> dict[str, str]:
    return {
        "kernels.md": per_device(records, kernels_table),
        "cost.md": per_device(records, cost_table),
    }


def ordered(record: Record | None) -> list[Cell]:
    """The steps that kernels fill first."""
    return sorted(cells(record), key=lambda c: -filled(c) if c else 0)


def kernels_table(record: Record) -> str:
    return columns(
        ordered(record),
        ("step", named),
        ("kernels", counts),
        ("ms", lambda c: busy_ms(c, "nsys"), "{:.1f}"),
        ("nsys / torch", ratio, "{:.3f}"),
    )


def cost_table(record: Record) -> str:
    return columns(
        ordered(record),
        ("step", named),
        ("without, ms", lambda c: timed(c).ms(), "{:.1f}"),
        ("nsys", lambda c: slowdown(c, "nsys"), "{:.2f}"),
        ("torch", lambda c: slowdown(c, "torch"), "{:.2f}"),
    )


def named(c: Cell) -> str:
    return ", ".join(str(c.config[key]) for key in ("size", "context", "precision"))


def counts(c: Cell) -> Any:
    """How many kernels both saw, or both numbers where they differ."""
    ours, theirs = (launched(c, name) for name in ("nsys", "torch"))
    return ours if not c or ours == theirs else f"{ours}, torch.profiler {theirs}"


def launched(c: Cell, instrument: str) -> float:
    """Kernels of a step."""
    return sum(c[f"{instrument}_{phase}_kernels"] for phase in PHASES)


def ms(c: Cell, instrument: str, name: str) -> float:
    """Median over steps of all phases together, of a metric such as "profiled_{}"."""
    return c.ms(*(f"{instrument}_{name.format(phase)}" for phase in PHASES))


def busy_ms(c: Cell, instrument: str) -> float:
    """The sum of the kernels of a step."""
    return ms(c, instrument, "{}_gpu_busy")


def ratio(c: Cell) -> float:
    return busy_ms(c, "nsys") / busy_ms(c, "torch")


def slowdown(c: Cell, instrument: str) -> float:
    """Wall-clock time under the profiler over that without."""
    return ms(c, instrument, "profiled_{}") / timed(c).ms()


def filled(c: Cell) -> float:
    """The share of a step that its kernels fill."""
    return busy_ms(c, "torch") / timed(c).ms()


def timed(c: Cell) -> Cell:
    """The row of `end_to_end` that timed the same step; `c` if it has no numbers."""
    return Cell(c.row.clock) if c and c.row else c


def facts(record: Record | None) -> dict[str, str]:
    found = cells(record)
    slowdowns = {
        name: known(slowdown(c, name) for c in found) for name in ("nsys", "torch")
    }
    fullest = max(filter(None, found), key=filled, default=Cell(None))
    return {
        "ratios": span(map(ratio, found), "{:.3f}"),
        "steps": say(len(known(map(ratio, found))) or MISSING),
        **{
            f"slowdown_{name}": say(most(of), "{:.2f}")
            for name, of in slowdowns.items()
        },
        "filled": say(filled(fullest), percent),
        "filled_size": fullest.config.get("size", NOT_MEASURED),
        "filled_slowdown": say(slowdown(fullest, "nsys"), "{:.2f}"),
    }


@claim(
    "nsys_profile",
    "Nsight Systems and torch.profiler read the same activity records: the kernels of "
    "a step take as long under either, within 3 %, and are as many.",
    because="the runs follow each other, and the GPU's clock may have moved by a few "
    "of its steps of about 1 %.",
)
def instruments_agree(record: Record) -> Judgement:
    found = ran(record)
    ratios = known(map(ratio, found))
    as_many = all(launched(c, "nsys") == launched(c, "torch") for c in found)
    numbers = f"nsys over torch.profiler: {span(ratios, '{:.3f}')}."
    near = all(abs(r - 1) <= AGREE for r in ratios)
    return ratios and (as_many and near, numbers)
