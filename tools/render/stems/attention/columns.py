"""Columns of `attention`: passes eager and compiled, and the memory that formulas
predict for them.
"""

from collections.abc import Iterable
from typing import Any

from systems.formulas.costs import attention_peak_bytes, attention_saved_bytes
from systems.records.record import Record
from tools.render.frame import Frame, Line, frame
from tools.render.rows import say

PASSES = ("forward", "backward")
EXECUTIONS = ("eager", "compiled")
BATCH = 8
# The head dimension, and the longest N, that tables, figures and sentences show.
WIDTH, LONGEST = 64, 16384
# The assignment's cells.
PLAIN = {"dtype": "fp32", "causal": False}
ELEMENT_BYTES = {"fp32": 4, "bf16": 2}
CELL = ("d", "n", "dtype", "causal")
PEAK = "peak_allocated_bytes"


def passes(record: Record | None) -> Frame:
    """Return each row of the grid, by d and N, with its speedup over eager execution.
    Longer sequences were tried at one width.
    """
    found = frame(record).join("eager", on=CELL, execution="eager")
    return found.derive(
        gain=lambda x: gain(x, *PASSES),
        **{f"{of}_gain": lambda x, of=of: gain(x, of) for of in PASSES},
        kept=lambda x: x.get("before_backward_bytes") - x.get("before_forward_bytes"),
        peak=lambda x: x.get(PEAK),
    ).arrange(d=values(found, "d"), n=lengths(found))


def gain(x: Line, *names: str) -> float:
    return x["eager"].ms(*names) / x.ms(*names)


def one(found: Frame, n: int = LONGEST, d: int = WIDTH, e: str = "eager") -> Line:
    """Return the row in fp32 without a mask."""
    return found.one(n=n, d=d, execution=e, **PLAIN)


def values(found: Frame, axis: str) -> list[Any]:
    return list(dict.fromkeys(found.column(axis)))


def lengths(found: Iterable[Line]) -> list[int]:
    return sorted({x["n"] for x in found if x["n"] <= LONGEST})


# Memory -------------------------------------------------------------------------------


def shape(n: int, d: int = WIDTH, **given: Any) -> dict[str, Any]:
    """Return what the formulas of `systems.formulas.costs` ask for."""
    dtype, causal = (given.get(key, PLAIN[key]) for key in ("dtype", "causal"))
    size = ELEMENT_BYTES[dtype]
    return {"batch": BATCH, "n": n, "d": d, "element_bytes": size, "causal": causal}


def peak_bytes(n: int) -> int:
    """Return the predicted peak of eager passes at one width."""
    return sum(attention_peak_bytes(**shape(n)).values())


def predicted_bytes(x: Line) -> float:
    """Return what is kept for the backward pass: eager by formula; compiled from the
    list of its saved tensors, each memory once, and the output.
    """
    if not x:
        return x.missing
    given = shape(**{key: x[key] for key in CELL})
    if x["execution"] == "eager":
        return sum(attention_saved_bytes(**given).values())
    output = BATCH * x["n"] * x["d"] * given["element_bytes"]
    return sum(tensor["adds_bytes"] for tensor in x["saved"]) + output


def gib3(value: float) -> str:
    """GiB, to three decimals, since the shortest sequences need little."""
    return say(value / 2**30, "{:.3f}")
