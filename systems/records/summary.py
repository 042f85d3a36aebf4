"""Mean, standard deviation, median and range of samples."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Summary:
    """Statistics of samples; `std` divides by n - 1 and is NaN for one sample."""

    mean: float
    std: float
    median: float
    min: float
    max: float


def summarize(samples: Sequence[float]) -> Summary:
    """Return the statistics of samples. Raise ValueError if there are none."""
    return cached_summary(tuple(samples))


# Summaries are cached, because many tables need the same samples.
@lru_cache(maxsize=4096)
def cached_summary(samples: tuple[float, ...]) -> Summary:
    if not samples:
        raise ValueError("no samples to summarize")
    return Summary(
        mean=statistics.fmean(samples),
        std=statistics.stdev(samples) if len(samples) > 1 else float("nan"),
        median=statistics.median(samples),
        min=min(samples),
        max=max(samples),
    )
