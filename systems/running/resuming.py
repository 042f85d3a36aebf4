"""Where a record is written, by whom, and whether work in progress may go on.

The work in progress is `<stem>.partial.json` beside the record.
"""

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from systems import printable
from systems.experiments import STEMS
from systems.records import store
from systems.records.device import Device
from systems.records.files import open_plain
from systems.records.record import Record
from systems.records.store import PARTIAL_SUFFIX, SUFFIX, RecordError
from systems.running.reports import CannotStart
from systems.running.software import (
    attention_of,
    git_state,
    hash_of,
    kernels_on,
    launches_kernels,
    that_count,
    tuned_software,
    versions,
)


def record_path(results: Path, device: Device, stem: str, grid: str) -> Path:
    """Where this stem's record for this device lives; reduced runs are kept apart."""
    return (
        (results / "quick" if grid == "quick" else results)
        / device.slug
        / f"{stem}{SUFFIX}"
    )


def partial_path(path: Path) -> Path:
    """The work in progress beside a record."""
    return path.with_name(path.name.removesuffix(SUFFIX) + PARTIAL_SUFFIX)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the one right to write this record. The kernel releases it however the
    process ends.
    """
    # Windows has none, and asks where records lie all the same.
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with open_plain(lock, os.O_RDWR | os.O_CREAT) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            by = printable(handle.read(300).decode(errors="replace"))
            raise CannotStart(
                f"{path} is being measured by {by}: wait for it, or stop it"
            ) from None
        handle.truncate()
        handle.write(f"process {os.getpid()} of {platform.node()}".encode())
        handle.flush()
        yield


def written_at(path: Path) -> int:
    """When this record took its place, in ns; 0 where there is none."""
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def new_record(
    stem_name: str,
    device: Device,
    grid: str,
    configs: list[Any],
    protocol: dict[str, Any],
) -> Record:
    """An empty record of what is about to be measured."""
    software, stem = that_count(versions(), configs), STEMS[stem_name]
    attention = attention_of(configs)
    software |= tuned_software(
        stem.module, attention, device.slug, software.get("triton", "")
    )
    launched = device.is_gpu and launches_kernels(stem.module, attention)
    return Record(
        stem=stem_name,
        kind="measured",
        device=device,
        rows=[],
        expected_rows=len(configs),
        grid=grid,  # pyright: ignore[reportArgumentType]
        protocol=protocol,
        software=software,
        kernels=kernels_on(device) if launched else {},
        started_utc=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        command=f"python tools/regen_tables.py --only {stem_name}"
        + (" --quick" if grid == "quick" else ""),
        git=git_state(),
        source_hash=hash_of(stem, configs),
    )


def resume(partial: Path, fresh: Record, configs: list[Any]) -> Record:
    """The work in progress if it may go on (failed rows are tried again), otherwise
    `fresh`.
    """
    try:
        old = store.read(partial)
    except FileNotFoundError:
        return fresh
    except RecordError as error:
        print(f"starting over: {error}", file=sys.stderr)
        return fresh
    if reason := may_continue(old, fresh, configs):
        print(f"starting over: {partial} {reason}", file=sys.stderr)
        return fresh
    old.rows = [row for row in old.rows if row.status != "failed"]
    return old


def may_continue(old: Record, new: Record, configs: list[Any]) -> str | None:
    """Why rows of `old` may not stand beside new ones; None if they may: same code,
    versions, device and grid.
    """
    same = ("stem", "kind", "grid", "source_hash", "expected_rows")
    if (
        old.device.name != new.device.name
        or that_count(old.software, configs) != that_count(new.software, configs)
        or any(getattr(old, name) != getattr(new, name) for name in same)
    ):
        return "was measured with other code, versions or device"
    if odd := beside_grid(old, configs):
        return f"has a row that is not in the grid, {odd[0]}"
    return "was edited by hand" if old.edited else None


def beside_grid(record: Record, configs: list[Any]) -> list[dict[str, Any]]:
    """The configurations of its rows that are none of these."""
    grid = [asdict(config) for config in configs]
    return [row.config for row in record.rows if row.config not in grid]


def unlike_grid(record: Record, configs: list[Any]) -> str | None:
    """How a complete record's rows differ from these configurations; None if not."""
    if odd := beside_grid(record, configs):
        return f"has a row that is not in today's grid, {odd[0]}"
    missing = (asdict(config) for config in configs)
    first = next((config for config in missing if record.row(config) is None), None)
    return f"lacks a row of today's grid, {first}" if first else None
