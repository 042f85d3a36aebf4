"""Copy an Nsight Systems export without private data, so that it can be shared.

A report, like its SQLite export, holds every environment variable of the profiled
process (tokens and passwords too), the names of all processes, paths and command lines.
The copy has only kernels, memory copies, CUDA calls and NVTX ranges, with the names
that they use:

    python -m systems.profiling.strip traces/x.sqlite shown.sqlite

Texts of NVTX ranges are copied too. Imports no torch.
"""

import argparse
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from systems.profiling.trace import TraceError, wrap_errors

CALL_COLUMNS = ("start", "end", "globalTid", "correlationId", "nameId")
GPU_COLUMNS = ("start", "end", "correlationId", "globalPid", "streamId")
# --8<-- [start:kept]
# {table: columns to copy, where they exist}.
COPIED_COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *GPU_COLUMNS,
        "demangledName",
        "mangledName",
        "shortName",
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": GPU_COLUMNS,
    "CUPTI_ACTIVITY_KIND_MEMCPY": (*GPU_COLUMNS, "bytes", "copyKind"),
    "CUPTI_ACTIVITY_KIND_MEMSET": (*GPU_COLUMNS, "bytes"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": CALL_COLUMNS,
    "CUPTI_ACTIVITY_KIND_DRIVER": CALL_COLUMNS,
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "textId", "globalTid"),
}
# --8<-- [end:kept]
# Columns that index StringIds. Only their strings are copied, because others name
# unrelated processes of the machine.
STRING_ID_COLUMNS = ("demangledName", "mangledName", "shortName", "nameId", "textId")


def strip(export: Path, into: Path) -> None:
    """Write the copy of `export`. `TraceError` if `export` is not an export of Nsight
    Systems, or `into` exists.
    """
    if into.exists():
        raise TraceError(f"{into} exists: give another name")
    if not export.is_file():
        raise TraceError(f"{export} does not exist")
    with (
        wrap_errors(f"{export} is no whole SQLite export", "export the report again"),
        closing(sqlite3.connect(f"{export.resolve().as_uri()}?mode=ro", uri=True)) as a,
    ):
        # Read everything first, so that an unreadable export leaves no file behind.
        statements = list(copy_statements(a, str(export)))
    with (
        wrap_errors(f"{into} can't be written", "give another folder"),
        closing(sqlite3.connect(into)) as b,
        b,
    ):
        for statement, rows in statements:
            b.executemany(statement, rows) if rows else b.execute(statement)


def copy_statements(
    database: sqlite3.Connection, name: str
) -> Iterator[tuple[str, list[tuple[object, ...]]]]:
    """Yield the SQL statements of the copy, each with the rows to insert."""
    string_ids: set[object] = set()
    has_events = False
    for table, wanted_columns in COPIED_COLUMNS.items():
        present = [
            column for _, column, *_ in database.execute(f"PRAGMA table_info({table})")
        ]
        columns = [column for column in wanted_columns if column in present]
        if not columns:
            continue
        has_events = True
        rows = database.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
        for position, column in enumerate(columns):
            string_ids |= (
                {row[position] for row in rows}
                if column in STRING_ID_COLUMNS
                else set()
            )
        yield from table_statements(table, columns, rows)
    strings = database.execute("SELECT id, value FROM StringIds").fetchall()
    if not has_events:
        raise TraceError(f"{name} has no kernels and no ranges: nothing to copy")
    used_strings = [row for row in strings if row[0] in string_ids]
    yield from table_statements("StringIds", ["id", "value"], used_strings)


def table_statements(
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
    arguments = parser.parse_args()
    try:
        strip(arguments.export, arguments.into)
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    size = arguments.into.stat().st_size / 2**20
    print(f"{arguments.into}: {size:.1f} MiB; look at the texts of its NVTX ranges")
    return 0


if __name__ == "__main__":
    sys.exit(main())
