"""Tables of `peak_memory`: peaks beside their predictions, what is saved, the largest
blocks, what helps.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

from systems.formulas.memory_costs import (
    Pass,
    attention_saved,
    feed_forward_saved,
    graph_bytes,
    logits_bytes,
    loss_saved,
    outside_blocks_saved,
)
from systems.formulas.memory_peak import category_peaks
from systems.formulas.memory_peak import peak as peak_by_formula
from systems.model.sizes import SIZES, TABLE_1
from systems.profiling.memory.snapshot import CATEGORIES
from systems.records.record import Record
from tools.render.markdown import bold, columns, nonzero, table
from tools.render.rows import NOT_MEASURED, cells
from tools.render.stems.peak_memory import figures
from tools.render.stems.peak_memory.rows import (
    CONTEXTS,
    ENDS,
    LONGEST,
    MIB,
    MODES,
    PRECISIONS,
    PREDICTED,
    REMEDIES,
    SIZE,
    Tried,
    at,
    deviations,
    helped,
    needed,
    of_modes,
    place,
    predicted,
    signed,
    tried,
    two,
)

MODE = ("pass", lambda c: MODES[c.config["mode"]])
PEAK = ("peak, GiB", lambda c: c.allocated, lambda v: two(v))


def peaks_table(record: Record, precision: str) -> str:
    """2.7B: the allocator's peak, what it reserved, the peak as asked for beside its
    prediction, and its phase.
    """
    found = of_modes(record, precision)
    return columns(
        found,
        MODE,
        "context",
        PEAK,
        ("reserved, GiB", lambda c: c["peak_reserved_bytes"], two),
        ("asked for, GiB", lambda c: c.requested, two),
        ("predicted, GiB", predicted, two),
        ("off", lambda c: c.requested / predicted(c) - 1, signed),
        ("where", lambda c: place(c) if c else ""),
        telling=lambda c: c.config["context"] == LONGEST,
        alike=["off"],
    )


def pivot(record: Record) -> str:
    """2.7B: the allocator's peak of each pass, by precision and context."""
    return columns(
        MODES if of_modes(record, *PRECISIONS) else [],
        ("peak, GiB", lambda mode: MODES[mode]),
        *(
            (f"{p}, {c}", lambda mode, p=p, c=c: at(record, c, mode, p).allocated, two)
            for p, c in product(PRECISIONS, CONTEXTS)
        ),
    )


def categories_table(record: Record) -> str:
    """2.7B: what the peak is made of."""
    found = [c for c in of_modes(record, *PRECISIONS) if c]
    shown = [(n, lambda c, n=n: nonzero(two(c.category(n)))) for n in CATEGORIES]
    return columns(
        found, MODE, "precision", "context", *shown, left=2, alike=CATEGORIES
    )


def moments_table(record: Record) -> str:
    """An fp32 step of 2.7B: what it needs at each end of the backward pass and in the
    optimizer by formula, and what was measured of the largest.
    """

    found = [at(record, context, "step", "fp32") for context in CONTEXTS]
    return columns(
        [c for c in found if c.row],
        "context",
        *((f"{end}, GiB", lambda c, end=end: needed(c, end), two) for end in ENDS),
        ("asked for at the peak, GiB", lambda c: c.requested, two),
        ("over predicted", lambda c: c.requested / predicted(c), "{:.4f}"),
    )


def prediction_table(record: Record) -> str:
    """For every row the most of each category: measured in GiB, and how far the formula
    is off.
    """

    def name(c: Tried) -> str:
        remedy = REMEDIES[c.config["attention"], c.config["checkpoint"]]
        extra = "" if remedy == "as written" else f", {remedy}"
        return MODES[c.config["mode"]] + extra

    def reached(c: Tried, category: str) -> Any:
        off = deviations(c).get(category)
        if not c:
            return c.missing
        beside = nonzero(signed(off)) if off is not None else ""
        reached = "" if off is None else two(c.most(category))
        return f"{reached} ({beside})" if beside else reached

    shown = [(n, lambda c, n=n: reached(c, n)) for n in PREDICTED]
    described = ("size", ("pass", name), "precision", "context", *shown)
    return columns(tried(record), *described, left=3)


def sizes_table(record: Record) -> str:
    """Every size at context 512: peak of each mode, the prediction in brackets."""

    def reached(place: tuple[str, str], mode: str) -> Any:
        c = at(record, LONGEST, mode, place[1], place[0])
        return f"{two(c.allocated)} ({two(predicted(c))})" if c else c.missing

    return columns(
        product(TABLE_1, PRECISIONS),
        ("size", lambda place: place[0]),
        ("precision", lambda place: place[1]),
        *((head, lambda place, m=m: reached(place, m)) for m, head in MODES.items()),
        left=2,
    )


def saved_table() -> str:
    """Every tensor that one block of 2.7B and the rest of the model keep at context
    512, by formula, in MiB.
    """
    passes = [Pass(SIZE, LONGEST, "step", precision) for precision in PRECISIONS]
    parts: dict[str, Callable[[Pass], dict[str, int]]] = {
        "attention half": attention_saved,
        "feed-forward half": feed_forward_saved,
        "rest of the model": outside_blocks_saved,
        "loss": loss_saved,
    }
    rows = []
    for part, kept in parts.items():
        wide, low = (kept(p).items() for p in passes)
        for (name, size), (name_low, size_low) in zip(wide, low, strict=True):
            label = name if name == name_low else f"{name}; under autocast: {name_low}"
            rows.append([part, label, f"{size / MIB:.2f}", f"{size_low / MIB:.2f}"])

    def whole(p: Pass) -> int:
        return graph_bytes(p) - logits_bytes(p) + sum(loss_saved(p).values())

    totals: dict[str, Callable[[Pass], int]] = {
        "one block": lambda p: sum(
            sum(kept(p).values()) for kept in (attention_saved, feed_forward_saved)
        ),
        f"{SIZES[SIZE].num_layers} blocks and the rest": whole,
        "bf16 copies of weights": lambda p: category_peaks(p)["weight copies"],
    }
    for name, total in totals.items():
        rows.append([bold(name), "", *(f"{total(p) / MIB:,.2f}" for p in passes)])
    header = ["part", "kept tensor", "fp32, MiB", "bf16 autocast, MiB"]
    return table(header, rows, left=2)


def blocks_table(c: Tried, kind: str) -> str:
    """Groups of alike blocks, the largest first, and who asked for them."""
    if not c:
        return ""

    def asked(group: dict[str, str]) -> str:
        who = group["owner"] or group["code"]
        return f"`{who}`" if who else "autograd's thread"

    listed = columns(
        c[kind],
        ("MiB each", lambda group: group["bytes"] / MIB, "{:.1f}"),
        ("how many", lambda group: group["count"]),
        ("category", lambda group: group["category"]),
        ("made in", lambda group: group["phase"].replace("_", " ")),
        ("owner, or the code that asked", asked),
        alike=("category", "made in"),
    )
    if kind != "tenth":
        return listed
    return (
        f"{listed}\n\nThe largest tenth of {c['allocations']:,} allocations; the "
        f"smallest of it has {c['tenth_least_bytes'] / MIB:.1f} MiB."
    )


def helps_table(record: Record) -> str:
    """Memory with its prediction."""
    found = [(*key, c) for key, c in helped(record).items() if c.row]
    return columns(
        found,
        ("context", lambda of: of[0]),
        ("attention and blocks", lambda of: REMEDIES[of[1]]),
        ("peak, GiB", lambda of: of[2].allocated, two),
        ("predicted, GiB", lambda of: predicted(of[2]), two),
        ("saved activations, GiB", lambda of: of[2].most("saved activations"), two),
        left=2,
    )


def edition_table(record: Record) -> str:
    """Forward pass and full step at contexts 128 and 2048, with and without fused
    attention where both were tried; what was not shows its prediction.
    """

    contexts = CONTEXTS[0], 4 * LONGEST
    passes = [Pass(SIZE, *of) for of in product(contexts, figures.DRAWN, PRECISIONS)]

    def peak(p: Pass) -> str:
        c = at(record, p.context, p.mode, p.precision, SIZE, p.attention)
        return two(c.allocated) if c.row else NOT_MEASURED

    return columns(
        [*passes, Pass(SIZE, contexts[-1], "step", "bf16", "flash")],
        ("context", lambda p: p.context),
        ("pass", lambda p: MODES[p.mode]),
        ("precision", lambda p: p.precision),
        ("attention", lambda p: "plain" if p.attention == "eager" else p.attention),
        ("peak, GiB", peak),
        ("predicted, GiB", lambda p: sum(peak_by_formula(p).values()), two),
        left=4,
    )


def reported_table(record: Record) -> str:
    return columns(
        cells(record),
        ("pass, as they call it", lambda c: c.config["pass"]),
        "precision",
        ("context", lambda c: c.config["context"] or "not said"),
        ("peak, GB as they call it", lambda c: c["peak"]),
        left=2,
    )
