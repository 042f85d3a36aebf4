"""Tables, figures and facts of `flash_benchmarking`: ours beside PyTorch."""

from collections.abc import Callable
from itertools import product
from operator import itemgetter
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from systems.formulas.chips import chip_of
from systems.formulas.costs import attention_flops, peak_of
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.drawing import NARROW, Drawing, drawn
from tools.render.load import primary_gpu
from tools.render.markdown import (
    columns,
    milliseconds,
    per_device,
    percent,
    table,
    tabs,
)
from tools.render.plots import (
    ACCENT,
    DARK,
    GREY,
    line,
    panels,
    plain_log_scale,
    plot,
    power_of_two_axis,
)
from tools.render.rows import (
    MISSING,
    Cell,
    cell,
    cells,
    known,
    least,
    most,
    say,
    span,
)
from tools.render.stems.flash_passes import (
    PASSES,
    TFLOPS,
    flops,
    gpu_ms,
    peak_flops,
    tiny,
    waits,
)

NAMES = {
    "ours": "ours",
    "plain": "plain PyTorch",
    "compiled": "compiled PyTorch",
    "sdpa": "SDPA",
}
OTHERS = ("plain", "compiled", "sdpa")
DTYPES = ("bf16", "fp32")
# Of the figures, and of the shapes that sentences name.
D, LONGEST = 64, 65536
TELLING = (128, 1024, 16384, LONGEST)
MIB = 2**20
# Exact fp32 on tensor cores: products of bf16 limbs for each product.
LIMB_PRODUCTS = 6
# Queries of a program: a head has that many tiles less than tokens.
TILE = 128
# What plain attention reads and writes at least, in numbers for each score, operation
# by operation; a boolean counts half a bf16 number.
PLAIN_MOVES = {
    "forward": {
        "product with Kᵀ": 1,
        "division by √d": 2,
        "mask made": 0.5,
        "mask applied": 2.5,
        "softmax": 2,
        "product with V": 1,
    },
    "backward": {
        "dV": 1,
        "dP": 1,
        "softmax": 3,
        "mask": 2.5,
        "division": 2,
        "dQ and dK": 2,
    },
}
# What it holds at its peak: four score matrices in bf16 and the mask of booleans.
PLAIN_HOLDS = 4.5
# (dtype, d, N).
Shape = tuple[Any, ...]
SIZES = tuple((head, itemgetter(i)) for i, head in enumerate(("dtype", "d", "N")))


# What a record says -------------------------------------------------------------------


def shapes(record: Record | None) -> list[Shape]:
    """Those of the grid, in its order. The large matrix product is no shape of
    attention.
    """
    found = [c.config for c in cells(record) if c.config["implementation"] in NAMES]
    return list(dict.fromkeys((c["dtype"], c["d"], c["n"]) for c in found))


def at(record: Record | None, name: str, dtype: str, d: int, n: int) -> Cell:
    return cell(record, implementation=name, dtype=dtype, d=d, n=n)


def rate(c: Cell, name: str) -> float:
    """FLOP/s of the GPU in a pass, by the FLOPs that attention needs."""
    return flops(c, name) / (gpu_ms(c, name) / 1e3)


def share(record: Record | None, c: Cell, name: str) -> float:
    """`rate` over the data sheet's."""
    return rate(c, name) / peak_flops(record, c.config["dtype"]) if c else c.missing


def memory_bytes(c: Cell) -> float:
    """What forward and backward need at most above what was held before."""
    return c["peak_allocated_bytes"] - c["held_bytes"]


def ratio(record: Record | None, over: str, name: str, *shape: Any) -> float:
    """`gpu_ms` of another implementation over ours: above one, ours is faster."""
    theirs, ours = (gpu_ms(at(record, of, *shape), name) for of in (over, "ours"))
    return theirs / ours


def ratios(
    record: Record | None, over: str, name: str, dtypes: tuple[str, ...] = DTYPES
) -> dict[Shape, float]:
    """`ratio` at each shape of these dtypes that both could run."""
    of_dtypes = (shape for shape in shapes(record) if shape[0] in dtypes)
    found = {shape: ratio(record, over, name, *shape) for shape in of_dtypes}
    return {shape: faster for shape, faster in found.items() if known([faster])}


def losses(found: dict[Shape, float]) -> list[Shape]:
    """The shapes where another implementation is faster than ours."""
    return [shape for shape, faster in found.items() if faster < 1]


# Tables -------------------------------------------------------------------------------

CAPTIONS = {
    "passes.md": "Each pass at every shape: times, and the rate that ours reaches.",
    "table.md": (
        "FlashAttention and plain PyTorch at every shape, the pass forward, backward "
        "and both."
    ),
}


def fragments(records: list[Record]) -> dict[str, str]:
    """Rates and memory; eight telling shapes, all of them, all by pass; where ours
    loses; all numbers; and how many tiles a head has.
    """

    def passes(record: Record) -> str:
        return tabs((name.capitalize(), pass_table(record, name)) for name in PASSES)

    return {
        "tiles.md": tiles(),
        "moves.md": moves_table(),
        "rates.md": per_device(records, rates_figure),
        "memory.md": per_device(records, memory_figure),
        "telling.md": per_device(records, telling_table),
        "table.md": per_device(records, latency_table),
        "passes.md": per_device(records, passes),
        "lost.md": per_device(records, lost_table),
        "pytorch.md": per_device(records, pytorch_table),
        "all.md": per_device(records, all_table),
    }


def moves_table() -> str:
    """What plain attention moves, operation by operation."""
    rows = [
        [of, operation, f"{moved:g}"]
        for of, operations in PLAIN_MOVES.items()
        for operation, moved in operations.items()
    ]
    header = ["pass", "operation", "numbers moved for each score"]
    return table(header, rows, left=2) + "\n"


def what_ran(c: Cell) -> str:
    """Which of our kernels, or of SDPA's: "triton", "hopper", "cudnn"."""
    return c["ran"].removesuffix("_attention") if c else ""


def time(record: Record, name: str, of: str, head: str) -> tuple[Any, ...]:
    """A column: the median time of a pass of an implementation at a shape; marked where
    it is the host's.
    """

    def read(shape: Shape) -> Any:
        c = at(record, name, *shape)
        late = of == "both" and waits(c)
        return f"{milliseconds(c.ms(of))} (waits)" if late else c.ms(of)

    return head, read, lambda ms: ms if isinstance(ms, str) else milliseconds(ms)


def telling_table(record: Record) -> str:
    """GPU time of both passes at a few lengths."""

    def both(name: str) -> Callable[[Shape], float]:
        return lambda shape: gpu_ms(at(record, name, *shape), "both")

    chosen = [s for s in shapes(record) if s[1] == D and s[2] in TELLING]
    return columns(
        chosen,
        ("dtype", itemgetter(0)),
        ("N", itemgetter(2)),
        *((f"{label}, ms", both(name), milliseconds) for name, label in NAMES.items()),
        ("plain / ours", lambda s: ratio(record, "plain", "both", *s), "{:.1f}"),
        (
            "ours, TFLOP/s",
            lambda s: rate(at(record, "ours", *s), "both") / TFLOPS,
            "{:.1f}",
        ),
        (
            "share of peak",
            lambda s: share(record, at(record, "ours", *s), "both"),
            tiny,
        ),
    )


def latency_table(record: Record) -> str:
    """The table that the assignment asks for."""
    who = [(name, of) for name in ("ours", "plain") for of in PASSES]
    return columns(
        shapes(record),
        *SIZES,
        *(time(record, name, of, f"{name}, {of}, ms") for name, of in who),
        (
            "plain / ours, both",
            lambda s: ratio(record, "plain", "both", *s) or MISSING,
            "{:.2f}",
        ),
        ("ours ran", lambda s: what_ran(at(record, "ours", *s))),
    )


def pass_table(record: Record, name: str) -> str:
    """Every implementation in a pass; the rate of ours, its share of the peak."""

    def ours(shape: Shape) -> Cell:
        return at(record, "ours", *shape)

    return columns(
        shapes(record),
        *SIZES,
        *(time(record, of, name, f"{label}, ms") for of, label in NAMES.items()),
        ("ours ran", lambda s: what_ran(ours(s))),
        ("SDPA ran", lambda s: what_ran(at(record, "sdpa", *s))),
        ("ours, TFLOP/s", lambda s: rate(ours(s), name) / TFLOPS or MISSING, "{:.1f}"),
        (
            "share of peak",
            lambda s: share(record, ours(s), name) or MISSING,
            tiny,
        ),
    )


def lost_table(record: Record) -> str:
    """How often, up to which length and by how much ours is slower."""
    rows = []
    for over, name in product(OTHERS, PASSES):
        rows.append([NAMES[over].replace(" ", "\N{NO-BREAK SPACE}"), name])
        for dtype in DTYPES:
            found = ratios(record, over, name, (dtype,))
            lost = [n for _, _, n in losses(found)]
            rows[-1] += [f"{len(lost)} of {len(found)}", str(max(lost, default=""))]
            rows[-1] += [say(least(found.values()), "{:.2f}")]
    header = ["beside", "pass"]
    for dtype in DTYPES:
        header += [f"{dtype}: ours slower at", "longest such N", "least theirs / ours"]
    return table(header, rows, left=2)


def pytorch_table(record: Record) -> str:
    """The passes of the class of PyTorch tiles, beside ours in Triton and plain
    attention, by the GPU's time.
    """
    found = cells(record, implementation="tiles")

    def of(name: str, which: str) -> Callable[[Cell], float]:
        def read(c: Cell) -> float:
            return gpu_ms(cell(record, **c.config | {"implementation": name}), which)

        return read

    return columns(
        found,
        ("dtype", lambda c: c.config["dtype"]),
        ("N", lambda c: c.config["n"]),
        *(
            (f"{label}, {which}, ms", of(name, which), milliseconds)
            for which in ("forward", "backward")
            for name, label in (
                ("tiles", "PyTorch tiles"),
                ("plain", "plain"),
                ("ours", "Triton"),
            )
        ),
        left=2,
    )


def product_rate(record: Record | None, dtype: str) -> float:
    """FLOP/s of one large product, timed in the bursts that attention is timed in.
    Missing in a record whose product had longer ones.
    """
    c = cell(record, implementation="ceiling", dtype=dtype)
    if "burst_ms" not in c.metrics:
        return c.missing
    return 2 * c.config["n"] ** 2 * c.config["d"] / (min(c.samples("burst")) / 1e3)


def all_table(record: Record) -> str:
    """Every row: median, p20 and p80 of each pass, the rate of both, and memory."""

    named = {"{}, ms": "median", "p20": "p20", "p80": "p80"}
    return columns(
        [c for c in cells(record) if c.config["implementation"] in NAMES],
        ("implementation", lambda c: NAMES[c.config["implementation"]]),
        "dtype",
        "d",
        ("N", lambda c: c.config["n"]),
        *(
            (
                head.format(of),
                lambda c, of=of, s=s: getattr(c.summary(of), s),
                milliseconds,
            )
            for of, (head, s) in product(PASSES, named.items())
        ),
        ("TFLOP/s, both", lambda c: rate(c, "both") / TFLOPS, "{:.1f}"),
        ("share of peak", lambda c: share(record, c, "both"), tiny),
        ("memory, MiB", lambda c: memory_bytes(c) / MIB, "{:,.1f}"),
        left=2,
    )


# Figures ------------------------------------------------------------------------------


def tiles() -> str:
    """How many streaming multiprocessors the tiles of one head occupy."""
    chip = chip_of(primary_gpu()) or chip_of("nvidia-h200")
    assert chip
    lengths = (1024, 8192, LONGEST)

    def draw(d: Drawing) -> None:
        each = 44 if d.width > NARROW else 22
        size = d.width / each
        y = 0.0
        for n in lengths:
            made = n // TILE
            busy = min(made, chip.sms)
            d.text(0, y + 14, f"N = {n:,}: {made} tiles, {busy} of {chip.sms} SMs")
            y += 22
            for i in range(chip.sms):
                style = "fill-blue" if i < made else "faint"
                row, column = divmod(i, each)
                d.box(column * size, y + row * size, size - 2, size - 2, style)
            y += -(-chip.sms // each) * size + 14

    alt = "; ".join(
        f"{n} tokens make {n // TILE} tiles for {chip.sms} multiprocessors"
        for n in lengths
    )
    return drawn(
        draw,
        f"{alt}.",
        "<strong>One short head leaves most of the GPU idle.</strong> Each square is a "
        "streaming multiprocessor, blue where it has one of the head's tiles of "
        f"{TILE} queries.",
    )


def lengths(record: Record | None) -> list[int]:
    return list(dict.fromkeys(n for _, _, n in shapes(record)))


def curves(
    axes: Axes, record: Record, dtype: str, of: Callable[[Cell], float], **dashes: str
) -> None:
    """A line for each implementation, by length; ours last, over the others."""
    ns = lengths(record)
    for name, label in reversed(NAMES.items()):
        ys = [of(at(record, name, dtype, D, n)) for n in ns]
        color = ACCENT if name == "ours" else GREY
        line(axes, ns, ys, color=color, label=label, ls=dashes.get(name, "-"))
    power_of_two_axis(axes.xaxis, ns[1::4], "sequence length N")


def rates_figure(record: Record) -> str:
    """With the data sheet's peaks, and that of fp32 products made of bf16 ones."""
    of_limbs = peak_flops(record, "bf16") / LIMB_PRODUCTS

    def limit(axes: Axes, rate: float, name: str) -> None:
        if rate:
            axes.axhline(rate / TFLOPS, color=DARK, ls="--", lw=1)
            style = {"xytext": (0, 3), "textcoords": "offset points"}
            axes.annotate(name, (lengths(record)[0], rate / TFLOPS), **style)

    def draw(figure: Figure) -> None:
        for axes, dtype in zip(panels(figure, 2), DTYPES, strict=True):
            curves(axes, record, dtype, lambda c: rate(c, "both") / TFLOPS)
            limit(axes, peak_flops(record, dtype), f"{dtype} peak")
            if dtype == "fp32":
                limit(axes, of_limbs, f"bf16 peak / {LIMB_PRODUCTS}")
            plain_log_scale(axes.yaxis, subs=(1,))
            axes.set_title(f"{dtype}, TFLOP/s")

    n = max(lengths(record), default=0)
    reached, plain = (
        say(share(record, at(record, name, "bf16", D, n), "both"), percent)
        for name in ("ours", "plain")
    )
    return plot(
        record,
        "rates",
        draw,
        f"At {n:,} tokens in bf16 ours runs at {reached} of the data sheet's peak, "
        f"plain PyTorch at {plain}.",
        f"Forward and backward of one head, head dimension {D}, by the GPU's time. "
        f"Exact fp32 products are {LIMB_PRODUCTS} bf16 products in ours.",
        height=320,
        narrow=560,
    )


def memory_figure(record: Record) -> str:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        # Ours and SDPA can need the same to the byte: dashes over a line let both show.
        curves(axes, record, "bf16", lambda c: memory_bytes(c) / MIB, ours="--")
        plain_log_scale(axes.yaxis, subs=(1,))
        axes.set_title("memory above the inputs, MiB")

    n = max(lengths(record), default=0)
    ours, plain = (
        say(memory_bytes(at(record, of, "bf16", D, n)) / MIB, "{:,.0f} MiB")
        for of in ("ours", "plain")
    )
    return plot(
        record,
        "memory",
        draw,
        f"Ours needs {ours} for {n:,} tokens, plain PyTorch {plain}.",
        f"Peak of forward and backward, bf16, head dimension {D}. Both axes are "
        "logarithmic: a line twice as steep grows with the square of N.",
        height=280,
    )


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """Gains over plain PyTorch, rates, memory, where ours loses; and what was
    predicted.
    """
    found: dict[str, str] = predictions(record)
    limb_peak = peak_flops(record, "bf16") / LIMB_PRODUCTS
    best = {}
    for dtype in DTYPES:
        gains = ratios(record, "plain", "both", (dtype,)).values()
        found[f"faster_{dtype}"] = span(gains, "{:.1f}")
        tried = cells(record, implementation="ours", dtype=dtype)
        best[dtype] = most(rate(c, name) for c in tried for name in PASSES)
        reached = best[dtype] / peak_flops(record, dtype)
        found[f"best_{dtype}"] = say(best[dtype] / TFLOPS, "{:.0f} TFLOP/s")
        found[f"best_share_{dtype}"] = say(reached, percent)
        alone = product_rate(record, dtype)
        found[f"product_{dtype}"] = say(alone / TFLOPS, "{:.0f} TFLOP/s")
        alone_share = alone / peak_flops(record, dtype)
        found[f"product_share_{dtype}"] = say(alone_share, percent)
    for n in (1024, LONGEST):
        faster = ratio(record, "plain", "both", "bf16", D, n)
        found[f"faster_bf16_{n}"] = say(faster, "{:.1f}")
    found["limb_peak"] = say(limb_peak / TFLOPS, "{:.0f} TFLOP/s")
    found["best_share_limbs"] = say(best["fp32"] / limb_peak, percent)
    for over in OTHERS:
        for name in PASSES:
            pairs = ratios(record, over, name) if record else None
            lost = MISSING if pairs is None else len(losses(pairs))
            found[f"slower_than_{over}_{name}"] = say(lost)
            found[f"compared_{over}"] = say(MISSING if pairs is None else len(pairs))
    for name in NAMES:
        found[f"host_decides_{name}"] = where_the_host_decides(record, name)
    for name in ("ours", "sdpa"):
        time = at(record, name, "bf16", D, 128).ms("both")
        found[f"both_{name}_128"] = say(1e3 * time, "{:.0f} µs")
    for key in ("ours_bf16", "plain_bf16", "ours_fp32", "sdpa_fp32"):
        name, dtype = key.split("_")
        needs = memory_bytes(at(record, name, dtype, D, LONGEST))
        found[f"memory_{key}"] = say(needs / MIB, "{:,.0f} MiB")
    short, longer = (
        at(record, "ours", "bf16", D, n).ms("forward") for n in (128, 1024)
    )
    return found | {"growth_128_1024": say(longer / short, "{:.1f}")}


def predictions(record: Record | None) -> dict[str, str]:
    """Forward and backward of the longest head in bf16: what plain attention moves and
    ours multiplies, how long data-sheet rates need for that, and what was measured.
    """
    peak = peak_of(primary_gpu())
    scores, returned = LONGEST**2, 4 * LONGEST * D * 2
    moved = 2 * scores * sum(sum(of.values()) for of in PLAIN_MOVES.values())
    work = attention_flops("both", d=D, batch=1, heads=1, n=LONGEST, causal=True)
    plain_ms, ours_ms = (
        (1e3 * moved / peak.bandwidth, 1e3 * work / peak.bf16)
        if peak
        else (MISSING, MISSING)
    )
    plain, ours = (at(record, name, "bf16", D, LONGEST) for name in ("plain", "ours"))
    took = {c: gpu_ms(of, "both") for c, of in (("plain", plain), ("ours", ours))}
    ms = "{:.3g} ms"
    return {
        "moves_forward": f"{sum(PLAIN_MOVES['forward'].values()):g}",
        "moves_backward": f"{sum(PLAIN_MOVES['backward'].values()):g}",
        "plain_moved": f"{moved / 1e9:.0f} GB",
        "plain_predicted": say(plain_ms, ms),
        "plain_took": say(took["plain"], ms),
        "plain_over_predicted": say(took["plain"] / plain_ms, "{:.1f}"),
        "ours_flops": f"{work / 1e12:.2f} TFLOP",
        "ours_predicted": say(ours_ms, ms),
        "ours_took": say(took["ours"], ms),
        "ours_over_predicted": say(took["ours"] / ours_ms, "{:.1f}"),
        "faster_predicted": say(plain_ms / ours_ms, "{:.0f}"),
        "score_matrix": f"{2 * scores / MIB:,.0f} MiB",
        "memory_plain_predicted": f"{2 * PLAIN_HOLDS * scores / MIB:,.0f} MiB",
        "memory_ours_predicted": f"{(returned + 12 * LONGEST) / MIB:.1f} MiB",
    }


def where_the_host_decides(record: Record | None, name: str) -> str:
    """At how many shapes of an implementation, and up to which length."""
    tried = cells(record, implementation=name)
    if not tried:
        return say(MISSING)
    late = [c.config["n"] for c in tried if waits(c)]
    return f"{len(late)} (N up to {max(late):,})" if late else "none"


# Claims -------------------------------------------------------------------------------


@claim(
    "flash_benchmarking",
    "By the fastest samples, ours takes no longer than plain PyTorch in any pass, at "
    "any length, dtype and head dimension.",
)
def fused_keeps_up(record: Record) -> Judgement:
    found = [r for of in PASSES for r in ratios(record, "plain", of).values()]
    lost = sum(faster < 1 for faster in found)
    said = f"{len(found)} pairs{f', {lost} of them below one' if lost else ''}"
    numbers = f"Plain PyTorch's time over ours: {span(found)}, {said}."
    return found and (min(found) >= 1, numbers)


@claim(
    "flash_benchmarking",
    "The forward pass in bf16 takes less time than the data sheet's memory needs to "
    "write the visible scores once and read them once, so no kernel that stores them "
    "can keep up: at every head dimension, where a head has a tile of 128 queries for "
    "each multiprocessor.",
)
def faster_than_storing_scores(record: Record) -> Judgement:
    peak, chip = peak_of(record.device.slug), chip_of(record.device.slug)
    if not (peak and chip):
        return None
    # Half of the scores, two bytes each, there and back.
    found = known(
        gpu_ms(c, "forward") / (1e3 * 2 * c.config["n"] ** 2 / peak.bandwidth)
        for c in cells(record, implementation="ours", dtype="bf16")
        if c.config["n"] >= TILE * chip.sms
    )
    return found and (max(found) < 1, f"Our time over that: {span(found)}.")


@claim(
    "flash_benchmarking",
    "At 65,536 tokens in bf16, forward and backward need no memory beyond what they "
    "return and three fp32 numbers for each row, to within five percent, at every head "
    "dimension: nothing grows with the square of N.",
)
def fused_memory_linear(record: Record) -> Judgement:
    found = known(
        memory_bytes(c) / (4 * c.config["n"] * c.config["d"] * 2 + 12 * c.config["n"])
        for c in cells(record, implementation="ours", dtype="bf16", n=LONGEST)
    )
    return found and (max(found) <= 1.05, f"Memory over that: {span(found)}.")
