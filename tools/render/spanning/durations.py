"""How long measuring takes, experiment by experiment: the seconds of each row, which
every record keeps.
"""

from systems.experiments import STEMS
from tools.render.load import Found, primary_gpu
from tools.render.markdown import NOT_MEASURED, bold, table


def fragments(found: Found) -> dict[str, str]:
    """Return the table: a row for each experiment and a column for each GPU, the
    primary one first.
    """
    stems = [stem for stem, where in STEMS.items() if where.full == ("cuda",)]
    records = [r for stem in stems for r in found.get(stem, []) if r.kind == "measured"]
    names = {r.device.slug: r.device.name for r in records}
    slugs = sorted(names, key=lambda slug: (slug != primary_gpu(), slug))
    minutes = {
        (r.device.slug, r.stem): sum(row.seconds or 0 for row in r.rows) / 60
        for r in records
    }
    rows = [
        [f"`{stem}`", *(text_of(minutes.get((slug, stem))) for slug in slugs)]
        for stem in stems
    ]
    sums = [sum(m for (of, _), m in minutes.items() if of == slug) for slug in slugs]
    rows.append([bold(text) for text in ("all", *map(text_of, sums))])
    head = ["experiment", *(f"{names[slug]}, minutes" for slug in slugs)]
    return {"method-durations.md": f"{table(head, rows)}\n"}


def text_of(minutes: float | None) -> str:
    return NOT_MEASURED if minutes is None else f"{minutes:.1f}"
