"""Rows of `attention` with derived columns, and memory predicted by formula."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from systems.formulas.costs import attention_peak_bytes, attention_saved_bytes
from systems.records.record import Record
from tools.render.fragments import Fragments
from tools.render.frame import Frame, Line, frame
from tools.render.markdown import gib

PASSES = ("forward", "backward")
EXECUTIONS = ("eager", "compiled")
BATCH = 8
# The head dimension in figures and most facts, and the longest N that is shown.
WIDTH, LONGEST = 64, 16384
# The dtype and mask of the assignment.
PLAIN = {"dtype": "fp32", "causal": False}
ELEMENT_BYTES = {"fp32": 4, "bf16": 2}
CELL = ("d", "n", "dtype", "causal")
# Print three decimals, because the shortest sequences need little memory.
format_gib3 = partial(gib, digits=3)
fragments = Fragments()


def passes(record: Record | None) -> Frame:
    """Return rows of N <= LONGEST, sorted by d, N, with the `eager` row, speedups over
    it in GPU time (`gain`) and wall-clock time, bytes `kept` for backward, and `peak`.
    """
    found = frame(record).join("eager", on=CELL, execution="eager")
    return found.derive(
        gain=lambda x: speedup(x, *PASSES),
        wall_gain=lambda x: x["eager"].ms(*PASSES) / x.ms(*PASSES),
        **{f"{of}_gain": lambda x, of=of: speedup(x, of) for of in PASSES},
        kept=lambda x: x.get("before_backward_bytes") - x.get("before_forward_bytes"),
        peak=lambda x: x.get("peak_allocated_bytes"),
    ).arrange(d=found.values("d"), n=lengths(found))


def speedup(x: Line, *names: str) -> float:
    """Return the speedup of passes `names` over eager in GPU (on a CPU, wall) time."""
    return x["eager"].kernel_ms(*names) / x.kernel_ms(*names)


def plain_row(found: Frame, n: int = LONGEST, d: int = WIDTH, e: str = "eager") -> Line:
    """Return the fp32 row without a mask; `e` is "eager" or "compiled" execution."""
    return found.one(n=n, d=d, execution=e, **PLAIN)


def lengths(found: Iterable[Line]) -> list[int]:
    return sorted({x["n"] for x in found if x["n"] <= LONGEST})


def formula_inputs(n: int, d: int = WIDTH, **given: Any) -> dict[str, Any]:
    """Return arguments of memory formulas; `given` dtype and mask override PLAIN's."""
    kind = PLAIN | given
    size = ELEMENT_BYTES[kind["dtype"]]
    return dict(batch=BATCH, n=n, d=d, element_bytes=size, causal=kind["causal"])


def peak_bytes(n: int) -> int:
    """Return predicted peak bytes of eager fp32 passes at length n, d = 64, no mask."""
    return sum(attention_peak_bytes(**formula_inputs(n)).values())


def predicted_saved_bytes(x: Line) -> float:
    """Predict saved bytes: eager from a formula, compiled from the listed tensors."""
    if not x:
        return x.missing
    given = formula_inputs(**{key: x[key] for key in CELL})
    if x["execution"] == "eager":
        return sum(attention_saved_bytes(**given).values())
    output = BATCH * x["n"] * x["d"] * given["element_bytes"]
    return sum(tensor["adds_bytes"] for tensor in x["saved"]) + output
