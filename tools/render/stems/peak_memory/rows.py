"""Rows of `peak_memory`, read: what was measured, what the formulas say, and how far
apart the two are.
"""

from systems.formulas.memory_costs import Pass
from systems.formulas.memory_peak import most, peak
from systems.profiling.memory.snapshot import CATEGORIES
from systems.records.record import Record, Row
from systems.records.summary import summarize
from tools.render.markdown import NOT_MEASURED, gib

SIZE, CONTEXTS, PRECISIONS = "2.7B", (128, 256, 512), ("fp32", "bf16")
LONGEST = CONTEXTS[-1]
MODES = {
    "forward": "forward, no graph",
    "forward_graph": "forward, graph kept",
    "forward_two_graphs": "forward, previous graph alive",
    "forward_backward": "forward and backward",
    "step": "full step, AdamW",
}
REMEDIES = {
    ("eager", "no"): "as written",
    ("eager", "yes"): "checkpointing by block",
    ("flash", "no"): "`flash` attention",
    ("flash", "yes"): "both",
}
# What the prediction answers for, with the largest deviation that it may have.
BARS = {
    "weights": 0.02,
    "gradients": 0.02,
    "optimizer state": 0.02,
    "weight copies": 0.05,
    "saved activations": 0.05,
}


def cell(
    record: Record | None,
    context: int,
    mode: str,
    precision: str,
    size: str = SIZE,
    attention: str = "eager",
    checkpoint: str = "no",
) -> Row | None:
    wanted = {
        "attention": attention,
        "checkpoint": checkpoint,
        "mode": mode,
        "precision": precision,
    }
    return record.find(size=size, context=context, **wanted) if record else None


def fits(row: Row | None) -> bool:
    return row is not None and row.status == "ok"


def allocated(row: Row | None) -> int | None:
    """The allocator's own peak; None where the row has no numbers."""
    return (
        row.metrics["peak_allocated_bytes"]
        if row is not None and row.status == "ok"
        else None
    )


def requested(row: Row | None) -> int | None:
    """The same in bytes as asked for, before the allocator rounds."""
    return (
        row.metrics["peak_requested_bytes"]
        if row is not None and row.status == "ok"
        else None
    )


def at_peak(row: Row, category: str) -> int:
    return next(
        c["at_peak_bytes"]
        for c in row.metrics["categories"]
        if c["category"] == category
    )


def most_of(row: Row, category: str) -> int:
    return next(
        c["most_bytes"] for c in row.metrics["categories"] if c["category"] == category
    )


def pass_of(row: Row) -> Pass:
    names = (
        "size",
        "context",
        "mode",
        "precision",
        "attention",
        "batch",
        "vocab",
    )
    return Pass(
        **{name: row.config[name] for name in names},
        checkpoint=int(row.config["checkpoint"] == "yes"),
    )


def predicted(row: Row) -> int:
    """Peak by formula."""
    return sum(peak(pass_of(row)).values())


def deviations(row: Row) -> dict[str, float]:
    """Measured over predicted, minus one, for the most of each category that the pass
    has.
    """
    by_formula = most(pass_of(row))
    return {
        name: most_of(row, name) / value - 1
        for name, value in by_formula.items()
        if value
    }


def worst(
    record: Record | None, categories: tuple[str, ...] = tuple(BARS)
) -> float | None:
    """The largest deviation in these categories over all rows that fitted."""
    rows = (
        [row for row in record.rows if row.status == "ok"]
        if record and record.kind == "measured"
        else []
    )
    found = [
        abs(off)
        for row in rows
        for name, off in deviations(row).items()
        if name in categories
    ]
    return max(found, default=None)


def misses(record: Record) -> list[tuple[Row, str, float]]:
    """Every category of every row that is further from its prediction than the bar
    allows.
    """
    rows = [row for row in record.rows if row.status == "ok"]
    return [
        (row, name, off)
        for row in rows
        for name, off in deviations(row).items()
        if abs(off) > BARS[name]
    ]


def step_ms(row: Row | None) -> float | None:
    """Median time of the whole pass."""
    if row is None or row.status != "ok":
        return None
    times = [samples for name, samples in row.metrics.items() if name.endswith("_ms")]
    return summarize([sum(step) for step in zip(*times, strict=True)]).median


def in_words(row: Row) -> str:
    """Why a row has no numbers: "out of memory, needs 65.3 GiB"."""
    words = row.status.replace("_", " ")
    return (
        f"{words}, needs {gib(predicted(row))} GiB"
        if row.status == "out_of_memory"
        else words
    )


def place(row: Row | None) -> str:
    """Where in a pass its peak is: "in the forward pass", "at the start of the backward
    pass".
    """
    if row is None or row.status != "ok":
        return NOT_MEASURED if row is None else in_words(row)
    phase = row.metrics["peak_phase"].replace("_", " ")
    if phase != "backward":
        return f"in the {phase}" + (" pass" if "forward" in phase else "")
    # Gradients appear as the backward pass goes on.
    start = at_peak(row, "gradients") < most_of(row, "gradients") / 2
    return f"at the {'start' if start else 'end'} of the backward pass"


def used(rows: list[Row]) -> list[str]:
    """The categories that any of these rows has, in the order of the timeline."""
    return [name for name in CATEGORIES if any(most_of(row, name) for row in rows)]
