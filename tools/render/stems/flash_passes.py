"""What the times of attention's passes say, whoever was measured: the GPU's part of
them, the rate that they amount to, and its share of the data sheet's.
"""

from statistics import median

from systems.formulas.costs import attention_flops
from systems.records.record import Record
from tools.render.markdown import percent
from tools.render.rows import MISSING, Cell, data_sheet

PASSES = ("forward", "backward", "both")
# As tables call them.
SAID = {"forward": "forward", "backward": "backward", "both": "forward + backward"}
TFLOPS = 1e12
# Both passes together over the sum of each by itself.
WAITS = 1.1


def passes_wait(forward: float, backward: float, both: float) -> bool:
    """Whether both passes together take clearly longer than one and then the other, as
    the GPU's work does not: it waited for the host.
    """
    return both > WAITS * (forward + backward)


def waits(c: Cell) -> bool:
    """`passes_wait` of a cell's medians by `do_bench`."""
    return "both_ms" in c.metrics and passes_wait(*map(c.ms, PASSES))


def round_ratios(c: Cell, other: Cell, of: str) -> list[float]:
    """Time of a pass over another row's in each round that both alternated in. Empty
    where they have no rounds, or not as many.
    """
    rounds = [one.get(f"{of}_rounds_ms", ()) or () for one in (c, other)]
    alike = all(rounds) and len({*map(len, rounds)}) == 1
    return [a / b for a, b in zip(*rounds, strict=True)] if alike else []


def time_ratio(c: Cell, other: Cell, of: str) -> float:
    """The median of `round_ratios`, for in a round both meet the same clock; without
    rounds the ratio of the medians.
    """
    if ratios := round_ratios(c, other, of):
        return median(ratios)
    return c.kernel_ms(of) / other.kernel_ms(of)


def flops(c: Cell, name: str) -> float:
    """Those that a pass of attention needs. A record says what it does not fix: batch,
    heads, mask.
    """
    if not c.config:
        return MISSING
    shape = {"batch": 1, "heads": 1, "causal": True}
    keys = (*shape, "n", "d")
    given = {key: c.config[key] for key in keys if key in c.config}
    return attention_flops(name, **shape | given)


def peak_flops(record: Record | None, dtype: str) -> float:
    """FLOP/s by the data sheet."""
    return getattr(data_sheet(record.device.slug if record else ""), dtype)


def tiny(share: float) -> str:
    """A share that may be next to nothing."""
    return percent(share) if share >= 0.0005 else "< 0.1 %"
