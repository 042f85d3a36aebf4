"""What study notes report of ranges around passes that do not wait for the GPU: what a
range without a wait measures. The rest of what they report stands in the explorer.
"""

from systems.records.record import Record
from tools.render.markdown import columns, per_device
from tools.render.rows import cells


def fragments(reported: list[Record]) -> dict[str, str]:
    return {"reported-ranges.md": per_device(reported, ranges_table)}


def ranges_table(record: Record) -> str:
    return columns(
        cells(record, table="ranges"),
        "size",
        "context",
        ("launching forward, ms", lambda c: c["forward_ms"]),
        ("launching backward and waiting, ms", lambda c: c["backward_ms"]),
        ("both, ms", lambda c: c["both_ms"]),
    )
