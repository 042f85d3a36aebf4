"""Tables, figures, facts and claims of `attention`: time and memory by head dimension d
and sequence length N.
"""

from bisect import bisect_left

from matplotlib.figure import Figure

from systems.formulas.costs import attention_peak_bytes, attention_saved_bytes
from systems.formulas.gpus import GPUS
from systems.records.record import Record
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.fragments import Drawn
from tools.render.frame import Frame, frame
from tools.render.markdown import format_at_most, format_ms, gib, prose_number, table
from tools.render.plots import ACCENT, DARK
from tools.render.rows import MISSING, fmt, nanmax
from tools.render.stems.attention import compiled
from tools.render.stems.attention.columns import (
    BATCH,
    EXECUTIONS,
    LONGEST,
    PASSES,
    PLAIN,
    WIDTH,
    format_gib3,
    formula_inputs,
    fragments,
    lengths,
    passes,
    peak_bytes,
    plain_row,
    predicted_saved_bytes,
)
from tools.render.stems.attention.compiled import (  # noqa: F401
    compiled_attention_is_faster,
)

# From this N on, tensors that grow with N² take nearly all memory.
LONG = 4096


@fragments.add(
    "table.md",
    "Plain attention in fp32 without a mask: wall-clock time of each pass (mean ± "
    "standard deviation), GPU time (median), memory before backward, peak memory.",
    reported=True,
)
def grid_table(record: Record) -> str:
    found = passes(record).where(execution="eager", **PLAIN)
    times = [(f"{of}, ms", f"{of} ±") for of in PASSES]
    gpu = [
        (f"{of}, GPU, ms", lambda x, of=of: x.get(f"{of}_gpu_ms"), format_ms)
        for of in PASSES
        if any(x.get(f"{of}_gpu_ms", 0) for x in found)
    ]
    return found.table(
        *("d", ("N", "n"), *times, *gpu),
        (
            "memory before backward, GiB",
            lambda x: x.get("before_backward_bytes"),
            format_gib3,
        ),
        ("peak, GiB", "peak", format_gib3),
        shown_first=lambda x: x["d"] == WIDTH,
    )


@fragments.add(
    "accounting.md",
    "Tensors at the peak of a long pass of plain attention, by formula.",
)
def peak_tensors_table(record: Record) -> str:
    """Return a table of tensors, in GiB, at the predicted peak of N = `oom_length`."""
    n = oom_length(record)
    parts = attention_peak_bytes(**formula_inputs(n))
    large = {name: size for name, size in parts.items() if "(b, n, n)" in name}
    whole = {
        "everything else": sum(parts.values()) - sum(large.values()),
        f"all, N = {n}, d = {WIDTH}, b = {BATCH}, fp32": sum(parts.values()),
    }
    rows = [[name, format_gib3(size)] for name, size in (large | whole).items()]
    tried = "; ".join(f"{e} {describe_outcome(record, n, e)}" for e in EXECUTIONS)
    memory = record.device.memory_bytes
    holds = f" The GPU has {gib(memory)} GiB." if memory else ""
    listed = table(["tensor at the peak", "GiB"], rows)
    return f"{listed}\n\nTried at N = {n}: {tried}.{holds}"


def oom_length(record: Record) -> int:
    """Return the least N at which eager attention (d = 64) ran out of memory; if none,
    double LONGEST until the predicted peak exceeds the GPU's memory.
    """
    found = frame(record, d=WIDTH, execution="eager", **PLAIN)
    out = [x["n"] for x in found if x.reason == "out of memory"]
    n = min(out, default=LONGEST)
    while not out and peak_bytes(n) <= (record.device.memory_bytes or 0):
        n *= 2
    return n


def shortest_oom(memory_bytes: float) -> int:
    """Return the smallest N whose predicted peak exceeds `memory_bytes`."""
    every = range(1, 2**24)
    return every[bisect_left(every, True, key=lambda n: peak_bytes(n) > memory_bytes)]


def describe_outcome(record: Record | None, n: int, execution: str) -> str:
    """Return what `execution` did at sequence length `n`, as "ran out of memory"."""
    x = plain_row(frame(record), n, e=execution)
    if x:
        peak = x.get("peak_allocated_bytes", 0)
        return f"ran with a peak of {gib(peak)} GiB" if peak else "ran"
    return x.reason.replace("out of", "ran out of") or "was not measured"


@fragments.figure("times.md", "times", narrow=520)
def times_figure(record: Record) -> Drawn:
    found = passes(record)
    if not (ns := lengths(found)):
        return None

    def draw(figure: Figure) -> None:
        for axes, of in zip(plots.panels(figure, 2, sharey=True), PASSES, strict=True):
            eager, fused = (
                [plain_row(found, n, e=e).ms(of) for n in ns] for e in EXECUTIONS
            )
            plots.curve(axes, ns, fused, label="compiled")
            plots.curve(axes, ns, eager, label="eager", color=ACCENT)
            grown = [eager[-1] / 4 * (n / ns[-1]) ** 2 for n in ns[2:]]
            look = {"marker": "", "ls": (0, (1, 2)), "color": DARK, "linewidth": 1}
            plots.curve(axes, ns[2:], grown, label="slope of N²", **look)
            plots.set_log_scale(axes.yaxis, subs=(1,))
            plots.set_log2_axis(axes.xaxis, ns, "sequence length N")
            axes.set_title(f"{of} pass, ms")

    factors = {of: growth_factor(found, of) for of in PASSES}
    grown = [f"{factor:.1f} {of}" for of, factor in factors.items() if factor]
    return (
        draw,
        f"From N = {LONGEST // 2:,} to {LONGEST:,} the time of an eager pass grows by "
        f"a factor of {' and '.join(grown)}."
        if grown
        else f"An eager pass at N = {LONGEST:,}: {fmt(factors['forward'])}.",
        f"Median wall-clock times in fp32, d = {WIDTH}, no mask. Times that grow with "
        "N² run parallel to the dotted line. The next page explains <em>compiled</em>.",
    )


def growth_factor(found: Frame, of: str) -> float:
    """Return pass `of`'s eager wall time at LONGEST / at LONGEST / 2: 4 if O(N²)."""
    return plain_row(found).ms(of) / plain_row(found, LONGEST // 2).ms(of)


@fragments.figure("memory.md", "memory", narrow=520)
def memory_figure(record: Record) -> Drawn:
    found = passes(record)
    ns = lengths(found)
    curves = {
        "peak": ("peak", attention_peak_bytes),
        "kept for the backward pass": ("kept", attention_saved_bytes),
    }

    def draw(figure: Figure) -> None:
        shown = zip(plots.panels(figure, 2, sharey=True), curves.items(), strict=True)
        for axes, (name, (column, formula)) in shown:
            predicted = [sum(formula(**formula_inputs(n)).values()) / 2**30 for n in ns]
            thin = {"marker": "", "color": DARK, "linewidth": 1}
            plots.curve(axes, ns, predicted, label="predicted, eager", **thin)
            for e, look in (("compiled", {}), ("eager", {"color": ACCENT})):
                ys = [plain_row(found, n, e=e)[column] / 2**30 for n in ns]
                plots.curve(axes, ns, ys, label=e, ls="none", **look)
            plots.set_log_scale(axes.yaxis, subs=(1,))
            plots.set_log2_axis(axes.xaxis, ns, "sequence length N")
            axes.set_title(f"{name}, GiB")

    text = fmt(largest_error(record), format_at_most)
    return (
        draw,
        f"Saved memory grows with N² and is off its prediction by {text} from "
        f"N = {LONG:,} on.",
        f"fp32, d = {WIDTH}, no mask. Points: measured; lines: predicted by formula.",
    )


def largest_error(record: Record | None) -> float:
    """Return the largest relative error of predicted saved bytes, over N >= LONG."""
    found = passes(record).where(lambda x: x["n"] >= LONG)
    return nanmax(abs(x["kept"] / predicted_saved_bytes(x) - 1) for x in found)


def facts(record: Record | None) -> dict[str, str]:
    found = passes(record)
    memory = (record.device.memory_bytes if record else None) or MISSING
    n = oom_length(record) if record and memory else 0
    kept = {e: plain_row(found, e=e)["kept"] for e in EXECUTIONS}
    peaks = {e: plain_row(found, e=e)["peak"] for e in EXECUTIONS}
    return {
        **{of: fmt(plain_row(found).ms(of), "{:.5f} ms") for of in PASSES},
        "forward_16": fmt(plain_row(found, d=16).ms("forward"), "{:.5f} ms"),
        "forward_128": fmt(plain_row(found, d=128).ms("forward"), "{:.5f} ms"),
        **{f"growth_{of}": fmt(growth_factor(found, of), "{:.5f}") for of in PASSES},
        **{f"per_square_{e}": fmt(kept[e] / LONGEST**2, "{:.5f}") for e in EXECUTIONS},
        **{f"peak_{e}": fmt(peaks[e] / 2**30, "{:.5f} GiB") for e in EXECUTIONS},
        "one_matrix": f"{gib(BATCH * LONGEST**2 * 4, 5)} GiB",
        "kept": fmt(kept["eager"], lambda v: f"{gib(v, 5)} GiB"),
        "tried_need": f"{gib(peak_bytes(n), 5)} GiB" if n else fmt(MISSING),
        "shortest_out": fmt(memory, lambda size: prose_number(shortest_oom(size))),
        "out_on_40": prose_number(shortest_oom(GPUS["a100-40"].free_bytes)),
        "out_on_80": prose_number(shortest_oom(GPUS["a100-80"].free_bytes)),
        "tried_length": fmt(n or MISSING, "{:,}"),
        "tried_eager": describe_outcome(record, n, "eager"),
        **compiled.facts(record),
    }


@claim(
    "pytorch_attention",
    "Eager attention keeps two fp32 score matrices of the batch for its backward pass: "
    "about 64 bytes per N².",
    because=f"at N = {LONGEST:,}, memory linear in N adds less than 5 %.",
)
def two_matrices_are_saved(record: Record) -> Judgement:
    per_square = plain_row(passes(record))["kept"] / LONGEST**2
    numbers = f"Kept per N²: {per_square:.1f} bytes at N = {LONGEST:,}."
    return per_square and (abs(per_square / 64 - 1) < 0.05, numbers)


@claim(
    "pytorch_attention",
    "At the longest lengths the time of both passes grows with N²: by a factor "
    "of three to five when the length doubles.",
    because="N² gives a factor of four; work linear in N may shift it by a quarter.",
)
def time_grows_with_square(record: Record) -> Judgement:
    forward, backward = (growth_factor(passes(record), of) for of in PASSES)
    numbers = (
        f"Factors from N = {LONGEST // 2:,} to {LONGEST:,}: forward {forward:.2f}, "
        f"backward {backward:.2f}."
    )
    return forward / backward and (3 <= forward <= 5 and 3 <= backward <= 5, numbers)
