"""Lower bounds on time from FLOPs, bytes and a data sheet's peak rates."""

from dataclasses import dataclass

from systems.formulas.costs import Peak


@dataclass(frozen=True)
class Work:
    """The work of an operation: FLOPs, and bytes read from or written to HBM."""

    flops: int
    moved_bytes: int

    @property
    def intensity(self) -> float:
        """The arithmetic intensity in FLOPs per byte."""
        return self.flops / self.moved_bytes


# --8<-- [start:floor]
def floor_seconds(work: Work, peak: Peak, precision: str) -> float:
    """Return the larger of compute and memory time at peak rates, in seconds."""
    arithmetic = work.flops / getattr(peak, precision)
    memory = work.moved_bytes / peak.bandwidth
    return max(arithmetic, memory)
    # --8<-- [end:floor]


def ridge_intensity(peak: Peak, precision: str) -> float:
    """Return the ridge point: FLOPs per byte above which work is compute-bound."""
    return getattr(peak, precision) / peak.bandwidth


def matmul_work(m: int, n: int, k: int, element_bytes: int) -> Work:
    """Return the work of an (m, k) by (k, n) matmul that moves each matrix once."""
    return Work(2 * m * n * k, element_bytes * (m * k + k * n + m * n))
