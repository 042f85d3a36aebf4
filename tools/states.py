"""Print the state of each record, such as fresh, stale, partial or missing."""

import os
import sys
from pathlib import Path
from typing import Any

from systems import escape_text, torch_fault
from systems.experiments import STEMS


def read_state(path: Path) -> tuple[str, Any]:
    """Return a record's state ("fresh", "stale", "partial" or "missing") and the
    record, None if missing. Raise RecordError if the file is damaged.
    """
    from systems.records import store
    from systems.running.resuming import partial_path
    from tools.render.load import is_fresh, read_record

    if os.path.lexists(path):
        try:
            record = read_record(path)
        except FileNotFoundError as error:  # A link to nothing.
            raise store.RecordError(f"{path}: {error.strerror}") from None
        return "fresh" if is_fresh(record) else "stale", record
    try:
        return "partial", store.read(partial_path(path))
    except store.UnreadableError:
        raise
    except (FileNotFoundError, NotADirectoryError, store.RecordError):
        # A damaged partial record counts as missing: measuring starts over.
        return "missing", None


def print_states(results: Path) -> int:
    """Print the state of each record. Return the exit code: 2 if one is unreadable."""
    from systems.records.store import RecordError
    from systems.running.machine import choose_device
    from systems.running.software import kernel_status
    from tools.render.load import list_record_files

    faults, files = [], list_record_files(results)
    lines = [("experiment", "device", "state", "rows", "measured", "min")]
    for stem, entry in STEMS.items():
        here = choose_device(entry.full)
        slugs = {p.parent.name for p in files if p.name.partition(".")[0] == stem}
        slugs |= {here.slug} if here else set()
        if not slugs:
            lines.append((stem, "-", "no GPU", "", "", ""))
        for slug in sorted(slugs):
            path = results / slug / f"{stem}.json"
            try:
                state, record = read_state(path)
            except RecordError as error:
                state, record = "unreadable", None
                faults.append(f"error: {error}")
            rows = date = minutes = ""
            if record is not None:
                state = "reported" if record.kind == "reported" else state
                count = sum(row.status != "failed" for row in record.rows)
                share = f"{100 * count // max(1, record.expected_rows)} %"
                rows = str(count) if record.complete else share
                date = (record.started_utc or "").split(" ")[0]
                seconds = sum(row.seconds or 0 for row in record.rows)
                minutes = f"{seconds / 60:.1f}" if record.kind == "measured" else ""
            lines.append((stem, slug, state, rows, date, minutes))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        text = " ".join(map(str.ljust, line, widths))
        print(escape_text(text.rstrip()))
    if gpu := choose_device(("cuda",)):
        for name, status in kernel_status(gpu).items():
            print(f"{gpu.name}, attention by {name}: {status}")
    if warning := torch_fault():
        print(f"warning: {warning}", file=sys.stderr)
    for fault in faults:
        print(escape_text(fault), file=sys.stderr)
    return 2 if faults else 0
