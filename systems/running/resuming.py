"""Find and lock a record's file, and resume an unfinished `<stem>.partial.json`."""

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from systems import escape_text
from systems.experiments import STEMS
from systems.records import store
from systems.records.device import Device
from systems.records.files import open_regular
from systems.records.record import Record
from systems.records.source_hash import source_hash
from systems.records.store import PARTIAL_SUFFIX, SUFFIX, RecordError, UnreadableError
from systems.running import software
from systems.running.reports import CannotStart
from systems.running.software import drop_unused_peer


def record_path(results: Path, device: Device, stem: str, grid: str) -> Path:
    """Return the path of a record. Records of quick grids are in the folder "quick"."""
    folder = results / "quick" if grid == "quick" else results
    return folder / device.slug / f"{stem}{SUFFIX}"


def partial_path(path: Path) -> Path:
    """Return the path of a partial record, given the path of the complete record."""
    return path.with_name(path.name.removesuffix(SUFFIX) + PARTIAL_SUFFIX)


@contextmanager
def lock_record(path: Path) -> Iterator[None]:
    """Lock a record in this context. Raise CannotStart if another process locked it."""
    # Import here, because Windows has no fcntl but needs this module's paths.
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with open_regular(lock, os.O_RDWR | os.O_CREAT) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = escape_text(handle.read(300).decode(errors="replace"))
            reason = f"{path} is being measured by {owner}: wait for it, or stop it"
            raise CannotStart(reason) from None
        handle.truncate()
        handle.write(f"process {os.getpid()} of {platform.node()}".encode())
        handle.flush()
        yield


def modification_time_ns(path: Path) -> int:
    """Return a file's modification time in ns, or 0 if there is no file."""
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def new_record(
    stem: str, device: Device, grid: str, configs: list[Any], protocol: dict[str, Any]
) -> Record:
    """Return a record without rows for `configs`, with current software and source."""
    module = STEMS[stem].module
    attention = software.attention_names(map(asdict, configs))
    present = drop_unused_peer(software.installed_versions(), configs)
    triton = present.get("triton", "")
    present |= software.tuning_digest(module, attention, device.slug, triton)
    option = " --quick" if grid == "quick" else ""
    launched = device.is_gpu and software.launches_kernels(module, attention)
    return Record(
        stem=stem,
        kind="measured",
        device=device,
        rows=[],
        expected_rows=len(configs),
        grid=grid,  # pyright: ignore[reportArgumentType]
        protocol=protocol,
        software=present,
        kernels=software.kernel_status(device) if launched else {},
        started_utc=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        command=f"python tools/regen_tables.py --only {stem}{option}",
        git=software.find_commit(),
        source_hash=source_hash(module, attention),
    )


def is_same_code(record: Record, configs: list[Any]) -> bool:
    """Return whether the experiment's code still has the hash in the record."""
    attention = software.attention_names(map(asdict, configs))
    return source_hash(STEMS[record.stem].module, attention) == record.source_hash


def resume(partial: Path, fresh: Record, configs: list[Any]) -> Record:
    """Return the record in `partial` if new rows can be added to it; else rename the
    file, if any, and return `fresh`. Raise UnreadableError for an unreadable file.
    """
    try:
        old = store.read(partial)
        reason = why_not_resumable(old, fresh, configs)
    except UnreadableError:
        raise  # Don't start over: the file's rows may be valid.
    except (FileNotFoundError, RecordError) as error:
        if not partial.is_file():
            return fresh
        old, reason = None, str(error).removeprefix(f"{partial}: ")
    if old is None or reason:
        backup = partial.with_name(f".{partial.name}.{modification_time_ns(partial)}")
        os.replace(partial, backup)
        print(f"starting over: {partial}, now {backup.name}: {reason}", file=sys.stderr)
        return fresh
    return old


def why_not_resumable(old: Record, new: Record, configs: list[Any]) -> str | None:
    """Return why new rows can't be added to `old`, or None if they can."""
    fields = ("stem", "kind", "grid", "source_hash", "expected_rows")
    unlike = any(getattr(old, name) != getattr(new, name) for name in fields)
    before, after = (drop_unused_peer(x.software, configs) for x in (old, new))
    if unlike or before != after or old.device.name != new.device.name:
        return "was measured with other code, versions or device"
    grid = [asdict(config) for config in configs]
    if odd := [row.config for row in old.rows if row.config not in grid]:
        return f"has a row that is not in the grid, {odd[0]}"
    return "was edited by hand" if old.edited else None
