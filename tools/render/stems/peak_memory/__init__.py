"""Tables, facts and claims of `peak_memory`: measured and predicted peak memory."""

from dataclasses import replace
from functools import partial
from itertools import product

from systems.formulas.fit import find_largest, peak_bytes
from systems.formulas.gpus import GPUS
from systems.formulas.memory_costs import Pass, attention_bytes, residual_bytes
from systems.formulas.memory_peak import category_peaks
from systems.model.sizes import TABLE_1
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.fragments import Fragments
from tools.render.frame import Line
from tools.render.markdown import format_mib, gib, items_table, percent, prose_number
from tools.render.rows import fmt, nanmax
from tools.render.stems.peak_memory.figures import TITLES, timeline_figure
from tools.render.stems.peak_memory.rows import (
    CONTEXTS,
    LONG,
    LONGEST,
    MODES,
    PLAIN,
    PRECISIONS,
    REMEDIES,
    SIZE,
    category_bytes,
    format_peak,
    largest_error,
    make_pass,
    passes,
)

MIB = 2**20
# The size, context, attention and checkpointing in most facts and claims.
MAIN_CASE = {"size": SIZE, "context": LONGEST, **PLAIN}
fragments = Fragments()
format_gib2 = partial(gib, digits=2)
for mode, n in (*product(TITLES, [LONGEST]), ("step", CONTEXTS[0]), ("forward", LONG)):
    fragments.add(f"timeline-{mode}-{n}.md")(partial(timeline_figure, mode, n))


@fragments.add(
    "peaks.md", "Peak of each pass of `2.7B` in GiB, by precision and context."
)
def peaks_table(record: Record) -> str:
    found = passes(record).where(size=SIZE, **PLAIN)

    def peak(mode: str, precision: str, context: int) -> float:
        return found.one(mode=mode, precision=precision, context=context)["peak"]

    return items_table(
        MODES if found else [],
        ("pass", MODES.__getitem__),
        *(
            (f"{p}, {c}", lambda mode, p=p, c=c: peak(mode, p, c), format_gib2)
            for p, c in product(PRECISIONS, (*CONTEXTS, LONG))
        ),
    )


@fragments.add(
    "largest.md", "The largest allocations of a forward pass of `2.7B` at context 512."
)
def largest_table(record: Record) -> str:
    x = passes(record).one(**MAIN_CASE, mode="forward", precision="fp32")
    if not x:
        return ""

    def name_owner(group: dict[str, str]) -> str:
        owner = group["owner"] or group["code"]
        return f"`{owner}`" if owner else "autograd's thread"

    shown = items_table(
        x["tenth"],
        ("MiB each", lambda group: group["bytes"] / MIB, "{:.1f}"),
        ("how many", lambda group: group["count"]),
        ("category", lambda group: group["category"]),
        ("made in", lambda group: group["phase"].replace("_", " ")),
        ("owner, or the code that asked", name_owner),
        alike=("category", "made in"),
    )
    return (
        f"{shown}\n\nThese are the largest tenth of {x['allocations']:,} allocations, "
        f"from {x['tenth_least_bytes'] / MIB:.1f} MiB on (not all of that size)."
    )


@fragments.add(
    "helps.md",
    "What checkpointing and FlashAttention save in a bf16 step of `2.7B`, in GiB.",
)
def remedies_table(record: Record) -> str:
    found = passes(record).where(size=SIZE, mode="step", precision="bf16")
    return found.arrange(context=(LONGEST, LONG), remedy=REMEDIES.values()).table(
        "context",
        ("attention and blocks", "remedy"),
        ("peak, measured", "peak", format_gib2),
        ("peak, predicted", "predicted", format_gib2),
        ("saved activations", "saved", format_gib2),
        left=2,
    )


def facts(record: Record | None) -> dict[str, str]:
    found = passes(record).where(size=SIZE, **PLAIN)

    def find_pass(mode: str, precision: str, context: int = LONGEST) -> Line:
        return found.one(mode=mode, precision=precision, context=context)

    forward, forward_bf16 = find_pass("forward", "fp32"), find_pass("forward", "bf16")
    step, step_bf16 = find_pass("step", "fp32"), find_pass("step", "bf16")
    weights = category_peaks(Pass(SIZE, LONGEST, "step", "fp32"))["weights"]
    beyond_weights = (step["peak"] or step["predicted"]) - weights
    growth = forward_bf16["peak"] / forward["peak"]
    copies = category_bytes(forward_bf16, "weight copies")
    long = {f"{m}_{p}_long": find_pass(m, p, LONG) for m in TITLES for p in PRECISIONS}
    peaks = {f"{mode}_fp32": find_pass(mode, "fp32") for mode in MODES}
    peaks |= {"step_bf16": step_bf16, "forward_bf16": forward_bf16} | long
    return {
        **{k: format_peak(x, x["predicted"], format_mib) for k, x in peaks.items()},
        "beyond_weights": fmt(beyond_weights / 2**30, "{:.0f}"),
        "forward_bf16_over_fp32": fmt(growth, "{:.5f}"),
        "forward_copies_bf16": format_mib(copies),
        "place_fp32": fmt(step["place"]),
        "place_short": fmt(find_pass("step", "fp32", 128)["place"]),
        "residual_measured_bf16": format_mib(step_bf16["residual_bytes"]),
        "agrees": format_agreement(largest_error(record)),
        "peaks_off": fmt(nanmax(map(abs, passes(record).column("off"))), percent),
        "forward_largest": format_mib(forward["largest"]),
        "forward_largest_long": format_mib(long["forward_fp32_long"]["largest"]),
        **formula_facts(),
    }


def format_agreement(error: float) -> str:
    """Describe a relative error: "to the byte" or "within 0.40 %"."""
    return "to the byte" if error == 0 else fmt(100 * error, "within {:.2f} %")


def formula_facts() -> dict[str, str]:
    """Return {name: text}: predicted memory, largest context and size that fit GPUs."""
    short, long, longer = (Pass(SIZE, c, "step", "fp32") for c in (128, LONGEST, LONG))
    peaks = category_peaks(long)
    lasting = ("weights", "gradients", "optimizer state")
    room_80, room_40 = (GPUS[f"a100-{gb}"].free_bytes for gb in (80, 40))
    on_40 = [s for s in TABLE_1 if peak_bytes(replace(long, size=s)) <= room_40]
    return {
        "longest_on_80": prose_number(find_largest(long, "context", room_80)),
        "largest_on_40": on_40[-1],
        **{
            f"residual_{p.context}": format_mib(residual_bytes(p))
            for p in (short, long, longer)
        },
        "kept_fp32": format_mib(peaks["saved activations"]),
        "kept_fp32_128": format_mib(category_peaks(short)["saved activations"]),
        "weights": format_mib(peaks["weights"]),
        "lasting": format_mib(sum(peaks[name] for name in lasting)),
        "scores": format_mib(attention_bytes(long)["exponentials"]),
        "scores_128": format_mib(attention_bytes(short)["exponentials"]),
    }


@claim(
    "memory_profiling",
    "What an fp32 step of 2.7B holds at its peak depends on context: at 512 most saved "
    "activations and few gradients, at 128 the reverse.",
)
def memory_peak_moves(record: Record) -> Judgement:
    names = ("gradients", "saved activations")
    steps = passes(record).where(size=SIZE, mode="step", precision="fp32", **PLAIN)
    ends = [steps.one(context=context) for context in (128, 512)]
    short, long = (
        [category_bytes(x, n) / category_bytes(x, n, "most_bytes") for n in names]
        for x in ends
    )
    words = "{} of the gradients, {} of the saved activations"
    texts = [words.format(*map(percent, shares)) for shares in (short, long)]
    holds = short[0] > 0.5 > short[1] and long[1] > 0.5 > long[0]
    numbers = f"Peak at context 128: {texts[0]}; at 512: {texts[1]}."
    return (holds, numbers) if all(ends) else None


@claim(
    "memory_profiling",
    "At context 512 autocast's copies of 2.7B's weights raise the forward peak; in a "
    "full step activations shrink by more than the copies take, so the peak falls.",
)
def autocast_raises_forward(record: Record) -> Judgement:
    found = passes(record).where(**MAIN_CASE)
    forward, step = (
        found.one(mode=mode, precision="bf16")["peak"]
        / found.one(mode=mode, precision="fp32")["peak"]
        for mode in TITLES
    )
    numbers = f"Peaks, bf16 / fp32: forward {forward:.2f}, step {step:.2f}."
    return forward / step and (forward > 1 > step, numbers)


@claim(
    "memory_profiling",
    "At context 512 the largest allocations of a forward pass of 2.7B in fp32 are "
    "score matrices, made by the code of attention.",
)
def largest_are_scores(record: Record) -> Judgement:
    x = passes(record).one(**MAIN_CASE, mode="forward", precision="fp32")
    if not x:
        return None
    found = [group for group in x["tenth"] if group["bytes"] == x["largest"]]
    derived, size = attention_bytes(make_pass(x))["exponentials"], x["largest"]
    attention = all("scaled_dot_product_attention" in g["code"] for g in found)
    numbers = f"They take {format_mib(size)}; a score matrix, {format_mib(derived)}."
    return size == derived and attention, numbers


@claim(
    "memory_profiling",
    "Wherever a pass fits, shapes predict the largest size of its weights, gradients, "
    "optimizer state, weight copies and saved activations to the byte.",
)
def memory_matches_prediction(record: Record) -> Judgement:
    ran = len(passes(record).where(bool))
    error = largest_error(record)
    numbers = f"Predictions of {ran} rows hold {format_agreement(error)}."
    return ran and (error == 0, numbers)
