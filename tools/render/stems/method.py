"""Table of `method`: our clock beside bare CUDA events."""

from systems.records.record import Record, Row
from systems.records.summary import summarize
from tools.render.markdown import fact, per_device, percent, table


def medians(row: Row) -> tuple[float, float, float]:
    """Medians in ms: by our clock, by events with a wait after each pass, by events
    with the queue kept full.
    """
    clock, events, queued = (
        summarize(row.metrics[f"{name}_ms"]).median
        for name in ("clock", "events", "queued_events")
    )
    return clock, events, queued


def fragments(records: list[Record]) -> dict[str, str]:
    """`table.md` for all devices."""
    return {"table.md": per_device(records, body)}


def body(record: Record) -> str:
    rows = []
    for row in record.rows:
        clock, events, queued = medians(row)
        times = [
            f"{clock:.3f}",
            f"{events:.3f}",
            f"{100 * (clock / events - 1):+.2f} %",
        ]
        times += [f"{queued:.3f}", f"{100 * (events / queued - 1):+.2f} %"]
        rows.append([str(row.config["context"]), row.config["precision"], *times])
    header = [
        "context",
        "precision",
        "our clock, ms",
        "events, ms",
        "clock adds",
        "events, queue full, ms",
        "waiting adds",
    ]
    return table(header, rows, left=0)


def facts(record: Record | None) -> dict[str, str]:
    """The largest difference between our clock and the bare loop, and what waiting
    after each pass costs at most.
    """
    ratios = [medians(row) for row in record.rows] if record else []
    return {
        "clock_adds_at_most": fact(
            max((abs(c / e - 1) for c, e, _ in ratios), default=None), percent
        ),
        "waiting_adds_at_most": fact(
            max((e / q - 1 for _, e, q in ratios), default=None), percent
        ),
    }
