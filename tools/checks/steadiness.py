"""Rows that a slow host may have touched: at most a few, or they are measured again.

`regen_tables.py --check` names the records that have some, and says where more than 3 %
of all rows that the primary GPU measured with today's code are such: some owners have
no other host. With `--fresh`, before the guide's own records are published, it fails.
"""

from collections.abc import Iterable, Mapping

from systems.records.record import Record
from tools.render.hosts import unsteady_rows
from tools.render.load import is_fresh, is_of_gpu, of_sentences

MOST = 0.03


def judge(found: Mapping[str, list[Record]]) -> tuple[list[str], list[str]]:
    """Errors and warnings, a line each."""
    records = [r for of_stem in found.values() for r in of_stem if is_of_gpu(r)]
    ours = [r for r in records if of_sentences(r) and is_fresh(r)]
    return too_many(ours), [*named(records)]


def too_many(records: list[Record]) -> list[str]:
    rows = [row for record in records for row in record.rows]
    count = sum(row.in_doubt for row in rows)
    told = f"{count} of {len(rows)} rows of today's code are unsteady, more than "
    few = count <= MOST * len(rows)
    return [] if few else [f"{told}{100 * MOST:.0f} %; the warnings name their records"]


def named(records: list[Record]) -> Iterable[str]:
    for record in records:
        if told := unsteady_rows(record):
            again = "--again {}" if is_fresh(record) else "--only {} --force"
            yield (
                f"{record.place}: unsteady are {told}; "
                f"measure again by `regen_tables.py {again.format(record.stem)}`"
            )
