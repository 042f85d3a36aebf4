"""Tables, figure and facts of `flash_peers`: ours beside each library at each shape,
ratios of rows that were measured in turns.
"""

from typing import Any

from systems.formulas.costs import attention_flops
from systems.records.record import Record, Row
from systems.records.summary import summarize
from tools.render.figures import INK, SERIES, canvas, legend_above, svg_pair
from tools.render.markdown import fact, figure, milliseconds, per_device, status, table
from tools.render.stems.flash_passes import passes_wait

NAMES = {
    "ours": "ours",
    "ours_high": 'ours, "high"',
    "ours_triton": "ours, plain Triton",
    "sdpa_cudnn": "cuDNN",
    "sdpa_flash": "FlashAttention-2",
    "sdpa_efficient": "memory-efficient",
    "flex": "FlexAttention",
}
PASSES = ("forward", "backward", "both")
RESULTS = ("o", "dq", "dk", "dv")
SHAPE = ("batch", "heads", "n", "d")
# Against whom each dtype is measured.
RIVAL = {"bf16": "sdpa_cudnn", "fp32": "sdpa_efficient"}
# Of the row whose calls are so short that the host decides.
SHORT = 128
# What the leaderboard's test computes.
TEST = {"batch": 1, "heads": 16, "n": 16384, "d": 64, "causal": True, "dtype": "bf16"}


# The rows of one shape by implementation: they were measured in turns.
Shape = dict[str, Row]


# What a shape says --------------------------------------------------------------------


def shapes(record: Record, **wanted: Any) -> list[Shape]:
    """The shapes whose configurations have these values, in order."""
    found: dict[tuple[Any, ...], Shape] = {}
    for row in record.rows:
        if wanted.items() <= row.config.items():
            key = tuple(row.config[name] for name in (*SHAPE, "causal", "dtype"))
            found.setdefault(key, {})[row.config["implementation"]] = row
    return list(found.values())


def config(shape: Shape) -> dict[str, Any]:
    """What all of its rows have in common, and one's implementation."""
    return next(iter(shape.values())).config


def metric(shape: Shape | None, name: str, key: str) -> Any:
    """A metric of an implementation; None where it has none."""
    row = (shape or {}).get(name)
    return row.metrics.get(key) if row is not None else None


def median_ms(shape: Shape | None, name: str, of: str) -> float | None:
    """Median of a pass over all rounds; None where the implementation did not run."""
    samples = metric(shape, name, f"{of}_ms")
    return summarize(samples).median if samples else None


def ratio(shape: Shape | None, over: str, of: str, name: str = "ours") -> float | None:
    """Our time over another's at the same shape: below one, ours is faster."""
    ours, theirs = median_ms(shape, name, of), median_ms(shape, over, of)
    return ours / theirs if ours and theirs else None


def call_ratio(shape: Shape | None, over: str, name: str = "ours") -> float | None:
    """Our wall time of a call over another's: the median over rounds, for all in a
    round meet the same host.
    """
    ours, theirs = metric(shape, name, "call_ms"), metric(shape, over, "call_ms")
    return (
        summarize([a / b for a, b in zip(ours, theirs, strict=True)]).median
        if ours and theirs
        else None
    )


def host_decides(shape: Shape, name: str) -> bool:
    """`passes_wait` of an implementation's passes."""
    return passes_wait(*(median_ms(shape, name, of) or 0.0 for of in PASSES))


def ratios_of_the_gpu(
    shapes: list[Shape], over: str, of: str, name: str = "ours"
) -> list[float]:
    """Our time over another's, but where the host decides the time of both passes
    together of either.
    """
    kept = [
        shape
        for shape in shapes
        if of != "both" or not (host_decides(shape, name) or host_decides(shape, over))
    ]
    return [r for shape in kept if (r := ratio(shape, over, of, name)) is not None]


def flops(shape: Shape, of: str) -> int:
    c = config(shape)
    sizes = {name: c[name] for name in SHAPE}
    return attention_flops(of, causal=c["causal"], **sizes)


def error(shape: Shape, name: str, *results: str) -> float | None:
    """The largest relative error of the named results."""
    found = (metric(shape, name, f"{result}_relative_error") for result in results)
    return max((e for e in found if e is not None), default=None)


def long_shapes(record: Record, dtype: str) -> list[Shape]:
    """All shapes but the one so short that the host decides every pass, in order."""
    return [s for s in shapes(record, dtype=dtype) if config(s)["n"] > SHORT]


def shape_text(shape: Shape) -> str:
    """ "1, 16, 16384, 64, causal", on one line."""
    c = config(shape)
    mask = "causal" if c["causal"] else "full"
    return ",\N{NO-BREAK SPACE}".join([*(str(c[key]) for key in SHAPE), mask])


# Tables -------------------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    """Ours over cuDNN by shape, every implementation in bf16 and in fp32, the host's
    share, and the figure.
    """
    figures: dict[str, str] = {}
    for record in records:
        figures |= ratios_figure(record)
    return {
        "ratios.md": per_device(records, ratios_body),
        "bf16.md": per_device(records, lambda r: shapes_table(r, "bf16")),
        "fp32.md": per_device(records, lambda r: shapes_table(r, "fp32")),
        "calls.md": per_device(records, calls_table),
        **figures,
    }


def ratios_body(record: Record) -> str:
    """Ours over cuDNN, and over the fastest of all others, with the figure."""
    rows = []
    for shape in long_shapes(record, "bf16"):
        ratios = [ratio(shape, RIVAL["bf16"], of) for of in PASSES]
        best = fastest(shape)
        over = ratio(shape, best, "both") if best else None
        cells = [f"{value:.2f}" if value else "" for value in (*ratios, over)]
        rows.append([shape_text(shape), *cells, NAMES[best] if best else ""])
    header = [
        "B, H, N, d, mask",
        "forward",
        "backward",
        "both",
        "both, over the fastest other",
        "which is",
    ]
    drawn = figure(
        f"flash_peers-ratios-{record.device.slug}",
        ratios_alt(record),
        "Our time over cuDNN's in the same run, bf16. Left of the line ours is faster.",
    )
    return f"{drawn}\n\n{table(header, rows)}"


def fastest(shape: Shape) -> str | None:
    """The other implementation that takes least for forward and backward."""
    others = {
        n: t
        for n in NAMES
        if not n.startswith("ours") and (t := median_ms(shape, n, "both")) is not None
    }
    return min(others, key=others.__getitem__) if others else None


def shapes_table(record: Record, dtype: str) -> str:
    """A line for each implementation of each shape: times, rate, ratio, errors."""
    rows, rival = [], RIVAL[dtype]
    for shape in shapes(record, dtype=dtype):
        for name, label in NAMES.items():
            if name in shape:
                cells = (
                    measured_cells(shape, name, rival)
                    if shape[name].status == "ok"
                    else [status(shape[name]), *[""] * 6]
                )
                rows.append([shape_text(shape), label, *cells])
    header = [
        "B, H, N, d, mask",
        "implementation",
        "forward, ms",
        "backward, ms",
        "both, ms",
        "TFLOP/s",
    ]
    return table(
        [*header, f"both / {NAMES[rival]}", "error of o", "of gradients"], rows, left=2
    )


def measured_cells(shape: Shape, name: str, rival: str) -> list[str]:
    times = [median_ms(shape, name, of) for of in PASSES]
    both, over = times[2], ratio(shape, rival, "both", name)
    assert both is not None
    errors = [error(shape, name, "o"), error(shape, name, *RESULTS[1:])]
    return [
        *(milliseconds(time) if time is not None else "" for time in times),
        f"{flops(shape, 'both') / (both / 1e3) / 1e12:.0f}",
        f"{over:.2f}" if over else "",
        *(f"{e:.1e}" if e is not None else "" for e in errors),
    ]


def calls_table(record: Record) -> str:
    """Wall time of a forward call whose work is too short to hide it."""
    shape = short_shape(record)
    found = {n: t for n in NAMES if (t := median_ms(shape, n, "call")) is not None}
    rows = [
        [
            NAMES[name],
            f"{1e3 * time:.1f}",
            f"{over:.2f}" if (over := call_ratio(shape, "sdpa_flash", name)) else "",
        ]
        for name, time in found.items()
    ]
    header = ["implementation", "wall time of a call, µs", "over FlashAttention-2"]
    return table(header, rows) if rows else ""


def short_shape(record: Record) -> Shape | None:
    return next(iter(shapes(record, n=SHORT, dtype="bf16")), None)


# Figure -------------------------------------------------------------------------------


def ratios_alt(record: Record) -> str:
    parts = []
    for of in ("forward", "backward"):
        found = [
            r
            for shape in long_shapes(record, "bf16")
            if (r := ratio(shape, RIVAL["bf16"], of)) is not None
        ]
        if found:
            parts.append(f"{of} {min(found):.2f} to {max(found):.2f}")
    return f"Our time over cuDNN's: {', '.join(parts) or 'not measured'}."


def ratios_figure(record: Record) -> dict[str, str]:
    drawn = long_shapes(record, "bf16")
    with canvas(width=6.4, height=1.2 + 0.5 * len(drawn)) as fig:
        axes = fig.subplots()
        for of, color, hatch, shift in (
            ("forward", SERIES[0], "", -0.19),
            ("backward", SERIES[1], "//", 0.19),
        ):
            found = [
                (i + shift, r)
                for i, shape in enumerate(drawn)
                if (r := ratio(shape, RIVAL["bf16"], of)) is not None
            ]
            if found:
                style = {
                    "color": color,
                    "hatch": hatch,
                    "edgecolor": "#ffffff",
                    "linewidth": 0,
                }
                axes.barh(*zip(*found, strict=True), height=0.36, label=of, **style)
                # In a column of their own: beside its bar a number near 1 would stand
                # on the line.
                beside = {
                    "xycoords": ("axes fraction", "data"),
                    "textcoords": "offset points",
                    "va": "center",
                }
                for y, value in found:
                    axes.annotate(
                        f"{value:.2f}",
                        (1, y),
                        xytext=(4, 0),
                        annotation_clip=False,
                        **beside,
                    )
        axes.axvline(1, color=INK, linewidth=1.2)
        axes.set_yticks(range(len(drawn)), [shape_text(shape) for shape in drawn])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("our time over cuDNN's")
        axes.set_ylabel("B, H, N, d, mask")
        legend_above(fig, ncols=2)
        return svg_pair(f"ratios-{record.device.slug}", fig)


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """The least and the most of our time over each rival's, how often ours loses,
    errors, and the host's ratio.

    Where the host decides, times of both passes together say nothing of the kernels:
    they are left out and counted. The same of the plain Triton kernels over cuDNN, by
    head dimension.
    """
    long = {dtype: long_shapes(record, dtype) if record else [] for dtype in RIVAL}
    two, found = "{:.2f}".format, {}
    for dtype, rival in RIVAL.items():
        for of in PASSES if dtype == "bf16" else ("both",):
            ratios = ratios_of_the_gpu(long[dtype], rival, of)
            found[f"{dtype}_{of}_least"] = fact(min(ratios, default=None), two)
            found[f"{dtype}_{of}_most"] = fact(max(ratios, default=None), two)
            lost = sum(r > 1 for r in ratios)
            found[f"{dtype}_{of}_lost"] = out_of(lost, len(ratios))
        found[f"{dtype}_left_out"] = left_out(long[dtype], rival)
    for d in (64, 128):
        ratios = ratios_of_the_gpu(
            [shape for shape in long["bf16"] if config(shape)["d"] == d],
            RIVAL["bf16"],
            "both",
            "ours_triton",
        )
        found[f"triton_{d}_least"] = fact(min(ratios, default=None), two)
        found[f"triton_{d}_most"] = fact(max(ratios, default=None), two)
    beaten = ratios_of_the_gpu(long["bf16"], "sdpa_flash", "both")
    high = ratios_of_the_gpu(long["fp32"], RIVAL["fp32"], "both", "ours_high")
    short = short_shape(record) if record else None
    test = next(iter(shapes(record, **TEST)), None) if record else None
    return found | {
        "over_flash_most": fact(max(beaten, default=None), two),
        "over_flash_least": fact(min(beaten, default=None), two),
        "high_least": fact(min(high, default=None), two),
        "high_most": fact(max(high, default=None), two),
        "high_left_out": left_out(long["fp32"], RIVAL["fp32"], "ours_high"),
        "high_error_most": fact(
            max(error_ratios(long["fp32"], RIVAL["fp32"], "ours_high"), default=None),
            "{:.0f}".format,
        ),
        "error_over_rival_most": fact(
            max(error_ratios(long["bf16"], RIVAL["bf16"]), default=None), two
        ),
        "test_over_cudnn": fact(ratio(test, RIVAL["bf16"], "both"), two),
        "short_over_cudnn": fact(ratio(short, RIVAL["bf16"], "both"), two),
        "call": fact(median_ms(short, "ours", "call"), microseconds),
        "call_over_sdpa": fact(call_ratio(short, "sdpa_flash"), two),
        "call_triton": fact(median_ms(short, "ours_triton", "call"), microseconds),
        "call_triton_over_sdpa": fact(
            call_ratio(short, "sdpa_flash", "ours_triton"), two
        ),
    }


def microseconds(time_ms: float) -> str:
    return f"{1e3 * time_ms:.0f} µs"


def out_of(count: int, total: int) -> str:
    """ "1 of 8" or "none of 8"."""
    return fact(total or None, lambda total: f"{count or 'none'} of {total}")


def left_out(shapes: list[Shape], over: str, name: str = "ours") -> str:
    """The shapes where the host decides, of those that both measured."""
    measured = [s for s in shapes if ratio(s, over, "both", name) is not None]
    kept = len(ratios_of_the_gpu(measured, over, "both", name))
    return out_of(len(measured) - kept, len(measured))


def error_ratios(shapes: list[Shape], over: str, name: str = "ours") -> list[float]:
    """Our error over another's, for each result of each shape."""
    pairs = ((error(s, name, r), error(s, over, r)) for s in shapes for r in RESULTS)
    return [ours / theirs for ours, theirs in pairs if ours is not None and theirs]
