"""Tables, facts and claims of `kernel_profile`: wall-clock time and GPU time, the top
kernels, what bf16 gains, and attention's parts.
"""

from typing import Any

from systems.model.sizes import TABLE_1
from systems.profiling.kernel_names import MATMUL
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.frame import Frame, Line, frame, texts
from tools.render.markdown import (
    OPEN,
    columns,
    folded_name,
    per_device,
    percent,
    record_link,
    significant,
)
from tools.render.rows import Missing, known, measured, most, say, span
from tools.render.stems.kernel_profile.figures import (
    causes_figure,
    roofline_figure,
)
from tools.render.stems.kernel_profile.rows import (
    MATMULS,
    SOFTMAX_PART,
    Kernel,
    attention,
    by_name,
    disagreement,
    passes,
    share,
    steps,
    total_ms,
    unattributed,
)

CELL = ("size", "context", "precision")
PRECISIONS = ("fp32", "bf16")
# The pass whose kernels are listed one by one, and the sizes of sentences.
LISTED = {"size": "small", "context": 512, "precision": "fp32"}
TOLD = ("small", "2.7B")
# Kernels that take less are not listed.
LISTED_SHARE = 0.01

CAPTIONS = {
    "times.md": (
        "Forward passes: median wall-clock time, the sum of their kernels, what is "
        "idle."
    ),
    "top.md": "The kernel that takes longest, at context 512 in fp32.",
    "others.md": (
        "What else takes time in a forward pass of `small` at context 512 in fp32."
    ),
    "matmul.md": "The share of matmuls in kernel time at context 512.",
    "gains.md": (
        "Forward and backward in bf16: the share of wall-clock time in which the GPU "
        "idles, the share of copies and casts in kernel time, and the gain over fp32."
    ),
    "attention.md": (
        "Each part of attention at context 512, all layers of one forward pass in fp32."
    ),
}


def fragments(records: list[Record]) -> dict[str, str]:
    bodies = {
        "times.md": times_table,
        "top.md": top_table,
        "others.md": others_table,
        "matmul.md": matmul_table,
        "gains.md": gains_table,
        "attention.md": attention_table,
        "causes.md": lambda record: clocked(record, causes_figure(record)),
        "roofline.md": roofline_figure,
    }
    ours = measured(records)
    return {name: per_device(ours, body) for name, body in bodies.items()}


def clocked(record: Record, shown: str) -> str:
    """What uses wall-clock time, and the record that has it."""
    if not shown or record.clock is None:
        return shown
    link = record_link(record.clock)
    return f"{shown}\n\nWall-clock time: {link} of `end_to_end`\n{{ .provenance }}"


# Tables -------------------------------------------------------------------------------


def times_table(record: Record) -> str:
    """(a) Wall-clock time with and without the profiler, GPU span and GPU time."""
    shown = (
        passes(record)
        .where(mode="forward")
        .table(
            *CELL,
            ("wall, ms", "wall_ms", "{:.2f}"),
            ("sum of kernels, ms", "busy_ms", "{:.2f}"),
            ("idle", "idle_share", percent),
            ("wall, profiled, ms", "profiled_ms", "{:.2f}"),
            ("GPU span, profiled, ms", "span_ms", "{:.2f}"),
            telling=lambda x: (
                x["context"] == 512 and (x["precision"] == "fp32" or x["size"] in TOLD)
            ),
        )
    )
    return clocked(record, shown)


def top_table(record: Record) -> str:
    """(b) The kernel that takes longest, forward, and forward and backward together."""
    found = passes(record).where(mode="forward", context=512, precision="fp32")
    tops = Frame(
        Line(x[top], size=x["size"], which=name)
        for x in found.arrange(size=TOLD)
        for name, top in TOPS.items()
        if not isinstance(x[top], Missing)
    )
    return tops.table(
        "size",
        ("pass", "which"),
        ("top kernel", lambda x: folded(x["kernel"])),
        ("calls", "calls", "{:g}"),
        ("share of kernel time", "of_whole", percent),
        left=3,
    )


TOPS = {"forward": "top_forward", "forward and backward": "top_both"}


def folded(kernel: Kernel) -> str:
    """A matmul's whole name opens; that of an element-wise operation is hundreds of
    letters long, and stands in the record.
    """
    whole = kernel.name if kernel.category == MATMUL else kernel.short
    return folded_name(whole, kernel.short)


def others_table(record: Record) -> str:
    """(c) What else takes time in one forward pass, kernel by kernel."""
    x = frame(record).one(**LISTED, mode="forward")
    whole = total_ms(x)
    found = [
        k for k in by_name(x) if k.category != MATMUL and k.ms / whole >= LISTED_SHARE
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
    """(d) Matmuls in inference, in forward and backward, and in a full step."""
    found = passes(record).where(mode="forward", context=512)
    return found.arrange(size=TABLE_1, precision=PRECISIONS).table(
        "size",
        "precision",
        ("inference", "matmul_forward", percent),
        ("forward and backward", "matmul_both", percent),
        ("full step", "matmul_step", percent),
        ("AdamW in a full step", "adamw", percent),
        telling=lambda x: x["size"] in TOLD,
    )


def gains_table(record: Record) -> str:
    """Why bf16 gains less than its peak allows."""
    shown = (
        steps(record)
        .where(precision="bf16")
        .table(
            "size",
            "context",
            ("idle", lambda x: x["idle"] / x["wall_ms"], percent),
            ("copies and casts", lambda x: x["copies"] / x["gpu_ms"], percent),
            ("expected gain", "expected_gain", "{:.1f}"),
            ("measured gain", "gain", "{:.1f}"),
            telling=lambda x: x["size"] in TOLD,
        )
    )
    return clocked(record, shown)


def attention_table(record: Record) -> str:
    """(e) Kernels, time, FLOPs and bytes of each part, and the rates reached."""
    return attention(record, context=512).table(
        "size",
        "part",
        ("kernels", "calls", "{:g}"),
        ("ms", "part_ms", "{:.3f}"),
        ("GFLOP", lambda x: x["flops"] / 1e9, "{:.2f}"),
        ("GB moved", lambda x: x["moved"] / 1e9, "{:.2f}"),
        ("TFLOP/s", lambda x: x["rate"] / 1e12, "{:.2f}"),
        ("share of peak", "of_fp32", percent),
        ("TB/s", lambda x: x["bandwidth"] / 1e12, "{:.2f}"),
        ("share of bandwidth", "of_bandwidth", percent),
        telling=lambda x: x["size"] in TOLD,
    )


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    found, by_cause = passes(record), steps(record)
    forward = found.where(mode="forward")
    small, large = forward.one(**LISTED), forward.one(**LISTED | {"size": "2.7B"})
    short = forward.one(**LISTED | {"context": 128})
    bf16 = by_cause.where(precision="bf16")
    launching = bf16.one(size="small", context=128)
    casting, later = (bf16.one(size="2.7B", context=c) for c in (128, 1024))
    in_bf16 = forward.one(size="2.7B", context=512, precision="bf16")
    # A straight line through both contexts, at no tokens.
    grown = (later["copies"] - casting["copies"]) * 128 / (1024 - 128)
    return {
        **texts(
            lambda ms: f"{significant(ms)} ms",
            {
                **{
                    f"{name}_{key}": x[f"{name}_ms"]
                    for key, x in (("small_128", short), ("2_7B", large))
                    for name in ("profiled", "span", "busy")
                },
                "wall_2_7B": large["wall_ms"],
            },
        ),
        **texts(
            percent,
            {
                **{
                    f"matmul_{name}_{key}": x[f"matmul_{name}"]
                    for key, x in (("small", small), ("2_7B", large))
                    for name in ("forward", "both", "step")
                },
                "idle_small_128": short["idle_share"],
                "matmul_step_2_7B_bf16": in_bf16["matmul_step"],
                "softmax_small": share(small, "softmax"),
                "elementwise_small": share(small, "elementwise"),
                "idle_small_128_bf16": launching["idle"] / launching["wall_ms"],
                "copies_2_7B_128_bf16": casting["copies"] / casting["gpu_ms"],
                "copies_2_7B_1024_bf16": later["copies"] / later["gpu_ms"],
                "per_weight_2_7B_128_bf16": 1 - grown / casting["copies"],
            },
        ),
        **top_facts(small),
        **attention_facts(attention(record, size="small", context=512)),
        # Of a thousand marks in ms, which is one in µs.
        "mark_us": say(
            most(found.where(bool).column("thousand_marks_ms")), "{:.1f} µs"
        ),
    }


def top_facts(x: Line) -> dict[str, str]:
    """The top kernel of the forward pass, and of both passes."""
    told: dict[str, str] = {}
    for name in ("forward", "both"):
        top = x[f"top_{name}"]
        told[f"top_{name}_small"] = say(top["code"])
        told[f"top_{name}_calls_small"] = say(top["calls"], "{:g}")
        told[f"top_{name}_share_small"] = say(top["of_whole"], percent)
    return told


def attention_facts(parts: Frame) -> dict[str, str]:
    """Softmax against the two matmuls."""
    softmax = parts.one(part=SOFTMAX_PART)
    scores, output = (parts.one(part=part) for part in MATMULS)
    ms = scores["part_ms"] + output["part_ms"]
    flops = scores["flops"] + output["flops"]
    return {
        "softmax_bandwidth_small": say(softmax["of_bandwidth"], percent),
        "softmax_ms_small": say(softmax["part_ms"], "{:.2f} ms"),
        "softmax_kernels_small": say(softmax["calls"], "{:g}"),
        "products_ms_small": say(ms, "{:.2f} ms"),
        "time_ratio_small": say(ms / softmax["part_ms"], "{:.2f}"),
        "flops_ratio_small": say(flops / softmax["flops"], "{:.0f}"),
    }


# Claims -------------------------------------------------------------------------------


@claim(
    "nsys_profile",
    "In fp32 the kernel with the most time is a matrix product: in every forward pass, "
    "and in every forward and backward pass together.",
)
def top_kernel_multiplies(record: Record) -> Judgement:
    found = passes(record).where(mode="forward", precision="fp32")
    kernels: list[Any] = known(x[top] for x in found for top in TOPS.values())
    multiply = [kernel["category"] == MATMUL for kernel in kernels]
    numbers = f"{sum(multiply)} of {len(multiply)} passes."
    return multiply and (all(multiply), numbers)


@claim(
    "nsys_profile",
    "Softmax takes between once and twice the time that the data sheet's memory needs "
    "for its bytes, in every fp32 forward pass from context 512 on, where the scores "
    "of a layer fill the L2 cache or exceed it.",
    because="below once is impossible, and a kernel that waits for memory alone "
    "reaches more than half of its rate.",
)
def softmax_is_memory_traffic(record: Record) -> Judgement:
    softmax = attention(record).where(lambda x: x["context"] >= 512, part=SOFTMAX_PART)
    found = known(1 / x["of_bandwidth"] for x in softmax)
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
    ran = frame(record).where(bool)
    lost = most(map(unattributed, ran))
    gap = most([0.0, *(abs(disagreement(x)) for x in ran)])
    numbers = (
        f"Without a phase {say(lost, at_most)}; names against operations at "
        f"most {say(gap, percent)}."
    )
    return known([lost]) and (lost < 0.01 and gap < 0.03, numbers)


def at_most(value: float) -> str:
    told = percent(value)
    return "less than 0.1 %" if told == percent(0) else f"at most {told}"
