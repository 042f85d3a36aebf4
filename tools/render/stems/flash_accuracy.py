"""Tables, figure, facts and claims of `flash_accuracy`: errors against float64."""

from math import erf, sqrt
from statistics import geometric_mean
from typing import Any

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.fragments import Drawn, Fragments
from tools.render.frame import Frame, Line, frame
from tools.render.load import read_constant
from tools.render.plots import ACCENT, DARK, GREY, INK
from tools.render.rows import MISSING, count_true, dropna, fmt, nanmax

RESULTS: tuple[str, ...] = read_constant("flash_accuracy", "RESULTS")
FEW: tuple[str, ...] = read_constant("flash_accuracy", "FEW")
# The colour of each dtype in the figure.
DTYPES = {"fp32": DARK, "fp16": GREY, "bf16": ACCENT}
NAMES = {
    "triton": "Triton",
    "hopper": "Hopper",
    "torch": "PyTorch tiles",
    "recompute": "PyTorch tiles, recompute_backward",
    "first": "first kernel",
    "first_recompute": "first kernel, recompute_backward",
    "plain": "plain attention",
    "sdpa_flash": "SDPA, FlashAttention-2",
    "sdpa_cudnn": "SDPA, cuDNN",
    "sdpa_efficient": "SDPA, memory-efficient",
    "sdpa_math": "SDPA, math",
}
OURS = ("triton", "hopper")
# The claims allow errors of up to LIMIT times the error of plain attention.
LIMIT = 2
LIMIT_REASON = (
    "FlashAttention's own tests allow it: tiled sums are rounded in more places."
)
# Bits of a significand, including the leading bit.
BITS = {"fp16": 11, "bf16": 8}
# The configuration in the table of errors and in facts.
SHOWN = {"d": 64, "n": 4096, "causal": True}
HEADS: int = read_constant("flash_accuracy", "HEADS")
# Metrics of an error: its norm, and the largest error of a single element.
NORM, LARGEST = "relative_error", "largest_error"
fragments = Fragments()


def accuracy_rows(record: Record | None) -> Frame:
    """Return all rows; `plain` is the row of plain attention on the same inputs."""
    return frame(record).join("plain", implementation="plain")


def error_over_plain(x: Line, of: str, by: str = NORM) -> float:
    """Return the error of result `of` over plain attention's; `by`: NORM or LARGEST."""
    return x.get(f"{of}_{by}") / (x["plain"].get(f"{of}_{by}") or MISSING)


def error_ratios(
    found: Frame,
    name: str | tuple[str, ...],
    dtype: str,
    results: tuple[str, ...] = RESULTS,
    by: str = NORM,
) -> list[float]:
    """Return `error_over_plain` of implementation `name`, except for 16-bit lse."""
    # Plain attention in 16 bits rounds lse, and the kernels don't.
    judged = [of for of in results if of != "lse" or dtype == "fp32"]
    rows = found.where(implementation=name, dtype=dtype)
    return dropna(error_over_plain(x, of, by) for x in rows for of in judged)


@fragments.add(
    "table.md",
    "Relative errors against float64, at d = 64 and N = 4096 under the causal mask.",
)
def error_table(record: Record) -> str:
    found = frame(record, **SHOWN)
    return found.table(
        ("implementation", lambda x: NAMES[x["implementation"]]),
        ("dtype", "dtype"),
        ("heads", "heads"),
        *((of, lambda x, of=of: x.get(f"{of}_{NORM}"), "{:.1e}") for of in RESULTS),
        left=2,
        shown_first=lambda x: (
            x["dtype"] == "bf16"
            and (x["heads"] == HEADS or x["implementation"] == "hopper")
        ),
    )


@fragments.figure("figure.md", "ratios", height=342)
def ratios_figure(record: Record) -> Drawn:
    rows = accuracy_rows(record)
    found = set(rows.values("implementation")) - {"plain", *FEW}
    measured = [x for x in NAMES if x in found]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for i, (dtype, color) in enumerate(DTYPES.items()):
            for row, name in enumerate(measured):
                if not (ratios := error_ratios(rows, name, dtype)):
                    continue
                y = row + 0.22 * (i - 1)
                style: dict[str, Any] = {"color": color, "label": "_"}
                ends = [min(ratios), max(ratios)]
                axes.plot(ends, [y, y], lw=3, solid_capstyle="butt", **style)
                axes.plot([geometric_mean(ratios)], [y], "o", ms=6, **style)
        axes.axvline(1, color=INK, lw=1)
        plots.label_bars(axes, [NAMES[name] for name in measured])
        plots.set_log_scale(axes.xaxis)
        axes.set_title("error over plain attention's")
        plots.draw_legend(figure, DTYPES)

    worst = {d: nanmax(error_ratios(rows, "triton", d)) for d in DTYPES}
    text = ", ".join(f"{fmt(of, '{:.2f}')} in {dtype}" for dtype, of in worst.items())
    return (
        draw,
        f"The norm of FlashAttention's error, relative to plain attention's, is at "
        f"most {text}.",
        "Each bar spans all results, head dimensions, lengths and masks; its dot is "
        "the geometric mean. The line is plain attention's error.",
    )


def rounding_error(bits: int) -> float:
    """Return the expected relative error (ratio of norms) of normally distributed
    numbers rounded to this many significant bits: the root mean square of the spacing
    between representable numbers, divided by the square root of 12.
    """

    def probability(x: float) -> float:
        return erf(x / sqrt(2))

    squares = (
        4.0**power * (probability(2.0 ** (power + 1)) - probability(2.0**power))
        for power in range(-20, 4)
    )
    return 2.0 ** (1 - bits) * sqrt(sum(squares) / 12)


def facts(record: Record | None) -> dict[str, str]:
    """Return {name: number as text}: errors of o, worst ratios, reproducible cases."""
    found = accuracy_rows(record)
    worst = {d: nanmax(error_ratios(found, "triton", d)) for d in DTYPES}
    for d in DTYPES:
        worst[f"{d}_largest"] = nanmax(error_ratios(found, "triton", d, by=LARGEST))
    worst["bf16_forward"] = nanmax(error_ratios(found, "triton", "bf16", ("o",)))
    rounded: dict[str, Any] = {}
    for d, bits in BITS.items():
        rounded[f"once_{d}"] = rounding_error(bits)
        rounded[f"twice_{d}"] = sqrt(2) * rounding_error(bits)
        for name in ("sdpa_math", "triton", "plain"):
            x = frame(record).one(implementation=name, dtype=d, **SHOWN)
            rounded[f"{name}_{d}"] = x.get(f"o_{NORM}")
    same = [x["differing_calls"] == 0 for x in reproducibility_rows(record)]
    return {
        **{f"worst_{name}": fmt(ratio, "{:.2f}") for name, ratio in worst.items()},
        **{name: fmt(error, "{:.5f}") for name, error in rounded.items()},
        "calls_compared": str(read_constant("flash_accuracy", "CALLS")),
        "same_ours": fmt(count_true(same)),
    }


def reproducibility_rows(record: Record | None) -> Frame:
    """Return the rows of this guide's kernels whose calls were compared bitwise."""
    return frame(record, implementation=OURS).where(lambda x: "calls" in x.metrics)


def judge_errors(record: Record, *results: str) -> Judgement:
    """Judge whether our errors of `results` are within LIMIT × plain attention's."""
    rows, worst, texts = accuracy_rows(record), [], []
    for name in OURS:
        for by, words in ((NORM, "norm"), (LARGEST, "largest single error")):
            each = {d: nanmax(error_ratios(rows, name, d, results, by)) for d in DTYPES}
            every = {d: ratio for d, ratio in each.items() if dropna([ratio])}
            text = ", ".join(f"{d} {ratio:.2f}" for d, ratio in every.items())
            texts += [f"{NAMES[name]}, {words}: {text}"] if text else []
            worst += every.values()
    return worst and (max(worst) <= LIMIT, f"Largest ratios: {'; '.join(texts)}.")


@claim(
    "flash_forward",
    "The forward passes of our kernels err at most twice as much as plain attention's "
    "in the same dtype, in every configuration.",
    because=LIMIT_REASON,
)
def forward_is_accurate(record: Record) -> Judgement:
    return judge_errors(record, "o", "lse")


@claim(
    "flash_backward",
    "The gradients of our kernels err at most twice as much as plain attention's in "
    "the same dtype, in every configuration.",
    because=LIMIT_REASON,
)
def backward_is_accurate(record: Record) -> Judgement:
    return judge_errors(record, "dq", "dk", "dv")


@claim(
    "flash_backward",
    "Calls of our kernels on the same inputs give the same bits, in every result and "
    "configuration.",
)
def calls_are_bitwise_equal(record: Record) -> Judgement:
    found = reproducibility_rows(record)
    calls, differing = (sum(found.column(c)) for c in ("calls", "differing_calls"))
    text = f"{differing} of {calls:,} calls differ, over {len(found)} configurations."
    return (differing == 0, text) if found else None
