"""Tables, figures and facts of `attention`: time and memory of plain attention over d
and N.

Two pages include them. `memory` builds what is about memory, `compiled` what compares
eager with compiled.
"""

from collections.abc import Iterable

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import columns, per_device
from tools.render.plots import (
    ACCENT,
    DARK,
    line,
    panels,
    plain_log_scale,
    plot,
    power_of_two_axis,
)
from tools.render.rows import Cell, axis, measured, say
from tools.render.stems.attention import compiled, memory
from tools.render.stems.attention.compiled import (  # noqa: F401
    compiled_attention_faster,
)
from tools.render.stems.attention.memory import two_matrices_saved  # noqa: F401
from tools.render.stems.attention.rows import (
    BEFORE_BACKWARD,
    EXECUTIONS,
    LONGEST,
    PASSES,
    PEAK,
    WIDTH,
    Tried,
    at,
    gib3,
    lengths,
    variants,
)

CAPTIONS = {
    "table.md": (
        "Plain attention in fp32 without a mask: time of each pass, what is held "
        "before backward, and the peak."
    ),
    "variants.md": (
        "Plain attention at d = 64: at N = 16384 a mask costs time and a little "
        "memory, and bf16 about halves both; at N = 256 times are those of launches."
    ),
    "saved.md": (
        "What autograd keeps of one forward pass at N = 4096 under the causal mask."
    ),
    "accounting.md": (
        "What would be alive at the peak of the first pass that does not fit."
    ),
    "compiled.md": "Attention in fp32 without a mask, eager and compiled.",
    "speedup-table.md": "Eager time over compiled time, both passes together: by the "
    "median of their sums, so where the host decides it can lie outside both ratios.",
    "kernels.md": "The kernels of each pass, before compiling and after.",
}


def fragments(records: list[Record]) -> dict[str, str]:
    """Tables for all devices; figures for measured ones."""
    ours = measured(records)
    return {
        "table.md": per_device(records, grid_table),
        "variants.md": per_device(ours, lambda r: variants_table(r, TELLING)),
        "variants-all.md": per_device(ours, lambda r: variants_table(r, lengths(r))),
        "times.md": per_device(ours, times_figure),
        **memory.fragments(ours),
        **compiled.fragments(records),
    }


# Tables -------------------------------------------------------------------------------

LENGTH = ("N", lambda c: c.config["n"])
MASK = ("causal mask", lambda c: c.config["causal"])
MEMORY = (
    ("memory before backward, GiB", lambda c: c.get(BEFORE_BACKWARD), gib3),
    ("peak, GiB", lambda c: c.get(PEAK), gib3),
)
TIMES = [(f"{p}, ms", lambda c, p=p: c.mean_std(p)) for p in PASSES]


def grid_table(record: Record) -> str:
    """The assignment's 20 cells: fp32, no mask, eager; those of others as they report
    them.
    """
    found = [at(record, n, d) for d in axis(record, "d") for n in lengths(record)]
    found = [c for c in found if c.row]
    times = TIMES
    if record.kind == "reported":
        times = [(f"{p}, ms", lambda c, p=p: reported_ms(c, p)) for p in PASSES]
    shown = ("d", LENGTH, *times, *MEMORY)
    return columns(found, *shown, left=0, telling=lambda c: c.config["d"] == WIDTH)


def reported_ms(c: Cell, name: str) -> str:
    deviation = c.get(f"{name}_std_ms", None)
    mean = f"{c[f'{name}_mean_ms']:.2f}"
    return mean if deviation is None else f"{mean} ± {deviation:.2f}"


# Lengths that are shown first: one where a pass costs its launches, and the longest.
TELLING = (256, LONGEST)


def variants_table(record: Record, ns: Iterable[int]) -> str:
    """Both dtypes, with and without a mask, at one width."""
    found = [at(record, n, WIDTH, *v) for v in variants(record) for n in ns]
    shown = filter(lambda c: c.row, found)
    return columns(shown, "dtype", MASK, LENGTH, *TIMES, *MEMORY, left=2)


# Figure -------------------------------------------------------------------------------


def growth(record: Record | None, name: str) -> float:
    """Eager time at the longest length of the grid over that at half of it: 4 where it
    grows with N².
    """
    return at(record, LONGEST).ms(name) / at(record, LONGEST // 2).ms(name)


def times_figure(record: Record) -> str:
    if not (ns := lengths(record)):
        return ""

    def draw(figure: Figure) -> None:
        for axes, name in zip(panels(figure, 2, sharey=True), PASSES, strict=True):
            eager, compiled = (
                [at(record, n, execution=e).ms(name) for n in ns] for e in EXECUTIONS
            )
            line(axes, ns, compiled, label="compiled")
            line(axes, ns, eager, label="eager", color=ACCENT)
            grown = [eager[-1] * (n / ns[-1]) ** 2 for n in ns[2:]]
            look = {"marker": "", "ls": (0, (1, 2)), "color": DARK, "linewidth": 1}
            line(axes, ns[2:], [t / 4 for t in grown], label="slope of N²", **look)
            plain_log_scale(axes.yaxis, subs=(1,))
            power_of_two_axis(axes.xaxis, ns, "sequence length N")
            axes.set_title(f"{name} pass, ms")

    factors = {name: growth(record, name) for name in PASSES}
    grown = [f"{factor:.2f} {name}" for name, factor in factors.items() if factor]
    return plot(
        record,
        "times",
        draw,
        f"From N = {LONGEST // 2:,} to twice that, the time of an eager pass grows by "
        f"a factor of {' and '.join(grown)}."
        if grown
        else f"An eager pass at N = {LONGEST:,}: {say(factors['forward'])}.",
        f"Median times in fp32, d = {WIDTH}, no mask. What grows with N² runs parallel "
        "to the dotted line. Compiled: the same code through torch.compile, on the "
        "next page.",
        narrow=520,
    )


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """Times at one width and the longest length, and how they grow; what memory and
    compiling have to say.
    """
    longest: Tried = at(record, LONGEST)
    narrow, wide = (at(record, LONGEST, d).ms("forward") for d in (16, 128))
    return {
        **{name: say(longest.ms(name), "{:.1f} ms") for name in PASSES},
        "forward_16": say(narrow, "{:.1f} ms"),
        "forward_128": say(wide, "{:.1f} ms"),
        "wide_over_narrow": say(wide / narrow, "{:.1f}"),
        **{f"growth_{p}": say(growth(record, p), "{:.2f}") for p in PASSES},
        **memory.facts(record),
        **compiled.facts(record),
    }


@claim(
    "pytorch_attention",
    "At the longest lengths the time of both passes grows with N²: by three to five "
    "times from one length to twice that.",
    because="four by N², and a quarter to either side for what grows with N alone.",
)
def time_grows_with_square(record: Record) -> Judgement:
    forward, backward = (growth(record, name) for name in PASSES)
    numbers = (
        f"From N = {LONGEST // 2:,} to twice that: forward {forward:.2f}, backward "
        f"{backward:.2f}."
    )
    return forward / backward and (3 <= forward <= 5 and 3 <= backward <= 5, numbers)
