"""Tables, figures and facts of `flash_benchmarking`: ours beside PyTorch."""

from collections.abc import Callable
from itertools import pairwise, product
from operator import itemgetter
from typing import Any

from matplotlib.axes import Axes

from systems.formulas.costs import attention_flops
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.figures import (
    INK,
    MARKERS,
    SERIES,
    canvas,
    legend_above,
    line,
    of_each,
    plain_log_scale,
    svg_pair,
)
from tools.render.markdown import (
    columns,
    figure,
    milliseconds,
    per_device,
    percent,
    table,
    tabs,
)
from tools.render.rows import (
    MISSING,
    NOT_MEASURED,
    Cell,
    cell,
    cells,
    known,
    least,
    most,
    say,
    span,
)
from tools.render.stems.flash_passes import passes_wait

NAMES = {
    "ours": "ours",
    "plain": "plain PyTorch",
    "compiled": "compiled PyTorch",
    "sdpa": "SDPA",
}
OTHERS = ("plain", "compiled", "sdpa")
PASSES = ("forward", "backward", "both")
DTYPES = ("bf16", "fp32")
# Of the figures, and of the shapes that sentences name.
D = 64
TFLOPS, MIB = 1e12, 2**20
# (dtype, d, N).
Shape = tuple[Any, ...]
SIZES = tuple((head, itemgetter(i)) for i, head in enumerate(("dtype", "d", "N")))


# What a record says -------------------------------------------------------------------


def shapes(record: Record | None) -> list[Shape]:
    """Those of the grid, in its order. The ceiling is no shape of attention."""
    found = [c.config for c in cells(record) if c.config["implementation"] in NAMES]
    return list(dict.fromkeys((c["dtype"], c["d"], c["n"]) for c in found))


def at(record: Record | None, name: str, dtype: str, d: int, n: int) -> Cell:
    return cell(record, implementation=name, dtype=dtype, d=d, n=n)


def rate(c: Cell, name: str) -> float:
    """FLOP/s of a pass by the FLOPs that attention needs."""
    if not c:
        return c.missing
    sizes = {"n": c.config["n"], "d": c.config["d"], "batch": 1, "heads": 1}
    return attention_flops(name, causal=True, **sizes) / (c.ms(name) / 1e3)


def ceiling(record: Record | None, dtype: str) -> float:
    """FLOP/s of the large matrix product in this dtype."""
    c = cell(record, implementation="ceiling", dtype=dtype)
    flops = 2 * c.config["n"] ** 2 * c.config["d"] if c else c.missing
    return flops / (c.ms("product") / 1e3)


def memory_bytes(c: Cell) -> float:
    """What forward and backward need at most above what was held before."""
    return c["peak_allocated_bytes"] - c["held_bytes"]


def gpu_ms(c: Cell, name: str) -> float:
    """What the GPU needs for a pass, as nearly as these times tell: the fastest sample.

    Both passes need no more than one and then the other: a host makes nobody slower
    unless it is late for every call.
    """
    fastest = {of: min(c.samples(of), default=c.missing) for of in PASSES}
    fastest["both"] = min(fastest["both"], fastest["forward"] + fastest["backward"])
    return fastest[name]


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


def fragments(records: list[Record]) -> dict[str, str]:
    """Ours and plain PyTorch; all by pass; where ours loses; figures; all numbers."""

    def passes(record: Record) -> str:
        return tabs((name.capitalize(), pass_table(record, name)) for name in PASSES)

    return {
        "table.md": per_device(records, latency_table),
        "passes.md": per_device(records, passes),
        "lost.md": per_device(records, lost_table),
        "figures.md": per_device(records, figures_body),
        "all.md": per_device(records, all_table),
        **of_each(records, rates_figure, memory_figure),
    }


def what_ran(c: Cell) -> str:
    """Which of our kernels, or of SDPA's: "triton", "hopper", "cudnn"."""
    return c["ran"].removesuffix("_attention") if c else ""


def time(record: Record, name: str, of: str, head: str) -> tuple[Any, ...]:
    """A column: the time of a pass of an implementation at a shape."""
    return head, lambda shape: at(record, name, *shape).ms(of), milliseconds


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
    """Every implementation in a pass; the rate of ours, its share of the product."""

    def ours(shape: Shape, over: float = TFLOPS) -> float:
        return rate(at(record, "ours", *shape), name) / over or MISSING

    return columns(
        shapes(record),
        *SIZES,
        *(time(record, of, name, f"{label}, ms") for of, label in NAMES.items()),
        ("ours ran", lambda s: what_ran(at(record, "ours", *s))),
        ("SDPA ran", lambda s: what_ran(at(record, "sdpa", *s))),
        ("ours, TFLOP/s", ours, "{:.1f}"),
        ("ours, share of product", lambda s: ours(s, ceiling(record, s[0])), percent),
    )


def lost_table(record: Record) -> str:
    """How often, up to which length and by how much ours is slower."""
    rows = []
    for over, name in product(OTHERS, PASSES):
        rows.append([NAMES[over].replace(" ", "\N{NO-BREAK SPACE}"), name])
        for dtype in DTYPES:
            found = ratios(record, over, name, (dtype,))
            lost = [n for _, _, n in losses(found)]
            rows[-1] += [f"{len(lost)} of {len(found)}", str(max(lost, default="none"))]
            rows[-1] += [say(least(found.values()), "{:.2f}")]
    header = ["beside", "pass"]
    for dtype in DTYPES:
        header += [f"{dtype}: ours slower at", "longest such N", "least theirs / ours"]
    return table(header, rows, left=2)


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
        ("memory, MiB", lambda c: memory_bytes(c) / MIB, "{:,.1f}"),
        left=2,
    )


# Figures ------------------------------------------------------------------------------


def lengths(record: Record | None) -> list[int]:
    return list(dict.fromkeys(n for _, _, n in shapes(record)))


def figures_body(record: Record) -> str:
    slug, longest = record.device.slug, max(lengths(record), default=0)
    rates, memory = [], []
    for dtype in DTYPES:
        best = {of: rate(at(record, of, dtype, D, longest), "both") for of in NAMES}
        parts = [f"{NAMES[of]} {r / TFLOPS:.0f}" for of, r in best.items() if r]
        rates.append(f"in {dtype} {', '.join(parts) or 'nothing was measured'}")
    for of in ("ours", "plain"):
        if needs := memory_bytes(at(record, of, "bf16", D, longest)):
            memory.append(f"{NAMES[of]} {needs / MIB:,.0f} MiB")
    drawn = figure(
        f"flash_benchmarking-rates-{slug}",
        f"At {longest} tokens, in TFLOP/s: {'; '.join(rates)}.",
        f"Rate of forward and backward together at head dimension {D}, by the FLOPs "
        "that attention needs. Dashed: the large matrix product of that dtype.",
    )
    needed = figure(
        f"flash_benchmarking-memory-{slug}",
        f"Peak memory above the inputs at {longest} tokens: "
        f"{', '.join(memory) or 'not measured'}.",
        "Peak memory of forward and backward above their inputs, bf16, head dimension "
        f"{D}. Both axes are logarithmic: a line twice as steep grows with the square.",
    )
    return f"{drawn}\n\n{needed}"


def draw(
    axes: Axes, record: Record, dtype: str, of: Callable[[Cell], float], **dashes: str
) -> None:
    """A line for each implementation, by length."""
    ns = lengths(record)
    for (name, label), color, marker in zip(
        NAMES.items(), SERIES, MARKERS, strict=False
    ):
        ys = [of(at(record, name, dtype, D, n)) for n in ns]
        look: dict[str, Any] = {
            "color": color,
            "marker": marker,
            "ls": dashes.get(name, "-"),
        }
        line(axes, ns, ys, **look, label=label if dtype == DTYPES[0] else None)
    axes.set_xscale("log", base=2)
    texts = [str(n) if n < 1024 else f"{n // 1024}k" for n in ns]
    axes.set_xticks(ns[1::2], texts[1::2])
    axes.set_xlabel("sequence length N")


def rates_figure(record: Record) -> dict[str, str]:
    with canvas(width=7.2, height=4.2) as fig:
        for axes, dtype in zip(fig.subplots(1, 2), DTYPES, strict=True):
            draw(axes, record, dtype, lambda c: rate(c, "both") / TFLOPS)
            if peak := ceiling(record, dtype):
                axes.axhline(peak / TFLOPS, color=INK, linestyle="--", linewidth=1.2)
            plain_log_scale(axes.yaxis)
            axes.set_title(dtype, fontsize=11)
            axes.set_ylabel("TFLOP/s" if dtype == DTYPES[0] else "")
        legend_above(fig, ncols=4, columnspacing=1.0, handlelength=1.6)
        return svg_pair(f"rates-{record.device.slug}", fig)


def memory_figure(record: Record) -> dict[str, str]:
    with canvas(height=4.2) as fig:
        axes = fig.subplots()
        # Ours and SDPA can need the same to the byte: dashes over a line let both show.
        draw(axes, record, "bf16", lambda c: memory_bytes(c) / MIB, sdpa="--")
        plain_log_scale(axes.yaxis, subs=(1,))
        axes.set_ylabel("memory, MiB")
        legend_above(fig, ncols=2, columnspacing=1.0, handlelength=1.6)
        return svg_pair(f"memory-{record.device.slug}", fig)


def facts(record: Record | None) -> dict[str, str]:
    """Gains over plain PyTorch, rates, memory, and where ours loses."""
    found: dict[str, str] = {}
    for dtype in DTYPES:
        for n in (1024, 16384, 65536):
            faster = ratio(record, "plain", "both", dtype, D, n)
            found[f"faster_{dtype}_{n}"] = say(faster, "{:.1f}")
        tried = cells(record, implementation="ours", dtype=dtype)
        best = most(rate(c, name) for c in tried for name in PASSES)
        large = ceiling(record, dtype)
        found[f"best_{dtype}"] = say(best / TFLOPS, "{:.0f} TFLOP/s")
        found[f"best_share_{dtype}"] = say(best / large, percent)
        found[f"product_{dtype}"] = say(large / TFLOPS, "{:.0f} TFLOP/s")
    for over in OTHERS:
        for name in PASSES:
            pairs = ratios(record, over, name) if record else None
            lost = MISSING if pairs is None else len(losses(pairs))
            found[f"slower_than_{over}_{name}"] = say(lost)
            found[f"compared_{over}"] = say(MISSING if pairs is None else len(pairs))
    for name in NAMES:
        found[f"host_decides_{name}"] = where_the_host_decides(record, name)
    for name, n in product(("ours", "sdpa"), (128, 1024)):
        time = at(record, name, "bf16", D, n).ms("both")
        found[f"both_{name}_{n}"] = say(time, lambda t: f"{milliseconds(t)} ms")
    for key in ("ours_bf16", "plain_bf16", "ours_fp32", "sdpa_fp32"):
        name, dtype = key.split("_")
        needs = memory_bytes(at(record, name, dtype, D, 65536))
        found[f"memory_{key}"] = say(needs / MIB, "{:,.0f} MiB")
    short, longer = (
        at(record, "ours", "bf16", D, n).ms("forward") for n in (128, 1024)
    )
    plain = cells(record, implementation="plain")
    out = sum(c.why == "out of memory" for c in plain) if plain else MISSING
    growth = say(longer / short, "{:.1f}")
    return found | {"growth_128_1024": growth, "out_of_memory": say(out)}


def where_the_host_decides(record: Record | None, name: str) -> str:
    """At how many shapes of an implementation, and up to which length."""
    tried = cells(record, implementation=name)
    late = [c.config["n"] for c in tried if passes_wait(*map(c.ms, PASSES))]
    if not late:
        return "no shape" if tried else NOT_MEASURED
    return f"{len(late)} shape{'s' * (len(late) > 1)} (N up to {max(late)})"


def beside_plain(record: Record, shortest: int = 0) -> tuple[list[float], str]:
    """`ratios` of all passes from this N on, and what they are."""
    found = [
        faster
        for of in PASSES
        for (_, _, n), faster in ratios(record, "plain", of).items()
        if n >= shortest
    ]
    lost = sum(faster < 1 for faster in found)
    said = f"{len(found)} pairs{f', {lost} of them below one' if lost else ''}"
    numbers = f"Plain PyTorch's time over ours: {span(found)}, {said}."
    return found, numbers


@claim(
    "flash_benchmarking",
    "From 16,384 tokens on ours is faster than plain PyTorch in every pass, dtype and "
    "head dimension.",
)
def fused_wins_long(record: Record) -> Judgement:
    found, numbers = beside_plain(record, shortest=16384)
    return found and (min(found) > 1, numbers)


@claim(
    "flash_benchmarking",
    "By the fastest samples, ours takes no longer than plain PyTorch in any pass, at "
    "any length, dtype and head dimension.",
)
def fused_keeps_up(record: Record) -> Judgement:
    found, numbers = beside_plain(record)
    return found and (min(found) >= 1, numbers)


@claim(
    "flash_benchmarking",
    "What a forward and backward pass needs beyond its inputs at most doubles with N "
    "in ours, to within five percent, and grows more than threefold in plain PyTorch: "
    "from 4,096 tokens on, in bf16 at head dimension 64.",
)
def fused_memory_linear(record: Record) -> Judgement:
    def growth(name: str) -> list[float]:
        long = [n for n in lengths(record) if n >= 4096]
        needs = [memory_bytes(at(record, name, "bf16", D, n)) for n in long]
        return known(after / before for before, after in pairwise(needs))

    ours, plain = growth("ours"), growth("plain")
    # Where programs share a loop their parts take most of it, never more of them from
    # here on: it may grow less than N.
    holds = most(ours) <= 2.1 and least(plain) > 3
    numbers = f"Per doubling of N: ours {span(ours)}, plain {span(plain)}."
    return ours and plain and (holds, numbers)
