"""Tables, figure, facts and claims of `flash_peers`: attention by library."""

from functools import partial

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.fragments import Drawn, Fragments
from tools.render.frame import Frame, Line, frame
from tools.render.load import read_constant
from tools.render.markdown import device_tabs, items_table, percent
from tools.render.plots import ACCENT, DARK, GREY, INK, PALE
from tools.render.rows import Missing, count_true, dropna, fmt, nanmax, span
from tools.render.stems.flash_passes import PASSES, peak_tflops, tflops, time_ratio

NAMES = {
    "ours": "this guide",
    "ours_triton": "this guide, any GPU",
    "ours_high": 'this guide, "high"',
    "fa4": "FlashAttention-4",
    "fa4_ordered": "FlashAttention-4, deterministic",
    "sdpa_fa4": "SDPA, FlashAttention-4",
    "sdpa_fa4_ordered": "SDPA, FlashAttention-4, deterministic",
    "sdpa_cudnn": "cuDNN",
    "sdpa_flash": "FlashAttention-2",
    "sdpa_flash_ordered": "FlashAttention-2, deterministic",
    "sdpa_efficient": "memory-efficient",
    "flex": "FlexAttention",
}
RESULTS: tuple[str, ...] = read_constant("flash_peers", "RESULTS")
# A result is wrong, not just rounded, if its relative error exceeds this.
WRONG = 0.1
RIVAL = {"bf16": "sdpa_cudnn", "fp32": "sdpa_efficient"}
# A length at which calls are launch-bound.
SHORT = 128
# The shape of the leaderboard's test.
TEST = {"batch": 1, "heads": 16, "n": 16384, "d": 64, "causal": True, "dtype": "bf16"}
CALLS = read_constant("flash_peers", "CALLS_COMPARED") + 1
# Colour and marker of each line of the figure.
LINE_STYLES = {
    "fa4": (INK, "o"),
    "fa4_ordered": (DARK, "^"),
    "sdpa_cudnn": (GREY, "D"),
    "sdpa_flash": (PALE, "v"),
    "ours": (ACCENT, "s"),
}
KEY = "●\u00a0FA4, ▲ deterministic FA4, ◆\u00a0cuDNN, ▼\u00a0FA2, ■\u00a0this guide"
PANELS = ((64, True), (128, True), (128, False))
fragments = Fragments()


def shapes(record: Record | None, dtype: str = "bf16") -> Frame:
    """Return `shape_rows` of a dtype with n > SHORT and layout (batch, heads, n, d)."""
    found = shape_rows(record).where(dtype=dtype)
    return found.where(lambda x: x["n"] > SHORT, layout="bhnd")


def shape_rows(record: Record | None) -> Frame:
    """Return a row per shape that holds each library's row, our TFLOP/s, and our GPU
    time over each library's by pass ("both / fa4"; below 1, ours is faster).
    """
    found = frame(record).pivot("implementation", *NAMES)
    return found.derive(
        shape=shape_text,
        tflops=lambda x: tflops(x["ours"], "both"),
        peak=lambda x: x["tflops"] / peak_tflops(record, x["dtype"]),
        **{
            f"{of} / {name}": partial(relative_time, of=of, name=name)
            for of in PASSES
            for name in NAMES
        },
    )


def relative_time(x: Line, of: str, name: str, whose: str = "ours") -> float:
    """Return the GPU time of library `whose` over that of library `name` in pass `of`;
    Missing if the results of `name` are wrong.
    """
    own, other = x[whose], x[name]
    if largest_error(other, *RESULTS[: 1 if of == "forward" else None]) > WRONG:
        return Missing("wrong gradient")
    return time_ratio(own, other, of)


def largest_error(x: Line, *results: str) -> float:
    """Return the largest relative error of row `x` in these results, such as "dq"."""
    return nanmax(x.get(f"{of}_relative_error") for of in results)


def error_ratio(x: Line) -> float:
    """Return our relative error over RIVAL's at one shape: the largest over RESULTS."""
    rival = x[RIVAL[x["dtype"]]]
    return nanmax(
        largest_error(x["ours"], of) / (largest_error(rival, of) or Missing())
        for of in RESULTS
    )


def shape_text(x: Line) -> str:
    """Return a shape in words, such as "8k · d 128 · full · 2 × 64/8 heads"."""
    batch, heads, n, d = (x[key] for key in ("batch", "heads", "n", "d"))
    tokens = f"{n // 1024}k" if n % 1024 == 0 else f"{n:,}"
    mask = "causal" if x["causal"] else "full"
    of_keys = f"/{heads // x['group']}" if x["group"] > 1 else ""
    batches = f"{batch} × " if batch > 1 else ""
    every = f"{batches}{heads}{of_keys} head{'s' if heads > 1 else ''}"
    parts = [tokens, f"d {d}", mask, every]
    # A table cell may break between two parts, but not inside one.
    return " · ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in parts)


@fragments.add(
    "table.md",
    "**This guide's attention at each shape:** throughput of forward + backward, share "
    "of the data sheet's peak, and GPU time divided by each library's (below 1: "
    "faster).",
)
def shapes_table(record: Record) -> str:
    over = {"FA4": "fa4", "FA4, deterministic": "fa4_ordered", "cuDNN": "sdpa_cudnn"}
    return shapes(record).table(
        ("tokens · d · mask · batch × heads", "shape"),
        ("TFLOP/s", "tflops", "{:.0f}"),
        ("share of peak", "peak", percent),
        *((head, f"both / {name}", "{:.2f}") for head, name in over.items()),
        ("FA2", "both / sdpa_flash", "{:.2f}"),
        ("FA4, forward", "forward / fa4", "{:.2f}"),
        shown_first=lambda x: (
            x["batch"] == 1 or x["n"] <= 1024 or (x["d"], x["causal"]) == (128, False)
        ),
    )


@fragments.add("repeats.md", f"**Determinism:** bitwise comparison of {CALLS} calls.")
def determinism_table(record: Record) -> str:
    compared = frame(record).where(lambda x: "repeats" in x.metrics)
    found = ((name, compared.where(implementation=name)) for name in NAMES)

    def varying_results(rows: Frame) -> str:
        return ", ".join(of for of in RESULTS if any(of in x["varies"] for x in rows))

    return items_table(
        [(NAMES[name], rows) for name, rows in found if rows],
        ("implementation", lambda x: x[0]),
        ("deterministic at shapes", lambda x: count_true(x[1].column("repeats"))),
        ("results that vary", lambda x: varying_results(x[1])),
    )


@fragments.add_file(
    "published.md",
    "**TFLOP/s at NVIDIA's shape, measured here and by NVIDIA:** 64 query heads, 8 key "
    "heads, 8,192 tokens, causal. NVIDIA and we sum kernel times; here the L2 cache is "
    "emptied before each pass. NVIDIA ran a newer cuDNN, at an unknown clock rate.",
)
def published_file(records: list[Record]) -> str:
    reported = {r.device.slug: r for r in records if r.kind == "reported"}
    return device_tabs(
        [record for record in records if record.kind == "measured"],
        lambda r: published_table(r, reported.get(f"reported-{r.device.slug}")),
    )


def published_table(record: Record, reported: Record | None) -> str:
    """Return a table of TFLOP/s, measured here and reported by NVIDIA for this GPU."""
    if reported is None:
        return ""
    names = ("ours", "fa4", "fa4_ordered", "sdpa_cudnn")
    found = frame(record, layout="bnhd", implementation=names)
    found.join("theirs", frame(reported), on=("implementation", "n", "causal"))
    return found.table(
        ("implementation", lambda x: NAMES[x["implementation"]]),
        *(
            (f"{of}{whose}", value, "{:.0f}")
            for of in PASSES[:2]
            for whose, value in (
                ("", lambda x, of=of: tflops(x, of)),
                (", NVIDIA", lambda x, of=of: x["theirs"].get(f"{of}_tflops")),
            )
        ),
    )


@fragments.figure("figure.md", "throughput", height=300, narrow=640)
def throughput_figure(record: Record) -> Drawn | None:
    found = shapes(record).where(group=1)

    def draw(figure: Figure) -> None:
        every = plots.panels(figure, len(PANELS), sharey=True)
        for axes, (d, causal) in zip(every, PANELS, strict=True):
            part = Frame(sorted(found.where(d=d, causal=causal), key=lambda x: x["n"]))
            for name, (color, marker) in LINE_STYLES.items():
                rates = [tflops(x[name], "both") for x in part]
                look = {"color": color, "marker": marker, "ms": 6}
                plots.curve(axes, part.column("n"), rates, **look)
            plots.set_log2_axis(axes.xaxis, sorted({*part.column("n")}), "tokens")
            axes.set_title(f"d {d}, {'causal' if causal else 'no mask'}: TFLOP/s")
        # Set the limit after drawing: it stops matplotlib from scaling the axis.
        every[0].set_ylim(bottom=0)

    over = {"FlashAttention-4's": "fa4", "cuDNN's": "sdpa_cudnn"}
    drawn = found.where(lambda x: (x["d"], x["causal"]) in PANELS)
    ratios = {whose: drawn.column(f"both / {n}") for whose, n in over.items()}
    ranges = [f"{span(r)} of {x} time" for x, r in ratios.items() if dropna(r)]
    if not ranges:
        return None
    return (
        draw,
        f"At the plotted shapes this guide's attention takes {' and '.join(ranges)}.",
        f"Forward + backward in bf16. {KEY}. The table has more shapes, and batch "
        "and heads of each length.",
    )


def facts(record: Record | None) -> dict[str, str]:
    found = shapes(record)
    short = frame(record, n=SHORT, dtype="bf16")
    wide = frame(record, implementation="fa4", dtype="bf16").one(d=80)
    calls = [short.one(implementation=x).get("call_ms") for x in ("ours", "sdpa_cudnn")]
    over = {
        "bf16_both": found.column("both / sdpa_cudnn"),
        "fa4_both": found.column("both / fa4"),
        "ordered_both": found.column("both / fa4_ordered"),
    }

    def ratio_range(whose: str, name: str, **wanted: int) -> str:
        rows = found.where(**wanted)
        return span((relative_time(x, "both", name, whose) for x in rows), "{:.5f}")

    return {
        **{name: span(values, "{:.5f}") for name, values in over.items()},
        **{
            f"{name}_lost": fmt(count_true(value > 1 for value in dropna(values)))
            for name, values in over.items()
        },
        "triton_64": ratio_range("ours_triton", "sdpa_cudnn", d=64),
        "triton_128": ratio_range("ours_triton", "sdpa_cudnn", d=128),
        "over_flash": span(found.column("both / sdpa_flash"), "{:.5f}"),
        "fp32_both": span(shapes(record, "fp32").column("both / sdpa_efficient")),
        "order_costs_fa4": ratio_range("fa4_ordered", "fa4"),
        "shapes": fmt(len(found) or Missing()),
        "error_over_rival_most": fmt(nanmax(map(error_ratio, found)), "{:.5f}"),
        "short_over_cudnn": fmt(calls[0] / calls[1], "{:.5f}"),
        "fa4_error_80": fmt(largest_error(wide, *RESULTS), "{:.2g}"),
    }


def judge_faster(record: Record, name: str) -> Judgement:
    found = dropna(shape_rows(record).where(dtype="bf16").column(f"both / {name}"))
    slower = count_true(value > 1 for value in found)
    numbers = f"Our time / its time: {span(found)}; longer at {slower} shapes."
    return found and (max(found) < 1, numbers)


@claim(
    "flash_benchmarking",
    "In forward + backward, this guide's attention is faster than FlashAttention-4's "
    "deterministic mode at every bf16 shape, even outside the table.",
)
def deterministic_mode_is_beaten(record: Record) -> Judgement:
    return judge_faster(record, "fa4_ordered")


@claim(
    "flash_benchmarking",
    "In forward + backward, this guide's attention beats cuDNN at every bf16 shape, "
    "even outside the table.",
)
def cudnn_is_beaten(record: Record) -> Judgement:
    return judge_faster(record, "sdpa_cudnn")
