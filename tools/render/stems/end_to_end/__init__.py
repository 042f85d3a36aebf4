"""Tables, facts and claims of `end_to_end`: times of passes and steps, bf16 speedup."""

from collections.abc import Callable

from systems.model.sizes import TABLE_1
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.fragments import Fragments
from tools.render.frame import LAUNCH_BOUND, Line, frame, gpu_columns
from tools.render.markdown import format_significant, gib, percent
from tools.render.rows import MISSING, count_true, dropna, fmt, nanmax, span
from tools.render.stems.end_to_end.figures import (
    mfu_figure,
    phases_figure,
    speedup_figure,
)
from tools.render.stems.end_to_end.rows import (
    BATCH,
    PASSES,
    PRECISIONS,
    has_gpu_time,
    matmul_flops,
    passes,
    steps,
)

PEAK = "peak_allocated_bytes"
MODES = ("forward", "forward_backward", "step")
# The sizes whose rows of the TF32 table are visible without a click.
SHOWN_SIZES = ("small", "2.7B")
fragments = Fragments()
fragments.figure("shares.md", "shares", height=190, narrow=380)(mfu_figure)
fragments.figure("phases.md", "phases", height=210, narrow=400)(phases_figure)
fragments.figure("speedup.md", "speedup", height=190, narrow=380)(speedup_figure)


@fragments.add(
    "fp32.md",
    "Each pass in fp32: mean ± standard deviation of wall-clock time; GPU and waiting "
    "times are medians. Phases are timed in the step, except that forward alone is a "
    "separate run without gradients. Where no step fits in memory, forward + backward "
    "is a separate run, too.",
    reported=True,
)
def fp32_table(record: Record) -> str:
    if record.kind == "reported":
        return reported_table(record)
    return passes_table(record, "fp32")


@fragments.add("bf16.md", "Passes under bf16 autocast.")
def bf16_table(record: Record) -> str:
    return passes_table(record, "bf16")


def reported_table(record: Record) -> str:
    rows = frame(record, precision="fp32", batch=BATCH)
    heads = {"forward": "forward", "backward": "backward"}
    heads |= {"total": "forward + backward"}
    columns: list[tuple[str, Callable[[Line], str]]] = [
        (f"{head}, ms", lambda x, part=part: x.get(f"{part} ±", ""))
        for part, head in heads.items()
    ]
    columns.append(("status", lambda x: x.reason))
    shown = [column for column in columns if any(map(column[1], rows))]
    names = ("context", "batch", "precision")
    return rows.table("size", *names, *shown, alike=names)


def passes_table(record: Record, precision: str) -> str:
    """Return a table of passes and phases at batch 4: a row per size and context."""
    cells = passes(record).where(batch=BATCH, precision=precision)
    return cells.pivot("mode", *MODES).table(
        "size",
        "context",
        ("forward, ms", "forward.step ±"),
        (
            "forward + backward, ms",
            lambda x: (x["step"] or x["forward_backward"]).mean_std(*PASSES),
        ),
        ("backward, ms", "step.backward ±"),
        ("backward, GPU, ms", lambda x: x["step"].get("backward_gpu_ms"), "{:.1f}"),
        ("backward / forward, GPU", "step.backward_over_forward", "{:.1f}"),
        ("optimizer, ms", "step.optimizer ±"),
        ("step, ms", "step.step ±"),
        *((head, lambda x, of=of: of(x["step"])) for head, of in gpu_columns()),
        ("share of peak", "step.share", percent),
        ("peak GiB", f"step.{PEAK}", gib),
        shown_first=lambda x: x["context"] == 512,
    )


@fragments.add("headline.md", "A training step of each size at context 512.")
def headline_table(record: Record) -> str:
    bf16 = steps(record).where(context=512).arrange(size=TABLE_1, precision=["bf16"])
    return bf16.table(
        "size",
        ("step in fp32, ms", "fp32.step_ms", "{:.0f}"),
        ("step in tf32, ms", "tf32.step_ms", "{:.0f}"),
        ("step in bf16, ms", "step_ms", "{:.0f}"),
        ("fp32 / bf16", "gain", "{:.1f}"),
        *((f"bf16 {head}", of) for head, of in gpu_columns()),
        ("bf16 share of peak", "share", percent),
        ("fp32 peak, GiB", f"fp32.{PEAK}", gib),
    )


@fragments.add(
    "speedup-table.md",
    "fp32 against bf16 autocast at every size and context: medians of wall-clock time, "
    "and speedups in GPU or wall-clock time.",
)
def speedup_table(record: Record) -> str:
    shown = [
        column
        for name in ("forward", "backward", "step")
        for column in (
            (f"{name} fp32, ms", f"fp32.{name}_ms", format_significant),
            (f"{name} bf16, ms", f"{name}_ms", format_significant),
            (f"{name} speedup, GPU", f"{name}_kernel_gain", "{:.2f}"),
        )
    ]
    bf16 = steps(record).where(precision="bf16")
    walls = {"step": "gain", "forward + backward": "pass_gain"}
    shown += [(f"{name} speedup, wall", of, "{:.2f}") for name, of in walls.items()]
    return bf16.table(
        "size", "context", *shown, shown_first=lambda x: x["context"] == 512
    )


@fragments.add(
    "speedup-tf32.md", "Speedups of TF32 and bf16 over fp32 by pass, context 512."
)
def tf32_table(record: Record) -> str:
    at_512 = steps(record).where(context=512)
    clock = "GPU, " if has_gpu_time(record) else ""
    shown = [
        column
        for name in ("forward", "backward", "step")
        for column in (
            (f"{name}, {clock}ms", f"{name}_kernels_ms", "{:.2f}"),
            (f"{name}, gain over fp32", f"{name}_kernel_gain", "{:.2f}"),
        )
    ]
    return at_512.arrange(size=TABLE_1, precision=PRECISIONS).table(
        "size", "precision", *shown, shown_first=lambda x: x["size"] in SHOWN_SIZES
    )


def format_change(x: Line, name: str) -> str:
    """Return "1.5 to 1.2 ms", column `name` in fp32 and here; if missing, the cause."""
    before, after = x[f"fp32.{name}"], x[name]
    return fmt(after / before, lambda _: f"{before:.5f} to {after:.5f} ms")


def facts(record: Record | None) -> dict[str, str]:
    found, of_steps = passes(record).where(batch=BATCH), steps(record)
    flops_growth = matmul_flops("small", 512) / matmul_flops("small", 128)
    forward, bf16 = found.where(mode="forward"), of_steps.where(precision="bf16")
    short = {"context": 128, "precision": "fp32"}
    small_128 = forward.one(size="small", **short)
    large_512 = forward.one(size="2.7B", context=512, precision="fp32")
    small_bf16 = forward.one(size="small", context=512, precision="bf16")
    assigned = found.where(lambda x: x["variation"] >= 0, mode=("forward", "step"))
    waiting = assigned.where(lambda x: x["step_ms"] > LAUNCH_BOUND * x.gpu_ms())
    gains = dropna(bf16.column("pass_gain"))
    memory = record.device.memory_bytes if record else None
    large = of_steps.where(size="2.7B", context=512)
    step_fp32, step_bf16 = (large.one(precision=p) for p in ("fp32", "bf16"))
    ratios = of_steps.where(precision="fp32").column("backward_over_forward")
    timed = {"forward": forward, "backward": of_steps, "optimizer": of_steps}
    return {
        "forward_small_128_fp32": fmt(small_128["step_ms"], "{:.5f} ms"),
        **{
            f"mean_{phase}_{key}_128_fp32": fmt(
                rows.one(size=size, **short)[f"{phase} ±"]
            )
            for phase, rows in timed.items()
            for key, size in (("small", "small"), ("2_7B", "2.7B"))
        },
        "share_2_7B_512_fp32": fmt(large_512["share"], percent),
        "pass_share_fp32_2_7B_512": fmt(step_fp32["pass_share"], percent),
        "pass_share_bf16_2_7B_512": fmt(step_bf16["pass_share"], percent),
        "varies_most": fmt(nanmax(waiting.column("variation")), percent),
        **{
            f"{phase}_{size.replace('.', '_')}_512": format_change(
                bf16.one(size=size, context=512), f"{phase}_kernels_ms"
            )
            for size in ("small", "2.7B")
            for phase in ("forward", "backward")
        },
        "growth_small_bf16": fmt(small_bf16["growth"], "{:.5f}"),
        "growth_2_7B_fp32": fmt(large_512["growth"], "{:.5f}"),
        "flops_growth_small": fmt(flops_growth, "{:.5f}"),
        "gains": span(gains, "{:.5f}"),
        "speedup_2_7B_512": fmt(step_bf16["gain"], "{:.5f}"),
        "gpu_speedup_2_7B_512": fmt(step_bf16["step_kernel_gain"], "{:.5f}"),
        "backward_over_forward": span(ratios, "{:.5f}"),
        **{
            f"steady_{p}": fmt(count_true(v < 0.02 for v in of.column("variation")))
            for p in ("fp32", "bf16")
            for of in [assigned.where(precision=p)]
        },
        "slower_steps": fmt(count_true(x < 1 for x in dropna(bf16.column("gain")))),
        "slower_cells": fmt(count_true(x > 1 for x in dropna(bf16.column("excess")))),
        "gpu_memory": fmt(memory or MISSING, lambda v: f"{gib(v, 5)} GiB"),
    }


@claim(
    "benchmarking_script",
    "In fp32 a backward pass takes 1.5 to 2.5 times the GPU time of the forward pass "
    "of the same step, because it has twice the FLOPs.",
    because="FLOPs give a ratio of two; other work may shift it by a quarter.",
)
def backward_takes_twice(record: Record) -> Judgement:
    fp32 = steps(record).where(precision="fp32")
    ratios = dropna(fp32.column("backward_over_forward"))
    numbers = f"Ratios: {span(ratios)} over {len(ratios)} steps."
    return ratios and (all(1.5 <= ratio <= 2.5 for ratio in ratios), numbers)


@claim(
    "benchmarking_script",
    "Pass times vary little if the GPU, not launching, is the bottleneck. If a pass "
    "(forward alone, or forward + backward of a step) takes over twice as long as at "
    "the shortest context with equally many launches, its standard deviation is below "
    "1 % of its mean.",
    because="such a pass varies with the GPU's clock, in steps of about 1 %.",
)
def passes_steady(record: Record) -> Judgement:
    grown = passes(record).where(lambda x: x["growth"] > 2, batch=BATCH)
    found = dropna(grown.where(mode=("forward", "step")).column("variation"))
    largest = fmt(nanmax(found), percent)
    numbers = f"In {len(found)} passes, it is at most {largest} of the mean."
    return found and (max(found) < 0.01, numbers)


@claim(
    "benchmarking_mixed_precision",
    "At context 512 the gain from bf16 (forward and backward) grows from each size to "
    "the next, from small to 2.7B.",
)
def bf16_gain_grows(record: Record) -> Judgement:
    bf16 = steps(record).where(context=512, precision="bf16")
    found = dropna(bf16.arrange(size=TABLE_1).column("pass_kernel_gain"))
    clock = "GPU" if has_gpu_time(record) else "wall-clock"
    texts = ", ".join(f"{g:.2f}" for g in found)
    numbers = f"Speedups by size, in {clock} time: {texts}."
    return len(found) == len(TABLE_1) and (found == sorted(found), numbers)
