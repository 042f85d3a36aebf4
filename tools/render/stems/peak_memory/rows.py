"""Rows of `peak_memory`, read: what was measured, what the formulas say, and how far
apart the two are.
"""

from dataclasses import dataclass, fields
from typing import Any

from systems.formulas.memory_costs import Pass
from systems.formulas.memory_peak import category_peaks, peak, peak_candidates
from systems.profiling.memory.snapshot import CATEGORIES
from systems.records.record import Record
from tools.render import rows
from tools.render.rows import Cell, cell, cells, say

MIB = 2**20
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
    ("eager", False): "as written",
    ("eager", True): "checkpointing by block",
    ("flash", False): "`flash` attention",
    ("flash", True): "both",
}
# What shapes predict alone.
PREDICTED = (
    "weights",
    "gradients",
    "optimizer state",
    "weight copies",
    "saved activations",
)


@dataclass(frozen=True)
class Tried(Cell):
    """A cell that says what it needs where that was too much."""

    @property
    def why(self) -> str:
        """ "out of memory, needs 65.3 GiB"."""
        words = super().why
        full = self.row is not None and self.row.status == "out_of_memory"
        return f"{words}, needs {predicted(self) / 2**30:.1f} GiB" if full else words

    def category(self, name: str, which: str = "at_peak_bytes") -> float:
        """Bytes at the peak, or the most that there ever were."""
        found = {c["category"]: c[which] for c in self["categories"]} if self else {}
        return found[name] if self else self.missing

    def most(self, name: str) -> float:
        return self.category(name, "most_bytes")

    @property
    def allocated(self) -> float:
        """The allocator's own peak."""
        return self["peak_allocated_bytes"]

    @property
    def requested(self) -> float:
        """The same in bytes as asked for, before the allocator rounds."""
        return self["peak_requested_bytes"]


def at(
    record: Record | None,
    context: int,
    mode: str,
    precision: str,
    size: str = SIZE,
    attention: str = "eager",
    checkpoint: bool = False,
) -> Tried:
    model = {"size": size, "attention": attention, "checkpoint": checkpoint}
    named = {"context": context, "mode": mode, "precision": precision, **model}
    return Tried(cell(record, **named).row)


def tried(record: Record | None) -> list[Tried]:
    return [Tried(c.row) for c in cells(record)]


def of_modes(record: Record, *precisions: str) -> list[Tried]:
    """2.7B, by mode, precision and context; what was tried of it."""
    found = [at(record, c, m, p) for m in MODES for p in precisions for c in CONTEXTS]
    return [c for c in found if c.row]


def pass_of(c: Cell) -> Pass:
    named: dict[str, Any]
    named = {f.name: c.config[f.name] for f in fields(Pass) if f.name in c.config}
    named["checkpoint"] = int(named["checkpoint"])
    return Pass(**named)


def predicted(c: Cell) -> float:
    """Peak by formula."""
    return sum(peak(pass_of(c)).values()) if c.row else c.missing


def deviations(c: Tried) -> dict[str, float]:
    """Measured over predicted, minus one, for the most of each category that the pass
    has.
    """
    by_formula = category_peaks(pass_of(c)) if c else {}
    return {n: c.most(n) / value - 1 for n, value in by_formula.items() if value}


def worst(record: Record | None, *categories: str) -> float:
    """The largest deviation in these categories over all rows that fitted."""
    found = [deviations(c) for c in tried(record)]
    return rows.most(abs(of[n]) for of in found for n in categories if n in of)


# The moments of a step that may be its peak, by what their names contain; and where
# that is.
ENDS = {
    "backward starts": ("after the forward", "the loss", "last norm", "last block"),
    "backward ends": ("first block", "embedding"),
    "optimizer": ("optimizer",),
}
WHERE = {
    "backward starts": "at the start of the backward pass",
    "backward ends": "at the end of the backward pass",
    "optimizer": "in the optimizer",
}
# Where two of them lie as near as this, they tie: the allocator's rounding adds more.
TIE = 0.005


def needed(c: Cell, end: str) -> float:
    """What a step needs there by formula; nothing where it never comes there."""
    found = peak_candidates(pass_of(c)).items()
    each = [sum(of.values()) for when, of in found if any(n in when for n in ENDS[end])]
    return max(each, default=0)


def place(c: Tried) -> str:
    """Where in a pass its peak is: "in the forward pass", "at the start of the backward
    pass"; where the other end ties, that too.
    """
    if not c:
        return c.missing.words
    phase = c["peak_phase"].replace("_", " ")
    found = f"in the {phase}" + (" pass" if "forward" in phase else "")
    if phase == "backward":
        # Gradients appear as the backward pass goes on.
        start = c.category("gradients") < c.most("gradients") / 2
        found = WHERE["backward starts" if start else "backward ends"]
    if c.config["checkpoint"] or c.config["mode"] not in ("forward_backward", "step"):
        return found
    needs = {WHERE[end]: needed(c, end) for end in ENDS}
    least = (1 - TIE) * max(needs.values())
    tied = [where for where, need in needs.items() if need >= least]
    others = [where for where in tied if where != found]
    return " and nearly as high ".join([found, *others]) if found in tied else found


def used(found: list[Tried]) -> list[str]:
    """The categories that any of these rows has, in the order of the timeline."""
    return [name for name in CATEGORIES if any(c.most(name) for c in found)]


def helped(record: Record | None) -> dict[tuple[int, tuple[str, bool]], Tried]:
    """A bf16 step of 2.7B by context and remedy."""
    return {
        (context, remedy): at(record, context, "step", "bf16", SIZE, *remedy)
        for context in (LONGEST, 4 * LONGEST)
        for remedy in REMEDIES
    }


def largest(c: Tried) -> list[dict[str, Any]]:
    """The groups of the largest allocations of a pass."""
    groups = c.get("tenth", [])
    return [group for group in groups if group["bytes"] == groups[0]["bytes"]]


# Numbers in words ---------------------------------------------------------------------


def two(value: float) -> str:
    """GiB, to two decimals."""
    return say(value / 2**30, "{:.2f}")


def signed(value: float) -> str:
    """A deviation: `+0.4 %`."""
    return f"{100 * value:+.1f} %".replace("-0.0", "+0.0")


def agreement(off: float) -> str:
    """How measurement and prediction agree: "to the byte", "within 0.40 %"."""
    return "to the byte" if off == 0 else say(100 * off, "within {:.2f} %")
