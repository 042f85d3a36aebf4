"""Rows of `peak_memory`: measured and predicted peaks, memory by category."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from systems.formulas.memory_costs import Pass
from systems.formulas.memory_peak import bytes_at_peak, category_peaks
from systems.profiling.memory.snapshot import CATEGORIES
from systems.records.record import Record
from tools.render.frame import Frame, Line, frame
from tools.render.rows import OUT_OF_MEMORY, Missing, nanmax

SIZE, CONTEXTS, PRECISIONS = "2.7B", (128, 256, 512), ("fp32", "bf16")
LONGEST, LONG = CONTEXTS[-1], 2048
MODES = {
    "forward": "forward, no graph",
    "forward_graph": "forward, graph kept",
    "forward_two_graphs": "forward, previous graph alive",
    "forward_backward": "forward and backward",
    "step": "full step, AdamW",
}
REMEDIES = {
    ("eager", False): "as written",
    ("eager", True): "checkpointing by block",
    ("flash", False): "`flash` attention",
    ("flash", True): "both",
}
# The categories of memory whose size follows from shapes.
PREDICTED = ("weights", "gradients", "optimizer state", "weight copies")
PREDICTED += ("saved activations",)
PLAIN = {"attention": "eager", "checkpoint": False}


def passes(record: Record | None) -> Frame:
    """Return passes with bytes at their peak: allocated (`peak`), `requested` and
    `predicted`. If out of memory, `peak` and `requested` are Missing, with needed GiB.
    """
    return frame(record).derive(
        remedy=lambda x: REMEDIES[x["attention"], x["checkpoint"]],
        predicted=lambda x: sum(bytes_at_peak(make_pass(x)).values()),
        peak=lambda x: x["peak_allocated_bytes"] if x else missing_peak(x),
        requested=lambda x: x["peak_requested_bytes"] if x else missing_peak(x),
        off=lambda x: x["requested"] / x["predicted"] - 1,
        place=describe_peak_time,
        largest=lambda x: x["tenth"][0]["bytes"] if x else x.missing,
        saved=lambda x: category_bytes(x, "saved activations", "most_bytes"),
    )


def make_pass(x: Line) -> Pass:
    given: dict[str, Any]
    given = {f.name: x[f.name] for f in fields(Pass) if f.name in x.config}
    given["checkpoint"] = int(x["checkpoint"])
    return Pass(**given)


def missing_peak(x: Line) -> Missing:
    """Return why a peak is missing, such as "out of memory, needs 65.3 GiB"."""
    if x.reason != OUT_OF_MEMORY or not x["predicted"]:
        return x.missing
    return Missing(f"{x.reason}, needs {x['predicted'] / 2**30:.1f} GiB", x.row)


def format_peak(x: Line, predicted: float, text: Callable) -> str:
    """Return text(peak) or, if memory ran out, text(`predicted`) + " (predicted)"."""
    lost = x.reason == OUT_OF_MEMORY
    return f"{text(predicted)} (predicted)" if lost else text(x["peak"])


def describe_peak_time(x: Line) -> str | Missing:
    """Describe when a pass reaches its peak: "in the forward pass"."""
    if not x:
        return x.missing
    phase = x["peak_phase"].replace("_", " ")
    if phase == "backward":
        # Gradients are allocated as the backward pass goes on.
        most = category_bytes(x, "gradients", "most_bytes")
        early = category_bytes(x, "gradients") < most / 2
        return f"at the {'start' if early else 'end'} of the backward pass"
    return f"in the {phase}" + (" pass" if "forward" in phase else "")


def category_bytes(x: Line, name: str, which: str = "at_peak_bytes") -> float:
    """Return the bytes of category `name` at the pass's peak, or with
    `which="most_bytes"` the most bytes that the category had at any time.
    """
    if not x:
        return x.missing
    return {c["category"]: c[which] for c in x["categories"]}[name]


def largest_error(record: Record | None) -> float:
    """Return the largest relative error of a category's predicted maximum bytes."""
    return nanmax(
        abs(category_bytes(x, name, "most_bytes") / value - 1)
        for x in passes(record).where(bool)
        for name, value in category_peaks(make_pass(x)).items()
        if value and name in PREDICTED
    )


def used_categories(found: list[Line]) -> list[str]:
    """Return the categories with memory in any of these rows, in drawing order."""
    return [
        n for n in CATEGORIES if any(category_bytes(x, n, "most_bytes") for x in found)
    ]
