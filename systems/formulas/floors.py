"""What no implementation can beat: the time in which the peak rates of a data sheet do
the arithmetic and move the bytes.
"""

from dataclasses import dataclass

from systems.formulas.costs import Peak


@dataclass(frozen=True)
class Work:
    """What has to be done: FLOPs, and bytes read from or written to memory."""

    flops: int
    moved_bytes: int

    @property
    def intensity(self) -> float:
        """FLOPs per byte: the horizontal axis of a roofline."""
        return self.flops / self.moved_bytes


# --8<-- [start:floor]
def floor_seconds(work: Work, peak: Peak, precision: str) -> float:
    """Whichever takes longer at full speed, arithmetic or memory: a GPU does both at
    once.
    """
    arithmetic = work.flops / getattr(peak, precision)
    memory = work.moved_bytes / peak.bandwidth
    return max(arithmetic, memory)


# --8<-- [end:floor]


def ridge_intensity(peak: Peak, precision: str) -> float:
    """FLOPs per byte above which arithmetic binds and below which memory does."""
    return getattr(peak, precision) / peak.bandwidth


def matmul_work(m: int, n: int, k: int, element_bytes: int) -> Work:
    """C (m, n) = A (m, k) B (k, n), each matrix read or written once."""
    return Work(2 * m * n * k, element_bytes * (m * k + k * n + m * n))
