"""Tables, figures and facts of `peak_memory`: what a pass holds at its peak, measured
beside predicted.
"""

from functools import partial
from typing import Any

from systems.formulas.memory_costs import Pass, attention_saved, residual_bytes
from systems.formulas.memory_peak import category_peaks
from systems.formulas.memory_peak import peak as peak_by_formula
from systems.records.record import Record
from tools.render.markdown import NOTHING_FITS, in_gib, in_mib, per_device
from tools.render.rows import MISSING, OUT_OF_MEMORY, measured, say
from tools.render.stems.peak_memory import claims as claims
from tools.render.stems.peak_memory import figures, tables
from tools.render.stems.peak_memory.rows import (
    CONTEXTS,
    LONGEST,
    PRECISIONS,
    PREDICTED,
    SIZE,
    Tried,
    agreement,
    at,
    helped,
    largest,
    place,
    worst,
)

HELPS = ("plain", "checkpoint", "flash", "both")

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
        "how long the step then takes."
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
            ours, lambda r: tables.blocks_table(at(r, LONGEST, mode, "fp32"), kind)
        )

    fp32, bf16 = (partial(tables.peaks_table, precision=p) for p in PRECISIONS)
    shown: dict[str, Any] = {
        "contexts.md": figures.contexts_figure,
        "categories.md": tables.categories_table,
        "moments.md": tables.moments_table,
        "peaks.md": tables.pivot,
        "prediction.md": tables.prediction_table,
        "sizes.md": tables.sizes_table,
        "helps.md": tables.helps_table,
        "edition.md": tables.edition_table,
        "peaks-fp32.md": fp32,
        "peaks-bf16.md": bf16,
        **{
            f"timeline-{mode}.md": partial(figures.timeline_figure, mode=mode)
            for mode in figures.DRAWN
        },
    }
    editions = {
        f"edition-{mode}.md": edition(ours, mode, of)
        for mode, of in figures.DRAWN.items()
    }
    return {
        **{name: per_device(ours, body) for name, body in shown.items()},
        **editions,
        "saved.md": tables.saved_table() + "\n",
        "largest.md": blocks("forward", "tenth"),
        "largest-step.md": blocks("step", "tenth"),
        "live.md": blocks("step", "largest_at_peak"),
        "reported.md": per_device(reported, tables.reported_table),
    }


def edition(ours: list[Record], mode: str, of: str) -> str:
    """Memory over time at contexts 128 and 2048, or that there is none yet."""
    drawn = [r for r in ours if figures.edition_figure(r, mode)]
    tried = [c for r in ours for c in figures.of_edition(r, mode)]
    if not drawn and any(c.why.startswith(OUT_OF_MEMORY) for c in tried):
        return NOTHING_FITS
    if not drawn:
        return f"Not measured yet: memory over {of} at contexts 128 and 2048.\n"
    return per_device(drawn, lambda r: figures.edition_figure(r, mode))


# Facts --------------------------------------------------------------------------------


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
    named += [(m, c, "bf16") for m in ("forward", "step") for c in CONTEXTS]
    named += [(m, LONGEST, "fp32") for m in ("forward_graph", "forward_two_graphs")]
    found = {f"{m}_{c}_{p}": in_gib(peak(m, c, p)) for m, c, p in named}
    for mode in ("forward", "forward_graph", "forward_two_graphs"):
        by_formula = sum(peak_by_formula(Pass(SIZE, LONGEST, mode, "fp32")).values())
        found[f"{mode}_{LONGEST}_fp32_predicted"] = in_gib(by_formula)
    for precision in PRECISIONS:
        residual = at(record, LONGEST, "step", precision).get("residual_bytes")
        found[f"residual_measured_{precision}"] = in_mib(residual)
    for ((context, _), c), name in zip(helped(record).items(), 2 * HELPS, strict=True):
        found[f"helps_{name}_{context}"] = in_gib(c.allocated)
    low = at(record, LONGEST, "forward", "bf16")
    short = [at(record, context, "step", "fp32") for context in CONTEXTS[:2]]
    return {
        **found,
        "forward_weight_copies_bf16": in_gib(low.category("weight copies")),
        "step_place_fp32": place(at(record, LONGEST, "step", "fp32")),
        "step_place_short": place(at(record, CONTEXTS[0], "step", "fp32")),
        **{
            f"step_place_{n}_bf16": place(at(record, n, "step", "bf16"))
            for n in CONTEXTS[:2]
        },
        "forward_bf16_over_fp32": bf16_over_fp32("forward"),
        "step_bf16_over_fp32": bf16_over_fp32("step"),
        "agrees": agreement(worst(record, *PREDICTED)),
        "step_falls": falls(*short),
        "step_grows": in_mib(short[1].requested - short[0].requested),
        **blocks_in_words(at(record, LONGEST, "forward", "fp32")),
        **from_shapes(),
    }


def falls(short: Tried, long: Tried) -> str:
    """Whether a longer context needs less memory though it asks for more."""
    rounded = long.allocated < short.allocated and long.requested >= short.requested
    return "yes" if rounded else "no"


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
    }


def from_shapes() -> dict[str, str]:
    """What needs no record: sizes by formula."""
    fp32, bf16 = (Pass(SIZE, LONGEST, "step", precision) for precision in PRECISIONS)
    kept, long = "saved activations", Pass(SIZE, 1024, "step", "fp32")
    small = Pass(SIZE, CONTEXTS[0], "step", "fp32")
    residual = {c: residual_bytes(Pass(SIZE, c, "forward", "fp32")) for c in CONTEXTS}
    return {
        **{f"residual_{context}": in_mib(size) for context, size in residual.items()},
        "kept_fp32": in_gib(category_peaks(fp32)[kept]),
        "kept_fp32_quarter": in_gib(category_peaks(fp32)[kept] / 4),
        "kept_fp32_128": in_gib(category_peaks(small)[kept]),
        "kept_bf16": in_gib(category_peaks(bf16)[kept]),
        "kept_1024": in_gib(category_peaks(long)[kept]),
        "copies_bf16": in_gib(category_peaks(bf16)["weight copies"]),
        "weights": in_gib(category_peaks(fp32)["weights"]),
        "lasting": in_gib(
            sum(
                category_peaks(fp32)[n]
                for n in ("weights", "gradients", "optimizer state")
            )
        ),
        "scores": in_mib(attention_saved(fp32)["exponentials"]),
        "scores_128": in_mib(attention_saved(small)["exponentials"]),
    }
