"""Tables, figures and facts of `peak_memory`: what a pass holds at its peak, measured
beside predicted.
"""

from collections.abc import Callable
from typing import Any

from systems.formulas.memory_costs import (
    Pass,
    attention_saved,
    ends_saved,
    feed_forward_saved,
    kept_bytes,
    logits_bytes,
    loss_saved,
    residual_bytes,
)
from systems.formulas.memory_peak import moments, most
from systems.formulas.memory_peak import peak as peak_by_formula
from systems.model.sizes import SIZES, TABLE_1
from systems.profiling.memory.snapshot import CATEGORIES
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import (
    bold,
    columns,
    milliseconds,
    nonzero,
    per_device,
    table,
)
from tools.render.rows import MISSING, NOT_MEASURED, cells, known, measured, say, span
from tools.render.stems.peak_memory import figures
from tools.render.stems.peak_memory.rows import (
    BARS,
    CONTEXTS,
    LASTING,
    LONGEST,
    MODES,
    PRECISIONS,
    REMEDIES,
    SIZE,
    Tried,
    at,
    deviations,
    misses,
    of_modes,
    pass_of,
    place,
    predicted,
    tried,
    worst,
)

MIB = 2**20

CAPTIONS = {
    "peaks.md": "Peak of each pass of `2.7B`, by precision and context.",
    "peaks-fp32.md": "Peaks of `2.7B` in fp32, beside their prediction.",
    "peaks-bf16.md": "Peaks of `2.7B` under bf16 autocast, beside their prediction.",
    "largest.md": "The largest allocations of a forward pass of `2.7B` at context 512.",
    "edition.md": (
        "Peaks of `2.7B` at the contexts that CS336 of 2026 asks for, where it is "
        "called `xl`."
    ),
    "helps.md": (
        "What checkpointing and FlashAttention save in a bf16 step of `2.7B`, and "
        "what it costs in time."
    ),
}


def fragments(records: list[Record]) -> dict[str, str]:
    """Timelines, peaks with their predictions and categories, saved tensors, the
    largest blocks, and what helps.
    """
    ours = measured(records)
    reported = [record for record in records if record.kind == "reported"]

    def blocks(mode: str, kind: str) -> str:
        return per_device(
            ours, lambda r: blocks_table(at(r, LONGEST, mode, "fp32"), kind)
        )

    tables: dict[str, Any] = {
        "contexts.md": figures.contexts_figure,
        "categories.md": categories_table,
        "moments.md": moments_table,
        "peaks.md": pivot,
        "prediction.md": prediction_table,
        "sizes.md": sizes_table,
        "helps.md": helps_table,
        "edition.md": edition_table,
        **{f"peaks-{p}.md": lambda r, p=p: peaks_table(r, p) for p in PRECISIONS},
    }
    for mode in figures.DRAWN:
        tables[f"timeline-{mode}.md"] = lambda r, m=mode: figures.timeline_figure(r, m)
    editions = {
        f"edition-{mode}.md": edition(ours, mode, of)
        for mode, of in figures.DRAWN.items()
    }
    return {
        **{name: per_device(ours, body) for name, body in tables.items()},
        **editions,
        "saved.md": saved_table() + "\n",
        "largest.md": blocks("forward", "tenth"),
        "largest-step.md": blocks("step", "tenth"),
        "live.md": blocks("step", "largest_at_peak"),
        "reported.md": per_device(reported, reported_table),
    }


# Peaks --------------------------------------------------------------------------------

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
    )


def pivot(record: Record) -> str:
    """2.7B: the allocator's peak of each pass, by precision and context."""
    if not of_modes(record, *PRECISIONS):
        return ""
    places = [(precision, context) for precision in PRECISIONS for context in CONTEXTS]
    return columns(
        MODES,
        ("peak, GiB", lambda mode: MODES[mode]),
        *(
            (f"{p}, {c}", lambda mode, p=p, c=c: at(record, c, mode, p).allocated, two)
            for p, c in places
        ),
    )


def categories_table(record: Record) -> str:
    """2.7B: what the peak is made of."""
    found = [c for c in of_modes(record, *PRECISIONS) if c]
    shown = [(n, lambda c, n=n: nonzero(two(c.category(n)))) for n in CATEGORIES]
    return columns(found, MODE, "precision", "context", *shown, left=2)


# The moments of a step that may be its peak, by what their names contain.
ENDS = {
    "backward starts": ("after the forward", "the loss", "last norm", "last block"),
    "backward ends": ("first block", "embedding"),
    "optimizer": ("optimizer",),
}


def moments_table(record: Record) -> str:
    """An fp32 step of 2.7B: what it needs at each end of the backward pass and in the
    optimizer by formula, and what was measured of the largest.
    """

    def needed(c: Tried, names: tuple[str, ...]) -> float:
        return max(
            sum(moment.values())
            for when, moment in moments(pass_of(c)).items()
            if any(name in when for name in names)
        )

    found = [at(record, context, "step", "fp32") for context in CONTEXTS]
    return columns(
        [c for c in found if c.row],
        "context",
        *((f"{n}, GiB", lambda c, w=w: needed(c, w), two) for n, w in ENDS.items()),
        ("measured peak, GiB", lambda c: c.requested, two),
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
        return "" if off is None else f"{two(c.most(category))} ({signed(off)})"

    shown = [(n, lambda c, n=n: reached(c, n)) for n in BARS]
    described = ("size", ("pass", name), "precision", "context", *shown)
    return columns(tried(record), *described, left=3)


def sizes_table(record: Record) -> str:
    """Every size at context 512: peak of each mode, the prediction in brackets."""

    def reached(place: tuple[str, str], mode: str) -> Any:
        c = at(record, LONGEST, mode, place[1], place[0])
        return f"{two(c.allocated)} ({two(predicted(c))})" if c else c.missing

    return columns(
        [(size, precision) for size in TABLE_1 for precision in PRECISIONS],
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
        "rest of the model": ends_saved,
        "loss": loss_saved,
    }
    rows = []
    for part, kept in parts.items():
        wide, low = (kept(p).items() for p in passes)
        for (name, size), (name_low, size_low) in zip(wide, low, strict=True):
            label = name if name == name_low else f"{name}; under autocast: {name_low}"
            rows.append([part, label, f"{size / MIB:.2f}", f"{size_low / MIB:.2f}"])

    def whole(p: Pass) -> int:
        return kept_bytes(p) - logits_bytes(p) + sum(loss_saved(p).values())

    totals: dict[str, Callable[[Pass], int]] = {
        "one block": lambda p: sum(
            sum(kept(p).values()) for kept in (attention_saved, feed_forward_saved)
        ),
        f"{SIZES[SIZE].num_layers} blocks and the rest": whole,
        "bf16 copies of weights": lambda p: most(p)["weight copies"],
    }
    for name, total in totals.items():
        rows.append([bold(name), "", *(f"{total(p) / MIB:,.2f}" for p in passes)])
    header = ["part", "kept tensor", "fp32, MiB", "bf16 autocast, MiB"]
    return table(header, rows, left=2)


# Blocks -------------------------------------------------------------------------------


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
        left=5,
    )
    if kind != "tenth":
        return listed
    return (
        f"{listed}\n\nThe largest tenth of {c['allocations']:,} allocations; the "
        f"smallest of it has {c['tenth_least_bytes'] / MIB:.1f} MiB."
    )


# What helps ---------------------------------------------------------------------------


def helped(record: Record | None) -> dict[tuple[int, tuple[str, bool]], Tried]:
    """A bf16 step of 2.7B by context and remedy."""
    return {
        (context, remedy): at(record, context, "step", "bf16", SIZE, *remedy)
        for context in (LONGEST, 4 * LONGEST)
        for remedy in REMEDIES
    }


def helps_table(record: Record) -> str:
    """Memory with its prediction, and time."""
    found = [(*key, c) for key, c in helped(record).items() if c.row]
    return columns(
        found,
        ("context", lambda of: of[0]),
        ("attention and blocks", lambda of: REMEDIES[of[1]]),
        ("peak, GiB", lambda of: of[2].allocated, two),
        ("predicted, GiB", lambda of: predicted(of[2]), two),
        ("saved activations, GiB", lambda of: of[2].most("saved activations"), two),
        ("step, ms", lambda of: of[2].ms(), milliseconds),
        left=2,
    )


def edition(ours: list[Record], mode: str, of: str) -> str:
    """Memory over time at contexts 128 and 2048, or that there is none yet."""
    drawn = [r for r in ours if figures.edition_figure(r, mode)]
    if not drawn:
        return f"Not measured yet: memory over {of} at contexts 128 and 2048.\n"
    return per_device(drawn, lambda r: figures.edition_figure(r, mode))


def edition_table(record: Record) -> str:
    """Forward pass and full step at contexts 128 and 2048, with and without fused
    attention where both were tried; what was not shows its prediction.
    """

    def by_formula(place: tuple[int, str, str, str]) -> float:
        context, mode, precision, attention = place
        p = Pass(SIZE, context, mode, precision, attention)
        return sum(peak_by_formula(p).values())

    def of(place: tuple[int, str, str, str]) -> Tried:
        context, mode, precision, attention = place
        return at(record, context, mode, precision, SIZE, attention)

    def peak(value: float | None) -> str:
        return NOT_MEASURED if value is None else two(value)

    asked = [
        (context, mode, precision, "eager")
        for context in (CONTEXTS[0], 4 * LONGEST)
        for mode in figures.DRAWN
        for precision in PRECISIONS
    ]
    return columns(
        [*asked, (4 * LONGEST, "step", "bf16", "flash")],
        ("context", lambda place: place[0]),
        ("pass", lambda place: MODES[place[1]]),
        ("precision", lambda place: place[2]),
        ("attention", lambda place: "plain" if place[3] == "eager" else place[3]),
        (
            "peak, GiB",
            lambda place: of(place).allocated if of(place).row else None,
            peak,
        ),
        ("predicted, GiB", by_formula, two),
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


# Numbers in words ---------------------------------------------------------------------


def two(value: float) -> str:
    """GiB, to two decimals."""
    return say(value / 2**30, "{:.2f}")


def in_gib(value: float) -> str:
    return say(value / 2**30, "{:.2f} GiB")


def in_mib(value: float) -> str:
    return say(value / MIB, "{:.0f} MiB")


def agreement(off: float) -> str:
    """How measurement and prediction agree: "to the byte", "within 0.40 %"."""
    return "to the byte" if off == 0 else say(100 * off, "within {:.2f} %")


def signed(value: float) -> str:
    """A deviation: `+0.4 %`."""
    return f"{100 * value:+.1f} %".replace("-0.0", "+0.0")


def facts(record: Record | None) -> dict[str, str]:
    """Peaks, categories and largest blocks that the pages name, and what follows from
    shapes alone.
    """

    def peak(mode: str, context: int, precision: str) -> float:
        return at(record, context, mode, precision).allocated

    def bf16_over_fp32(mode: str) -> str:
        ratio = peak(mode, LONGEST, "bf16") / peak(mode, LONGEST, "fp32")
        return say(ratio, "{:.2f}")

    named = [(m, c, "fp32") for m in ("forward", "step") for c in CONTEXTS]
    named += [(m, LONGEST, "bf16") for m in ("forward", "step")]
    named += [(m, LONGEST, "fp32") for m in ("forward_graph", "forward_two_graphs")]
    found = {f"{m}_{c}_{p}": in_gib(peak(m, c, p)) for m, c, p in named}
    for mode in ("forward", "forward_graph", "forward_two_graphs"):
        by_formula = sum(peak_by_formula(Pass(SIZE, LONGEST, mode, "fp32")).values())
        found[f"{mode}_{LONGEST}_fp32_predicted"] = in_gib(by_formula)
    for precision in PRECISIONS:
        residual = at(record, LONGEST, "step", precision).get("residual_bytes")
        found[f"residual_measured_{precision}"] = in_mib(residual)
    for (context, _), c in (of_help := helped(record)).items():
        name = dict(zip(of_help, 2 * HELPS, strict=True))[context, _]
        found[f"helps_{name}_{context}"] = in_gib(c.allocated)
        if context == LONGEST or name in ("flash", "both"):
            found[f"helps_{name}_{context}_ms"] = say(c.ms(), "{:.0f} ms")
    low = at(record, LONGEST, "forward", "bf16")
    return {
        **found,
        "forward_weight_copies_bf16": in_gib(low.category("weight copies")),
        "step_place_fp32": place(at(record, LONGEST, "step", "fp32")),
        "step_place_short": place(at(record, CONTEXTS[0], "step", "fp32")),
        "forward_bf16_over_fp32": bf16_over_fp32("forward"),
        "step_bf16_over_fp32": bf16_over_fp32("step"),
        "off_lasting": agreement(worst(record, *LASTING)),
        "off_saved": agreement(worst(record, "saved activations")),
        **blocks_in_words(at(record, LONGEST, "forward", "fp32")),
        **from_shapes(),
    }


HELPS = ("plain", "checkpoint", "flash", "both")


def largest(c: Tried) -> list[dict[str, Any]]:
    """The groups of the largest allocations of a pass."""
    groups = c.get("tenth", [])
    return [group for group in groups if group["bytes"] == groups[0]["bytes"]]


def blocks_in_words(c: Tried) -> dict[str, str]:
    """(e): the largest allocations of a forward pass, and where they come from."""
    found = largest(c)
    named = dict.fromkeys(g["code"].split(",")[0] for g in found if g["code"])
    return {
        "forward_largest": in_mib(found[0]["bytes"] if found else c.missing),
        "forward_allocations": say(c["allocations"], "{:,}"),
        "forward_tenth": in_mib(c["tenth_least_bytes"]),
        "forward_largest_code": ", ".join(f"`{code}`" for code in named)
        or say(MISSING),
        "old_names": "".join(
            f"The record names `{old}`, which is `{new}` now, on other lines."
            for old, new in RENAMED.items()
            if any(f"{old}:" in code for code in named)
        ),
    }


# Files that records name as they were called when they were measured.
RENAMED = {"model.py": "systems/model/transformer.py"}


def from_shapes() -> dict[str, str]:
    """What needs no record: sizes by formula."""
    fp32, bf16 = (Pass(SIZE, LONGEST, "step", precision) for precision in PRECISIONS)
    kept, long = "saved activations", Pass(SIZE, 1024, "step", "fp32")
    residual = {c: residual_bytes(Pass(SIZE, c, "forward", "fp32")) for c in CONTEXTS}
    return {
        **{f"residual_{context}": in_mib(size) for context, size in residual.items()},
        "kept_fp32": in_gib(most(fp32)[kept]),
        "kept_bf16": in_gib(most(bf16)[kept]),
        "kept_1024": in_gib(most(long)[kept]),
        "copies_bf16": in_gib(most(bf16)["weight copies"]),
        "weights": in_gib(most(fp32)["weights"]),
        "lasting": in_gib(
            sum(most(fp32)[n] for n in ("weights", "gradients", "optimizer state"))
        ),
        "scores": in_mib(attention_saved(fp32)["exponentials"]),
    }


# Claims -------------------------------------------------------------------------------


@claim(
    "memory_profiling",
    "The peak of a full fp32 step of 2.7B moves: at context 512 it holds most of the "
    "activations and few gradients, at 128 most of the gradients and few activations.",
)
def memory_peak_moves(record: Record) -> Judgement:
    names = ("gradients", "saved activations")
    ends = [at(record, context, "step", "fp32") for context in (128, 512)]
    short, long = ([c.category(n) / c.most(n) for n in names] for c in ends)
    said = [
        ", ".join(f"{s:.0%} of the {n}" for s, n in zip(shares, names, strict=True))
        for shares in (short, long)
    ]
    holds = short[0] > 0.5 > short[1] and long[1] > 0.5 > long[0]
    numbers = f"Alive at the peak: context 128 {said[0]}; 512 {said[1]}."
    return (holds, numbers) if all(ends) else None


@claim(
    "memory_profiling",
    "Without a graph a forward pass of 2.7B in fp32 needs little beyond its weights: "
    "less than a tenth more, at every context.",
)
def forward_peak_is_weights(record: Record) -> Judgement:
    passes = [at(record, context, "forward", "fp32") for context in CONTEXTS]
    found = known(c.allocated / c.category("weights") for c in passes)
    return found and (max(found) < 1.1, f"Peak over weights: {span(found)}.")


@claim(
    "memory_profiling",
    "At context 512 a forward pass of 2.7B while the previous graph is alive needs "
    "more than forward and backward together, in fp32.",
)
def two_graphs_exceed_training(record: Record) -> Judgement:
    two_graphs, both = (
        at(record, 512, mode, "fp32").allocated / 2**30
        for mode in ("forward_two_graphs", "forward_backward")
    )
    numbers = f"{two_graphs:.1f} GiB against {both:.1f} GiB."
    return two_graphs / both and (two_graphs > both, numbers)


@claim(
    "memory_profiling",
    "At context 512 autocast raises the forward peak of 2.7B by more than a quarter "
    "and changes that of a full step by less than a tenth.",
)
def autocast_raises_forward(record: Record) -> Judgement:
    forward, step = (
        at(record, 512, m, "bf16").allocated / at(record, 512, m, "fp32").allocated
        for m in ("forward", "step")
    )
    numbers = f"bf16 over fp32: forward {forward:.2f}, full step {step:.2f}."
    return forward / step and (forward > 1.25 and abs(step - 1) < 0.1, numbers)


@claim(
    "memory_profiling",
    "A tensor of the residual stream has the derived size, batch x context x width x 4 "
    "bytes, under autocast too.",
)
def residual_as_derived(record: Record) -> Judgement:
    found = [c for c in tried(record) if c.get("residual_bytes", None)]
    same = sum(c["residual_bytes"] == residual_bytes(pass_of(c)) for c in found)
    sizes = span([c["residual_bytes"] for c in found], "{:,}")
    numbers = f"As derived in {same} of {len(found)} rows, {sizes} bytes."
    return (same == len(found), numbers) if found else None


@claim(
    "memory_profiling",
    "At context 512 the largest allocations of a forward pass of 2.7B in fp32 are "
    "score matrices, made by the code of attention.",
)
def largest_are_scores(record: Record) -> Judgement:
    c = at(record, 512, "forward", "fp32")
    if not (found := largest(c)):
        return None
    derived, size = attention_saved(pass_of(c))["exponentials"], found[0]["bytes"]
    attention = all("scaled_dot_product_attention" in g["code"] for g in found)
    numbers = f"Largest {in_mib(size)}, a score matrix {in_mib(derived)}."
    return size == derived and attention, numbers


@claim(
    "memory_profiling",
    "Wherever a pass fits, the most of its weights, gradients and optimizer state is "
    "within two percent of the prediction, that of its saved activations and weight "
    "copies within five.",
)
def memory_as_predicted(record: Record) -> Judgement:
    ran = sum(map(bool, tried(record)))
    lasting, passing = worst(record, *LASTING), worst(record, *BARS.keys() - LASTING)
    numbers = f"Off by {lasting:.2%} and {passing:.2%} at most over {ran} rows."
    return ran and (not misses(record), numbers)
