"""Columns shared by experiments that time attention: time ratios and throughput."""

from statistics import median

from systems.formulas.costs import attention_flops
from systems.records.record import Record
from tools.render.frame import Line
from tools.render.rows import peak_rates

PASSES = ("forward", "backward", "both")
# The names of the passes in tables.
LABELS = {"forward": "forward", "backward": "backward", "both": "forward + backward"}


def pass_ratios(x: Line, other: Line, pass_name: str) -> list[float]:
    """Return the time in `x` over that in `other` by round; [] if counts differ."""
    rounds = [one.samples(f"{pass_name}_rounds") for one in (x, other)]
    alike = len({*map(len, rounds)}) == 1
    return [a / b for a, b in zip(*rounds, strict=True)] if alike else []


def time_ratio(x: Line, other: Line, pass_name: str) -> float:
    """Return the median of `pass_ratios`, or the ratio of medians if there are none."""
    if ratios := pass_ratios(x, other, pass_name):
        return median(ratios)
    return x.kernel_ms(pass_name) / other.kernel_ms(pass_name)


def tflops(x: Line, pass_name: str) -> float:
    """Return the TFLOP/s of a pass. By default, a row has one causal head."""
    return count_flops(x, pass_name) / x.kernel_ms(pass_name) / 1e9 if x else x.missing


def count_flops(x: Line, pass_name: str) -> float:
    shape = {"batch": 1, "heads": 1, "causal": True}
    given = {key: x[key] for key in (*shape, "n", "d") if key in x}
    return attention_flops(pass_name, **shape | given)


def peak_tflops(record: Record | None, dtype: str) -> float:
    """Return the data sheet's peak rate for a dtype, in TFLOP/s."""
    return getattr(peak_rates(record.device.slug if record else ""), dtype) / 1e12
