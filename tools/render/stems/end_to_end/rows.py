"""What rows of `end_to_end` say: times, FLOPs, share of the peak. Read by every builder
of its record.
"""

from dataclasses import asdict

from systems.formulas.costs import forward_flops, pass_flops, peak_of
from systems.model.sizes import SIZES
from systems.records.record import Record, Row
from systems.records.summary import summarize

CONTEXTS = (128, 256, 512, 1024)
PRECISIONS = ("fp32", "tf32", "bf16")
PHASES = ("forward", "loss", "backward", "optimizer")
# Rows of the assignment's own grid; the batches of the source notes stand in a table of
# their own.
BATCH = 4


def samples_ms(row: Row, *phases: str) -> list[float]:
    """The named phases of each measured step added up; without names, all that the row
    timed.
    """
    timed = [
        f"{phase}_ms" for phase in phases or PHASES if f"{phase}_ms" in row.metrics
    ]
    return [
        sum(step) for step in zip(*(row.metrics[name] for name in timed), strict=True)
    ]


def median_ms(row: Row | None, *phases: str) -> float | None:
    """None where there is no such row or it ran out of memory."""
    return (
        summarize(samples_ms(row, *phases)).median
        if row is not None and row.status == "ok"
        else None
    )


def flops(row: Row) -> int:
    """Matrix FLOPs of everything that the row timed."""
    c = row.config
    forward = forward_flops(
        vocab_size=c["vocab"],
        **asdict(SIZES[c["size"]]),
        context=c["context"],
        batch=c["batch"],
    ).values()
    return pass_flops(
        sum(forward), *(phase for phase in PHASES if f"{phase}_ms" in row.metrics)
    )


def share_of_peak(record: Record, row: Row | None) -> float | None:
    """Matrix FLOPs over the median time, as a share of the device's data-sheet rate in
    this precision.
    """
    peak, time = peak_of(record.device.slug), median_ms(row)
    if peak is None or time is None or row is None:
        return None
    return flops(row) / (time / 1e3) / getattr(peak, row.config["precision"])


def tokens_per_second(row: Row | None) -> float | None:
    time = median_ms(row)
    return (
        None
        if time is None or row is None
        else row.config["batch"] * row.config["context"] / (time / 1e3)
    )


def cell(
    record: Record,
    size: str,
    context: int,
    mode: str,
    precision: str,
    batch: int = BATCH,
) -> Row | None:
    return record.find(
        size=size, context=context, mode=mode, precision=precision, batch=batch
    )
