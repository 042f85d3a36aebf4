"""Tables and facts of `flash_accuracy`: errors against float64, beside PyTorch's."""

from functools import partial
from statistics import geometric_mean

from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import columns, per_device, table
from tools.render.rows import MISSING, Cell, axis, cell, cells, known, most, say

RESULTS = ("o", "lse", "dq", "dk", "dv")
DTYPES = ("fp32", "fp16", "bf16")
NAMES = {
    "triton": "ours, Triton",
    "torch": "ours, PyTorch tiles",
    "plain": "plain attention",
    "sdpa_flash": "SDPA, FlashAttention-2",
    "sdpa_cudnn": "SDPA, cuDNN",
    "sdpa_efficient": "SDPA, memory-efficient",
    "sdpa_math": "SDPA, math",
}


def fragments(records: list[Record]) -> dict[str, str]:
    """Errors at d = 64, N = 4096; ours over plain attention's; all errors."""
    telling = partial(error_table, d=64, n=4096, causal=True)
    return {
        "table.md": per_device(records, telling),
        "ratios.md": per_device(records, ratio_table),
        "all.md": per_device(records, error_table),
    }


def error_table(record: Record, **wanted: object) -> str:
    return columns(
        cells(record, **wanted),
        ("implementation", lambda c: NAMES[c.config["implementation"]]),
        "dtype",
        "d",
        ("N", lambda c: c.config["n"]),
        "causal",
        *((name, lambda c, name=name: error(c, name), "{:.1e}") for name in RESULTS),
        left=2,
    )


def error(c: Cell, result: str) -> float:
    return c.get(f"{result}_relative_error")


def ratios(
    record: Record | None, name: str, dtype: str, results: tuple[str, ...] = RESULTS
) -> list[float]:
    """Error of an implementation over that of plain attention in the same dtype, for
    each result and configuration.

    lse counts in fp32 alone: plain attention in 16 bits rounds it to 16 bits, which
    ours never do.
    """
    compared = [result for result in results if result != "lse" or dtype == "fp32"]
    found = []
    for c in cells(record, implementation=name, dtype=dtype):
        plain = cell(record, **c.config | {"implementation": "plain"})
        found += [error(c, of) / (error(plain, of) or MISSING) for of in compared]
    return known(found)


def ratio_table(record: Record) -> str:
    rows = []
    for name, label in NAMES.items():
        for dtype in axis(record, "dtype"):
            found = ratios(record, name, dtype)
            if found and name != "plain":
                shown = (min(found), geometric_mean(found), max(found))
                numbers = [f"{ratio:.2f}" for ratio in shown]
                rows.append([label, dtype, *numbers, str(len(found))])
    header = ["implementation", "dtype", "least", "geometric mean", "most"]
    return table([*header, "results compared"], rows, left=2)


def facts(record: Record | None) -> dict[str, str]:
    """The worst error of ours over plain attention's, by dtype."""
    worst = {dtype: most(ratios(record, "triton", dtype)) for dtype in DTYPES}
    without_lse = most(ratios(record, "triton", "fp32", ("o", "dq", "dk", "dv")))
    named = worst | {"fp32_without_lse": without_lse}
    return {f"worst_{name}": say(ratio, "{:.2f}") for name, ratio in named.items()}


def errs_little(record: Record, *results: str) -> Judgement:
    worst = {d: most(ratios(record, "triton", d, results)) for d in DTYPES}
    told = ", ".join(f"{dtype} {ratio:.2f}" for dtype, ratio in worst.items())
    holds = max(worst.values()) <= 2
    return all(worst.values()) and (holds, f"Largest ratios: {told}.")


@claim(
    "flash_forward",
    "The Triton forward pass errs at most twice as much as plain attention in the same "
    "dtype, over every configuration.",
)
def forward_accurate(record: Record) -> Judgement:
    return errs_little(record, "o", "lse")


@claim(
    "flash_backward",
    "The gradients of the Triton kernels err at most twice as much as those of plain "
    "attention in the same dtype, over every configuration.",
)
def backward_accurate(record: Record) -> Judgement:
    return errs_little(record, "dq", "dk", "dv")
