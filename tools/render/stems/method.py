"""Table of `method`: our clock beside bare CUDA events."""

from systems.records.record import Record
from tools.render.markdown import columns, per_device, percent
from tools.render.rows import Cell, cells, most, say


def clock_adds(c: Cell) -> float:
    """What our clock reads beyond CUDA events with a wait after each pass."""
    return c.ms("clock") / c.ms("events") - 1


def waiting_adds(c: Cell) -> float:
    """What waiting costs: those events over events of passes without a wait."""
    return c.ms("events") / c.ms("queued_events") - 1


CAPTIONS = {
    "table.md": "A forward pass of `small` by our clock and by CUDA events.",
}


def fragments(records: list[Record]) -> dict[str, str]:
    """`table.md` for all devices."""
    return {"table.md": per_device(records, body)}


def body(record: Record) -> str:
    return columns(
        cells(record),
        "context",
        "precision",
        ("our clock, ms", lambda c: c.ms("clock"), "{:.3f}"),
        ("events, ms", lambda c: c.ms("events"), "{:.3f}"),
        ("clock adds", lambda c: 100 * clock_adds(c), "{:+z.2f} %"),
        ("events, no waits, ms", lambda c: c.ms("queued_events"), "{:.3f}"),
        ("waiting adds", lambda c: 100 * waiting_adds(c), "{:+z.2f} %"),
        left=0,
    )


def facts(record: Record | None) -> dict[str, str]:
    """The largest difference between our clock and the bare loop, and what waiting
    after each pass costs at most.
    """
    found = cells(record)
    return {
        "clock_adds_at_most": say(most(abs(clock_adds(c)) for c in found), percent),
        "waiting_adds_at_most": say(most(waiting_adds(c) for c in found), percent),
    }
