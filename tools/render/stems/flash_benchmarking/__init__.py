"""Tables, figures and facts of `flash_benchmarking`: ours beside PyTorch."""

from collections.abc import Callable
from itertools import product
from operator import itemgetter
from typing import Any

from systems.formulas.costs import attention_flops
from systems.records.record import Record
from tools.render.load import primary_gpu
from tools.render.markdown import (
    columns,
    milliseconds,
    per_device,
    percent,
    table,
    tabs,
)
from tools.render.rows import (
    MISSING,
    Cell,
    cell,
    cells,
    data_sheet,
    least,
    most,
    say,
    span,
)
from tools.render.stems.flash_benchmarking import claims as claims
from tools.render.stems.flash_benchmarking import figures
from tools.render.stems.flash_benchmarking.rows import (
    DTYPES,
    LIMB_PRODUCTS,
    LONGEST,
    MIB,
    NAMES,
    OTHERS,
    D,
    Shape,
    at,
    losses,
    memory_bytes,
    product_rate,
    rate,
    ratio,
    ratios,
    shapes,
    share,
    what_ran,
    where_the_host_decides,
)
from tools.render.stems.flash_passes import (
    PASSES,
    SAID,
    TFLOPS,
    peak_flops,
    round_ratios,
    time_ratio,
    tiny,
)

# Those at which the tiles in PyTorch are timed.
OF_TILES = 1024, 4096
TELLING = (128, 1024, 16384, LONGEST)
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
SIZES = tuple((head, itemgetter(i)) for i, head in enumerate(("dtype", "d", "N")))

CAPTIONS = {
    "passes.md": "Each pass at every shape: times, the rate that ours reaches, memory.",
    "table.md": (
        "FlashAttention and plain PyTorch at every shape: forward, backward, and the "
        "two together, without a loss. Medians by `do_bench`, which include the wait "
        "for launches, and of GPU time. Plain / ours is of GPU time, the median of "
        "rounds with the lowest and the highest."
    ),
}


def fragments(records: list[Record]) -> dict[str, str]:
    """Of what follows from shapes, what was drawn, and what stands in tables."""
    return {
        "moves.md": moves_table(),
        "rates.md": per_device(records, figures.rates_figure),
        "memory.md": per_device(records, figures.memory_figure),
        "telling.md": per_device(records, telling_table),
        "table.md": per_device(records, latency_table),
        "passes.md": per_device(records, by_pass),
        "lost.md": per_device(records, lost_table),
        "pytorch.md": per_device(records, pytorch_table),
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


def time(record: Record, name: str, of: str, head: str) -> tuple[Any, ...]:
    """A column: the median time by `do_bench` of a pass at a shape."""
    return head, lambda shape: at(record, name, *shape).ms(of), milliseconds


def gpu_time(record: Record, name: str, of: str, head: str) -> tuple[Any, ...]:
    """A column: the median GPU time of a pass at a shape."""
    return head, lambda shape: at(record, name, *shape).gpu_ms(of), milliseconds


def over_ours(record: Record, shape: Shape) -> Any:
    """ "19.5 (19.1 to 19.8)": plain attention's GPU time for both passes over ours."""
    theirs, ours = (at(record, name, *shape) for name in ("plain", "ours"))
    shown = say(time_ratio(theirs, ours, "both"), "{:.2f}")
    rounds = round_ratios(theirs, ours, "both")
    return f"{shown} ({span(rounds)})" if rounds else shown


def telling_table(record: Record) -> str:
    """GPU time of both passes at a few lengths."""

    def both(name: str) -> Callable[[Shape], float]:
        return lambda shape: at(record, name, *shape).kernel_ms("both")

    return columns(
        [s for s in shapes(record) if s[1] == D and s[2] in TELLING],
        ("dtype", itemgetter(0)),
        ("N", itemgetter(2)),
        *((f"{label}, ms", both(name), milliseconds) for name, label in NAMES.items()),
        ("plain / ours", lambda s: ratio(record, "plain", "both", *s), "{:.1f}"),
        *rates_of_ours(record, "both"),
    )


def rates_of_ours(record: Record, name: str) -> list[tuple[Any, ...]]:
    """Columns: of ours at a shape the rate in a pass, and its share of the peak."""

    def ours(shape: Shape) -> Cell:
        return at(record, "ours", *shape)

    return [
        ("ours, TFLOP/s", lambda s: rate(ours(s), name) / TFLOPS or MISSING, "{:.1f}"),
        ("share of peak", lambda s: share(record, ours(s), name) or MISSING, tiny),
    ]


def latency_table(record: Record) -> str:
    """The table that the assignment asks for."""
    who = [(name, of) for name in ("ours", "plain") for of in PASSES]
    return columns(
        shapes(record),
        *SIZES,
        *(time(record, name, of, f"{name}, {SAID[of]}, ms") for name, of in who),
        *(
            gpu_time(record, name, "both", f"{name}, {SAID['both']}, GPU, ms")
            for name in ("ours", "plain")
        ),
        ("plain / ours, forward + backward", lambda s: over_ours(record, s)),
        ("ours ran", lambda s: what_ran(at(record, "ours", *s))),
        telling=lambda s: s[1] == D and s[2] in TELLING,
    )


def by_pass(record: Record) -> str:
    shown = [(SAID[name].capitalize(), pass_table(record, name)) for name in PASSES]
    return tabs([*shown, ("Memory", memory_table(record))])


def pass_table(record: Record, name: str) -> str:
    """Every implementation in a pass; the rate of ours, its share of the peak."""
    return columns(
        shapes(record),
        *SIZES,
        *(time(record, of, name, f"{label}, ms") for of, label in NAMES.items()),
        ("ours ran", lambda s: what_ran(at(record, "ours", *s))),
        ("SDPA ran", lambda s: what_ran(at(record, "sdpa", *s))),
        *rates_of_ours(record, name),
    )


def memory_table(record: Record) -> str:
    """What forward and backward of each implementation need above their inputs."""

    def needed(name: str) -> Callable[[Shape], float]:
        return lambda shape: memory_bytes(at(record, name, *shape)) / MIB

    return columns(
        shapes(record),
        *SIZES,
        *((f"{label}, MiB", needed(n), "{:,.1f}") for n, label in NAMES.items()),
    )


def lost_table(record: Record) -> str:
    """How often, up to which length and by how much ours is slower."""
    rows = []
    for over, name in product(OTHERS, PASSES):
        rows.append([NAMES[over].replace(" ", "\N{NO-BREAK SPACE}"), SAID[name]])
        for dtype in DTYPES:
            found = ratios(record, over, name, (dtype,))
            lost = [n for _, _, n in losses(found)]
            rows[-1] += [f"{len(lost)} of {len(found)}", str(max(lost, default=""))]
            rows[-1] += [say(least(found.values()), "{:.2f}")]
    header = ["beside", "pass"]
    for dtype in DTYPES:
        header += [f"{dtype}: ours slower at", "longest such N", "least theirs / ours"]
    rivals = [over != "plain" for over, _ in product(OTHERS, PASSES)]
    return table(header, rows, left=2, telling=rivals)


def pytorch_table(record: Record) -> str:
    """The passes of the class of PyTorch tiles, beside ours in Triton and plain
    attention, by the GPU's time.
    """

    def of(c: Cell, name: str, which: str) -> float:
        return cell(record, **c.config | {"implementation": name}).kernel_ms(which)

    names = {"tiles": "PyTorch tiles", "plain": "plain", "ours": "Triton"}
    return columns(
        cells(record, implementation="tiles"),
        "dtype",
        ("N", lambda c: c.config["n"]),
        *(
            (f"{label}, {which}, ms", lambda c, n=n, w=which: of(c, n, w), milliseconds)
            for which, (n, label) in product(PASSES[:2], names.items())
        ),
        left=2,
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
    for over, name in product(OTHERS, PASSES):
        pairs = ratios(record, over, name) if record else None
        lost = MISSING if pairs is None else len(losses(pairs))
        found[f"slower_than_{over}_{name}"] = say(lost)
        tried = MISSING if pairs is None else len(pairs)
        found[f"compared_{over}_{name}"] = say(tried)
    for name in NAMES:
        found[f"host_decides_{name}"] = where_the_host_decides(record, name)
    for name in ("ours", "sdpa"):
        time = at(record, name, "bf16", D, 128).ms("both")
        found[f"both_{name}_128"] = say(1e3 * time, "{:.0f} µs")
    for name in ("tiles", "plain", "ours"):
        time = at(record, name, "fp32", D, OF_TILES[-1]).ms("backward")
        found[f"{name}_backward"] = say(time, lambda ms: f"{milliseconds(ms)} ms")
    first, last = (at(record, "tiles", "fp32", D, n).ms("backward") for n in OF_TILES)
    found["tiles_growth"] = say(last / first, "{:.1f}")
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
    peak = data_sheet(primary_gpu())
    scores, returned = LONGEST**2, 4 * LONGEST * D * 2
    moved = 2 * scores * sum(sum(of.values()) for of in PLAIN_MOVES.values())
    work = attention_flops("both", d=D, batch=1, heads=1, n=LONGEST, causal=True)
    plain_ms = 1e3 * moved / peak.bandwidth
    ours_ms = 1e3 * work / peak.bf16
    plain_took, ours_took = (
        at(record, name, "bf16", D, LONGEST).kernel_ms("both")
        for name in ("plain", "ours")
    )
    ms = "{:.3g} ms"
    return {
        "moves_forward": f"{sum(PLAIN_MOVES['forward'].values()):g}",
        "moves_backward": f"{sum(PLAIN_MOVES['backward'].values()):g}",
        "plain_moved": f"{moved / 1e9:.0f} GB",
        "plain_predicted": say(plain_ms, ms),
        "plain_took": say(plain_took, ms),
        "plain_over_predicted": say(plain_took / plain_ms, "{:.1f}"),
        "ours_flops": f"{work / 1e12:.2f} TFLOP",
        "ours_predicted": say(ours_ms, ms),
        "ours_took": say(ours_took, ms),
        "ours_over_predicted": say(ours_took / ours_ms, "{:.1f}"),
        "faster_predicted": say(plain_ms / ours_ms, "{:.0f}"),
        "score_matrix": f"{2 * scores / MIB:,.0f} MiB",
        "memory_plain_predicted": f"{2 * PLAIN_HOLDS * scores / MIB:,.0f} MiB",
        "memory_ours_predicted": f"{(returned + 12 * LONGEST) / MIB:.1f} MiB",
        "memory_sums": f"{4 * LONGEST * D / MIB:.0f} MiB",
    }
