"""Measuring everything on the primary GPU takes less than 75 minutes, or is made to.

`regen_tables.py --check` says what today's code took where that is more. With
`--fresh`, before the guide's own records are published, it fails.
"""

from collections.abc import Mapping

from systems.records.record import Record
from tools.render.load import primary_gpu
from tools.render.spanning.durations import PER_GPU, minutes, todays

MOST = 75 * 60


def judge(found: Mapping[str, list[Record]]) -> list[str]:
    """A line where it took too long."""
    records = [r for stem in PER_GPU for r in found.get(stem, [])]
    measured = (r for r in records if r.kind == "measured")
    took = todays(r for r in measured if r.device.slug == primary_gpu())
    told = f"measuring everything took {minutes(took)} minutes by today's code, more "
    return [] if took <= MOST else [f"{told}than {minutes(MOST)}; see docs/method.md"]
