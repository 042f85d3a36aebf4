"""Tables and facts of `kernel_profile`: wall time and GPU time, the top kernels,
categories, attention's parts.
"""

from typing import Any

from systems.model.sizes import TABLE_1
from systems.profiling.kernel_names import MATMUL
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.load import primary_gpu
from tools.render.markdown import (
    OPEN,
    columns,
    folded_name,
    per_device,
    percent,
    provenance,
)
from tools.render.rows import (
    MISSING,
    Cell,
    at_ends,
    cells,
    data_sheet,
    instead,
    known,
    measured,
    most,
    ran,
    say,
    span,
)
from tools.render.stems.kernel_profile import figures
from tools.render.stems.kernel_profile.rows import (
    PARTS,
    PASSES,
    SOFTMAX,
    Kernel,
    at,
    busy_ms,
    by_name,
    disagreement,
    idle_share,
    inference,
    matmul_share,
    of_passes,
    over_softmax,
    part,
    part_costs,
    product_calls,
    products_ms,
    profiled_ms,
    rates,
    share,
    span_ms,
    timed,
    total_ms,
    unattributed,
    wall_ms,
)

CELL = ("size", "context", "precision")
PROFILERS = {"nsys": "Nsight Systems", "torch": "torch.profiler"}
# The cell whose kernels are listed one by one, and those whose numbers stand in
# sentences.
LISTED = ("small", 512)
SHORT, LARGEST = ("small", 128), ("2.7B", 512)
TOLD = ("small", "2.7B")
# What bf16 is to make faster, the phases of a step without loss and optimizer.
TRAINED = ("forward", "backward")
# Kernels that take less are not listed.
LISTED_SHARE = 0.01

CAPTIONS = {
    "times.md": (
        "Median wall time, the sum of the kernels and what is idle, at every size and "
        "context."
    ),
    "times-forward.md": (
        "Forward passes: median wall time, the sum of their kernels, what is idle."
    ),
    "top-telling.md": "The kernel that takes longest, at context 512 in fp32.",
    "others.md": (
        "What else takes time in a forward pass of `small` at context 512 in fp32."
    ),
    "attention.md": "Each part of attention, all layers of one forward pass in fp32.",
    "attention-telling.md": (
        "Each part of attention at context 512, all layers of one forward pass in fp32."
    ),
}


def fragments(records: list[Record]) -> dict[str, str]:
    """A table for each question, and the figures."""
    ours = measured(records)
    tables = {
        "times.md": times_table,
        "times-forward.md": lambda r: times_table(r, mode="forward"),
        "top-telling.md": lambda r: top_table(r, TOLD, context=512, precision="fp32"),
        "others.md": others_table,
        "matmul.md": matmul_table,
        "attention.md": attention_table,
        "attention-telling.md": lambda r: attention_table(r, context=512),
    }
    return {
        **{name: per_device(ours, body) for name, body in tables.items()},
        **figures.fragments(ours),
    }


def profilers(found: list[Cell]) -> Any:
    names = sorted({PROFILERS[c["profiler"]] for c in found})
    return " and ".join(names) if names else MISSING


# Tables -------------------------------------------------------------------------------


def times_table(record: Record, **where: Any) -> str:
    """(a) Wall time, with and without the profiler, span and sum of the kernels, and
    what is idle.
    """

    def telling(c: Cell) -> bool:
        of = c.config
        asked = of["precision"] == "fp32" or of["size"] in TOLD
        return asked and (of["context"], of["mode"]) == (512, "forward")

    found = cells(record, **where)
    shown = columns(
        found,
        *CELL,
        "mode",
        ("wall, ms", wall_ms, "{:.2f}"),
        ("sum of kernels, ms", busy_ms, "{:.2f}"),
        ("idle", idle_share, percent),
        ("wall, profiled, ms", profiled_ms, "{:.2f}"),
        ("GPU span, profiled, ms", span_ms, "{:.2f}"),
        left=4,
        telling=telling,
        alike=["mode"],
    )
    own = sum(1 for c in found if c and timed(c) is c)
    return f"{shown}\n\n{clocks_of(record, own)}" if shown else ""


def clocks_of(record: Record, own: int) -> str:
    """Where the wall times are from."""
    if record.clock is None:
        return "Wall time of the profile's own run.\n{ .provenance }"
    rest = f"Wall time of {own} rows: of the profile's own run. " if own else ""
    return f"{rest}Wall time: {provenance(record.clock)}"


def forward_passes(record: Record | None, **config: Any) -> list[Cell]:
    return ran(record, mode="forward", **config)


def top_table(
    record: Record, sizes: tuple[str, ...] | None = None, **where: Any
) -> str:
    """(b) The kernel that takes longest in the forward pass, and in forward and
    backward together.
    """
    found = []
    for c in inference(record):
        if sizes and c.config["size"] not in sizes:
            continue
        if not where.items() <= c.config.items():
            continue
        for passes in ("forward", "forward and backward"):
            row, phases = of_passes(record, c, passes)
            if names := by_name(row, phases):
                calls = product_calls(row, phases)
                found.append((c, passes, names[0], total_ms(row, phases), calls))
    # What is the same in all lines stands in the caption.
    varies = [key for key in CELL if key not in where]
    return columns(
        found,
        *((key, lambda of, key=key: of[0].config[key]) for key in varies),
        ("pass", lambda of: of[1]),
        ("top kernel", lambda of: folded(of[2])),
        ("calls", lambda of: of[2].calls, "{:g}"),
        ("share of kernel time", lambda of: of[2].ms / (of[3] or 1), percent),
        ("product kernels", lambda of: of[4][0], "{:g}"),
        ("split-K kernels", lambda of: of[4][1], "{:g}"),
        left=2 + len(varies),
        telling=lambda of: of[0].config["size"] in [*TABLE_1][::2],
    )


def folded(kernel: Kernel) -> str:
    """A product's whole name opens; that of an operation is hundreds of letters long,
    and stands in the record.
    """
    whole = kernel.name if kernel.category == MATMUL else kernel.short
    return folded_name(whole, kernel.short)


def others_table(record: Record) -> str:
    """(c) What else takes time in one forward pass, kernel by kernel."""
    c = at(record, *LISTED, "forward")
    whole = total_ms(c)
    found = [
        k for k in by_name(c) if k.category != MATMUL and k.ms / whole >= LISTED_SHARE
    ]
    return columns(
        found,
        ("kernel", folded),
        ("category", lambda k: k.category),
        ("calls", lambda k: k.calls, "{:g}"),
        ("ms", lambda k: k.ms, "{:.3f}"),
        ("share of kernel time", lambda k: k.ms / whole, percent),
        left=2,
        telling=found[:OPEN].__contains__,
    )


def matmul_table(record: Record) -> str:
    """(d) The share of matrix products in inference, in forward and backward, and in a
    full step.
    """

    def optimizer_ms(c: Cell) -> float:
        return total_ms(of_passes(record, c, "full step")[0], ("optimizer",))

    return columns(
        [
            c
            for c in inference(record)
            if any(matmul_share(record, c, p) for p in PASSES)
        ],
        *CELL,
        *((p, lambda c, p=p: matmul_share(record, c, p), percent) for p in PASSES),
        ("optimizer's kernels, ms", optimizer_ms, "{:.2f}"),
        left=3,
    )


def attention_table(record: Record, **where: Any) -> str:
    """(e) Each part of attention in an fp32 forward pass: kernels, time, FLOPs, bytes,
    and the rates reached.
    """
    passes = forward_passes(record, precision="fp32", **where)
    peak = data_sheet(record.device.slug)

    return columns(
        [(c, name) for c in passes for name in PARTS if part(c, name)[1]],
        ("size", lambda of: of[0].config["size"]),
        ("context", lambda of: of[0].config["context"]),
        ("part", lambda of: of[1]),
        ("kernels", lambda of: part(*of)[0], "{:g}"),
        ("ms", lambda of: part(*of)[1], "{:.3f}"),
        ("GFLOP", lambda of: part_costs(of[0])[of[1]][0] / 1e9, "{:.2f}"),
        ("GB moved", lambda of: part_costs(of[0])[of[1]][1] / 1e9, "{:.2f}"),
        ("TFLOP/s", lambda of: rates(*of)[0] / 1e12, "{:.2f}"),
        ("share of peak", lambda of: rates(*of)[0] / peak.fp32, percent),
        ("TB/s", lambda of: rates(*of)[1] / 1e12, "{:.2f}"),
        ("share of bandwidth", lambda of: rates(*of)[1] / peak.bandwidth, percent),
        left=3,
        telling=lambda of: at_ends(of[0]),
        alike=["context"],
    )


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """The answers' numbers: small at two contexts and 2.7B at one, in fp32 unless
    named; and the checks' worst.
    """
    ms = "{:.2f} ms"
    small, largest = (at(record, *place, "forward") for place in (LISTED, LARGEST))
    low = at(record, *LARGEST, "forward", "bf16")
    found: dict[str, str] = {}
    for key, c in {
        "small_128": at(record, *SHORT, "forward"),
        "2_7B": largest,
    }.items():
        found[f"profiled_{key}"] = say(profiled_ms(c), ms)
        found[f"span_{key}"] = say(span_ms(c), ms)
        found[f"busy_{key}"] = say(busy_ms(c), ms)
    found["wall_2_7B"] = say(wall_ms(largest), ms)
    found["idle_2_7B"] = say(idle_share(largest), percent)
    for key, c in {"small": small, "2_7B": largest, "2_7B_bf16": low}.items():
        for passes in PASSES:
            name = f"{passes.replace(' ', '_')}_matmul_{key}"
            found[name] = say(matmul_share(record, c, passes), percent)
        step = of_passes(record, c, "full step")[0]
        found[f"adamw_{key}"] = say(
            total_ms(step, ("optimizer",)) / total_ms(step), percent
        )
    others = [k for k in by_name(small) if k.category != MATMUL]
    if others:
        other = others[0]
        found["other_small"] = (
            f"`{other.short}` with {other.calls:g} calls and "
            f"{percent(other.ms / total_ms(small))}"
        )
    else:
        found["other_small"] = say(small.missing)
    for name in ("matmul", "softmax", "elementwise", "copy"):
        found[f"{name}_small"] = say(share(small, name), percent)
    for context in (128, 1024):
        gains = [busy_gain(record, size, context) for size in TABLE_1]
        told = ", ".join(say(gain, "{:.2f}") for gain in known(gains))
        found[f"gains_{context}"] = told or say(instead(gains))
    rows = ran(record)
    return {
        **found,
        **top_facts(record, small, "small"),
        **attention_facts(small),
        "profiler": say(profilers(rows)),
        # Of a thousand marks in ms, which is one in µs.
        "mark_us": say(most(c.ms("thousand_marks") for c in rows), "{:.1f} µs"),
    }


def at_most(share: float) -> str:
    told = percent(share)
    return "less than 0.1 %" if told == percent(0) else f"at most {told}"


def busy_gain(record: Record | None, size: str, context: int) -> float:
    """What the kernels of forward, loss and backward take in fp32 over bf16."""
    passes = [f"{phase}_gpu_busy" for phase in ("forward", "loss", "backward")]
    full, low = (at(record, size, context, "step", p) for p in ("fp32", "bf16"))
    return full.ms(*passes) / low.ms(*passes)


def top_facts(record: Record | None, c: Cell, key: str) -> dict[str, str]:
    """The top kernel of the forward pass and of both passes, and whether it is the
    same.
    """
    told: dict[str, str] = {}
    names, missing = [], []
    found: list[Kernel] = []
    for short, passes in (("forward", "forward"), ("both", "forward and backward")):
        row, phases = of_passes(record, c, passes)
        found = by_name(row, phases)
        top = found[0] if found else None
        names.append(top and top.name)
        missing.append(row.missing)
        of_top = top.ms / total_ms(row, phases) if top else row.missing
        named = f"`{top.short}`" if top else say(row.missing)
        told[f"top_{short}_{key}"] = named
        told[f"top_{short}_calls_{key}"] = say(
            top.calls if top else row.missing, "{:g}"
        )
        told[f"top_{short}_share_{key}"] = say(of_top, percent)
    same = "the same kernel" if names[0] == names[1] else "another kernel"
    told[f"top_same_{key}"] = same if all(names) else say(instead(missing))
    return told


def attention_facts(c: Cell) -> dict[str, str]:
    """Softmax against the two matmuls: time, FLOPs and bandwidth."""
    count, time = part(c, SOFTMAX)
    softmax_bytes = rates(c, SOFTMAX)[1]
    flops, _, times = over_softmax(c)
    peak = data_sheet(primary_gpu())
    return {
        "softmax_bandwidth_small": say(softmax_bytes / peak.bandwidth, percent),
        "softmax_ms_small": say(time, "{:.2f} ms"),
        "softmax_kernels_small": say(count, "{:g}"),
        "products_ms_small": say(products_ms(c), "{:.2f} ms"),
        "time_ratio_small": say(times, "{:.2f}"),
        "flops_ratio_small": say(flops, "{:.0f}"),
    }


# Claims -------------------------------------------------------------------------------


@claim(
    "nsys_profile",
    "In fp32 the kernel with the most time is a matrix product: in every forward pass, "
    "and in every forward and backward pass together.",
)
def top_kernel_multiplies(record: Record) -> Judgement:
    passes = [
        of_passes(record, c, name)
        for c in cells(record, mode="forward", precision="fp32")
        for name in ("forward", "forward and backward")
    ]
    tops = [found[0].category for of in passes if (found := by_name(*of))]
    numbers = f"{tops.count(MATMUL)} of {len(tops)} passes."
    return (set(tops) == {MATMUL}, numbers) if tops else None


@claim(
    "nsys_profile",
    "In fp32 matrix products take a smaller share of kernel time in a full step than "
    "in inference, at every size and context.",
)
def training_dilutes_products(record: Record) -> Judgement:
    found = known(
        matmul_share(record, c, "full step") / matmul_share(record, c, "forward")
        for c in forward_passes(record, precision="fp32")
    )
    told = f"{span(found)}, {len(found)} cells."
    numbers = f"Share in a full step over share in inference: {told}"
    return found and (max(found) < 1, numbers)


@claim(
    "nsys_profile",
    "Softmax takes between once and twice the time that the data sheet's memory needs "
    "for its bytes, in every fp32 forward pass from context 512 on, where the scores "
    "of a layer fill the L2 cache or exceed it.",
    because="below once is impossible, and a kernel that waits for memory alone "
    "reaches more than half of its rate.",
)
def softmax_is_memory_traffic(record: Record) -> Judgement:
    peak = data_sheet(record.device.slug)
    found = known(
        part(c, SOFTMAX)[1] / (1e3 * part_costs(c)[SOFTMAX][1] / peak.bandwidth)
        for c in forward_passes(record, precision="fp32")
        if c.config["context"] >= 512
    )
    numbers = f"Time over the floor of its bytes: {span(found)}."
    return found and (min(found) >= 1 and max(found) <= 2, numbers)


@claim(
    "nsys_profile",
    "Of every row at least 99 percent of the kernel time belongs to a marked phase, "
    "and products by kernel name agree with products by operation within three "
    "percent.",
    because="shares are told in whole percent; an operation may launch a sum or a "
    "memset beside its product.",
)
def kernels_are_attributed(record: Record) -> Judgement:
    lost = most(map(unattributed, ran(record)))
    gap = most([0.0, *(abs(disagreement(c)) for c in ran(record))])
    numbers = (
        f"Without a phase {say(lost, at_most)}; names against operations at "
        f"most {say(gap, percent)}."
    )
    return known([lost]) and (lost < 0.01 and gap < 0.03, numbers)
