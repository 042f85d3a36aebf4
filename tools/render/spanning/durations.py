"""How long measuring takes, experiment by experiment: the seconds of each row, which
every record keeps.
"""

from collections.abc import Iterable

from systems.experiments import STEMS
from systems.records.record import Record
from tools.render.load import Found, is_fresh, primary_gpu
from tools.render.markdown import NOT_MEASURED, bold, table

# The time of a row is from before its set-up to after its last sample; starting a
# process is not in it.
PER_GPU = [stem for stem, where in STEMS.items() if where.full == ("cuda",)]


def seconds(record: Record) -> float:
    return sum(row.seconds or 0 for row in record.rows)


def fragments(found: Found) -> dict[str, str]:
    """A row for each experiment and a column for each GPU, the primary one first; the
    sums are the last row. What an older version of the code took is told and not
    summed.
    """
    records = {
        (record.device.slug, stem): record
        for stem in PER_GPU
        for record in found.get(stem, [])
        if record.kind == "measured"
    }
    names = {
        r.device.slug: r.device.name for of_stem in found.values() for r in of_stem
    }
    slugs = sorted(
        {slug for slug, _ in records}, key=lambda slug: (slug != primary_gpu(), slug)
    )
    rows = [
        [f"`{stem}`", *(told(records.get((slug, stem))) for slug in slugs)]
        for stem in PER_GPU
    ]
    sums = [todays(r for (of, _), r in records.items() if of == slug) for slug in slugs]
    sum_line = ["measured by this code", *map(minutes, sums)]
    rows.append(list(map(bold, sum_line)))
    return {
        "method-durations.md": table(
            ["experiment", *(f"{names[slug]}, minutes" for slug in slugs)], rows
        )
        + "\n"
    }


def todays(records: Iterable[Record]) -> float:
    """Seconds of those that the code of the tree measured."""
    return sum(seconds(record) for record in records if is_fresh(record))


def told(record: Record | None) -> str:
    if record is None:
        return NOT_MEASURED
    old = "" if is_fresh(record) else "older code: "
    return f"{old}{minutes(seconds(record))}"


def minutes(time: float) -> str:
    return f"{time / 60:.1f}"
