"""Tables, facts and claims of `end_to_end`: passes and steps of every size, context and
precision, and what bf16 gains.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from systems.formulas.costs import forward_flops
from systems.formulas.gpus import CONTEXT_BYTES
from systems.formulas.memory_costs import Pass
from systems.formulas.memory_peak import peak
from systems.model.sizes import SIZES, TABLE_1, VOCAB_SIZE
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.frame import Frame, Line, frame, gpu_columns, texts
from tools.render.markdown import captioned, gib, per_device, percent
from tools.render.rows import MISSING, known, measured, most, say, span
from tools.render.stems.end_to_end.figures import (
    phases_figure,
    shares_figure,
    speedup_figure,
)
from tools.render.stems.end_to_end.rows import BATCH, PRECISIONS, passes, steps

PEAK = "peak_allocated_bytes"
MODES = ("forward", "forward_backward", "step")
# The sizes of sentences.
TOLD = ("small", "2.7B")
CAPTIONS = {
    "headline.md": "A training step of each size at context 512.",
    "fp32.md": (
        "Each pass in fp32 at every size and context: mean ± standard deviation. "
        "Backward and optimizer are phases of the step."
    ),
    "speedup-table.md": (
        "fp32 against bf16 autocast at every size and context. Forward is that of a "
        "training step, which keeps its graph: a pass without one has less to do."
    ),
    "speedup-tf32.md": "What TF32 and bf16 gain over fp32 in each pass, context 512.",
}


# Tables -------------------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    ours = measured(records)
    grid = partial(passes_table, batch=BATCH)
    noted = partial(passes_table, names=("size", "batch", "precision"), batch=(32, 64))
    return {
        "fp32.md": per_device(records, partial(grid, precision="fp32")),
        "bf16.md": per_device(ours, partial(grid, precision="bf16")),
        "batches.md": per_device(records, noted),
        "headline.md": per_device(ours, headline_table),
        "10B.md": per_device(ours, ten_billion_table),
        "shares.md": per_device(ours, shares_figure),
        "phases.md": per_device(ours, phases_figure),
        "speedup.md": per_device(ours, speedup_figure),
        "speedup-table.md": per_device(ours, speedup_table),
        "speedup-tf32.md": per_device(ours, tf32_table),
    }


def passes_table(
    record: Record, names: tuple[str, ...] = ("size", "context"), **wanted: object
) -> str:
    """A row for each cell, a column for each pass; as others report theirs, if a record
    is reported.
    """
    if record.kind == "reported":
        rows, names = frame(record, **wanted), ("size", "context", "batch", "precision")
        parts = {"forward": "forward", "backward": "backward"}
        parts |= {"total": "forward + backward"}
        columns: list[tuple[str, Callable[[Line], str]]] = [
            (f"{head}, ms", partial(reported, part)) for part, head in parts.items()
        ]
        columns.append(("status", lambda x: x.why))
        # Nobody reports all of them.
        found = [column for column in columns if any(map(column[1], rows))]
        return rows.table(*names, *found, alike=names[1:])
    cells = passes(record).where(**wanted).pivot("mode", *MODES)
    return cells.table(
        *names,
        ("forward, ms", "forward.step ±"),
        ("forward + backward, ms", "forward_backward.step ±"),
        ("backward, ms", "step.backward ±"),
        ("optimizer, ms", "step.optimizer ±"),
        ("step, ms", "step.step ±"),
        *gpu_time_columns("step"),
        ("share of peak", "step.share", percent),
        ("peak GiB", f"step.{PEAK}", gib),
        telling=lambda x: x["context"] == 512,
    )


def gpu_time_columns(mode: str) -> list[tuple[object, ...]]:
    """The columns of `clocks` beside wall-clock time, of a pass of a pivoted row."""
    return [(head, lambda x, of=of: of(x[mode])) for head, of in gpu_columns("step")]


def reported(part: str, x: Line) -> str:
    mean, std = (x.get(f"{part}_{name}_ms", None) for name in ("mean", "std"))
    return f"{mean:.2f} ± {std:.2f}" if mean else ""


def headline_table(record: Record) -> str:
    bf16 = steps(record).where(context=512).arrange(size=TABLE_1, precision=["bf16"])
    return bf16.table(
        "size",
        ("step in fp32, ms", "fp32.step_ms", "{:.0f}"),
        ("step in tf32, ms", "tf32.step_ms", "{:.0f}"),
        ("step in bf16, ms", "step_ms", "{:.0f}"),
        ("fp32 / bf16", "gain", "{:.1f}"),
        *((f"bf16 {head}", of) for head, of in gpu_columns("step")),
        ("bf16 share of peak", "share", percent),
        ("fp32 memory, GiB", f"fp32.{PEAK}", gib),
    )


def short(ms: float) -> str:
    """For the widest table: tenths of a time below 100 ms."""
    return f"{ms:.1f}" if ms < 100 else f"{ms:.0f}"


def speedup_table(record: Record) -> str:
    shown = [
        column
        for name in ("forward", "backward", "step")
        for column in (
            (f"{name} fp32, ms", f"fp32.{name}_ms", short),
            (f"{name} bf16, ms", f"{name}_ms", short),
            (f"{name} fp32 / bf16", GAINS[name], "{:.2f}"),
        )
    ]
    bf16 = steps(record).where(precision="bf16")
    return bf16.table("size", "context", *shown, telling=lambda x: x["context"] == 512)


GAINS = {"forward": "forward_gain", "backward": "backward_gain", "step": "gain"}


def tf32_table(record: Record) -> str:
    at_512 = steps(record).where(context=512)
    shown = [
        column
        for name, gain in GAINS.items()
        for column in (
            (f"{name}, ms", f"{name}_ms", "{:.2f}"),
            (f"{name}, gain over fp32", gain, "{:.2f}"),
        )
    ]
    return at_512.arrange(size=TABLE_1, precision=PRECISIONS).table(
        "size", "precision", *shown, telling=lambda x: x["size"] in TOLD
    )


def ten_billion_table(record: Record) -> str:
    """Passes of 10B beside what they need by formula, whether they fitted or not."""
    found = frame(record, size="10B", context=512).derive(
        predicted=lambda x: predicted_bytes(x["mode"], x["precision"])
    )
    shown = found.arrange(precision=("fp32", "bf16"), mode=MODES).table(
        "precision",
        ("pass", lambda x: x["mode"].replace("_", " and ")),
        ("time, ms", "step ±"),
        ("peak, GiB", PEAK, gib),
        ("predicted, GiB", "predicted", gib),
        left=2,
    )
    caption = "`10B` at context 512: time, measured peak, and the peak by formula."
    return captioned(caption, shown)


def predicted_bytes(mode: str, precision: str) -> int:
    return sum(peak(Pass("10B", 512, mode, precision)).values())


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    found, of_steps = passes(record).where(batch=BATCH), steps(record)
    forward, bf16 = found.where(mode="forward"), of_steps.where(precision="bf16")
    small, large = (
        forward.one(size=size, context=128, precision="fp32") for size in TOLD
    )
    small_step, large_step = (
        of_steps.one(size=size, context=128, precision="fp32") for size in TOLD
    )
    small_bf16, small_bf16_512 = (
        forward.one(size="small", context=c, precision="bf16") for c in (128, 512)
    )
    large_512 = forward.one(size="2.7B", context=512, precision="fp32")
    varied = known(asked(found).where(precision="fp32").column("variation"))
    steady = sum(variation < 0.02 for variation in varied)
    gains = known(bf16.column("pass_gain"))
    fp32_2_7B, tf32_2_7B, bf16_2_7B = (
        of_steps.one(size="2.7B", context=512, precision=p) for p in PRECISIONS
    )
    return {
        "forward_small_128_fp32": say(small["step_ms"], "{:.1f} ms"),
        "mean_forward_small_128_fp32": mean_ms(small, "forward"),
        "mean_forward_2_7B_128_fp32": mean_ms(large, "forward"),
        "mean_backward_small_128_fp32": mean_ms(small_step, "backward"),
        "mean_backward_2_7B_128_fp32": mean_ms(large_step, "backward"),
        **texts(
            percent,
            {
                "share_2_7B_512_fp32": large_512["share"],
                "pass_share_fp32_2_7B_512": fp32_2_7B["pass_share"],
                "pass_share_bf16_2_7B_512": bf16_2_7B["pass_share"],
                "variation_most": most(varied),
            },
        ),
        **texts(
            "{:.2f}",
            {
                "growth_small_bf16": small_bf16_512["growth"],
                "growth_2_7B_fp32": large_512["growth"],
                "flops_growth_small": small_flops(512) / small_flops(128),
                "speedup_small_128": bf16.one(size="small", context=128)["gain"],
                "gain_most": most(gains),
            },
        ),
        "speedup_2_7B_512": say(bf16_2_7B["gain"], "{:.1f}"),
        "backward_over_forward": span(fp32_ratios(of_steps)),
        "steady_rows": f"{steady} of {len(varied)}" if varied else say(MISSING),
        "slower_cells": say(sum(g < 1 for g in gains), f"{{}} of {len(gains)}"),
        "gpu_memory": say(memory_of(record), lambda v: f"{gib(v)} GiB"),
        "memory_2_7B_512_fp32": say(fp32_2_7B[PEAK], lambda v: f"{gib(v)} GiB"),
        "runs_of_10B": runs_of_10b(record),
    }


def mean_ms(x: Line, phase: str) -> str:
    """ "38.32 ± 0.36 ms"."""
    return f"{x[f'{phase} ±']} ms" if x else say(x.missing)


def asked(found: Frame) -> Frame:
    """The passes whose variation the assignment asks for."""
    return found.where(mode=("forward", "forward_backward"))


def fp32_ratios(of_steps: Frame) -> list[float]:
    return known(of_steps.where(precision="fp32").column("backward_over_forward"))


def small_flops(context: int) -> int:
    shape = {"vocab_size": VOCAB_SIZE, **asdict(SIZES["small"])}
    return sum(forward_flops(**shape, context=context, batch=BATCH).values())


def memory_of(record: Record | None) -> float:
    return (record.device.memory_bytes if record else None) or MISSING


# The passes of 10B that a GPU can run, by how many of MODES fit.
RUNS = (
    "can run none of its passes",
    "can run a forward pass, but no backward pass",
    "can run forward and backward, but no optimizer step",
    "can run a whole step",
)


def runs_of_10b(record: Record | None) -> str:
    """By formula, in fp32."""
    room = memory_of(record) - CONTEXT_BYTES
    needs = [predicted_bytes(mode, "fp32") for mode in MODES]
    return RUNS[sum(need <= room for need in needs)] if room else say(room)


# Claims -------------------------------------------------------------------------------


@claim(
    "benchmarking_script",
    "In fp32 a backward pass takes about twice as long as the forward pass of the same "
    "step, which is the ratio of their FLOPs: between 1.5 and 2.5 times.",
    because="two by FLOPs, and a quarter to either side for what is no product.",
)
def backward_about_twice(record: Record) -> Judgement:
    ratios = fp32_ratios(steps(record))
    numbers = f"Ratios: {span(ratios)} over {len(ratios)} steps."
    return ratios and (all(1.5 <= ratio <= 2.5 for ratio in ratios), numbers)


@claim(
    "benchmarking_script",
    "Where the GPU is slower than the CPU that launches, passes repeat. If a forward "
    "pass without a graph, or forward and backward, takes over twice as long as at the "
    "shortest context, which has as many launches, the standard deviation is below a "
    "hundredth of the mean.",
    because="then only the GPU's clock varies, in steps of about a hundredth.",
)
def passes_steady(record: Record) -> Judgement:
    grown = asked(passes(record).where(lambda x: x["growth"] > 2, batch=BATCH))
    found = known(grown.column("variation"))
    at_most = say(most(found), percent)
    numbers = f"Deviation over mean: at most {at_most}, in {len(found)} passes."
    return found and (max(found) < 0.01, numbers)


@claim(
    "benchmarking_mixed_precision",
    "At context 512 the gain from bf16 (forward and backward) grows with each step "
    "from small to 2.7B.",
)
def gain_grows(record: Record) -> Judgement:
    bf16 = steps(record).where(context=512, precision="bf16")
    # Of the GPU, unless the record is from before its time was measured.
    by_size = bf16.arrange(size=TABLE_1)
    clock, name = (
        ("GPU", "pass_gpu_gain")
        if known(by_size.column("pass_gpu_gain"))
        else ("wall-clock", "pass_gain")
    )
    found = known(by_size.column(name))
    texts = ", ".join(f"{g:.2f}" for g in found)
    numbers = f"fp32 over bf16 in {clock} time: {texts}."
    return len(found) == len(TABLE_1) and (found == sorted(found), numbers)
