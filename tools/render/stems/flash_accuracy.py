"""Tables, figure, facts and claims of `flash_accuracy`: errors against float64, over
those of plain attention in the same dtype.
"""

from math import erf, sqrt
from statistics import geometric_mean
from typing import Any

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.frame import Frame, Line, frame, texts
from tools.render.load import constant
from tools.render.markdown import per_device
from tools.render.plots import ACCENT, DARK, GREY, INK
from tools.render.rows import MISSING, counted, known, most, say

RESULTS: tuple[str, ...] = constant("flash_accuracy", "RESULTS")
GRADIENTS = ("dq", "dk", "dv")
# The colour of each dtype in the figure.
DTYPES = {"fp32": DARK, "fp16": GREY, "bf16": ACCENT}
NAMES = {
    "triton": "Triton",
    "hopper": "Hopper",
    "torch": "PyTorch tiles",
    "plain": "plain attention",
    "sdpa_flash": "SDPA, FlashAttention-2",
    "sdpa_cudnn": "SDPA, cuDNN",
    "sdpa_efficient": "SDPA, memory-efficient",
    "sdpa_math": "SDPA, math",
}
OURS = ("triton", "hopper")
# Why the limit is twice the error of plain attention.
TWICE = (
    "what FlashAttention's own tests allow: a sum in tiles is rounded in more places."
)
LIMIT = 2
# Of a significand, the leading one included.
BITS = {"fp16": 11, "bf16": 8}
# What the predictions are for.
TELLING = {"d": 64, "n": 4096, "causal": True}
# Of rows from before it was a field.
HEADS = 4
# What is compared of an error.
NORM, LARGEST = "relative_error", "largest_error"
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


# Columns ------------------------------------------------------------------------------


def errors(record: Record | None) -> Frame:
    """Return the rows, each beside that of plain attention on the same inputs."""
    return frame(record).join("plain", implementation="plain")


def error_over_plain(x: Line, of: str, by: str = NORM) -> float:
    """Return the error of a result over plain attention's."""
    return x.get(f"{of}_{by}") / (x["plain"].get(f"{of}_{by}") or MISSING)


def ratios(
    found: Frame,
    name: str | tuple[str, ...],
    dtype: str,
    results: tuple[str, ...] = RESULTS,
    by: str = NORM,
) -> list[float]:
    """Return `error_over_plain` of each result and configuration. lse counts in fp32
    alone: plain attention in 16 bits rounds it to 16 bits, which the kernels never do.
    """
    judged = [of for of in results if of != "lse" or dtype == "fp32"]
    rows = found.where(implementation=name, dtype=dtype)
    return known(error_over_plain(x, of, by) for x in rows for of in judged)


def compared(record: Record) -> Frame:
    """Return a row for each implementation and dtype with its ratios."""
    found = errors(record)
    dtypes = dict.fromkeys(found.column("dtype"))
    pairs = [(n, d) for n in NAMES for d in dtypes if n != "plain"]
    return Frame(
        Line(name=NAMES[n], dtype=d, over=over, largest=ratios(found, n, d, by=LARGEST))
        for n, d in pairs
        if (over := ratios(found, n, d))
    )


# Tables and figure --------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    return {
        "figure.md": per_device(records, ratios_figure),
        "table.md": per_device(records, error_table),
        "ratios.md": per_device(records, ratio_table),
    }


def error_table(record: Record) -> str:
    return (
        frame(record, **TELLING)
        .derive(heads=lambda x: x.config.get("heads", HEADS))
        .table(
            ("implementation", lambda x: NAMES[x["implementation"]]),
            ("dtype", "dtype"),
            ("heads", "heads"),
            *((of, lambda x, of=of: x.get(f"{of}_{NORM}"), "{:.1e}") for of in RESULTS),
            left=2,
            telling=is_telling,
        )
    )


def is_telling(x: Line) -> bool:
    """In bf16 all with few heads, and the kernels that run for many."""
    few = x["heads"] == HEADS
    return x["dtype"] == "bf16" and (few or x["implementation"] == "hopper")


def ratio_table(record: Record) -> str:
    return compared(record).table(
        ("implementation", "name"),
        ("dtype", "dtype"),
        ("least", lambda x: min(x["over"]), "{:.2f}"),
        ("geometric mean", lambda x: geometric_mean(x["over"]), "{:.2f}"),
        ("most", lambda x: max(x["over"]), "{:.2f}"),
        ("results compared", lambda x: len(x["over"])),
        ("most, largest error", lambda x: say(most(x["largest"]), "{:.2f}")),
        left=2,
        telling=lambda x: x["dtype"] == "bf16",
    )


def ratios_figure(record: Record) -> str:
    """From the least to the most of each implementation, by dtype."""
    found = compared(record)
    names = list(dict.fromkeys(found.column("name")))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for i, (dtype, color) in enumerate(DTYPES.items()):
            for x in found.where(dtype=dtype):
                y = names.index(x["name"]) + 0.22 * (i - 1)
                style: dict[str, Any] = {"color": color, "label": "_"}
                ends = [min(x["over"]), max(x["over"])]
                axes.plot(ends, [y, y], lw=3, solid_capstyle="butt", **style)
                axes.plot([geometric_mean(x["over"])], [y], "o", ms=6, **style)
        axes.axvline(1, color=INK, lw=1)
        plots.bars(axes, names)
        plots.plain_log_scale(axes.xaxis)
        axes.set_title("error over plain attention's")
        plots.key(figure, DTYPES)

    worst = {d: most(ratios(errors(record), "triton", d)) for d in DTYPES}
    told = ", ".join(f"{say(of, '{:.2f}')} in {dtype}" for dtype, of in worst.items())
    return plots.plot(
        record,
        "ratios",
        draw,
        "By the norm of its error, FlashAttention errs at most this many times as much "
        f"as plain attention: {told}.",
        "Each bar spans all results, head dimensions, lengths and masks; a mark shows "
        "the geometric mean. The line: plain attention in the same dtype.",
        height=90 + 36 * len(names),
    )


# Facts --------------------------------------------------------------------------------


def rounding(bits: int) -> float:
    """Return the relative error, norm over norm, of normal numbers that are rounded
    once to so many significant bits: a spacing over the root of 12, in each power of
    two.
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
    """The worst error of the kernels over plain attention's, by dtype; and what
    roundings predict.
    """
    found = errors(record)
    worst = {d: most(ratios(found, "triton", d)) for d in DTYPES}
    for d in DTYPES:
        worst[f"{d}_largest"] = most(ratios(found, "triton", d, by=LARGEST))
    worst["bf16_forward"] = most(ratios(found, "triton", "bf16", ("o",)))
    rounded = {f"once_{d}": rounding(bits) for d, bits in BITS.items()}
    rounded |= {f"twice_{d}": sqrt(2) * rounding(bits) for d, bits in BITS.items()}
    for d in BITS:
        for name in ("sdpa_math", "triton", "plain"):
            x = frame(record).one(implementation=name, dtype=d, **TELLING)
            rounded[f"{name}_{d}"] = x.get(f"o_{NORM}")
    return {
        **texts("{:.2f}", {f"worst_{name}": ratio for name, ratio in worst.items()}),
        **texts("{:.5f}", rounded),
        "calls_compared": str(constant("flash_accuracy", "CALLS")),
        "same_ours": say(
            counted(x["differing_calls"] == 0 for x in repeated_rows(record))
        ),
    }


def repeated_rows(record: Record | None) -> Frame:
    """Return the kernels' rows in which later calls were compared with the first."""
    return frame(record, implementation=OURS).where(lambda x: "calls" in x.metrics)


# Claims -------------------------------------------------------------------------------


def errs_little(record: Record, *results: str) -> Judgement:
    """By norms and by the largest single errors, of Triton's and Hopper's kernels."""
    found, worst, told = errors(record), [], []
    for name in OURS:
        for by, words in ((NORM, "norms"), (LARGEST, "the largest single errors")):
            every = {d: most(ratios(found, name, d, results, by)) for d in DTYPES}
            every = {d: ratio for d, ratio in every.items() if known([ratio])}
            text = ", ".join(f"{d} {ratio:.2f}" for d, ratio in every.items())
            told.append(f"{NAMES[name]}, of {words}: {text}")
            worst += every.values()
    return worst and (max(worst) <= LIMIT, f"Largest ratios: {'; '.join(told)}.")


@claim(
    "flash_forward",
    "The forward passes of our kernels err at most twice as much as plain attention in "
    "the same dtype, over every configuration.",
    because=TWICE,
)
def forward_accurate(record: Record) -> Judgement:
    return errs_little(record, "o", "lse")


@claim(
    "flash_backward",
    "The gradients of our kernels err at most twice as much as those of plain "
    "attention in the same dtype, over every configuration.",
    because=TWICE,
)
def backward_accurate(record: Record) -> Judgement:
    return errs_little(record, *GRADIENTS)


@claim(
    "flash_backward",
    "Calls of our kernels on the same inputs give the same bits, in every result and "
    "configuration.",
)
def same_bits(record: Record) -> Judgement:
    found = repeated_rows(record)
    calls, differing = (sum(found.column(c)) for c in ("calls", "differing_calls"))
    told = f"{differing} of {calls:,} calls differ, over {len(found)} configurations."
    return (differing == 0, told) if found else None
