"""Tables, figures and facts of `peak_memory`: what a pass holds at its peak, measured
beside predicted.
"""

from collections.abc import Callable

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
from systems.formulas.memory_peak import most, peak
from systems.model.sizes import SIZES
from systems.profiling.memory.snapshot import CATEGORIES
from systems.records.record import Record, Row
from tools.render.markdown import (
    NOT_MEASURED,
    fact,
    milliseconds,
    per_device,
    percent,
    table,
)
from tools.render.stems.peak_memory import figures as memory_figures
from tools.render.stems.peak_memory.rows import (
    BARS,
    CONTEXTS,
    LONGEST,
    MODES,
    PRECISIONS,
    REMEDIES,
    SIZE,
    allocated,
    at_peak,
    cell,
    deviations,
    fits,
    in_words,
    most_of,
    place,
    predicted,
    requested,
    step_ms,
    worst,
)

MIB = 2**20


def fragments(records: list[Record]) -> dict[str, str]:
    """Timelines, peaks with their predictions and categories, saved tensors, the
    largest blocks, and what helps.
    """
    measured = [r for r in records if r.kind == "measured"]
    figures: dict[str, str] = {}
    for record in measured:
        figures |= memory_figures.contexts_figure(record)
        for mode in memory_figures.DRAWN:
            figures |= memory_figures.timeline_figure(record, mode)
    return {
        **{
            f"timeline-{mode}.md": per_device(
                measured, lambda r, mode=mode: memory_figures.timeline_body(r, mode)
            )
            for mode in memory_figures.DRAWN
        },
        **{
            f"peaks-{p}.md": per_device(measured, lambda r, p=p: peaks_table(r, p))
            for p in PRECISIONS
        },
        "contexts.md": per_device(measured, memory_figures.contexts_body),
        "categories.md": per_device(measured, categories_table),
        "prediction.md": per_device(measured, prediction_table),
        "sizes.md": per_device(measured, sizes_table),
        "saved.md": saved_table() + "\n",
        "largest.md": per_device(
            measured,
            lambda r: blocks_table(cell(r, LONGEST, "forward", "fp32"), "tenth"),
        ),
        "largest-step.md": per_device(
            measured, lambda r: blocks_table(cell(r, LONGEST, "step", "fp32"), "tenth")
        ),
        "live.md": per_device(
            measured,
            lambda r: blocks_table(cell(r, LONGEST, "step", "fp32"), "largest_at_peak"),
        ),
        "helps.md": per_device(measured, helps_table),
        "reported.md": per_device(
            [r for r in records if r.kind == "reported"], reported_table
        ),
        **figures,
    }


# Peaks --------------------------------------------------------------------------------


def peaks_table(record: Record, precision: str) -> str:
    """2.7B: the allocator's peak, what it reserved, the peak as asked for beside its
    prediction, and its phase.
    """
    rows = []
    for mode, label in MODES.items():
        for context in CONTEXTS:
            row = cell(record, context, mode, precision)
            if row is not None:
                rows.append([label, str(context), *peak_cells(row)])
    header = [
        "pass",
        "context",
        "peak, GiB",
        "reserved, GiB",
        "asked for, GiB",
        "predicted, GiB",
        "off",
        "where",
    ]
    return table(header, rows) if rows else ""


def peak_cells(row: Row) -> list[str]:
    whole, asked = allocated(row), requested(row)
    if whole is None or asked is None:
        return [in_words(row), "", "", two(predicted(row)), "", ""]
    reserved, by_formula = row.metrics["peak_reserved_bytes"], predicted(row)
    return [
        two(whole),
        two(reserved),
        two(asked),
        two(by_formula),
        signed(asked / by_formula - 1),
        place(row),
    ]


def categories_table(record: Record) -> str:
    """2.7B: what the peak is made of."""
    rows = []
    for mode, label in MODES.items():
        for precision in PRECISIONS:
            for context in CONTEXTS:
                row = cell(record, context, mode, precision)
                if row is not None and fits(row):
                    rows.append(
                        [
                            label,
                            precision,
                            str(context),
                            *(two(at_peak(row, name)) for name in CATEGORIES),
                        ]
                    )
    return (
        table(["pass", "precision", "context", *CATEGORIES], rows, left=2)
        if rows
        else ""
    )


def prediction_table(record: Record) -> str:
    """For every row the most of each category: measured in GiB, and how far the formula
    is off.
    """
    rows = []
    for row in record.rows:
        c = row.config
        remedy = REMEDIES[c["attention"], c["checkpoint"]]
        name = MODES[c["mode"]] + ("" if remedy == "as written" else f", {remedy}")
        lead = [c["size"], name, c["precision"], str(c["context"])]
        if not fits(row):
            rows.append([*lead, in_words(row), *[""] * (len(BARS) - 1)])
            continue
        off = deviations(row)
        rows.append(
            [
                *lead,
                *(
                    f"{two(most_of(row, n))} ({signed(off[n])})" if n in off else ""
                    for n in BARS
                ),
            ]
        )
    return (
        table(["size", "pass", "precision", "context", *BARS], rows, left=3)
        if rows
        else ""
    )


def sizes_table(record: Record) -> str:
    """Every size at context 512: peak of each mode, the prediction in brackets."""
    rows = []
    for size in SIZES:
        for precision in PRECISIONS:
            cells = []
            for mode in MODES:
                row = cell(record, LONGEST, mode, precision, size)
                whole = allocated(row)
                if row is None:
                    cells.append("")
                else:
                    cells.append(
                        in_words(row)
                        if whole is None
                        else f"{two(whole)} ({two(predicted(row))})"
                    )
            rows.append([size, precision, *cells])
    return table(["size", "precision", *MODES.values()], rows, left=2)


def saved_table() -> str:
    """Every tensor that one block of 2.7B and the rest of the model keep at context
    512, by formula, in MiB.
    """
    passes = [Pass(SIZE, LONGEST, "step", precision) for precision in PRECISIONS]
    rows = []
    parts: dict[str, Callable[[Pass], dict[str, int]]] = {
        "attention half": attention_saved,
        "feed-forward half": feed_forward_saved,
        "rest of the model": ends_saved,
        "loss": loss_saved,
    }
    for part, kept in parts.items():
        wide, low = (kept(p) for p in passes)
        for (name, size), (name_low, size_low) in zip(
            wide.items(), low.items(), strict=True
        ):
            label = name if name == name_low else f"{name}; under autocast: {name_low}"
            rows.append([part, label, f"{size / MIB:.2f}", f"{size_low / MIB:.2f}"])
    totals = [
        [
            sum(sum(kept(p).values()) for kept in (attention_saved, feed_forward_saved))
            for p in passes
        ]
    ]
    rows += [["**one block**", "", *(f"{total / MIB:.2f}" for total in totals[0])]]
    everything = [
        kept_bytes(p) - logits_bytes(p) + sum(loss_saved(p).values()) for p in passes
    ]
    rows += [
        [
            f"**{SIZES[SIZE].num_layers} blocks and the rest**",
            "",
            *(f"{total / MIB:,.2f}" for total in everything),
        ]
    ]
    copies = [most(p)["weight copies"] for p in passes]
    rows += [
        ["**bf16 copies of weights**", "", *(f"{total / MIB:,.2f}" for total in copies)]
    ]
    return table(
        ["part", "kept tensor", "fp32, MiB", "bf16 autocast, MiB"], rows, left=2
    )


# Blocks -------------------------------------------------------------------------------


def blocks_table(row: Row | None, kind: str) -> str:
    """Groups of alike blocks, the largest first, and who asked for them."""
    if row is None or not fits(row):
        return ""
    rows = []
    for group in row.metrics[kind]:
        where = (
            f"`{group['owner']}`"
            if group["owner"]
            else f"`{group['code']}`"
            if group["code"]
            else "autograd's thread"
        )
        cells = [
            f"{group['bytes'] / MIB:.1f}",
            str(group["count"]),
            group["category"],
            group["phase"].replace("_", " "),
        ]
        rows.append([*cells, where])
    lines = table(
        ["MiB each", "blocks", "category", "made in", "owner, or the code that asked"],
        rows,
        left=5,
    )
    if kind != "tenth":
        return lines
    least = f"{row.metrics['tenth_least_bytes'] / MIB:.1f} MiB"
    return f"{lines}\n\nThe largest tenth of {row.metrics['allocations']:,} allocations; the smallest of it has {least}."


# What helps ---------------------------------------------------------------------------


def helps_table(record: Record) -> str:
    """A bf16 step of 2.7B with each remedy: memory with its prediction, and time."""
    rows = []
    for context in (LONGEST, 4 * LONGEST):
        for remedy, label in REMEDIES.items():
            row = cell(record, context, "step", "bf16", SIZE, *remedy)
            if row is None:
                continue
            time = step_ms(row)
            kept = two(most_of(row, "saved activations")) if fits(row) else ""
            lead = [
                str(context),
                label,
                *peak_cells(row)[:1],
                two(predicted(row)),
                kept,
            ]
            rows.append([*lead, milliseconds(time) if time else ""])
    header = [
        "context",
        "attention and blocks",
        "peak, GiB",
        "predicted, GiB",
        "saved activations, GiB",
        "step, ms",
    ]
    return table(header, rows, left=2) if rows else ""


def reported_table(record: Record) -> str:
    rows = [
        [
            row.config["pass"],
            row.config["precision"],
            str(row.config["context"] or "not said"),
            row.metrics["peak"],
        ]
        for row in record.rows
    ]
    return table(
        ["pass, as they call it", "precision", "context", "peak, GB as they call it"],
        rows,
        left=2,
    )


# Numbers in words ---------------------------------------------------------------------


def two(value: float) -> str:
    """GiB, to two decimals."""
    return f"{value / 2**30:.2f}"


def signed(value: float) -> str:
    """A deviation: `+0.4 %`."""
    return f"{100 * value:+.1f} %".replace("-0.0", "+0.0")


def in_gib(row: Row | None, value: float | None) -> str:
    """A peak for a sentence, or why there is none."""
    return or_why_not(row, fact(value, lambda v: f"{two(v)} GiB"))


def or_why_not(row: Row | None, text: str) -> str:
    """The text, unless the row has no numbers."""
    return text if row is None or fits(row) else in_words(row)


def facts(record: Record | None) -> dict[str, str]:
    """Peaks, categories and largest blocks that the pages name, and what follows from
    shapes alone.
    """
    found = {}
    for mode in MODES:
        for precision in PRECISIONS:
            for context in CONTEXTS:
                row = cell(record, context, mode, precision)
                found[f"{mode}_{context}_{precision}"] = in_gib(row, allocated(row))
            row = cell(record, LONGEST, mode, precision)
            found[f"{mode}_{LONGEST}_{precision}_predicted"] = (
                f"{two(sum(peak(Pass(SIZE, LONGEST, mode, precision)).values()))} GiB"
            )
            found[f"{mode}_place_{precision}"] = place(row)
            for name in CATEGORIES:
                value = at_peak(row, name) if row is not None and fits(row) else None
                found[f"{mode}_{name.replace(' ', '_')}_{precision}"] = in_gib(
                    row, value
                )
            residual = (
                row.metrics.get("residual_bytes")
                if row is not None and fits(row)
                else None
            )
            found[f"residual_measured_{precision}"] = fact(
                residual, lambda v: f"{v / MIB:.0f} MiB"
            )
    return (
        found
        | comparisons(record)
        | blocks_in_words(record)
        | remedies_in_words(record)
        | from_shapes()
    )


def comparisons(record: Record | None) -> dict[str, str]:
    """bf16 against fp32, contexts against one another, and how far the formulas are
    off.
    """
    found = {}
    for mode in ("forward", "step"):
        pair = [allocated(cell(record, LONGEST, mode, p)) for p in PRECISIONS]
        found[f"{mode}_bf16_over_fp32"] = fact(
            pair[1] / pair[0] if pair[0] and pair[1] else None, "{:.2f}".format
        )
    for mode, precision in (("forward", "fp32"), ("step", "fp32"), ("step", "bf16")):
        ends = [
            allocated(cell(record, c, mode, precision)) for c in (CONTEXTS[0], LONGEST)
        ]
        growth = ends[1] / ends[0] if ends[0] and ends[1] else None
        found[f"{mode}_growth_{precision}"] = fact(growth, "{:.2f}".format)
    lasting = ("weights", "gradients", "optimizer state")
    return found | {
        "step_place_short": place(cell(record, CONTEXTS[0], "step", "fp32")),
        "off_lasting": fact(worst(record, lasting), percent),
        "off_saved": fact(worst(record, ("saved activations",)), percent),
        "off_copies": fact(worst(record, ("weight copies",)), percent),
    }


def blocks_in_words(record: Record | None) -> dict[str, str]:
    """(e): the largest allocations of a forward pass and of a step, and where they come
    from.
    """
    found = {}
    for mode in ("forward", "step"):
        row = cell(record, LONGEST, mode, "fp32")
        ok = row is not None and fits(row)
        groups = row.metrics["tenth"] if row is not None and ok else []
        largest = [g for g in groups if g["bytes"] == groups[0]["bytes"]]
        found |= {
            f"{mode}_largest": f"{groups[0]['bytes'] / MIB:.0f} MiB"
            if ok
            else NOT_MEASURED,
            f"{mode}_allocations": f"{row.metrics['allocations']:,}"
            if row is not None and ok
            else NOT_MEASURED,
            f"{mode}_tenth": f"{row.metrics['tenth_least_bytes'] / MIB:.0f} MiB"
            if row is not None and ok
            else NOT_MEASURED,
        }
        named = dict.fromkeys(g["code"].split(",")[0] for g in largest if g["code"])
        found[f"{mode}_largest_code"] = (
            ", ".join(f"`{code}`" for code in named) or NOT_MEASURED
        )
    return found


def remedies_in_words(record: Record | None) -> dict[str, str]:
    found = {}
    names = dict(zip(REMEDIES, ("plain", "checkpoint", "flash", "both"), strict=True))
    for context in (LONGEST, 4 * LONGEST):
        for remedy, name in names.items():
            row = cell(record, context, "step", "bf16", SIZE, *remedy)
            found[f"helps_{name}_{context}"] = in_gib(row, allocated(row))
            found[f"helps_{name}_{context}_ms"] = or_why_not(
                row, fact(step_ms(row), "{:.0f} ms".format)
            )
    return found


def from_shapes() -> dict[str, str]:
    """What needs no record: sizes by formula."""
    found = {
        f"residual_{c}": f"{residual_bytes(Pass(SIZE, c, 'forward', 'fp32')) / MIB:.0f} MiB"
        for c in (*CONTEXTS, 1024)
    }
    for precision in PRECISIONS:
        p = Pass(SIZE, LONGEST, "step", precision)
        found[f"kept_{precision}"] = f"{two(most(p)['saved activations'])} GiB"
        found[f"copies_{precision}"] = f"{two(most(p)['weight copies'])} GiB"
    p = Pass(SIZE, LONGEST, "step", "fp32")
    found["scores"] = f"{attention_saved(p)['exponentials'] / MIB:.0f} MiB"
    found["weights"] = f"{two(most(p)['weights'])} GiB"
    found["kept_1024"] = (
        f"{two(most(Pass(SIZE, 1024, 'step', 'fp32'))['saved activations'])} GiB"
    )
    return found
