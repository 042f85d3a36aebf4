"""The memory of plain attention: what autograd keeps, prediction beside measurement,
and where a GPU is full.
"""

from collections.abc import Callable
from typing import Any

from matplotlib.ticker import LogLocator

from systems.formulas.costs import attention_peak_bytes, attention_saved_bytes
from systems.records.record import Record, Row
from tools.render.figures import MARKERS, SERIES, canvas, plain_log_scale, svg_pair
from tools.render.markdown import fact, figure, gib, per_device, percent, table
from tools.render.stems.attention.rows import (
    BATCH,
    ELEMENT_BYTES,
    EXECUTIONS,
    LENGTHS,
    VARIANTS,
    WIDTH,
    cell,
    gib3,
    in_words,
    matrix_bytes,
    shape,
    shape_of,
)

# From here on what grows with N² hides everything else.
LONG = 4096


def fragments(measured: list[Record]) -> dict[str, str]:
    """The list of kept tensors, prediction beside measurement with its figure, and the
    accounting at the peak.
    """
    figures: dict[str, str] = {}
    for record in measured:
        figures |= memory_figure(record)
    return {
        "saved.md": per_device(measured, saved_table),
        "memory.md": per_device(measured, lambda r: f"{memory_table(r)}\n\n{drawn(r)}"),
        "accounting.md": per_device(measured, accounting),
        **figures,
    }


# What is kept -------------------------------------------------------------------------


def kept_bytes(row: Row | None) -> int | None:
    """Measured: what the forward pass adds to the memory in use."""
    m = row.metrics if row else {}
    return (
        m["before_backward_bytes"] - m["before_forward_bytes"]
        if "before_backward_bytes" in m
        else None
    )


def listed_bytes(row: Row) -> int:
    """Predicted from the list of saved tensors, each memory once, and the output."""
    c = row.config
    output = c["batch"] * c["n"] * c["d"] * ELEMENT_BYTES[c["dtype"]]
    return sum(tensor["adds_bytes"] for tensor in row.metrics["saved"]) + output


def formula_bytes(row: Row) -> int:
    """Predicted by formula, for eager attention."""
    return sum(attention_saved_bytes(**shape_of(row)).values())


def predicted_bytes(row: Row) -> int:
    return (
        formula_bytes(row) if row.config["execution"] == "eager" else listed_bytes(row)
    )


def saved_table(record: Record) -> str:
    """Every saved tensor at N = 4096 under the causal mask, eager beside compiled."""
    rows = []
    for execution in EXECUTIONS:
        row = cell(record, LONG, causal="yes", execution=execution)
        for tensor in row.metrics.get("saved", []) if row else []:
            dimensions = "\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}".join(
                map(str, tensor["shape"])
            )
            sizes = [f"{tensor[key] / 2**20:.1f}" for key in ("bytes", "adds_bytes")]
            rows.append([execution, tensor["dtype"], dimensions, *sizes])
    return table(
        ["execution", "dtype", "shape", "size, MiB", "adds, MiB"], rows, left=3
    )


def memory_table(record: Record) -> str:
    """Prediction and measurement at one width: eager by formula, compiled from the list
    of its saved tensors.
    """
    rows = []
    for dtype, causal in VARIANTS:
        for n in LENGTHS:
            found = [
                cell(record, n, WIDTH, dtype, causal, execution)
                for execution in EXECUTIONS
            ]
            rows.append(
                [
                    dtype,
                    causal,
                    str(n),
                    *(text for row in found for text in memory_cells(record, row)),
                ]
            )
    columns = ["predicted, GiB", "measured, GiB", "measured / predicted", "bytes / N²"]
    header = [
        f"{execution}: {column}" for execution in EXECUTIONS for column in columns
    ]
    return table(["dtype", "causal mask", "N", *header], rows, left=2)


def memory_cells(record: Record, row: Row | None) -> list[str]:
    kept = kept_bytes(row)
    if row is None or row.status != "ok" or kept is None:
        return [in_words(record, row) if row else "", "", "", ""]
    predicted = predicted_bytes(row)
    ratio = f"{kept / predicted:.3f}"
    return [gib3(predicted), gib3(kept), ratio, f"{kept / row.config['n'] ** 2:.2f}"]


def largest_error(record: Record | None) -> float | None:
    """Largest |measured / predicted - 1| over all rows of long sequences."""
    rows = [row for row in record.rows if row.config["n"] >= LONG] if record else []
    pairs = [
        (kept, predicted_bytes(row))
        for row in rows
        if (kept := kept_bytes(row)) is not None
    ]
    return max((abs(kept / predicted - 1) for kept, predicted in pairs), default=None)


# Figure -------------------------------------------------------------------------------

GROWTH = (
    f"Memory against N: fp32, d = {WIDTH}, no mask. Marks: measured (filled: eager, hollow: compiled). Lines: eager, "
    "predicted."
)
SERIES_OF: dict[str, Callable[[Row], int | None]] = {
    "peak": lambda row: row.metrics.get("peak_allocated_bytes"),
    "kept for the backward pass": kept_bytes,
}
PREDICTED: dict[str, Callable[..., dict[str, int]]] = {
    "peak": attention_peak_bytes,
    "kept for the backward pass": attention_saved_bytes,
}


def drawn(record: Record) -> str:
    off = fact(largest_error(record), percent)
    alt = f"Kept memory grows with N² and differs from its prediction by {off} at most from N = {LONG} on."
    return figure(f"attention-memory-{record.device.slug}", alt, GROWTH)


def memory_figure(record: Record) -> dict[str, str]:
    with canvas(height=4.4) as fig:
        axes = fig.subplots()
        for (name, read), color, marker in zip(
            SERIES_OF.items(), SERIES, MARKERS, strict=False
        ):
            line = [
                (n, sum(PREDICTED[name](**shape(n)).values()) / 2**30) for n in LENGTHS
            ]
            axes.plot(
                *zip(*line, strict=True),
                "-",
                color=color,
                linewidth=1.2,
                label=f"{name}, predicted",
            )
            for execution, face in zip(EXECUTIONS, (color, "none"), strict=True):
                rows = [
                    row
                    for n in LENGTHS
                    if (row := cell(record, n, execution=execution))
                ]
                points = [
                    (row.config["n"], value / 2**30)
                    for row in rows
                    if (value := read(row)) is not None
                ]
                if points:
                    style: dict[str, Any] = {"color": color, "markerfacecolor": face}
                    axes.plot(
                        *zip(*points, strict=True),
                        marker,
                        label=f"{name}, {execution}",
                        **style,
                    )
        axes.set_xscale("log", base=2)
        plain_log_scale(axes.yaxis)
        axes.yaxis.set_major_locator(LogLocator())
        axes.set_xticks(LENGTHS, [str(n) for n in LENGTHS])
        axes.set_xlabel("sequence length N")
        axes.set_ylabel("GiB")
        fig.legend(
            loc="outside upper center", ncols=2, columnspacing=1.0, handlelength=1.6
        )
        return svg_pair(f"memory-{record.device.slug}", fig)


# Where a GPU is full ------------------------------------------------------------------


def accounted_length(record: Record) -> int:
    """The shortest measured length that ran out of memory; where none did, the first
    doubled one that must.
    """
    out = [
        r.config["n"]
        for r in record.rows
        if r.status == "out_of_memory" and is_plain(r)
    ]
    if out:
        return min(out)
    n = LENGTHS[-1]
    while needed_at(n) <= (record.device.memory_bytes or 0):
        n *= 2
    return n


def is_plain(row: Row) -> bool:
    """Eager fp32 attention without a mask at the width that the page speaks of."""
    wanted = {"d": WIDTH, "dtype": "fp32", "causal": "no", "execution": "eager"}
    return wanted.items() <= row.config.items()


def needed_at(n: int) -> int:
    return sum(attention_peak_bytes(**shape(n)).values())


def shortest_out(memory_bytes: int) -> int:
    """The first length whose predicted peak exceeds this memory."""
    low, high = 0, 1
    while needed_at(high) <= memory_bytes:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if needed_at(middle) <= memory_bytes else (low, middle)
        )
    return high


def accounting(record: Record) -> str:
    """Every tensor at the peak of the first configuration that does not fit, and what
    came of trying.
    """
    n = accounted_length(record)
    parts = attention_peak_bytes(**shape(n))
    rows = [[name, gib3(size)] for name, size in parts.items()]
    rows.append(
        [f"all, N = {n}, d = {WIDTH}, b = {BATCH}, fp32", gib3(sum(parts.values()))]
    )
    tried = "; ".join(
        f"{execution} {outcome(record, n, execution)}" for execution in EXECUTIONS
    )
    memory = record.device.memory_bytes
    holds = f" This GPU has {gib(memory)} GiB." if memory else ""
    return f"{table(['tensor at the peak', 'GiB'], rows)}\n\nTried at N = {n}: {tried}.{holds}"


def outcome(record: Record | None, n: int, execution: str) -> str:
    """What a run at this length came to, in words that follow the name of an execution."""
    row = cell(record, n, execution=execution)
    if row is None:
        return "was not measured"
    if row.status != "ok":
        return (
            "ran " + row.status.replace("_", " ")
            if row.status == "out_of_memory"
            else f"was {row.status}"
        )
    peak = row.metrics.get("peak_allocated_bytes")
    return "ran" + (f" with a peak of {gib(peak)} GiB" if peak else "")


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """Bytes per N², predicted and measured, and the configuration that does not fit."""
    longest = LENGTHS[-1]
    memory = record.device.memory_bytes if record else None
    n = accounted_length(record) if record and memory else None
    found = {
        execution: cell(record, longest, execution=execution)
        for execution in EXECUTIONS
    }
    kept = {execution: kept_bytes(row) for execution, row in found.items()}
    per_square = {
        e: bytes_ / longest**2 if bytes_ else None for e, bytes_ in kept.items()
    }
    words = {e: outcome(record, n, e) if n else "was not measured" for e in EXECUTIONS}
    return {
        "one_matrix": f"{gib(matrix_bytes(longest))} GiB",
        "kept": fact(kept["eager"], lambda v: f"{gib(v)} GiB"),
        "per_square_limit": f"{2 * BATCH * ELEMENT_BYTES['fp32']}",
        "per_square_eager": fact(per_square["eager"], "{:.1f}".format),
        "per_square_compiled": fact(per_square["compiled"], "{:.1f}".format),
        "prediction_off_most": fact(largest_error(record), percent),
        "gpu_memory": fact(memory, lambda v: f"{gib(v)} GiB"),
        "shortest_out": fact(shortest_out(memory) if memory else None, "{:.0f}".format),
        "tried_length": fact(n, "{:.0f}".format),
        "tried_need": fact(needed_at(n) if n else None, lambda v: f"{gib(v)} GiB"),
        "tried_eager": words["eager"],
        "tried_compiled": words["compiled"],
    }
