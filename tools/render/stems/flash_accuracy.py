"""Tables and facts of `flash_accuracy`: errors against float64, beside PyTorch's."""

from collections.abc import Iterable
from math import erf, sqrt
from statistics import geometric_mean
from typing import Any

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.load import constant
from tools.render.markdown import columns, per_device, table
from tools.render.plots import (
    ACCENT,
    DARK,
    GREY,
    INK,
    bars,
    key,
    plain_log_scale,
    plot,
)
from tools.render.rows import (
    MISSING,
    Cell,
    axis,
    cell,
    cells,
    counted,
    known,
    most,
    say,
)

RESULTS: tuple[str, ...] = constant("flash_accuracy", "RESULTS")
DTYPES = ("fp32", "fp16", "bf16")
NAMES = {
    "triton": "ours, Triton",
    "hopper": "ours, for Hopper",
    "torch": "ours, PyTorch tiles",
    "plain": "plain attention",
    "sdpa_flash": "SDPA, FlashAttention-2",
    "sdpa_cudnn": "SDPA, cuDNN",
    "sdpa_efficient": "SDPA, memory-efficient",
    "sdpa_math": "SDPA, math",
}
OURS = ("triton", "hopper")
# Why our errors are held against twice those of plain attention.
TWICE = (
    "what FlashAttention's own tests allow: a sum in tiles is rounded in more places."
)
# Of a significand, the leading one included.
BITS = {"fp16": 11, "bf16": 8}
# What the predictions are for.
TELLING = {"d": 64, "n": 4096, "causal": True}
# Of rows from before it was a field.
HEADS = 4
# What is compared of an error.
NORM, LARGEST = "relative_error", "largest_error"
# As much as a kernel may err for each error of plain attention.
LIMIT = 2


# Tables and figures -----------------------------------------------------------------

CAPTIONS = {
    "table.md": (
        "Error of each result against float64, at d = 64 and N = 4096 under the "
        "causal mask."
    ),
    "ratios.md": (
        "Errors over those of plain PyTorch in the same precision: below 1 is closer "
        "to the exact result. By norms; last column: by the largest single error, as "
        "the rule has it."
    ),
}


def fragments(records: list[Record]) -> dict[str, str]:
    """Ours over plain attention's error, drawn and in a table; errors
    at d = 64, N = 4096.
    """
    return {
        "figure.md": per_device(records, ratios_figure),
        "table.md": per_device(records, error_table),
        "ratios.md": per_device(records, ratio_table),
    }


def error_table(record: Record) -> str:
    return columns(
        cells(record, **TELLING),
        ("implementation", lambda c: NAMES[c.config["implementation"]]),
        "dtype",
        ("heads", lambda c: c.config.get("heads", HEADS)),
        *((name, lambda c, name=name: error(c, name), "{:.1e}") for name in RESULTS),
        left=2,
        telling=is_telling,
    )


def is_telling(c: Cell) -> bool:
    """In bf16 everybody with few heads, and the kernels that run for many."""
    few = c.config.get("heads", HEADS) == HEADS
    return c.config["dtype"] == "bf16" and (
        few or c.config["implementation"] == "hopper"
    )


def error(c: Cell, result: str, by: str = NORM) -> float:
    return c.get(f"{result}_{by}")


def ratios(
    record: Record | None,
    name: str,
    dtype: str,
    results: tuple[str, ...] = RESULTS,
    by: str = NORM,
) -> list[float]:
    """Error of an implementation over that of plain attention in the same dtype, for
    each result and configuration: of norms, or of the largest single ones.

    lse counts in fp32 alone: plain attention in 16 bits rounds it to 16 bits, which
    ours never do.
    """
    compared = [result for result in results if result != "lse" or dtype == "fp32"]
    found = []
    for c in cells(record, implementation=name, dtype=dtype):
        plain = cell(record, **c.config | {"implementation": "plain"})
        found += [
            error(c, of, by) / (error(plain, of, by) or MISSING) for of in compared
        ]
    return known(found)


def compared(record: Record) -> dict[tuple[str, str], list[float]]:
    """`ratios` of each implementation and dtype that has some."""
    found = {
        (name, dtype): ratios(record, name, dtype)
        for name in NAMES
        for dtype in axis(record, "dtype")
        if name != "plain"
    }
    return {place: over for place, over in found.items() if over}


def ratio_table(record: Record) -> str:
    header = ["implementation", "dtype", "least", "geometric mean", "most"]
    header += ["results compared", "most, largest error"]
    rows = []
    for (name, dtype), found in compared(record).items():
        shown = (min(found), geometric_mean(found), max(found))
        numbers = [f"{ratio:.2f}" for ratio in shown]
        single = say(most(ratios(record, name, dtype, by=LARGEST)), "{:.2f}")
        rows.append([NAMES[name], dtype, *numbers, str(len(found)), single])
    in_bf16 = [dtype == "bf16" for _, dtype in compared(record)]
    return table(header, rows, left=2, telling=in_bf16)


def ratios_figure(record: Record) -> str:
    """From the least to the most of each implementation, by dtype."""
    found = compared(record)
    names = [name for name in NAMES if any(name == of for of, _ in found)]
    looks = {"fp32": DARK, "fp16": GREY, "bf16": ACCENT}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for i, dtype in enumerate(looks):
            for (name, of), over in found.items():
                if of == dtype:
                    y = names.index(name) + 0.22 * (i - 1)
                    ends = [min(over), max(over)]
                    style: dict[str, Any] = {"color": looks[dtype], "label": "_"}
                    axes.plot(ends, [y, y], lw=3, solid_capstyle="butt", **style)
                    axes.plot([geometric_mean(over)], [y], "o", ms=6, **style)
        axes.axvline(1, color=INK, lw=1)
        bars(axes, [NAMES[name] for name in names])
        plain_log_scale(axes.xaxis)
        axes.set_title("error over plain attention's")
        key(figure, looks)

    worst = {dtype: most(ratios(record, "triton", dtype)) for dtype in DTYPES}
    told = ", ".join(f"{say(of, '{:.2f}')} in {dtype}" for dtype, of in worst.items())
    return plot(
        record,
        "ratios",
        draw,
        "By the norm of its error, ours errs at most this many times as much as plain "
        f"attention: {told}.",
        "Each bar spans all results, head dimensions, lengths and masks; a mark shows "
        "the geometric mean. The line: plain attention in the same dtype.",
        height=90 + 36 * len(names),
    )


# Facts --------------------------------------------------------------------------------


def rounding(bits: int) -> float:
    """The relative error, norm over norm, of normal numbers that are rounded once to so
    many significant bits: a spacing over the root of 12, in each power of two.
    """

    def within(x: float) -> float:
        return erf(x / sqrt(2))

    powers = range(-20, 4)
    squares = (
        4.0**power * (within(2.0 ** (power + 1)) - within(2.0**power))
        for power in powers
    )
    return 2.0 ** (1 - bits) * sqrt(sum(squares) / 12)


def facts(record: Record | None) -> dict[str, str]:
    """The worst error of ours over plain attention's, by dtype; and what roundings
    predict.
    """
    worst = {dtype: most(ratios(record, "triton", dtype)) for dtype in DTYPES}
    without_lse = most(ratios(record, "triton", "fp32", ("o", "dq", "dk", "dv")))
    hopper = {f"hopper_{d}": most(ratios(record, "hopper", d)) for d in BITS}
    named = worst | {"fp32_without_lse": without_lse} | hopper
    named["bf16_forward"] = most(ratios(record, "triton", "bf16", ("o",)))
    named["sdpa_efficient_fp32"] = most(ratios(record, "sdpa_efficient", "fp32"))
    for dtype in DTYPES:
        named[f"{dtype}_largest"] = most(ratios(record, "triton", dtype, by=LARGEST))
    for dtype in BITS:
        of_hopper = most(ratios(record, "hopper", dtype, by=LARGEST))
        named[f"hopper_{dtype}_largest"] = of_hopper
    found = {f"worst_{name}": say(ratio, "{:.2f}") for name, ratio in named.items()}
    found["calls_compared"] = str(constant("flash_accuracy", "CALLS"))
    for name in OURS:
        calls, same = repeated(record, name)
        found |= {f"calls_{name}": say(calls, "{:,}"), f"same_{name}": say(same)}
    for dtype, bits in BITS.items():
        once = rounding(bits)
        found[f"once_{dtype}"] = f"{once:.5f}"
        found[f"twice_{dtype}"] = f"{sqrt(2) * once:.5f}"
        for name in ("sdpa_math", "triton", "plain"):
            c = cell(record, implementation=name, dtype=dtype, **TELLING)
            found[f"{name}_{dtype}"] = say(error(c, "o"), "{:.5f}")
    return found


def repeated(record: Record | None, name: str) -> tuple[Any, Any]:
    """How many calls were compared with a first one, and how many configurations gave
    the same bits in all of theirs.
    """
    judged = [c for c in cells(record, implementation=name) if "calls" in c.metrics]
    calls = sum(c["calls"] for c in judged) or MISSING
    return calls, counted(c["differing_calls"] == 0 for c in judged)


# Claims -------------------------------------------------------------------------------


def errs_little(
    record: Record, *results: str, name: str = "triton", dtypes: Iterable[str] = DTYPES
) -> Judgement:
    """By norms and by the largest single errors."""
    worst, told = [], []
    for by, words in ((NORM, "norms"), (LARGEST, "the largest single errors")):
        found = {d: most(ratios(record, name, d, results, by)) for d in dtypes}
        ratio_of = ", ".join(f"{dtype} {ratio:.2f}" for dtype, ratio in found.items())
        told.append(f"of {words} {ratio_of}")
        worst += found.values()
    said = f"Largest ratios: {'; '.join(told)}."
    return all(worst) and (max(worst) <= LIMIT, said)


@claim(
    "flash_forward",
    "The Triton forward pass errs at most twice as much as plain attention in the same "
    "dtype, over every configuration.",
    because=TWICE,
)
def forward_accurate(record: Record) -> Judgement:
    return errs_little(record, "o", "lse")


@claim(
    "flash_backward",
    "The gradients of the Triton kernels err at most twice as much as those of plain "
    "attention in the same dtype, over every configuration.",
    because=TWICE,
)
def backward_accurate(record: Record) -> Judgement:
    return errs_little(record, "dq", "dk", "dv")


@claim(
    "flash_forward",
    "The forward pass for Hopper errs at most twice as much as plain attention in the "
    "same dtype, over every configuration.",
    because=TWICE,
)
def hopper_forward_accurate(record: Record) -> Judgement:
    return errs_little(record, "o", name="hopper", dtypes=BITS)


@claim(
    "flash_backward",
    "The gradients of the kernels for Hopper, in one pass and in two, err at most "
    "twice as much as those of plain attention in the same dtype, over every "
    "configuration.",
    because=TWICE,
)
def hopper_backward_accurate(record: Record) -> Judgement:
    return errs_little(record, "dq", "dk", "dv", name="hopper", dtypes=BITS)


@claim(
    "flash_backward",
    "Calls of our kernels on the same inputs give the same bits, in every result and "
    "configuration.",
)
def same_bits(record: Record) -> Judgement:
    found = [
        c
        for name in OURS
        for c in cells(record, implementation=name)
        if "calls" in c.metrics
    ]
    calls = sum(c["calls"] for c in found)
    differing = sum(c["differing_calls"] for c in found)
    told = f"{differing} of {calls:,} calls differ, over {len(found)} configurations."
    return (differing == 0, told) if found else None
