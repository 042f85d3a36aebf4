"""The memory of plain attention: what autograd keeps, prediction beside measurement,
and where a GPU is full.
"""

from typing import Any

from matplotlib.figure import Figure

from systems.formulas.costs import attention_peak_bytes, attention_saved_bytes
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import at_most, columns, gib, per_device, table
from tools.render.plots import (
    ACCENT,
    DARK,
    line,
    panels,
    plain_log_scale,
    plot,
    power_of_two_axis,
)
from tools.render.rows import MISSING, Cell, most, say
from tools.render.stems.attention.rows import (
    BATCH,
    BEFORE_BACKWARD,
    ELEMENT_BYTES,
    EXECUTIONS,
    LONGEST,
    PEAK,
    WIDTH,
    at,
    gib3,
    lengths,
    matrix_bytes,
    shape,
    shape_of,
    tried,
    variants,
)

# From here on what grows with N² hides everything else.
LONG = 4096


def fragments(measured: list[Record]) -> dict[str, str]:
    """The list of kept tensors, prediction beside measurement with its figure, and the
    accounting at the peak.
    """
    return {
        "saved.md": per_device(measured, saved_table),
        "memory.md": per_device(measured, memory_body),
        "accounting.md": per_device(measured, accounting),
    }


# What is kept -------------------------------------------------------------------------


def kept_bytes(c: Cell) -> float:
    """Measured: what the forward pass adds to the memory in use."""
    return c.get(BEFORE_BACKWARD) - c.get("before_forward_bytes")


def predicted_bytes(c: Cell) -> float:
    """Eager by formula; compiled from the list of its saved tensors, each memory once,
    and the output.
    """
    if not c:
        return c.missing
    if c.config["execution"] == "eager":
        return sum(attention_saved_bytes(**shape_of(c)).values())
    rows = c.config["batch"] * c.config["n"]
    output = rows * c.config["d"] * ELEMENT_BYTES[c.config["dtype"]]
    return sum(tensor["adds_bytes"] for tensor in c["saved"]) + output


def saved_table(record: Record) -> str:
    """Every saved tensor at N = 4096 under the causal mask, eager beside compiled."""
    found = [
        (execution, tensor)
        for execution in EXECUTIONS
        for tensor in at(record, LONG, causal=True, execution=execution).get(
            "saved", []
        )
    ]
    times = "\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}"
    return columns(
        found,
        ("execution", lambda of: of[0]),
        ("dtype", lambda of: of[1]["dtype"]),
        ("shape", lambda of: times.join(map(str, of[1]["shape"]))),
        ("size, MiB", lambda of: of[1]["bytes"] / 2**20, "{:.1f}"),
        ("adds, MiB", lambda of: of[1]["adds_bytes"] / 2**20, "{:.1f}"),
        left=3,
        telling=lambda of: of[1]["adds_bytes"] >= 2**20,
    )


def memory_table(record: Record) -> str:
    """Prediction and measurement at one width: eager by formula, compiled from the list
    of its saved tensors.
    """

    def of(execution: str):
        def found(place: tuple[str, bool, int]) -> Cell:
            dtype, causal, n = place
            return at(record, n, WIDTH, dtype, causal, execution)

        return (
            ("predicted, GiB", lambda p: predicted_bytes(found(p)), gib3),
            ("measured, GiB", lambda p: kept_bytes(found(p)), gib3),
            ("measured / predicted", lambda p: over_predicted(found(p)), "{:.3f}"),
            ("bytes / N²", lambda p: kept_bytes(found(p)) / p[2] ** 2, "{:.2f}"),
        )

    return columns(
        [(*v, n) for v in variants(record) for n in lengths(record)],
        ("dtype", lambda place: place[0]),
        ("causal mask", lambda place: place[1]),
        ("N", lambda place: place[2]),
        *((f"{e}: {head}", *rest) for e in EXECUTIONS for head, *rest in of(e)),
        left=2,
        alike=[f"{e}: measured / predicted" for e in EXECUTIONS],
    )


def over_predicted(c: Cell) -> float:
    return kept_bytes(c) / predicted_bytes(c)


def largest_error(record: Record | None) -> float:
    """Largest |measured / predicted - 1| over all rows of long sequences."""
    return most(
        abs(over_predicted(c) - 1) for c in tried(record) if c.config["n"] >= LONG
    )


# Figure -------------------------------------------------------------------------------


def peak_bytes(c: Cell) -> float:
    return c.get(PEAK)


CURVES: dict[str, Any] = {
    "peak": (peak_bytes, attention_peak_bytes),
    "kept for the backward pass": (kept_bytes, attention_saved_bytes),
}


def memory_body(record: Record) -> str:
    return f"{memory_table(record)}\n\n{memory_figure(record)}"


def memory_figure(record: Record) -> str:
    ns = lengths(record)

    def draw(figure: Figure) -> None:
        found = zip(panels(figure, 2, sharey=True), CURVES.items(), strict=True)
        for axes, (name, (read, formula)) in found:
            eager, compiled = (
                [read(at(record, n, execution=e)) / 2**30 for n in ns]
                for e in EXECUTIONS
            )
            predicted = [sum(formula(**shape(n)).values()) / 2**30 for n in ns]
            thin = {"marker": "", "color": DARK, "linewidth": 1}
            line(axes, ns, predicted, label="predicted, eager", **thin)
            line(axes, ns, compiled, label="compiled", ls="none")
            line(axes, ns, eager, label="eager", color=ACCENT, ls="none")
            plain_log_scale(axes.yaxis, subs=(1,))
            power_of_two_axis(axes.xaxis, ns, "sequence length N")
            axes.set_title(f"{name}, GiB")

    told = say(largest_error(record), at_most)
    return plot(
        record,
        "memory",
        draw,
        f"Kept memory grows with N² and differs from its prediction by {told} from "
        f"N = {LONG:,} on.",
        f"fp32, d = {WIDTH}, no mask. Points: measured; lines: predicted by formula.",
        narrow=520,
    )


# Where a GPU is full ------------------------------------------------------------------


def accounted_length(record: Record) -> int:
    """The shortest measured length that ran out of memory; where none did, the first
    doubled one that must.
    """
    plain = {"d": WIDTH, "dtype": "fp32", "causal": False, "execution": "eager"}
    found = tried(record, **plain)
    out = [c.config["n"] for c in found if c.row and c.row.status == "out_of_memory"]
    if out:
        return min(out)
    n = LONGEST
    while needed_at(n) <= (record.device.memory_bytes or 0):
        n *= 2
    return n


def needed_at(n: int) -> int:
    return sum(attention_peak_bytes(**shape(n)).values())


def shortest_out(memory_bytes: int) -> int:
    """The first length whose predicted peak exceeds this memory, all of it: without the
    CUDA context and the workspace of the matrix library.
    """
    low, high = 0, 1
    while needed_at(high) <= memory_bytes:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        fits = needed_at(middle) <= memory_bytes
        low, high = (middle, high) if fits else (low, middle)
    return high


def accounting(record: Record) -> str:
    """Every matrix at the peak of the first configuration that does not fit, what is
    left, and what came of trying.
    """
    n = accounted_length(record)
    parts = attention_peak_bytes(**shape(n))
    large = {name: size for name, size in parts.items() if "(b, n, n)" in name}
    rest = sum(parts.values()) - sum(large.values())
    whole = {
        "everything that is no matrix of scores": rest,
        f"all, N = {n}, d = {WIDTH}, b = {BATCH}, fp32": sum(parts.values()),
    }
    rows = [[name, gib3(size)] for name, size in (large | whole).items()]
    tried = "; ".join(f"{e} {outcome(record, n, e)}" for e in EXECUTIONS)
    memory = record.device.memory_bytes
    holds = f" This GPU has {gib(memory)} GiB." if memory else ""
    listed = table(["tensor at the peak", "GiB"], rows)
    return f"{listed}\n\nTried at N = {n}: {tried}.{holds}"


def outcome(record: Record | None, n: int, execution: str) -> str:
    """What a run at this length came to, in words that follow the name of an
    execution.
    """
    c = at(record, n, execution=execution)
    if c.row is None:
        return "was not measured"
    if not c:
        full = c.row.status == "out_of_memory"
        return "ran out of memory" if full else f"was {c.row.status}"
    return "ran" + (f" with a peak of {gib(c[PEAK])} GiB" if c.get(PEAK) else "")


# Facts --------------------------------------------------------------------------------


def about(value: float) -> str:
    """To two digits: "28,000"."""
    return f"{float(f'{value:.1e}'):,.0f}"


def all_fit(record: Record | None) -> bool:
    """Whether each cell of the grid ran, eagerly and compiled."""
    found = [c for c in tried(record) if c.config["n"] <= LONGEST]
    return bool(found) and all(found)


def facts(record: Record | None) -> dict[str, str]:
    """Bytes per N², predicted and measured, and the configuration that does not fit."""
    memory = (record.device.memory_bytes if record else None) or MISSING
    n = accounted_length(record) if record and memory else 0
    kept = {e: kept_bytes(at(record, LONGEST, execution=e)) for e in EXECUTIONS}
    gibibytes = lambda v: f"{gib(v)} GiB"  # noqa: E731
    return {
        "one_matrix": gibibytes(matrix_bytes(LONGEST)),
        "kept": say(kept["eager"], gibibytes),
        "per_square_limit": f"{2 * BATCH * ELEMENT_BYTES['fp32']}",
        **{f"per_square_{e}": say(kept[e] / LONGEST**2, "{:.1f}") for e in EXECUTIONS},
        "all_fit": say(all_fit(record)),
        "prediction_off": say(largest_error(record), at_most),
        "gpu_memory": say(memory, gibibytes),
        "shortest_out": say(shortest_out(int(memory)) if memory else memory, about),
        "tried_length": say(n or MISSING, "{:,}"),
        "tried_need": say(needed_at(n) if n else MISSING, gibibytes),
        **{f"tried_{e}": outcome(record, n, e) for e in EXECUTIONS},
    }


@claim(
    "pytorch_attention",
    "Eager attention keeps two fp32 score matrices of the batch for its backward pass: "
    "about 64 bytes per N².",
    because="within a twentieth; what grows with N alone is less at this length.",
)
def two_matrices_saved(record: Record) -> Judgement:
    per_square = kept_bytes(at(record, LONGEST)) / LONGEST**2
    numbers = f"Kept per N²: {per_square:.1f} bytes at N = {LONGEST:,}."
    return per_square and (abs(per_square / 64 - 1) < 0.05, numbers)
