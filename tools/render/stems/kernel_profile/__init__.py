"""Tables, facts and claims of `kernel_profile`: GPU time by kernel and by category."""

from typing import Any

from systems.profiling.kernel_names import MATMUL
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.fragments import Fragments
from tools.render.frame import Frame, Line, frame
from tools.render.markdown import (
    OPEN,
    fold_name,
    format_at_most,
    items_table,
    percent,
)
from tools.render.rows import count_true, dropna, fmt, nanmax, span
from tools.render.stems.kernel_profile import rows
from tools.render.stems.kernel_profile.figures import category_figure, roofline_figure

CELL = ("size", "context", "precision")
# The pass whose kernels are listed.
LISTED = {"size": "small", "context": 512, "precision": "fp32"}
# The sizes that sentences are about; their rows are visible without a click.
SHOWN_SIZES = ("small", "2.7B")
# Kernels with a smaller share of the kernel time are not listed.
LISTED_SHARE = 0.01
TOP_COLUMNS = {"forward": "top_forward", "both passes": "top_both"}
fragments = Fragments()
fragments.add("causes.md")(category_figure)
fragments.figure("roofline.md", "roofline", height=360)(roofline_figure)


@fragments.add(
    "times.md",
    "Medians of a forward pass, alone (*wall*) or in a profiled step (other ms).",
)
def times_table(record: Record) -> str:
    shown = rows.passes(record).table(
        *CELL,
        ("wall, ms", "wall_ms", "{:.2f}"),
        ("sum of kernels, ms", "busy_ms", "{:.2f}"),
        ("idle", "idle_share", percent),
        ("wall, profiled, ms", "profiled_ms", "{:.2f}"),
        ("GPU span, profiled, ms", "span_ms", "{:.2f}"),
        shown_first=lambda x: (
            x["context"] == 512
            and (x["precision"] == "fp32" or x["size"] in SHOWN_SIZES)
        ),
    )
    return rows.add_timing_link(record, shown)


@fragments.add(
    "top.md", "Top kernel by GPU time in fp32: of the forward pass, of both passes."
)
def top_kernels_table(record: Record) -> str:
    found = rows.passes(record).where(precision="fp32")
    columns = (("top kernel", "kernel", format_name), ("calls", "calls", "{:g}"))
    columns += (("share of kernel time", "of_whole", percent),)
    return found.table(
        "size",
        "context",
        *(
            (f"{what}, {head}", f"{top}.{name}", text)
            for what, name, text in columns
            for head, top in TOP_COLUMNS.items()
        ),
        ("same kernel", "same_top"),
        left=4,
        shown_first=lambda x: x["context"] == 512,
    )


def format_name(kernel: rows.Kernel) -> str:
    """Return a kernel's short name as Markdown; a click shows a matmul's full name."""
    whole = kernel.name if kernel.category == MATMUL else kernel.table_name
    return fold_name(whole, kernel.table_name)


@fragments.add(
    "others.md",
    "Non-matmul kernels with ≥ 1 % of forward time: `small`, context 512, fp32.",
)
def top_nonmatmuls_table(record: Record) -> str:
    x = rows.passes(record).one(**LISTED)
    found, whole = top_nonmatmuls(x), x["kernels_ms"]
    return items_table(
        found,
        ("kernel", format_name),
        ("category", lambda k: k.category),
        ("calls", lambda k: k.calls, "{:g}"),
        ("ms", lambda k: k.ms, "{:.3f}"),
        ("share of kernel time", lambda k: k.ms / whole, percent),
        left=2,
        shown_first=found[:OPEN].__contains__,
    )


def top_nonmatmuls(x: Line) -> list[rows.Kernel]:
    least = LISTED_SHARE * x["kernels_ms"]
    found = rows.kernels_by_name(x["forward"], "forward")
    return [k for k in found if k.category != MATMUL and k.ms >= least]


@fragments.add("matmul.md", "Share of kernel time: matmuls by pass, AdamW in a step.")
def matmul_table(record: Record) -> str:
    found = rows.passes(record)
    parts = {"forward": "matmul_forward", "forward + backward": "matmul_both"}
    parts |= {"step": "matmul_step", "AdamW": "adamw"}
    return found.pivot("precision", "fp32", "bf16").table(
        "size",
        "context",
        *(
            (f"{precision}: {head}", f"{precision}.{name}", percent)
            for precision in ("fp32", "bf16")
            for head, name in parts.items()
        ),
        shown_first=lambda x: x["context"] == 512,
    )


@fragments.add(
    "gains.md",
    "Forward and backward in bf16: the share of wall-clock time in which the GPU "
    "idles, the share of copies and casts in kernel time, and gains over fp32.",
)
def gains_table(record: Record) -> str:
    found = rows.steps(record).where(precision="bf16")
    shown = found.table(
        "size",
        "context",
        ("idle", "idle_share", percent),
        ("copies and casts", "copies_share", percent),
        ("expected gain, GPU", "expected_gain", "{:.1f}"),
        ("gain, GPU", "kernel_gain", "{:.1f}"),
        ("gain, wall", "gain", "{:.1f}"),
        shown_first=lambda x: x["size"] in SHOWN_SIZES,
    )
    return rows.add_timing_link(record, shown)


@fragments.add(
    "attention.md",
    "Parts of attention in a forward pass in fp32 at context 512, all layers. Half of "
    "the output's kernels are copies.",
)
def attention_table(record: Record) -> str:
    return rows.attention_parts(record, context=512).table(
        "size",
        "part",
        ("kernels", "calls", "{:g}"),
        ("ms", "part_ms", "{:.3f}"),
        ("ms / ms of matmul kernels", "over_matmuls", "{:.2f}"),
        ("GFLOP", lambda x: x["flops"] / 1e9, "{:.2f}"),
        ("GB moved", lambda x: x["moved"] / 1e9, "{:.2f}"),
        ("TFLOP/s", lambda x: x["rate"] / 1e12, "{:.2f}"),
        ("share of peak", "of_fp32", percent),
        ("TB/s", lambda x: x["bandwidth"] / 1e12, "{:.2f}"),
        ("share of bandwidth", "of_bandwidth", percent),
        shown_first=lambda x: x["size"] in SHOWN_SIZES,
    )


def facts(record: Record | None) -> dict[str, str]:
    forward, bf16 = rows.passes(record), rows.steps(record).where(precision="bf16")
    small, large = forward.one(**LISTED), forward.one(**LISTED | {"size": "2.7B"})
    short = forward.one(**LISTED | {"context": 128})
    fp32 = forward.where(precision="fp32")
    softmax = rows.attention_parts(record, context=512).where(part=rows.SOFTMAX_PART)
    idle = bf16.one(size="small", context=128)["idle_share"]
    early, late = (bf16.one(size="2.7B", context=c) for c in (128, 1024))
    in_bf16 = forward.one(size="2.7B", context=512, precision="bf16")
    # The time of 1,000 marks in ms is the time of one mark in µs.
    mark_us = nanmax(frame(record).where(bool).column("thousand_marks_ms"))
    return {
        **{
            f"{name}_{key}": fmt(x[f"{name}_ms"], format_ms)
            for key, x in (("small_128", short), ("2_7B", large))
            for name in ("profiled", "span", "busy")
        },
        **{
            f"matmul_{name}_small": fmt(small[f"matmul_{name}"], percent)
            for name in ("forward", "both", "step")
        },
        "matmul_both_2_7B": fmt(large["matmul_both"], percent),
        "matmul_both_2_7B_bf16": fmt(in_bf16["matmul_both"], percent),
        **{
            name: span(fp32.column(name), percent)
            for name in ("matmul_forward", "matmul_step", "adamw")
        },
        "same_top": fmt(count_true(dropna(fp32.column("same_top")))),
        "softmax_over_matmuls": span(softmax.column("over_matmuls"), "{:.5f}"),
        "matmul_step_2_7B_bf16": fmt(in_bf16["matmul_step"], percent),
        **{
            f"{kind}{of}_small": fmt(small[f"{kind}{of or '_forward'}"], percent)
            for kind in ("softmax", "elementwise", "copy")
            for of in ("", "_step")
        },
        "others_small": ", ".join(
            f"`{k.table_name}` {percent(k.ms / small['kernels_ms'])}"
            for k in top_nonmatmuls(small)[:4]
        )
        or fmt(small.missing),
        "idle_small_128_bf16": fmt(idle, percent),
        "copies_2_7B_128_bf16": fmt(early["copies_share"], percent),
        "copies_2_7B_1024_bf16": fmt(late["copies_share"], percent),
        **top_kernel_facts(small),
        **attention_facts(rows.attention_parts(record, size="small", context=512)),
        "mark_us": fmt(mark_us, "{:.5f} µs"),
    }


def format_ms(ms: float) -> str:
    return f"{ms:.5f} ms"


def top_kernel_facts(x: Line) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name in ("forward", "both"):
        top = x[f"top_{name}"]
        texts[f"top_{name}_small"] = fmt(top["code"])
        texts[f"top_{name}_calls_small"] = fmt(top["calls"], "{:g}")
        texts[f"top_{name}_share_small"] = fmt(top["of_whole"], percent)
    return texts


def attention_facts(parts: Frame) -> dict[str, str]:
    """Return {name: number as text} on softmax and matmuls, from `attention_parts`."""
    softmax = parts.one(part=rows.SOFTMAX_PART)
    ratio = 1 / softmax["over_matmuls"]
    flops = sum(parts.one(part=part)["flops"] for part in rows.MATMULS)
    return {
        "softmax_bandwidth_small": fmt(softmax["of_bandwidth"], percent),
        "softmax_ms_small": fmt(softmax["part_ms"], "{:.5f} ms"),
        "softmax_kernels_small": fmt(softmax["calls"], "{:g}"),
        "products_ms_small": fmt(softmax["part_ms"] * ratio, "{:.5f} ms"),
        "time_ratio_small": fmt(ratio, "{:.5f}"),
        "flops_ratio_small": fmt(flops / softmax["flops"], "{:.0f}"),
    }


@claim(
    "nsys_profile",
    "In fp32 the kernel with the most time is a matmul, both in every forward pass and "
    "in every forward + backward.",
)
def top_kernel_multiplies(record: Record) -> Judgement:
    found = rows.passes(record).where(precision="fp32")
    kernels: list[Any] = dropna(x[top] for x in found for top in TOP_COLUMNS.values())
    multiply = [kernel["category"] == MATMUL for kernel in kernels]
    numbers = f"A matmul leads in {sum(multiply)} of {len(multiply)} cases."
    return multiply and (all(multiply), numbers)


@claim(
    "nsys_profile",
    "Softmax takes one to two times the least time in which HBM can move its bytes, in "
    "every fp32 forward pass from context 512 on, where a layer's scores fill or "
    "exceed L2.",
    because="no kernel exceeds HBM's bandwidth, and a memory-bound kernel reaches "
    "more than half of it.",
)
def softmax_is_memory_bound(record: Record) -> Judgement:
    softmax = rows.attention_parts(record).where(
        lambda x: x["context"] >= 512, part=rows.SOFTMAX_PART
    )
    found = dropna(1 / x["of_bandwidth"] for x in softmax)
    numbers = f"Ratios to that time: {span(found)}."
    return found and (min(found) >= 1 and max(found) <= 2, numbers)


@claim(
    "nsys_profile",
    "A forward pass alone, as in inference, launches the same kernels as often as the "
    "forward pass of a training step, and the sums of kernel times agree within 3 %.",
)
def inference_is_forward(record: Record) -> Judgement:
    found = rows.passes(record).where(lambda x: x and x["alone"])
    kernels = [
        [{k[:-1] for k in rows.kernels_by_name(y, "forward")} for y in (x, x["alone"])]
        for x in found
    ]
    ratios = [x["alone"]["forward_gpu_busy_ms"] / x["busy_ms"] for x in found]
    numbers = f"Ratios of the sums in {len(ratios)} passes: {span(ratios)}."
    agree = all(abs(ratio - 1) < 0.03 for ratio in ratios)
    return ratios and (agree and all(a == b for a, b in kernels), numbers)


@claim(
    "nsys_profile",
    "In every row at least 99 % of the kernel time belongs to a marked phase, and "
    "matmul times by kernel name and by operation agree within 3 %.",
    because="shares are in whole percent; times by operation may include a matmul's "
    "extra sum or memset.",
)
def kernels_are_attributed(record: Record) -> Judgement:
    ran = frame(record).where(bool)
    lost = nanmax(map(rows.unmarked_share, ran))
    both = ((rows.total_ms(x, category=MATMUL), x.get("matmul_ops_ms")) for x in ran)
    gap = nanmax([0.0, *(abs(by_name / by_launch - 1) for by_name, by_launch in both)])
    numbers = (
        f"Time outside phases: {fmt(lost, format_at_most)}. Matmul times differ by "
        f"at most {fmt(gap, percent)}."
    )
    return dropna([lost]) and (lost < 0.01 and gap < 0.03, numbers)
