"""Compute time ratios and throughput for the experiments that time attention."""

from statistics import median

from systems.formulas.costs import attention_flops
from systems.records.record import Record
from tools.render.frame import Line
from tools.render.rows import MISSING, peak_rates

PASSES = ("forward", "backward", "both")


def time_ratio(x: Line, other: Line, pass_name: str) -> float:
    """Return the ratio of GPU times, `x` / `other`: the median over alternating rounds;
    if the numbers of rounds differ, the ratio of medians (CPU: of wall-clock times).
    """
    own, others = (one.samples(f"{pass_name}_rounds") for one in (x, other))
    if own and len(own) == len(others):
        return median(a / b for a, b in zip(own, others, strict=True))
    return x.kernel_ms(pass_name) / other.kernel_ms(pass_name)


def tflops(x: Line, pass_name: str) -> float:
    """Return a pass's TFLOP/s in GPU time. By default, a row has one causal head."""
    return count_flops(x, pass_name) / x.kernel_ms(pass_name) / 1e9 if x else MISSING


def count_flops(x: Line, pass_name: str) -> float:
    shape = {"batch": 1, "heads": 1, "causal": True}
    given = {key: x[key] for key in (*shape, "n", "d") if key in x}
    return attention_flops(pass_name, **shape | given)


def peak_tflops(record: Record | None, dtype: str) -> float:
    """Return the data sheet's peak rate for a dtype, in TFLOP/s."""
    return getattr(peak_rates(record.device.slug if record else ""), dtype) / 1e12
