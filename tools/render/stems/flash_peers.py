"""Tables, figures and facts of `flash_peers`: ours beside each library at each shape,
ratios of rows that were measured in turns, what a fixed order costs, and what NVIDIA
published.
"""

from collections.abc import Iterable
from typing import Any

from matplotlib.figure import Figure

from systems.formulas.chips import chip_of
from systems.formulas.costs import KERNELS, peak_of
from systems.records.device import slug_of
from systems.records.record import Record
from systems.records.summary import summarize
from tools.render.drawing import NARROW, SMALL, Drawing, drawn
from tools.render.load import constant, primary_gpu
from tools.render.markdown import columns, milliseconds, per_device, percent
from tools.render.plots import ACCENT, GREY, INK, bars, is_narrow, plot
from tools.render.rows import (
    MISSING,
    NOT_MEASURED,
    Cell,
    axis,
    cell,
    cells,
    counted,
    known,
    most,
    say,
    span,
)
from tools.render.stems.flash_passes import PASSES, TFLOPS, flops, peak_flops, waits

NAMES = {
    "ours": "ours",
    "ours_high": 'ours, "high"',
    "ours_triton": "ours, plain Triton",
    "sdpa_cudnn": "cuDNN",
    "fa4": "FlashAttention-4",
    "fa4_ordered": "FlashAttention-4, ordered",
    "sdpa_flash": "FlashAttention-2",
    "sdpa_flash_ordered": "FlashAttention-2, ordered",
    "sdpa_efficient": "memory-efficient",
    "flex": "FlexAttention",
}
RESULTS = ("o", "dq", "dk", "dv")
# Against whom each dtype is measured.
RIVAL = {"bf16": "sdpa_cudnn", "fp32": "sdpa_efficient"}
# What is asked for gradients that repeat, and the same as it comes.
ORDERED = {"fa4_ordered": "fa4", "sdpa_flash_ordered": "sdpa_flash"}
# Of the row whose calls are so short that the host decides.
SHORT = 128
# What the leaderboard's test computes.
TEST = {"batch": 1, "heads": 16, "n": 16384, "d": 64, "causal": True, "dtype": "bf16"}
# Of the shapes that predictions are for, and our kernel that computes a pass in one.
WIDTHS, ONE = (64, 128), {"forward": "forward", "backward": "one_pass"}
SHAPE = "B, H, N, d, mask"


# What a record says -------------------------------------------------------------------


def beside(record: Record | None, c: Cell, name: str = "") -> Cell:
    """The same shape by another implementation, which was measured in turns with it;
    by its rival where none is named.
    """
    name = name or RIVAL.get(c.config.get("dtype", ""), "")
    return cell(record, **c.config | {"implementation": name})


def long_cells(
    record: Record | None, dtype: str, name: str = "ours", **wanted: Any
) -> list[Cell]:
    """Of an implementation at every shape but the one so short that the host decides
    every pass, and the one that is stored as NVIDIA stores it.
    """
    found = cells(record, dtype=dtype, implementation=name, **wanted)
    return [c for c in found if c.config["n"] > SHORT and not as_published(c)]


def as_published(c: Cell) -> bool:
    """Whether heads are stored inside tokens, as in what NVIDIA publishes."""
    return c.config.get("layout") == "bnhd"


def short_cell(record: Record | None, name: str = "ours") -> Cell:
    return cell(record, n=SHORT, dtype="bf16", implementation=name)


def ratio(record: Record | None, c: Cell, of: str, over: str = "") -> float:
    """The time of a pass over another implementation's: below one, this is faster."""
    return c.ms(of) / beside(record, c, over).ms(of)


def ratios(
    record: Record | None, found: Iterable[Cell], of: str, over: str = ""
) -> list[float]:
    """`ratio` of each, but where the host decides the time of both passes together of
    either.
    """
    kept = [
        c
        for c in found
        if of != "both" or not (waits(c) or waits(beside(record, c, over)))
    ]
    return known(ratio(record, c, of, over) for c in kept)


def call_ratio(record: Record | None, c: Cell, over: str = "sdpa_flash") -> float:
    """Wall time of a call over another's: the median over rounds, for all in a round
    meet the same host.
    """
    pair = (c.get("call_ms"), beside(record, c, over).get("call_ms"))
    if not all(pair):
        return MISSING
    return summarize([a / b for a, b in zip(*pair, strict=True)]).median


def over_fastest(record: Record, c: Cell) -> str:
    """Our time for forward and backward over that of whoever else takes least."""
    others = {name: beside(record, c, name) for name in NAMES}
    times = {
        name: other.ms("both")
        for name, other in others.items()
        if other and not name.startswith("ours")
    }
    name = min(times, key=times.__getitem__, default="")
    over = say(c.ms("both") / times.get(name, MISSING), "{:.2f}")
    return f"{over} ({NAMES[name]})" if name else over


def rate(c: Cell, of: str) -> float:
    """FLOP/s, by the FLOPs that attention needs."""
    return flops(c, of) / (c.ms(of) / 1e3)


def share(record: Record | None, c: Cell, of: str) -> float:
    """`rate` over the data sheet's."""
    return rate(c, of) / peak_flops(record, c.config["dtype"])


def error(c: Cell, *results: str) -> float:
    """The largest relative error of the named results."""
    return most(c.get(f"{of}_relative_error") for of in results) if c else c.missing


def error_ratios(record: Record | None, found: list[Cell]) -> list[float]:
    """The error over the rival's, for each result of each shape."""
    return known(
        error(c, of) / (error(beside(record, c), of) or MISSING)
        for c in found
        for of in RESULTS
    )


def shape_text(c: Cell) -> str:
    """ "1, 16, 16384, 64, causal", on one line; "64/8" where 8 heads of keys are
    shared.
    """
    mask = "causal" if c.config["causal"] else "full"
    numbers = {key: str(c.config[key]) for key in ("batch", "heads", "n", "d")}
    if (group := c.config.get("group", 1)) > 1:
        numbers["heads"] += f"/{c.config['heads'] // group}"
    stored = ["BNHD"] if as_published(c) else []
    return ",\N{NO-BREAK SPACE}".join([*numbers.values(), mask, *stored])


def repeats(c: Cell) -> Any:
    """ "yes", or "not dq"; missing in a record from before it was looked at."""
    if "repeats" not in c.metrics:
        return c.missing
    return "yes" if c["repeats"] else f"not {c['varies']}"


def order_costs(record: Record | None, c: Cell, name: str, of: str = "both") -> float:
    """The time of an ordered implementation over the same one's as it comes."""
    return beside(record, c, name).ms(of) / beside(record, c, ORDERED[name]).ms(of)


# Tables -------------------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    """Turns; ours over cuDNN by shape, drawn and in a table, and over FlashAttention-4;
    what a fixed order costs, and whose results repeat; every implementation in bf16 and
    in fp32; what a call costs the host; and what NVIDIA published.
    """
    reported = [record for record in records if record.kind == "reported"]
    records = [record for record in records if record.kind == "measured"]
    return {
        "turns.md": turns(),
        "fa4.md": per_device(records, fa4_table),
        "order.md": per_device(records, order_figure),
        "repeats.md": per_device(records, repeats_table),
        "published.md": per_device(
            records, lambda record: published_table(record, reported)
        ),
        "reported.md": per_device(reported, reported_table),
        "figure.md": per_device(records, ratios_figure),
        "ratios.md": per_device(records, ratios_table),
        "bf16.md": per_device(records, lambda r: shapes_table(r, "bf16")),
        "fp32.md": per_device(records, lambda r: shapes_table(r, "fp32")),
        "calls.md": per_device(records, calls_table),
    }


def ratios_table(record: Record) -> str:
    """Ours over cuDNN, and over the fastest of all others; the rate of ours."""
    return columns(
        long_cells(record, "bf16"),
        (SHAPE, shape_text),
        *((of, lambda c, of=of: ratio(record, c, of), "{:.2f}") for of in PASSES),
        ("TFLOP/s", lambda c: rate(c, "both") / TFLOPS, "{:.0f}"),
        ("share of peak", lambda c: share(record, c, "both"), percent),
        ("over the fastest other", lambda c: over_fastest(record, c)),
    )


def shapes_table(record: Record, dtype: str) -> str:
    """A line for each implementation of each shape: times, rate, ratio, errors."""
    rival = NAMES[RIVAL[dtype]]
    return columns(
        cells(record, dtype=dtype),
        (SHAPE, shape_text),
        ("implementation", lambda c: NAMES[c.config["implementation"]]),
        *((f"{of}, ms", lambda c, of=of: c.ms(of), milliseconds) for of in PASSES),
        ("TFLOP/s", lambda c: rate(c, "both") / TFLOPS, "{:.0f}"),
        ("share of peak", lambda c: share(record, c, "both"), percent),
        (f"both / {rival}", lambda c: ratio(record, c, "both"), "{:.2f}"),
        ("results repeat", repeats),
        ("error of o", lambda c: error(c, "o"), "{:.1e}"),
        ("of gradients", lambda c: error(c, *RESULTS[1:]), "{:.1e}"),
        left=2,
    )


def fa4_table(record: Record) -> str:
    """Ours over FlashAttention-4, as it comes and ordered, and what order costs."""
    found = long_cells(record, "bf16")
    if not any(beside(record, c, "fa4").row for c in found):
        return ""
    return columns(
        found,
        (SHAPE, shape_text),
        ("forward", lambda c: ratio(record, c, "forward", "fa4"), "{:.2f}"),
        ("backward", lambda c: ratio(record, c, "backward", "fa4"), "{:.2f}"),
        ("both", lambda c: ratio(record, c, "both", "fa4"), "{:.2f}"),
        (
            "both, over it ordered",
            lambda c: ratio(record, c, "both", "fa4_ordered"),
            "{:.2f}",
        ),
        (
            "both, over FlashAttention-2 ordered",
            lambda c: ratio(record, c, "both", "sdpa_flash_ordered"),
            "{:.2f}",
        ),
    )


def repeats_table(record: Record) -> str:
    """For each implementation, at how many shapes results repeat, and which do not."""
    names = [name for name in NAMES if cells(record, implementation=name)]

    def judged(name: str) -> list[Cell]:
        return [c for c in cells(record, implementation=name) if "repeats" in c.metrics]

    def varies(name: str) -> str:
        found = {
            of for c in judged(name) for of in RESULTS if of in c["varies"].split(", ")
        }
        return ", ".join(of for of in RESULTS if of in found)

    names = [name for name in names if judged(name)]
    return columns(
        names,
        ("implementation", NAMES.__getitem__),
        (
            "results repeat, of shapes",
            lambda name: counted(c["repeats"] for c in judged(name)),
        ),
        ("what varies", varies),
    )


def published_table(record: Record, reported: list[Record]) -> str:
    """Rates at the shape that NVIDIA publishes: by events, by the kernels' own time,
    and NVIDIA's.
    """
    found = cells(record, layout="bnhd")

    def theirs(c: Cell, of: str) -> float:
        wanted = {key: c.config[key] for key in ("implementation", "n", "causal")}
        rows = (cell(one, **wanted) for one in reported)
        return next((row.get(f"{of}_tflops") for row in rows if row), MISSING)

    def by_kernels(c: Cell, of: str) -> float:
        if f"{of}_kernels_ms" not in c.metrics:
            return c.missing
        return flops(c, of) / (c.ms(f"{of}_kernels") / 1e3) / TFLOPS

    return columns(
        found,
        ("implementation", lambda c: NAMES[c.config["implementation"]]),
        *(
            column
            for of in ("forward", "backward")
            for column in (
                (
                    f"{of} by events, TFLOP/s",
                    lambda c, of=of: rate(c, of) / TFLOPS,
                    "{:.0f}",
                ),
                ("by its kernels", lambda c, of=of: by_kernels(c, of), "{:.0f}"),
                ("NVIDIA's", lambda c, of=of: theirs(c, of), "{:.0f}"),
            )
        ),
        ("share of peak, both", lambda c: share(record, c, "both"), percent),
    )


def reported_table(record: Record) -> str:
    """TFLOP/s by mask and length, as published, and their share of the data sheet's."""
    peak = peak_of(slug_of(record.device.name))

    def shown(rate: float) -> str:
        of_peak = f" ({percent(rate * TFLOPS / peak.bf16)})" if peak else ""
        return f"{rate:.0f}{of_peak}"

    kinds = [
        (mask, name, of)
        for mask in (True, False)
        for name, of in (
            ("fa4", "forward"),
            ("fa4", "backward"),
            ("fa4_ordered", "backward"),
            ("sdpa_cudnn", "forward"),
            ("sdpa_cudnn", "backward"),
        )
    ]
    return columns(
        kinds,
        ("mask", lambda kind: "causal" if kind[0] else "full"),
        ("implementation", lambda kind: NAMES[kind[1]]),
        ("pass", lambda kind: kind[2]),
        *(
            (
                f"{n // 1024}k",
                lambda kind, n=n: cell(
                    record, causal=kind[0], implementation=kind[1], n=n
                ).get(f"{kind[2]}_tflops"),
                shown,
            )
            for n in axis(record, "n")
        ),
        left=3,
    )


def calls_table(record: Record) -> str:
    """Wall time of a forward call whose work is too short to hide it."""
    return columns(
        [c for c in cells(record, n=SHORT, dtype="bf16") if c.get("call_ms")],
        ("implementation", lambda c: NAMES[c.config["implementation"]]),
        ("wall time of a call, µs", lambda c: 1e3 * c.ms("call"), "{:.1f}"),
        ("over FlashAttention-2", lambda c: call_ratio(record, c), "{:.2f}"),
    )


# Figures ------------------------------------------------------------------------------


def turns() -> str:
    """Two orders of the same calls, under a clock that falls."""
    orders = {
        "one after the other": "AAAAAABBBBBB",
        "in turns": "ABABABABABAB",
    }

    def draw(d: Drawing) -> None:
        left, gap = 0.0, 26 if d.width > NARROW else 12
        each = (d.width - gap) / 2 / 12
        for order, names in orders.items():
            d.text(left, 12, order, SMALL, bold=True)
            for i, name in enumerate(names):
                # The clock falls while the chip warms up.
                high = 62 - 34 * min(i, 8) / 8
                x, style = (
                    left + i * each,
                    "fill-blue" if name == "A" else "fill-orange",
                )
                d.box(x, 90 - high, each - 3, high, style)
                d.text(x + each / 2 - 1.5, 104, name, SMALL, "middle")
            left += 12 * each + gap

    return drawn(
        draw,
        "One after the other, A meets the fast clock and B the slow one; in turns both "
        "meet both.",
        "<strong>Whoever is measured second runs on a slower chip.</strong> Height: "
        "the clock, which falls as the chip warms up. In turns, A and B meet the same "
        "clocks.",
    )


def ratios_figure(record: Record) -> str:
    """Forward and backward of each shape, the short one last."""
    shown = [
        *long_cells(record, "bf16"),
        *cells(record, n=SHORT, implementation="ours"),
    ]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        looks = {"forward": ("o", GREY, -0.14), "backward": ("s", ACCENT, 0.14)}
        for of, (marker, color, shift) in looks.items():
            points = [
                (value, i + shift)
                for i, c in enumerate(shown)
                if known([value := ratio(record, c, of)])
            ]
            for value, y in points:
                axes.plot([1, value], [y, y], color=color, lw=1.5, label="_")
            if points:
                style: dict[str, Any] = {"color": color, "ls": "none", "label": "_"}
                axes.plot(*zip(*points, strict=True), marker=marker, ms=7, **style)
        axes.axvline(1, color=INK, lw=1)
        bars(axes, [shape_text(c) for c in shown])
        axes.set_title("our time over cuDNN's; left of the line ours is faster")
        axes.set_xlabel("● forward   ■ backward")
        if is_narrow(figure):
            axes.set_title("our time over cuDNN's")

    both = ratios(record, long_cells(record, "bf16"), "both")
    short = ratio(record, short_cell(record), "both")
    return plot(
        record,
        "ratios",
        draw,
        f"Forward and backward take ours {span(both)} of cuDNN's time, and "
        f"{say(short, '{:.2f}')} at 128 tokens.",
        f"bf16; shapes are {SHAPE}. At 128 tokens the CPU decides, which issues a call "
        "of ours from Python.",
        height=90 + 30 * len(shown),
    )


def order_figure(record: Record) -> str:
    """What each library's fixed order costs, and ours, whose order is always fixed,
    beside the fastest without one.
    """
    found = long_cells(record, "bf16")
    series = {
        name: [(order_costs(record, c, name), i) for i, c in enumerate(found)]
        for name in ORDERED
    }
    series["ours"] = [(ratio(record, c, "both", "fa4"), i) for i, c in enumerate(found)]
    if not known(value for points in series.values() for value, _ in points):
        return ""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        looks = {
            "fa4_ordered": ("o", INK),
            "sdpa_flash_ordered": ("^", GREY),
            "ours": ("s", ACCENT),
        }
        for name, (marker, color) in looks.items():
            points = [point for point in series[name] if known(point[:1])]
            if points:
                style: dict[str, Any] = {"color": color, "ls": "none", "label": "_"}
                axes.plot(*zip(*points, strict=True), marker=marker, ms=7, **style)
        axes.axvline(1, color=INK, lw=1)
        bars(axes, [shape_text(c) for c in found])
        axes.set_title("forward and backward, over the same without a fixed order")
        axes.set_xlabel("● FlashAttention-4   ▲ FlashAttention-2   ■ ours over FA4")
        if is_narrow(figure):
            axes.set_title("time over that without a fixed order")
            axes.set_xlabel("● FA4   ▲ FA2   ■ ours over FA4")

    costs = span(value for value, _ in series["fa4_ordered"])
    return plot(
        record,
        "order",
        draw,
        f"With a fixed order FlashAttention-4 takes {costs} times as long.",
        f"bf16; shapes are {SHAPE}. Ours has a fixed order throughout, so its squares "
        "stand over FlashAttention-4 without one.",
        height=90 + 30 * len(found),
    )


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """Our time over each rival's, how often ours loses, rates, errors, and the host's
    ratio; and what was predicted.

    Where the host decides, times of both passes together say nothing of the kernels:
    they are left out.
    """
    found = {}
    ours = {dtype: long_cells(record, dtype) for dtype in RIVAL}
    for dtype, of in [*(("bf16", of) for of in PASSES), ("fp32", "both")]:
        over = ratios(record, ours[dtype], of)
        found[f"{dtype}_{of}"] = span(over)
        found[f"{dtype}_{of}_lost"] = say(counted(r > 1 for r in over))
    high = long_cells(record, "fp32", "ours_high")
    for d in WIDTHS:
        triton = long_cells(record, "bf16", "ours_triton", d=d)
        found[f"triton_{d}"] = span(ratios(record, triton, "both"))
    short = {name: short_cell(record, name) for name in ("ours", "ours_triton")}
    for name, c in short.items():
        of = name.replace("ours", "call")
        found[of] = say(1e3 * c.ms("call"), "{:.0f} µs")
        found[f"{of}_over_sdpa"] = say(call_ratio(record, c), "{:.2f}")
    test = cell(record, implementation="ours", **TEST)
    errors = most(error_ratios(record, ours["bf16"]))
    return found | {
        "shapes": say(len(ours["bf16"]) or MISSING),
        "over_flash": span(ratios(record, ours["bf16"], "both", "sdpa_flash")),
        "over_flex": span(ratios(record, ours["bf16"], "both", "flex")),
        "high": span(ratios(record, high, "both")),
        "high_error_most": say(most(error_ratios(record, high)), "{:.0f}"),
        "error_over_rival_most": say(errors, "{:.2f}"),
        "test_over_cudnn": say(ratio(record, test, "both"), "{:.2f}"),
        "short_over_cudnn": say(ratio(record, short["ours"], "both"), "{:.2f}"),
        "calls_compared": str(constant("flash_peers", "CALLS_COMPARED") + 1),
        **of_order(record, ours["bf16"]),
        **predictions(record),
    }


def of_order(record: Record | None, ours: list[Cell]) -> dict[str, str]:
    """Ours over FlashAttention-4, what a fixed order costs, and whose results repeat at
    every shape.
    """
    found = {}
    for fact, of, over in (
        ("fa4_forward", "forward", "fa4"),
        ("fa4_both", "both", "fa4"),
        ("ordered_both", "both", "fa4_ordered"),
        ("flash_ordered_both", "both", "sdpa_flash_ordered"),
    ):
        values = ratios(record, ours, of, over)
        found[fact] = span(values)
        if fact in ("fa4_both", "ordered_both"):
            found[f"{fact}_lost"] = say(counted(value > 1 for value in values))
    for name in ORDERED:
        costs = [order_costs(record, c, name) for c in ours]
        found[f"order_costs_{ORDERED[name]}"] = span(costs)
    judged = {
        name: [
            bool(c["repeats"])
            for c in cells(record, implementation=name, dtype="bf16")
            if "repeats" in c.metrics
        ]
        for name in NAMES
    }
    for fact, wanted in (("repeating", True), ("varying", False)):
        kept = [
            NAMES[n]
            for n, of in judged.items()
            if of and (all(of) if wanted else not any(of))
        ]
        looked = any(judged.values())
        found[fact] = ("; ".join(kept) or "none") if looked else NOT_MEASURED
    return found


def predictions(record: Record | None) -> dict[str, str]:
    """Shares of the peak that a kernel would reach if nothing of it overlapped: its
    products and its exponentials, one after the other; and what was reached at the
    leaderboard's length.
    """
    chip, found = chip_of(primary_gpu()), {}
    for of, kernel in ONE.items():
        work = KERNELS[kernel]
        for d in WIDTHS:
            products = exponentials = MISSING
            if chip:
                products = work.products * 2 * d / chip.bf16_flops_per_clock
                exponentials = work.exponentials / chip.exponentials_per_clock
            c = cell(record, implementation="ours", **TEST | {"d": d})
            alone = products / (products + exponentials)
            found[f"alone_{of}_{d}"] = say(alone, percent)
            found[f"reached_{of}_{d}"] = say(
                share(record, c, of) if c else c.missing, percent
            )
    return found
