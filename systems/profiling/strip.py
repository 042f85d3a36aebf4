"""A copy of an Nsight Systems export that can be shown to others.

A report holds every environment variable of the process that it watched, tokens and
passwords among them, the names of all processes of the machine, its paths and its
command lines. So does an SQLite export. This copies what a profile is made of, kernels,
copies, CUDA calls and NVTX ranges with the names that they use, and nothing else:

    python -m systems.profiling.strip traces/x.sqlite shown.sqlite

Texts of NVTX ranges are the program's own, and are kept. Imports no torch.
"""

import argparse
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from systems.profiling.trace import TraceError, explained

CALL = ("start", "end", "globalTid", "correlationId", "nameId")
RUN = ("start", "end", "correlationId", "globalPid", "streamId")
# --8<-- [start:kept]
# What is copied: of each table these columns, where it has them.
KEPT = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (*RUN, "demangledName", "mangledName", "shortName"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (*RUN, "bytes", "copyKind"),
    "CUPTI_ACTIVITY_KIND_MEMSET": (*RUN, "bytes"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": CALL,
    "CUPTI_ACTIVITY_KIND_DRIVER": CALL,
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "textId", "globalTid"),
}
# --8<-- [end:kept]
# Their columns that are numbers of strings. Of the strings only these are copied: the
# others name what else ran on the machine.
NAMES = ("demangledName", "mangledName", "shortName", "nameId", "textId")


def strip(export: Path, into: Path) -> None:
    """Write the copy. TraceError where `export` is no export of Nsight Systems, or
    `into` is there already.
    """
    if into.exists():
        raise TraceError(f"{into} exists: give another name")
    if not export.is_file():
        raise TraceError(f"{export} does not exist")
    with (
        explained(f"{export} is no whole SQLite export", "export the report again"),
        closing(sqlite3.connect(f"{export.resolve().as_uri()}?mode=ro", uri=True)) as a,
    ):
        # Read first: what can't be read leaves no file behind.
        statements = list(copied(a, str(export)))
    with (
        explained(f"{into} can't be written", "give another folder"),
        closing(sqlite3.connect(into)) as b,
        b,
    ):
        for statement, rows in statements:
            b.executemany(statement, rows) if rows else b.execute(statement)


def copied(
    database: sqlite3.Connection, name: str
) -> Iterator[tuple[str, list[tuple[object, ...]]]]:
    """The statements that make the copy, with the rows of those that insert."""
    named: set[object] = set()
    found = False
    for table, wanted in KEPT.items():
        known = [
            column for _, column, *_ in database.execute(f"PRAGMA table_info({table})")
        ]
        columns = [column for column in wanted if column in known]
        if not columns:
            continue
        found = True
        rows = database.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
        for at, column in enumerate(columns):
            named |= {row[at] for row in rows} if column in NAMES else set()
        yield from filled(table, columns, rows)
    strings = database.execute("SELECT id, value FROM StringIds").fetchall()
    if not found:
        raise TraceError(f"{name} has no kernels and no ranges: nothing to copy")
    kept = [row for row in strings if row[0] in named]
    yield from filled("StringIds", ["id", "value"], kept)


def filled(
    table: str, columns: list[str], rows: list[tuple[object, ...]]
) -> Iterator[tuple[str, list[tuple[object, ...]]]]:
    yield f"CREATE TABLE {table} ({', '.join(columns)})", []
    if rows:
        marks = ", ".join("?" * len(columns))
        yield f"INSERT INTO {table} VALUES ({marks})", rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("export", type=Path, help="what `nsys export` wrote")
    parser.add_argument("into", type=Path, help="the copy")
    given = parser.parse_args()
    try:
        strip(given.export, given.into)
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    size = given.into.stat().st_size / 2**20
    print(f"{given.into}: {size:.1f} MiB; look at the texts of its NVTX ranges")
    return 0


if __name__ == "__main__":
    sys.exit(main())
