"""What the rows of an `attention` record say: cells by name, medians, and the memory
that a configuration needs.
"""

from typing import Any

from systems.formulas.costs import attention_peak_bytes
from systems.records.record import Record, Row
from systems.records.summary import summarize
from tools.render.markdown import gib

WIDTHS = (16, 32, 64, 128)
LENGTHS = (256, 1024, 4096, 8192, 16384)
VARIANTS = [(dtype, causal) for dtype in ("fp32", "bf16") for causal in ("no", "yes")]
EXECUTIONS = ("eager", "compiled")
ELEMENT_BYTES = {"fp32": 4, "bf16": 2}
BATCH = 8
# The width that tables and figures over N show, and that the sentences name.
WIDTH = 64


def cell(
    record: Record | None,
    n: int,
    d: int = WIDTH,
    dtype: str = "fp32",
    causal: str = "no",
    execution: str = "eager",
) -> Row | None:
    return (
        record.find(d=d, n=n, dtype=dtype, causal=causal, execution=execution)
        if record
        else None
    )


def samples_ms(row: Row, *passes: str) -> list[float]:
    """The named passes of each repetition added up; without names, forward and
    backward.
    """
    names = [f"{name}_ms" for name in passes or ("forward", "backward")]
    return [
        sum(times) for times in zip(*(row.metrics[name] for name in names), strict=True)
    ]


def median_ms(row: Row | None, *passes: str) -> float | None:
    """None where there is no such row or it ran out of memory."""
    return (
        summarize(samples_ms(row, *passes)).median
        if row is not None and row.status == "ok"
        else None
    )


def matrix_bytes(n: int, dtype: str = "fp32") -> int:
    """One copy of the score matrices of the batch."""
    return BATCH * n**2 * ELEMENT_BYTES[dtype]


def shape(
    n: int, d: int = WIDTH, dtype: str = "fp32", causal: str = "no"
) -> dict[str, Any]:
    """What the formulas of `systems.formulas.costs` ask for."""
    return {
        "batch": BATCH,
        "n": n,
        "d": d,
        "element_bytes": ELEMENT_BYTES[dtype],
        "causal": causal == "yes",
    }


def shape_of(row: Row) -> dict[str, Any]:
    return shape(*(row.config[key] for key in ("n", "d", "dtype", "causal")))


def needed_bytes(record: Record, row: Row) -> float | None:
    """Peak memory by prediction: eager by formula; compiled by growth with N² from its
    longest row that fitted.
    """
    if row.config["execution"] == "eager":
        return sum(attention_peak_bytes(**shape_of(row)).values())
    series = {key: row.config[key] for key in ("d", "dtype", "causal", "execution")}
    fitted = [
        r
        for r in record.rows
        if series.items() <= r.config.items() and "peak_allocated_bytes" in r.metrics
    ]
    longest = max(fitted, key=lambda r: r.config["n"], default=None)
    if longest is None:
        return None
    return (
        longest.metrics["peak_allocated_bytes"]
        * (row.config["n"] / longest.config["n"]) ** 2
    )


def in_words(record: Record, row: Row) -> str:
    """Why a row has no times: "out of memory, needs 48.2 GiB"."""
    needed = needed_bytes(record, row) if row.status == "out_of_memory" else None
    return row.status.replace("_", " ") + (
        f", needs {gib(needed)} GiB" if needed else ""
    )


def gib3(value: float | None) -> str:
    """GiB, to three decimals, since the shortest sequences need little."""
    return "" if value is None else f"{value / 2**30:.3f}"
