"""Columns of attention passes that several experiments share: time ratios, throughput,
and whether a pass is launch-bound.
"""

from statistics import median

from systems.formulas.costs import attention_flops
from systems.records.record import Record
from tools.render.frame import Line
from tools.render.rows import data_sheet

PASSES = ("forward", "backward", "both")
# The names of the passes in tables.
SAID = {"forward": "forward", "backward": "backward", "both": "forward + backward"}
# The passes are launch-bound if both in a row take longer than this many times the sum
# of each alone, by `do_bench`.
WAITS = 1.1


def is_launch_bound(x: Line) -> bool:
    """Return whether both passes together exceed WAITS times the sum of each alone."""
    if "both_ms" not in x.metrics:
        return False
    return x["both_ms"] > WAITS * (x["forward_ms"] + x["backward_ms"])


def round_ratios(x: Line, other: Line, of: str) -> list[float]:
    """Return the time of a pass over another row's, for each round in which both
    alternated; nothing if they have no rounds, or different numbers of rounds.
    """
    rounds = [one.samples(f"{of}_rounds") for one in (x, other)]
    alike = len({*map(len, rounds)}) == 1
    return [a / b for a, b in zip(*rounds, strict=True)] if alike else []


def time_ratio(x: Line, other: Line, of: str) -> float:
    """Return the median of `round_ratios`, because clocks agree within a round, or the
    ratio of the medians without rounds.
    """
    if ratios := round_ratios(x, other, of):
        return median(ratios)
    return x.kernel_ms(of) / other.kernel_ms(of)


def tflops(x: Line, of: str) -> float:
    """Return the throughput of a pass in TFLOP/s, by the FLOPs that attention needs.
    Rows without batch, heads or mask have one causal head.
    """
    return count_flops(x, of) / x.kernel_ms(of) / 1e9 if x else x.missing


def count_flops(x: Line, of: str) -> float:
    shape = {"batch": 1, "heads": 1, "causal": True}
    given = {key: x[key] for key in (*shape, "n", "d") if key in x}
    return attention_flops(of, **shape | given)


def peak_tflops(record: Record | None, dtype: str) -> float:
    """Return the peak of the data sheet."""
    return getattr(data_sheet(record.device.slug if record else ""), dtype) / 1e12
