"""Tables, figures and facts of `flash_benchmarking`: ours beside plain, compiled and
fused PyTorch, 80 shapes.
"""

from systems.formulas.costs import ATTENTION_PRODUCTS, attention_flops
from systems.records.record import Record, Row
from systems.records.summary import summarize
from tools.render.figures import INK, MARKERS, SERIES, canvas, plain_log_scale, svg_pair
from tools.render.markdown import (
    NOT_MEASURED,
    fact,
    figure,
    in_words,
    milliseconds,
    per_device,
    percent,
    status,
    table,
    tabs,
)
from tools.render.stems.flash_passes import passes_wait

NAMES = {
    "ours": "ours",
    "plain": "plain PyTorch",
    "compiled": "compiled PyTorch",
    "sdpa": "SDPA",
}
PASSES = ("forward", "backward", "both")
OTHERS = ("plain", "compiled", "sdpa")
DTYPES, HEAD_DIMENSIONS = ("bf16", "fp32"), (16, 32, 64, 128)
LENGTHS = tuple(2**power for power in range(7, 17))
# (dtype, d, N).
Shape = tuple[str, int, int]
# The shape of the figures.
FIGURE_D = 64


# What a row says ----------------------------------------------------------------------


def cell(record: Record, name: str, dtype: str, d: int, n: int) -> Row | None:
    return record.find(implementation=name, dtype=dtype, d=d, n=n)


def median_ms(row: Row | None, name: str) -> float | None:
    """Median of a pass; None where it was not measured."""
    return (
        summarize(row.metrics[f"{name}_ms"]).median
        if row is not None and row.status == "ok"
        else None
    )


def rate(row: Row | None, name: str) -> float | None:
    """FLOP/s of a pass by the FLOPs that attention needs."""
    time = median_ms(row, name)
    if row is None or time is None:
        return None
    return attention_flops(
        name, d=row.config["d"], batch=1, heads=1, n=row.config["n"], causal=True
    ) / (time / 1e3)


def ceiling(record: Record, dtype: str) -> float | None:
    """FLOP/s of the large matrix product in this dtype."""
    row = record.find(implementation="ceiling", dtype=dtype)
    if row is None or row.status != "ok":
        return None
    return (
        2
        * row.config["n"] ** 2
        * row.config["d"]
        / (summarize(row.metrics["product_ms"]).median / 1e3)
    )


def memory_bytes(row: Row | None) -> int | None:
    """Peak of forward and backward above what was held before: results, what is saved
    between, what is in passing.
    """
    if row is None or row.status != "ok":
        return None
    return row.metrics["peak_allocated_bytes"] - row.metrics["held_bytes"]


def gpu_ms(row: Row | None, name: str) -> float | None:
    """What the GPU needs for a pass, as nearly as these times tell: the fastest sample.

    Both passes need no more than one and then the other: a host makes nobody slower
    unless it is late for every call.
    """
    if row is None or row.status != "ok":
        return None
    forward, backward, both = (min(row.metrics[f"{of}_ms"]) for of in PASSES)
    return {
        "forward": forward,
        "backward": backward,
        "both": min(both, forward + backward),
    }[name]


def ratio(
    record: Record, over: str, name: str, dtype: str, d: int, n: int
) -> float | None:
    """`gpu_ms` of another implementation over ours: above one, ours is faster."""
    ours, theirs = (
        gpu_ms(cell(record, of, dtype, d, n), name) for of in ("ours", over)
    )
    return theirs / ours if ours and theirs else None


# Tables -------------------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    """The 80 shapes: ours and plain PyTorch; every implementation by pass; every
    statistic; and the figures.
    """
    figures: dict[str, str] = {}
    for record in records:
        figures |= rates_figure(record) | memory_figure(record)
    return {
        "table.md": per_device(records, latency_table),
        "passes.md": per_device(
            records,
            lambda r: tabs((name.capitalize(), pass_table(r, name)) for name in PASSES),
        ),
        "lost.md": per_device(records, lost_table),
        "figures.md": per_device(records, figures_body),
        "all.md": per_device(records, all_table),
        **figures,
    }


def shapes() -> list[Shape]:
    return [(dtype, d, n) for dtype in DTYPES for d in HEAD_DIMENSIONS for n in LENGTHS]


def latency_table(record: Record) -> str:
    """The table that the assignment asks for."""
    rows = []
    for shape in shapes():
        ours, plain = (cell(record, name, *shape) for name in ("ours", "plain"))
        times = [time_or_status(row, name) for row in (ours, plain) for name in PASSES]
        faster = ratio(record, "plain", "both", *shape)
        rows.append(
            [
                *map(str, shape),
                *times,
                f"{faster:.2f}" if faster else "",
                what_ran(ours),
            ]
        )
    header = ["dtype", "d", "N"]
    header += [f"{who}, {label}, ms" for who in ("ours", "plain") for label in PASSES]
    return table([*header, "plain / ours, both", "ours ran"], rows)


def pass_table(record: Record, name: str) -> str:
    """Every implementation in one pass, with the rate of ours and its share of the
    large product.
    """
    rows = []
    for shape in shapes():
        found = {of: cell(record, of, *shape) for of in NAMES}
        ours, peak = rate(found["ours"], name), ceiling(record, shape[0])
        ran = [what_ran(found[of]) for of in ("ours", "sdpa")]
        cells = [time_or_status(row, name) for row in found.values()]
        rates = [
            f"{ours / 1e12:.1f}" if ours else "",
            percent(ours / peak) if ours and peak else "",
        ]
        rows.append([*map(str, shape), *cells, *ran, *rates])
    header = ["dtype", "d", "N", *(f"{label}, ms" for label in NAMES.values())]
    return table(
        [*header, "ours ran", "SDPA ran", "ours, TFLOP/s", "ours, share of product"],
        rows,
    )


def what_ran(row: Row | None) -> str:
    """Which of our kernels, or of SDPA's: "triton", "hopper", "cudnn"."""
    return (
        row.metrics["ran"].removesuffix("_attention")
        if row is not None and row.status == "ok"
        else ""
    )


def time_or_status(row: Row | None, name: str) -> str:
    time = median_ms(row, name)
    return milliseconds(time) if time is not None else status(row)


def host_decides(row: Row | None) -> bool:
    """`passes_wait` of a row's passes; False where it was not measured."""
    return (
        row is not None
        and row.status == "ok"
        and passes_wait(*(median_ms(row, name) or 0.0 for name in PASSES))
    )


def ratios(record: Record, over: str, name: str) -> dict[Shape, float]:
    """Time of another implementation over ours at each shape that both could run."""
    return {
        shape: found
        for shape in shapes()
        if (found := ratio(record, over, name, *shape)) is not None
    }


def losses(found: dict[Shape, float]) -> list[Shape]:
    """The shapes where another implementation is faster than ours."""
    return [shape for shape, faster in found.items() if faster < 1]


def lost_table(record: Record) -> str:
    """How often, up to which length and by how much each of the others is faster than
    ours.
    """
    rows = []
    for over in OTHERS:
        for name in PASSES:
            cells = []
            for dtype in DTYPES:
                found = {
                    shape: of
                    for shape, of in ratios(record, over, name).items()
                    if shape[0] == dtype
                }
                lost = [n for _, _, n in losses(found)]
                cells += [
                    f"{len(lost)} of {len(found)}",
                    str(max(lost)) if lost else "none",
                ]
                cells += [f"{min(found.values()):.2f}" if found else ""]
            rows.append([NAMES[over].replace(" ", "\N{NO-BREAK SPACE}"), name, *cells])
    header = ["beside", "pass"]
    for dtype in DTYPES:
        header += [f"{dtype}: ours slower at", "longest such N", "least theirs / ours"]
    return table(header, rows, left=2)


def all_table(record: Record) -> str:
    """Every row: median, p20 and p80 of each pass, the rate of both, and memory."""
    rows = []
    for row in record.rows:
        c = row.config
        if c["implementation"] == "ceiling":
            continue
        name = [NAMES[c["implementation"]], c["dtype"], str(c["d"]), str(c["n"])]
        if row.status != "ok":
            rows.append([*name, status(row), *[""] * 10])
            continue
        found = [summarize(row.metrics[f"{of}_ms"]) for of in PASSES]
        times = [
            milliseconds(value) for s in found for value in (s.median, s.p20, s.p80)
        ]
        flops, memory = rate(row, "both"), memory_bytes(row)
        assert flops is not None and memory is not None
        rows.append([*name, *times, f"{flops / 1e12:.1f}", f"{memory / 2**20:,.1f}"])
    header = ["implementation", "dtype", "d", "N"]
    header += [text for name in PASSES for text in (f"{name}, ms", "p20", "p80")]
    return table([*header, "TFLOP/s, both", "memory, MiB"], rows, left=2)


# Figures ------------------------------------------------------------------------------


def figures_body(record: Record) -> str:
    rates = figure(
        f"flash_benchmarking-rates-{record.device.slug}",
        rates_alt(record),
        f"Rate of forward and backward together at head dimension {FIGURE_D}, by the FLOPs that attention needs. "
        "Dashed: the large matrix product of that dtype.",
    )
    memory = figure(
        f"flash_benchmarking-memory-{record.device.slug}",
        memory_alt(record),
        f"Peak memory of forward and backward above their inputs, bf16, head dimension {FIGURE_D}. Both axes are "
        "logarithmic: a line twice as steep grows with the square.",
    )
    return f"{rates}\n\n{memory}"


def rates_alt(record: Record) -> str:
    said = []
    for dtype in DTYPES:
        best = {
            of: rate(cell(record, of, dtype, FIGURE_D, LENGTHS[-1]), "both")
            for of in NAMES
        }
        parts = [
            f"{NAMES[of]} {value / 1e12:.0f}" for of, value in best.items() if value
        ]
        said.append(f"in {dtype} {', '.join(parts) or 'nothing was measured'}")
    return f"At {LENGTHS[-1]} tokens, in TFLOP/s: {'; '.join(said)}."


def series(record: Record, name: str, dtype: str, value) -> list[tuple[int, float]]:
    """(length, value of the row) where it was measured."""
    found = [(n, value(cell(record, name, dtype, FIGURE_D, n))) for n in LENGTHS]
    return [(n, y) for n, y in found if y is not None]


def rates_figure(record: Record) -> dict[str, str]:
    with canvas(width=7.2, height=4.2) as fig:
        for axes, dtype in zip(fig.subplots(1, 2), DTYPES, strict=True):
            for (of, label), color, marker in zip(
                NAMES.items(), SERIES, MARKERS, strict=False
            ):
                points = series(record, of, dtype, lambda row: rate(row, "both"))
                if points:
                    axes.plot(*zip(*((n, y / 1e12) for n, y in points), strict=True), marker, ls="-", color=color,
                              label=label if dtype == DTYPES[0] else None)  # fmt: skip
            if peak := ceiling(record, dtype):
                axes.axhline(peak / 1e12, color=INK, linestyle="--", linewidth=1.2)
            length_axis(axes)
            plain_log_scale(axes.yaxis)
            axes.set_title(dtype, fontsize=11)
            axes.set_ylabel("TFLOP/s" if dtype == DTYPES[0] else "")
        fig.legend(
            loc="outside upper center", ncols=4, columnspacing=1.0, handlelength=1.6
        )
        return svg_pair(f"rates-{record.device.slug}", fig)


def memory_alt(record: Record) -> str:
    n = LENGTHS[-1]
    found = {
        of: memory_bytes(cell(record, of, "bf16", FIGURE_D, n))
        for of in ("ours", "plain")
    }
    parts = [
        f"{NAMES[of]} {value / 2**20:,.0f} MiB" for of, value in found.items() if value
    ]
    return f"Peak memory above the inputs at {n} tokens: {', '.join(parts) or 'not measured'}."


def memory_figure(record: Record) -> dict[str, str]:
    with canvas(height=4.2) as fig:
        axes = fig.subplots()
        for (of, label), color, marker in zip(
            NAMES.items(), SERIES, MARKERS, strict=False
        ):
            points = series(record, of, "bf16", memory_bytes)
            if points:
                # Ours and SDPA can need the same to the byte: dashes over a line let
                # both show.
                dash = "--" if of == "sdpa" else "-"
                mib = [(n, y / 2**20) for n, y in points]
                axes.plot(
                    *zip(*mib, strict=True),
                    dash,
                    marker=marker,
                    color=color,
                    label=label,
                )
        length_axis(axes)
        plain_log_scale(axes.yaxis, subs=(1,))
        axes.set_ylabel("memory, MiB")
        fig.legend(
            loc="outside upper center", ncols=2, columnspacing=1.0, handlelength=1.6
        )
        return svg_pair(f"memory-{record.device.slug}", fig)


def length_axis(axes) -> None:
    axes.set_xscale("log", base=2)
    ticks = LENGTHS[1::2]
    axes.set_xticks(ticks, [str(n) if n < 1024 else f"{n // 1024}k" for n in ticks])
    axes.set_xlabel("sequence length N")


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """How much faster than plain PyTorch, the rates reached, memory, and where ours
    loses.
    """
    found: dict[str, str] = {}
    for dtype in DTYPES:
        for n in (1024, 16384, 65536):
            plain = cell(record, "plain", dtype, FIGURE_D, n) if record else None
            faster = (
                ratio(record, "plain", "both", dtype, FIGURE_D, n) if record else None
            )
            found[f"faster_{dtype}_{n}"] = in_words(
                plain, fact(faster, "{:.1f}".format)
            )
        best = best_rate(record, dtype) if record else None
        peak = ceiling(record, dtype) if record else None
        found[f"best_{dtype}"] = fact(best, lambda r: f"{r / 1e12:.0f} TFLOP/s")
        found[f"best_share_{dtype}"] = fact(
            best / peak if best and peak else None, percent
        )
        found[f"product_{dtype}"] = fact(peak, lambda r: f"{r / 1e12:.0f} TFLOP/s")
    for over in OTHERS:
        compared = (
            {name: ratios(record, over, name) for name in PASSES} if record else {}
        )
        for name in PASSES:
            found[f"slower_than_{over}_{name}"] = fact(
                len(losses(compared[name])) if record else None, str
            )
        found[f"compared_{over}"] = fact(len(compared["both"]) if record else None, str)
    for name in NAMES:
        found[f"host_decides_{name}"] = (
            where_the_host_decides(record, name) if record else NOT_MEASURED
        )
    for name in ("ours", "sdpa"):
        for n in (128, 1024):
            time = (
                median_ms(cell(record, name, "bf16", FIGURE_D, n), "both")
                if record
                else None
            )
            found[f"both_{name}_{n}"] = fact(time, lambda t: f"{milliseconds(t)} ms")
    for name, dtype in (
        ("ours", "bf16"),
        ("plain", "bf16"),
        ("ours", "fp32"),
        ("sdpa", "fp32"),
    ):
        row = cell(record, name, dtype, FIGURE_D, 65536) if record else None
        found[f"memory_{name}_{dtype}"] = in_words(
            row, fact(memory_bytes(row), lambda b: f"{b / 2**20:,.0f} MiB")
        )
    short, longer = (
        median_ms(cell(record, "ours", "bf16", FIGURE_D, n), "forward")
        if record
        else None
        for n in (128, 1024)
    )
    return found | {
        "growth_128_1024": fact(
            longer / short if short and longer else None, "{:.1f}".format
        ),
        "out_of_memory": fact(plain_out_of_memory(record) if record else None, str),
    }


def where_the_host_decides(record: Record, name: str) -> str:
    """For a sentence: at how many shapes of an implementation, and up to which length."""
    lengths = [
        shape[2] for shape in shapes() if host_decides(cell(record, name, *shape))
    ]
    if not lengths:
        return "no shape"
    return f"{len(lengths)} shape{'s' * (len(lengths) > 1)} (N up to {max(lengths)})"


def best_rate(record: Record, dtype: str) -> float | None:
    """The highest rate of ours over all shapes and passes."""
    rows = (cell(record, "ours", *shape) for shape in shapes() if shape[0] == dtype)
    return max(
        (r for row in rows for name in ATTENTION_PRODUCTS if (r := rate(row, name))),
        default=None,
    )


def plain_out_of_memory(record: Record) -> int:
    """Shapes that plain PyTorch has no memory for."""
    rows = (cell(record, "plain", *shape) for shape in shapes())
    return sum(row is not None and row.status == "out_of_memory" for row in rows)
