"""Tables, figure and facts of `gradient_checkpointing`: peaks and times by what is
recomputed, measured beside predicted.
"""

from collections.abc import Iterable
from functools import cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from systems.formulas.memory_costs import (
    Pass,
    block_saved,
    residual_bytes,
    weight_bytes,
    weight_copy_bytes,
)
from systems.formulas.recomputation import (
    best_run_lengths,
    count_kept_inputs,
    forward_passes,
    peaks,
)
from systems.records.record import Record
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.frame import Frame, Line, frame, gpu_columns, texts
from tools.render.load import constant
from tools.render.markdown import captioned, in_gib, in_mib, per_device
from tools.render.plots import ACCENT, DARK, GREY
from tools.render.rows import MISSING, known, measured, say

GIB = 2**30
# As in the experiment, which imports torch and this doesn't.
RUNS: tuple[int, ...] = constant("gradient_checkpointing", "RUNS")
# Both peaks: gradients are made on the way, or kept from before.
PEAKS = {"peak": "peak_allocated_bytes", "kept": "kept_peak_allocated_bytes"}
WORDS = {
    "none": "nothing",
    "half_blocks": "every half block by itself",
    "halving": "nested: halves of halves",
    "chain": "nested: all but the last",
    "attention": "attention alone",
    "by_hand": "every block by itself, by hand",
}
SHAPE = {"size": "2.7B", "context": 2048, "precision": "bf16", "batch": 4}
CAPTIONS = {
    "table.md": "Peaks and times by what is recomputed; beside each peak, measured "
    "over predicted.",
}


# Columns ------------------------------------------------------------------------------


def passes(record: Record | None) -> Frame:
    """Forward and backward passes, each peak beside its prediction."""
    return predict(frame(record)).derive(
        **{name: lambda x, of=of: x.get(of) for name, of in PEAKS.items()},
        peak_over=lambda x: x["peak"] / x["predicted_peak"],
        kept_over=lambda x: x["kept"] / x["predicted_kept"],
    )


def planned() -> Frame:
    """Runs of blocks without a measurement."""
    more = {"strategy": "runs", "attention": "flash", "blocks_compiled": False}
    return predict(Frame(Line(SHAPE | more, run=run) for run in RUNS))


def predict(found: Frame) -> Frame:
    return found.derive(
        recomputed=in_words,
        predicted_peak=lambda x: predicted(x)[0],
        predicted_kept=lambda x: predicted(x)[1],
    )


def in_words(x: Line) -> str:
    run = "every block by itself" if x["run"] == 1 else f"runs of {x['run']} blocks"
    words = WORDS.get(x["strategy"], run)
    return f"{words}, blocks compiled" if x["blocks_compiled"] else words


def predicted(x: Line) -> tuple[float, float]:
    """Both peaks; none where a compiler decides what is kept."""
    if x["blocks_compiled"]:
        return MISSING, MISSING
    # PyTorch's kernels keep what this guide's do: their output and the log-sum-exp.
    attention = "eager" if x["attention"] == "eager" else "flash"
    shape = (x["size"], x["context"], "forward_backward", x["precision"], attention)
    return cached_peaks(Pass(*shape, batch=x["batch"]), x["strategy"], x["run"])


cached_peaks = cache(peaks)


def pass_of(attention: str = "flash") -> Pass:
    return Pass("2.7B", 2048, "forward_backward", "bf16", attention)


def curve(found: Frame) -> Frame:
    """Runs of blocks, from one block to all."""
    return found.arrange(run=RUNS).where(
        strategy="runs", attention="flash", blocks_compiled=False
    )


def least(found: Frame, name: str) -> Line:
    return min((x for x in found if x[name]), key=lambda x: x[name], default=Line())


def blocks(x: Line) -> str:
    return "one block" if x["run"] == 1 else f"{x['run']} blocks"


# Tables and figure --------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    ours = measured(records)
    return {
        "orders.md": orders_table(),
        "curve.md": per_device(ours, curve_figure),
        "table.md": per_device(ours, rows_table),
    }


def orders_table() -> str:
    """Inputs and blocks in memory at most, and computed blocks, for 32 of them."""
    p = pass_of()
    n = p.shape.num_layers

    def nested(strategy: str) -> int:
        return max(count_kept_inputs(strategy, n, block) for block in range(1, n + 1))

    halves, chain = ("1 + log₂ N inputs, 1 block", "2 inputs, 1 block")
    listed = [
        ("nothing", "N blocks", "N", "none", 0, n),
        ("every block by itself", "N inputs, 1 block", "2 N", "runs", n, 1),
        (
            "runs of k = 6 ≈ √N blocks",
            "N/k inputs, k blocks",
            "2 N",
            "runs",
            -(-n // 6),
            6,
        ),
        (
            WORDS["halving"],
            halves,
            "N (3 + log₂ N) / 2",
            "halving",
            nested("halving"),
            1,
        ),
        (WORDS["chain"], chain, "N (N + 3) / 2", "chain", nested("chain"), 1),
    ]

    head = ("computed again", "in memory at most", "blocks computed")
    names = (*head, "strategy", "inputs", "blocks")
    found = Frame(Line(zip(names, order, strict=True)) for order in listed).derive(
        needed=lambda x: x["inputs"] * residual_bytes(p) + x["blocks"] * block_saved(p),
        passes=lambda x: forward_passes(x["strategy"], n),
    )
    shown = found.table(
        *head,
        ("for 2.7B: inputs", "inputs"),
        ("blocks", "blocks"),
        gib_column("needed", "GiB"),
        ("forward passes", "passes", "{:.1f}"),
    )
    caption = (
        "Nothing computed again, and four ways to compute N blocks again: what is in "
        "memory at most, and how much is computed. For halves, N is a power of two."
    )
    return f"{captioned(caption, shown)}\n"


def gib_column(name: str, head: str) -> tuple[object, ...]:
    return head, lambda x: x[name] / GIB, "{:.2f}"


def rows_table(record: Record) -> str:
    runs = {1, 2, least(planned(), "predicted_kept")["run"]}

    def telling(x: Line) -> bool:
        flash = x["attention"] == "flash" and x["strategy"] != "by_hand"
        return x["blocks_compiled"] or (flash and x["run"] in runs)

    return passes(record).table(
        ("attention", lambda x: x["attention"].replace("eager", "plain")),
        ("computed again", "recomputed"),
        gib_column("peak", "peak, GiB"),
        ("over its prediction", "peak_over", "{:.4f}"),
        gib_column("kept", "peak, kept, GiB"),
        ("over predicted, kept", "kept_over", "{:.4f}"),
        ("both passes, ms", "step_ms", "{:.0f}"),
        *((head.removeprefix("step, "), of) for head, of in gpu_columns("step")),
        left=2,
        telling=telling,
    )


def draw_peaks(axes: Axes, found: Frame) -> None:
    by_formula = planned()
    # The note of the upper line stands above it, that of the lower one below.
    below, above = {"va": "top", "offset": (0, -6)}, {"va": "bottom", "offset": (0, 5)}
    for name, label, color, side in (
        ("peak", "made", ACCENT, below),
        ("kept", "kept", DARK, above),
    ):
        lines = column_in_gib(by_formula, f"predicted_{name}")
        plots.line(axes, RUNS, lines, label=label, color=color, marker="")
        plots.line(
            axes,
            found.column("run"),
            column_in_gib(found, name),
            color=color,
            linestyle="",
        )
        low = least(by_formula, f"predicted_{name}")
        value = low[f"predicted_{name}"] / GIB
        plots.note(axes, f"{value:.1f}", low["run"], value, color=color, **side)
    axes.set_ylim(bottom=0)
    for name, run in zip(
        ("√N", "√(N r / R)"), best_run_lengths(pass_of()), strict=True
    ):
        axes.axvline(run, color=GREY, linewidth=1, linestyle=":")
        beside = {"ha": "left", "va": "top", "offset": (3, -9)}
        plots.note(axes, name, run, axes.get_ylim()[1], color=DARK, **beside)
    plots.power_of_two_axis(axes.xaxis, (1, 2, 4, 8, 16, 32), "blocks in a run")
    axes.set_title("peak, GiB, gradients made or kept")


def column_in_gib(found: Iterable[Line], name: str) -> list[float]:
    return [x[name] / GIB for x in found]


def curve_figure(record: Record) -> str:
    every = passes(record)
    found = curve(every)
    if not known(found.column("peak")):
        return ""

    def draw(figure: Figure) -> None:
        peaks, times = plots.panels(figure, 2)
        draw_peaks(peaks, found)
        plots.line(times, found.column("run"), found.column("step_ms"), color=ACCENT)
        if whole := every.one(strategy="none", attention="flash")["step_ms"]:
            times.axhline(whole, color=DARK, linewidth=1)
            plots.note(times, "nothing again", RUNS[-1], whole, ha="right", color=DARK)
        times.set_ylim(bottom=0)
        plots.power_of_two_axis(times.xaxis, (1, 2, 4, 8, 16, 32), "blocks in a run")
        times.set_title("forward and backward, ms")

    made, kept = (blocks(least(found, name)) for name in PEAKS)
    return plots.plot(
        record,
        "curve",
        draw,
        f"Runs of {made} need least memory if gradients are made during the pass, "
        f"runs of {kept} if they are kept from before; the time hardly depends on the "
        "run.",
        "Lines are predicted, points measured. Made: gradients appear during the pass. "
        "Kept: they are there before it, as in gradient accumulation. Dotted: the "
        "known rule, √N, and √(N r / R), where a block keeps R bytes and its input has "
        "r.",
        height=300,
        narrow=560,
    )


# Facts and claims ---------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    found = passes(record).where(attention="flash")
    runs, plan = curve(found), planned()
    none, half = (found.one(strategy=name) for name in ("none", "half_blocks"))
    best, following = (runs.one(run=run) for run in (1, 2))
    kept = least(plan, "predicted_kept")
    plain = passes(record).one(strategy="attention", attention="eager")
    p = pass_of()
    n = p.shape.num_layers
    root, weighed = best_run_lengths(p)
    return {
        **texts(
            in_gib,
            {
                "none_peak": none["peak"],
                "half_peak": half["peak"],
                "best_peak": best["peak"],
                "best_predicted": plan.one(run=1)["predicted_peak"],
                "next_peak": following["peak"],
                "attention_peak": plain["peak"],
                "weights": weight_bytes(p),
                "copies": weight_copy_bytes(p),
            },
        ),
        **texts(
            in_mib,
            {
                "input": residual_bytes(p),
                "block": block_saved(p),
                "block_plain": block_saved(pass_of("eager")),
            },
        ),
        "kept_run": blocks(kept),
        "slower": say(best["step_ms"] / none["step_ms"], "{:.2f}"),
        "block_over_input": f"{block_saved(p) / residual_bytes(p):.0f}",
        "root": f"{root:.1f}",
        "weighed": f"{weighed:.1f}",
        "halving_passes": f"{forward_passes('halving', n):.0f}",
        "chain_passes": f"{forward_passes('chain', n):.1f}",
    }


def all_off(record: Record | None) -> list[float]:
    """How far each measured peak is from its prediction, as a share of it."""
    found = passes(record).where(size="2.7B")
    overs = found.column("peak_over") + found.column("kept_over")
    return [abs(over - 1) for over in overs]


@claim(
    "gradient_checkpointing",
    "Every measured peak is within a hundredth of its prediction, where no compiler "
    "decides what is kept.",
    because="the allocator rounds blocks up, which shapes don't tell.",
)
def peaks_as_predicted(record: Record) -> Judgement:
    found = known(all_off(record))
    return found and (
        max(found) < 0.01,
        f"Off by at most {100 * max(found):.2f} %, over {len(found)} peaks.",
    )


@claim(
    "gradient_checkpointing",
    "Where gradients are made on the way, no run of blocks needs less memory than one "
    "block by itself, with `flash` attention and with plain.",
)
def one_block_is_best(record: Record) -> Judgement:
    found = passes(record)
    flash = known(curve(found).column("peak"))
    runs = found.where(strategy="runs", attention="eager").arrange(run=RUNS)
    plain = known(runs.column("peak"))
    if len(flash) < 2 or len(plain) < 2:
        return None
    numbers = f"GiB: {', '.join(f'{v / GIB:.1f}' for v in [*flash, *plain])}."
    return flash[0] == min(flash) and plain[0] == min(plain), numbers
