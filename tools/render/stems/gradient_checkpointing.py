"""Tables, figure, facts and claims of `gradient_checkpointing`: peaks and times."""

from functools import cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from systems.formulas.memory_costs import (
    Pass,
    block_saved_bytes,
    residual_bytes,
    weight_bytes,
    weight_copy_bytes,
)
from systems.formulas.recomputation import (
    best_run_lengths,
    count_forward_passes,
    count_kept_inputs,
    strategy_peaks,
)
from systems.records.record import Record
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.fragments import Drawn, Fragments
from tools.render.frame import Frame, Line, frame, gpu_columns
from tools.render.load import read_constant
from tools.render.markdown import format_at_most, format_gib
from tools.render.plots import ACCENT, DARK, GREY
from tools.render.rows import MISSING, OUT_OF_MEMORY, dropna, fmt, nanmax, nanmin
from tools.render.stems.peak_memory.rows import format_peak, missing_peak

GIB = 2**30
# Lengths of "runs": numbers of consecutive blocks that are recomputed together.
RUNS: tuple[int, ...] = read_constant("gradient_checkpointing", "RUNS")
TICKS = (1, 2, 4, 8, 16, 32)
# Metrics of peak memory: of a pass that allocates the gradients, and of a pass whose
# gradients exist before it.
PEAKS = {"peak": "peak_allocated_bytes", "kept": "kept_peak_allocated_bytes"}
NAMES = {
    "none": "nothing",
    "half_blocks": "every half block by itself",
    "halving": "nested: halves of halves",
    "chain": "nested: all but the last",
    "attention": "attention alone",
    "by_hand": "every block by itself, by hand",
}
PASS = Pass("2.7B", 2048, "forward_backward", "bf16", "flash")
SHAPE = {"size": "2.7B", "context": 2048, "precision": "bf16", "batch": 4}
fragments = Fragments()
cached_peaks = cache(strategy_peaks)


def passes(record: Record | None) -> Frame:
    """Return all rows (of forward + backward) with measured and predicted peaks in
    bytes, `peak` and `kept` (see PEAKS), and the ratios measured / predicted.
    """
    return add_predictions(frame(record)).derive(
        **{name: lambda x, of=of: x.get(of) for name, of in PEAKS.items()},
        peak_over=lambda x: x["peak"] / x["predicted_peak"],
        kept_over=lambda x: x["kept"] / x["predicted_kept"],
    )


def peaks_by_run_length() -> Frame:
    """Return a row of predicted peaks for each length in RUNS; this needs no record."""
    more = {"strategy": "runs", "attention": "flash", "blocks_compiled": False}
    return add_predictions(Frame(Line(SHAPE | more, run=run) for run in RUNS))


def add_predictions(found: Frame) -> Frame:
    return found.derive(
        recomputed=describe_recomputation,
        predicted_peak=lambda x: predict_peaks(x)[0],
        predicted_kept=lambda x: predict_peaks(x)[1],
        predicted=lambda x: max(predict_peaks(x)),
    )


def describe_recomputation(x: Line) -> str:
    run = "every block by itself" if x["run"] == 1 else f"runs of {x['run']} blocks"
    words = NAMES.get(x["strategy"], run)
    return f"{words}, blocks compiled" if x["blocks_compiled"] else words


def predict_peaks(x: Line) -> tuple[float, float]:
    """Predict both PEAKS in bytes (`peak`, `kept`); Missing if blocks are compiled."""
    if x["blocks_compiled"]:
        return MISSING, MISSING
    # SDPA keeps what FlashAttention keeps: its output and the log-sum-exp.
    attention = "eager" if x["attention"] == "eager" else "flash"
    shape = (x["size"], x["context"], "forward_backward", x["precision"], attention)
    return cached_peaks(Pass(*shape, batch=x["batch"]), x["strategy"], x["run"])


def select_runs(found: Frame) -> Frame:
    """Select uncompiled FlashAttention rows of strategy "runs"; sort by run length."""
    return found.arrange(run=RUNS).where(
        strategy="runs", attention="flash", blocks_compiled=False
    )


def row_with_smallest(found: Frame, name: str) -> Line:
    return min((x for x in found if x[name]), key=lambda x: x[name], default=Line())


@fragments.add_file(
    "orders.md",
    "Memory and work without recomputation and with four ways to recompute N blocks. "
    "For halves, N is a power of two.",
)
def strategies_table(_: list[Record]) -> str:
    """Return a table of recomputation strategies: peak memory, and blocks computed."""
    p = PASS
    n = p.shape.num_layers
    input_bytes, block_bytes = residual_bytes(p), block_saved_bytes(p)

    def count_inputs(strategy: str) -> int:
        return max(count_kept_inputs(strategy, n, block) for block in range(1, n + 1))

    runs = ("runs of k = 6 ≈ √N blocks", "N/k inputs, k blocks", "2 N", "runs")
    halves = (NAMES["halving"], "1 + log₂ N inputs, 1 block", "N (3 + log₂ N) / 2")
    chain = (NAMES["chain"], "2 inputs, 1 block", "N (N + 3) / 2")
    listed = [
        ("nothing", "N blocks", "N", "none", 0, n),
        ("every block by itself", "N inputs, 1 block", "2 N", "runs", n, 1),
        (*runs, -(-n // 6), 6),
        (*halves, "halving", count_inputs("halving"), 1),
        (*chain, "chain", count_inputs("chain"), 1),
    ]
    head = ("recomputed", "most activations at once", "blocks computed")
    names = (*head, "strategy", "inputs", "blocks")
    found = Frame(Line(zip(names, order, strict=True)) for order in listed).derive(
        needed=lambda x: x["inputs"] * input_bytes + x["blocks"] * block_bytes,
        passes=lambda x: count_forward_passes(x["strategy"], n),
    )
    return found.table(
        *head,
        ("for 2.7B: inputs", "inputs"),
        ("blocks", "blocks"),
        gib_column("needed", "GiB"),
        ("forward passes", "passes", "{:.1f}"),
    )


def gib_column(name: str, head: str) -> tuple[object, ...]:
    return head, lambda x: x[name] / GIB, "{:.2f}"


@fragments.add(
    "table.md",
    "Peak memory, its ratio to the predicted peak, and times of forward + backward. "
    "*Accum.*: gradients exist before the pass. Times are medians of few passes.",
)
def rows_table(record: Record) -> str:
    best = row_with_smallest(peaks_by_run_length(), "predicted_kept")
    runs = {1, 2, best["run"]}

    def is_shown_first(x: Line) -> bool:
        flash = x["attention"] == "flash" and x["strategy"] != "by_hand"
        return x["blocks_compiled"] or (flash and x["run"] in runs)

    return passes(record).table(
        ("attention", lambda x: x["attention"].replace("eager", "plain")),
        "recomputed",
        ("peak, GiB", lambda x: (x["peak"] or missing_peak(x)) / GIB, "{:.2f}"),
        ("peak / predicted", "peak_over", "{:.4f}"),
        gib_column("kept", "peak, accum., GiB"),
        ("peak / predicted, accum.", "kept_over", "{:.4f}"),
        ("wall, ms", "step_ms", "{:.0f}"),
        *((head.removeprefix("step, "), of) for head, of in gpu_columns()),
        left=2,
        shown_first=is_shown_first,
    )


@fragments.figure("curve.md", "curve", narrow=560)
def run_length_figure(record: Record) -> Drawn:
    every = passes(record)
    found = select_runs(every)
    if not dropna(found.column("peak")):
        return None

    def draw(figure: Figure) -> None:
        memory, times = plots.panels(figure, 2)
        draw_peaks(memory, found)
        plots.curve(times, found.column("run"), found.column("step_ms"), color=ACCENT)
        if whole := every.one(strategy="none", attention="flash")["step_ms"]:
            times.axhline(whole, color=DARK, linewidth=1)
            look = {"ha": "right", "color": DARK}
            plots.label_point(times, "no recomputation", RUNS[-1], whole, **look)
        times.set_title("forward and backward, ms")
        for axes in (memory, times):
            axes.set_ylim(0, 1.02 * axes.get_ylim()[1])
            plots.set_log2_axis(axes.xaxis, TICKS, "blocks in a run")

    lost = any(x.reason == OUT_OF_MEMORY for x in found)
    made, kept = (row_with_smallest(found, name) for name in PEAKS)
    times = found.column("step_ms")
    return (
        draw,
        f"Of whole blocks, recomputing {made['run']} at a time needs least memory "
        f"({kept['run']} if gradients accumulate); wall-clock times differ by "
        f"{fmt(nanmax(times) / nanmin(times) - 1, format_at_most)}.",
        "Lines are predicted, points measured. Accumulating: gradients exist before "
        "the pass. Dotted: runs of √N (the known rule) and √(N r / R) blocks; a block "
        "keeps R bytes, its input r."
        f"{' Runs without points ran out of memory.' * lost}",
    )


def draw_peaks(axes: Axes, found: Frame) -> None:
    predicted = peaks_by_run_length()
    # Place notes above the upper line and below the lower line.
    below, above = {"va": "top", "offset": (0, -6)}, {"va": "bottom", "offset": (0, 5)}
    for name, label, color, side in (
        ("peak", "one pass", ACCENT, below),
        ("kept", "accumulating", DARK, above),
    ):
        curve = [x[f"predicted_{name}"] / GIB for x in predicted]
        points = [x[name] / GIB for x in found]
        plots.curve(axes, RUNS, curve, label=label, color=color, marker="")
        plots.curve(axes, found.column("run"), points, color=color, linestyle="")
        lowest = min(curve)
        place = RUNS[curve.index(lowest)]
        shown = found.one(run=place)[name] / GIB or lowest
        plots.label_point(axes, f"{shown:.1f}", place, lowest, color=color, **side)
    axes.set_ylim(bottom=0)
    beside = {"ha": "left", "va": "top", "offset": (3, -9)}
    for name, run in zip(("√N", "√(N r / R)"), best_run_lengths(PASS), strict=True):
        axes.axvline(run, color=GREY, linewidth=1, linestyle=":")
        plots.label_point(axes, name, run, axes.get_ylim()[1], color=DARK, **beside)
    axes.set_title("peak, GiB")


def facts(record: Record | None) -> dict[str, str]:
    found = passes(record).where(attention="flash")
    runs, predicted = select_runs(found), peaks_by_run_length()
    none, best, p = found.one(strategy="none"), runs.one(run=1), PASS
    one, two = (predicted.one(run=run)["predicted_peak"] for run in (1, 2))
    n = p.shape.num_layers
    root, weighed = best_run_lengths(p)
    slower = fmt(best["step_ms"] / none["step_ms"], "{:.2f}")
    if slower == OUT_OF_MEMORY:
        # Recomputation takes one more forward pass.
        slower = f"{(1 + 3) / 3:.2f} (by FLOPs)"
    kept = row_with_smallest(predicted, "predicted_kept")["run"]
    peaks = {
        "none": none,
        "half": found.one(strategy="half_blocks"),
        "best": best,
        "next": runs.one(run=2),
        "halving": found.one(strategy="halving"),
        "chain": found.one(strategy="chain"),
        "attention": passes(record).one(strategy="attention", attention="eager"),
    }
    return {
        **{
            f"{name}_peak": format_peak(x, x["predicted_peak"], format_gib)
            for name, x in peaks.items()
        },
        "best_ms": fmt(best.get("step_gpu_ms"), "{:.0f} ms"),
        "halving_ms": fmt(peaks["halving"].get("step_gpu_ms"), "{:.0f} ms"),
        "chain_ms": fmt(peaks["chain"].get("step_gpu_ms"), "{:,.0f} ms"),
        "best_predicted": format_gib(one),
        "more": format_gib(two - one),
        "weights": format_gib(weight_bytes(p)),
        "copies": format_gib(weight_copy_bytes(p)),
        "block": format_gib(block_saved_bytes(p)),
        "kept_run": f"{kept} block{'s' * (kept > 1)}",
        "slower_gpu": fmt(best.get("step_gpu_ms") / none.get("step_gpu_ms"), "{:.2f}"),
        "slower": slower,
        "block_over_input": f"{block_saved_bytes(p) / residual_bytes(p):.0f}",
        "root": f"{root:.1f}",
        "weighed": f"{weighed:.1f}",
        "halving_passes": f"{count_forward_passes('halving', n):.0f}",
        "chain_passes": f"{count_forward_passes('chain', n):.1f}",
    }


@claim(
    "gradient_checkpointing",
    "Every measured peak is within 1 % of its prediction, except where a compiler "
    "decides what to save.",
    because="predictions leave out that the allocator rounds blocks up.",
)
def peaks_match_prediction(record: Record) -> Judgement:
    every = passes(record)
    ratios = dropna(every.column("peak_over") + every.column("kept_over"))
    errors = [abs(ratio - 1) for ratio in ratios]
    largest = fmt(100 * nanmax(errors), "{:.2f} %")
    numbers = f"{len(errors)} peaks are off by at most {largest}."
    return errors and (max(errors) < 0.01, numbers)


@claim(
    "gradient_checkpointing",
    "If the pass creates the gradients, recomputing one block at a time needs less "
    "memory than longer runs of blocks, with `flash` and with plain attention.",
)
def one_block_is_best(record: Record) -> Judgement:
    found = passes(record)
    eager = found.where(strategy="runs", attention="eager").arrange(run=RUNS)
    flash, plain = (dropna(x.column("peak")) for x in (select_runs(found), eager))
    if len(flash) < 2 or len(plain) < 2:
        return None
    texts = (", ".join(f"{peak / GIB:.1f}" for peak in x) for x in (flash, plain))
    numbers = "Peaks in GiB by run length: flash {}; plain {}.".format(*texts)
    return flash[0] == min(flash) and plain[0] == min(plain), numbers
