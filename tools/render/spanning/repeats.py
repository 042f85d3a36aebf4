"""Whose results repeat, beside times of a record that does not know: `flash_peers` has
compared the same kernels' results at the same shape.
"""

from typing import Any

from systems.records.record import Record
from tools.render.load import Found, of_gpu
from tools.render.markdown import per_device
from tools.render.rows import Cell, cell, measured
from tools.render.stems.flash_leaderboard import test_table
from tools.render.stems.flash_peers.rows import TEST, repeats


def fragments(found: Found) -> dict[str, str]:
    """The table of the leaderboard's test, and in it who repeats: in the place of the
    stem's own, which is without.
    """
    records = measured(found.get("flash_leaderboard", []))
    table = per_device(records, lambda r: leaderboard(found, r))
    return {"flash_leaderboard-table.md": table}


def leaderboard(found: Found, record: Record) -> str:
    """Without the column where nobody knows."""
    peers = of_gpu(found, "flash_peers", record.device.slug)

    def same(c: Cell) -> Any:
        name = c.config["implementation"]
        return repeats(cell(peers, implementation=name, **TEST)) or ""

    if not any(same(Cell(row)) for row in record.rows):
        return test_table(record)
    return test_table(record, ("results repeat", same))
