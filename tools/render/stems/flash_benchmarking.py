"""Tables, figures, facts and claims of `flash_benchmarking`: time and memory."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from systems.formulas.costs import Peak, attention_flops
from systems.records.record import Record
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.fragments import Drawn, Fragments
from tools.render.frame import Frame, Line, frame
from tools.render.load import primary_gpu
from tools.render.markdown import format_mib, format_ms, percent, prose_number
from tools.render.plots import ACCENT, GREY
from tools.render.rows import MISSING, count_true, dropna, fmt, nanmin, peak_rates, span
from tools.render.stems.flash_passes import PASSES, peak_tflops, tflops, time_ratio

NAMES = {
    "ours": "flash",
    "plain": "plain PyTorch",
    "compiled": "compiled PyTorch",
    "sdpa": "SDPA",
}
OTHERS = ("plain", "compiled", "sdpa")
DTYPES = ("bf16", "fp32")
# The head dimension and the longest sequence in figures and sentences.
D, LONGEST = 64, 65536
SHOWN_LENGTHS = (128, 1024, 16384, LONGEST)
MIB = 2**20
# Number of bf16 matmuls that replace an fp32 matmul on tensor cores.
LIMB_PRODUCTS = 6
# How many bf16 numbers plain attention must read or write per score, by operation; a
# boolean counts as half a number.
PLAIN_MOVES = {
    # Terms: matmul with K, division, make mask, apply mask, softmax, matmul with V.
    "forward": 1 + 2 + 0.5 + 2.5 + 2 + 1,
    # Terms: matmuls for dV, for dP, softmax, mask, division, matmuls for dQ and dK.
    "backward": 1 + 1 + 3 + 2.5 + 2 + 2,
}
PLAIN_BYTES = 2 * LONGEST**2 * sum(PLAIN_MOVES.values())
FLASH_FLOPS = attention_flops("both", d=D, batch=1, heads=1, n=LONGEST, causal=True)
# bf16 numbers per score at the memory peak: four score matrices and the mask.
PLAIN_HOLDS = 4.5
fragments = Fragments()


def shapes(record: Record | None) -> Frame:
    """Return a row per shape: each implementation's row, baselines' GPU time over ours
    (`both / sdpa`), plain's do_bench time over ours, our TFLOP/s and share of the peak.
    """
    rows = frame(record, implementation=tuple(NAMES)).derive(
        # What forward and backward allocate at the peak; Missing on a CPU.
        mib=lambda x: (x.get("peak_allocated_bytes") - x.get("held_bytes")) / MIB,
        **{f"{of}_kernel": lambda x, of=of: x.kernel_ms(of) for of in PASSES},
    )
    return rows.pivot("implementation", *NAMES).derive(
        **{
            f"{of} / {name}": lambda x, of=of, n=name: time_ratio(x[n], x["ours"], of)
            for of in PASSES
            for name in OTHERS
        },
        **{
            f"{of}, do_bench": lambda x, of=of: x["plain"].ms(of) / x["ours"].ms(of)
            for of in PASSES
        },
        rate=lambda x: tflops(x["ours"], "both"),
        share=lambda x: x["rate"] / peak_tflops(record, x["dtype"]),
    )


@fragments.add(
    "lengths.md",
    "**Time and share of the peak at each length:** GPU time of forward + backward of "
    "one head, head dimension 64; the peak is the data sheet's for that dtype.",
)
def lengths_table(record: Record) -> str:
    times = [
        (f"{label}, ms", f"{name}.both_kernel", format_ms)
        for name, label in NAMES.items()
    ]
    found = shapes(record).where(d=D, n=SHOWN_LENGTHS)
    return found.table(
        "dtype",
        ("N", "n"),
        *times,
        ("plain / flash", "both / plain", "{:.1f}"),
        ("flash, TFLOP/s", "rate", "{:.1f}"),
        ("share of peak", "share", lambda x: percent(x) if x >= 5e-4 else "< 0.1 %"),
    )


@fragments.add(
    "table.md",
    "FlashAttention and plain PyTorch at every shape, in ms: forward (fwd), backward "
    "(bwd) and both, without a loss. Columns *flash* and *plain* are medians by "
    "`do_bench` (of 100 ms of calls, or of one longer call). They include launch "
    "overhead, which varies and dominates short passes. Columns *GPU* are medians of "
    "GPU time (without a GPU, of wall-clock time); *plain / flash* are ratios of GPU "
    "times, medians over rounds.",
)
def latency_table(record: Record) -> str:
    short = {"forward": "fwd", "backward": "bwd", "both": "both"}
    times = [
        (f"{label}{clock}, {short[of]}", f"{name}.{of}_{metric}", format_ms)
        for clock, metric in (("", "ms"), (" GPU", "kernel"))
        for name, label in (("ours", "flash"), ("plain", "plain"))
        for of in PASSES
    ]
    ratios = [(f"plain / flash, {short[p]}", f"{p} / plain", "{:.2f}") for p in PASSES]
    kernel = ("kernel", lambda x: x["ours"].get("ran", "").removesuffix("_attention"))
    return shapes(record).table(
        *("dtype", "d", ("N", "n"), *times, *ratios, kernel),
        shown_first=lambda x: x["d"] == D and x["n"] in SHOWN_LENGTHS,
    )


@fragments.add(
    "lost.md",
    "**Number of shapes where FlashAttention takes more GPU time** than a baseline. "
    "The last column divides the baseline's time by FlashAttention's.",
)
def slower_shapes_table(record: Record) -> str:
    found = shapes(record)
    lines = Frame(
        Line({p: dropna(found.column(f"{p} / {name}")) for p in PASSES}, beside=label)
        for name, label in NAMES.items()
        if name in OTHERS
    )
    return lines.where(lambda x: any(x[of] for of in PASSES)).table(
        ("baseline", "beside"),
        *(
            (
                of.replace("both", "forward + backward"),
                lambda x, of=of: count_true(r < 1 for r in x[of]),
            )
            for of in PASSES
        ),
        ("least ratio, forward + backward", lambda x: nanmin(x["both"]), prose_number),
    )


def draw_curves(axes: Axes, found: Frame, y: Any, **dashes: str) -> None:
    """Draw `y(row)` of each implementation by N; `dashes` are line styles by name."""
    for name, label in reversed(NAMES.items()):
        look = {"color": ACCENT if name == "ours" else GREY, "label": label}
        ys = [y(x[name]) for x in found]
        plots.curve(axes, found.column("n"), ys, ls=dashes.get(name, "-"), **look)
    plots.set_log2_axis(axes.xaxis, found.column("n")[1::4], "sequence length N")


@fragments.figure("rates.md", "rates", height=300, narrow=560)
def throughput_figure(record: Record) -> Drawn:
    found = shapes(record).where(d=D)
    if not found:
        return None

    def draw(figure: Figure) -> None:
        for axes, dtype in zip(plots.panels(figure, 2), DTYPES, strict=True):
            draw_curves(axes, found.where(dtype=dtype), lambda x: tflops(x, "both"))
            axes.set_ylim(bottom=0)
            peak = fmt(peak_tflops(record, dtype), "; the data sheet's peak is {:.0f}")
            axes.set_title(f"{dtype}, TFLOP/s{peak}")

    lengths = found.where(dtype="bf16").column("n")
    longest = found.one(dtype="bf16", n=max(lengths, default=0))
    plain = tflops(longest["plain"], "both") / peak_tflops(record, "bf16")
    return (
        draw,
        f"At {fmt(longest['n'], '{:,}')} tokens in bf16 FlashAttention runs at "
        f"{fmt(longest['share'], percent)} of the data sheet's peak, plain PyTorch at "
        f"{fmt(plain, percent)}.",
        f"Forward and backward of one causal head, head dimension {D}, by GPU time. "
        f"FlashAttention forms each fp32 matmul from {LIMB_PRODUCTS} bf16 matmuls on "
        "tensor cores, so it can exceed the fp32 peak.",
    )


@fragments.figure("memory.md", "memory", height=280)
def memory_figure(record: Record) -> Drawn:
    found = shapes(record).where(d=D, dtype="bf16")

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        # Dash FlashAttention's line, so that SDPA's equal line shows below it.
        draw_curves(axes, found, lambda x: x["mib"], ours="--")
        plots.set_log_scale(axes.yaxis, subs=(1,))
        axes.set_title("memory above the inputs, MiB")

    longest = found.one(n=max(found.column("n"), default=0))
    ours, plain = (fmt(longest[f"{n}.mib"], "{:,.0f} MiB") for n in ("ours", "plain"))
    return (
        draw,
        f"FlashAttention needs {ours} for {fmt(longest['n'], '{:,}')} tokens, "
        f"plain PyTorch {plain}.",
        f"Peak memory above the inputs, bf16, head dimension {D}. Both axes are "
        "logarithmic: steep lines grow as N². The dashed line may hide SDPA's.",
    )


def facts(record: Record | None) -> dict[str, str]:
    found = shapes(record)
    bf16 = found.where(dtype="bf16", d=D)
    short, middle, longest = (bf16.one(n=n) for n in (128, 1024, LONGEST))
    growth = middle["ours.forward_kernel"] / short["ours.forward_kernel"]
    limb_peak = peak_tflops(record, "bf16") / LIMB_PRODUCTS
    parts = [(dtype, found.where(dtype=dtype), "both") for dtype in DTYPES]
    parts += [(of, found, of) for of in PASSES[:2]]
    hopper = found.where(lambda x: x["ours"].get("ran") == "hopper")
    lengths, heads = (span(hopper.column(name), "{:,}") for name in ("n", "d"))
    ran = f"in bf16 at {lengths} tokens, head dimension {heads}"
    won = dropna(x["sdpa"].ms("both") < x["ours"].ms("both") for x in found)
    return {
        **prediction_facts(longest),
        **{
            f"{name}_{key}": span(rows.column(column.format(of)), "{:.5f}")
            for name, column in (("faster", "{} / plain"), ("do_bench", "{}, do_bench"))
            for key, rows, of in parts
        },
        "faster_bf16_1024": fmt(middle["both / plain"], "{:.5f}"),
        "faster_bf16_16384": fmt(bf16.one(n=16384)["both / plain"], "{:.5f}"),
        "faster_bf16_65536": fmt(longest["both / plain"], "{:.5f}"),
        "faster_sdpa_65536": fmt(longest["both / sdpa"], "{:.5f}"),
        "hopper_ran": ran if hopper else "nowhere" if won else fmt(MISSING),
        "sdpa_wins_do_bench": fmt(count_true(won)),
        "growth_128_1024": fmt(growth, "{:.5f}"),
        "memory_ours_bf16": format_mib(longest["ours.mib"] * MIB),
        "memory_plain_bf16": format_mib(longest["plain.mib"] * MIB),
        "limb_peak": fmt(limb_peak, "{:.0f} TFLOP/s"),
    }


def head_bounds_ms(peak: Peak) -> tuple[float, float]:
    """Return lower bounds in ms on forward + backward of a bf16 head of length LONGEST:
    of plain attention from its HBM traffic, of FlashAttention from matmul FLOPs.
    """
    return 1e3 * PLAIN_BYTES / peak.bandwidth, 1e3 * FLASH_FLOPS / peak.bf16


def prediction_facts(longest: Line) -> dict[str, str]:
    """Return {name: number as text} on plain attention and ours for one bf16 head of
    LONGEST tokens: bytes, FLOPs, memory, and GPU time, predicted and measured.
    """
    plain_ms, ours_ms = head_bounds_ms(peak_rates(primary_gpu()))
    scores, returned = LONGEST**2, 4 * LONGEST * D * 2
    return {
        "moves_forward": f"{PLAIN_MOVES['forward']:g}",
        "moves_backward": f"{PLAIN_MOVES['backward']:g}".replace(".5", "½"),
        "plain_moved": f"{PLAIN_BYTES / 1e9:.0f} GB",
        "ours_flops": f"{FLASH_FLOPS / 1e12:.2f} TFLOP",
        "plain_predicted": fmt(plain_ms, "{:.3g} ms"),
        "plain_took": fmt(longest["plain.both_kernel"], "{:.3g} ms"),
        "ours_predicted": fmt(ours_ms, "{:.3g} ms"),
        "ours_took": fmt(longest["ours.both_kernel"], "{:.3g} ms"),
        "faster_predicted": fmt(plain_ms / ours_ms, "{:.0f}"),
        "score_matrix": format_mib(2 * scores),
        "memory_plain_predicted": format_mib(2 * PLAIN_HOLDS * scores),
        "memory_ours_predicted": format_mib(returned + 12 * LONGEST),
        "memory_sums": format_mib(4 * LONGEST * D),
    }


@claim(
    "flash_benchmarking",
    "FlashAttention takes no more GPU time than plain PyTorch in any pass, at any "
    "length, dtype and head dimension.",
)
def fused_keeps_up(record: Record) -> Judgement:
    found = dropna(r for of in PASSES for r in shapes(record).column(f"{of} / plain"))
    numbers = f"In {len(found)} pairs, plain PyTorch takes {span(found)} times as long."
    return found and (min(found) >= 1, numbers)


@claim(
    "flash_benchmarking",
    "FlashAttention holds no memory that grows with N². At 65,536 tokens in bf16, "
    "forward and backward need at most 5 % more than their results, dQ's sums in fp32 "
    "and three fp32 numbers for each row together, at every head dimension.",
    because="the allocator rounds each block up.",
)
def fused_memory_is_linear(record: Record) -> Judgement:
    def linear_mib(x: Line) -> float:
        returned, sums, of_rows = 4 * 2 * x["d"], 4 * x["d"], 3 * 4
        return LONGEST * (returned + sums + of_rows) / MIB

    every = shapes(record).where(dtype="bf16", n=LONGEST)
    found = dropna(x["ours.mib"] / linear_mib(x) for x in every)
    return found and (max(found) <= 1.05, f"Ratios to that sum: {span(found)}.")
