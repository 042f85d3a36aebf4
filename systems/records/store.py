"""Read and write records as validated JSON; a digest detects edits by hand."""

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from systems.records.files import open_regular, write_atomically
from systems.records.record import Record, record_faults

SCHEMA = 3
SUFFIX, PARTIAL_SUFFIX = ".json", ".partial.json"
# Maximum size of a record's file in bytes, about twice the size of the largest.
LONGEST_BYTES = 2**23


class RecordError(ValueError):
    """A record can't be read or written; the message names the file and the fault."""


class UnreadableError(RecordError):
    """The file can't be read, although its content may be valid."""


def read(path: Path) -> Record:
    """Return a record. Raise RecordError, or FileNotFoundError if there is no file."""
    return _parse(_read_bytes(path), path)


def _parse(content: bytes, path: Path) -> Record:
    ours = "`git checkout --ours` (in a rebase, --theirs) keeps the rows of this clone"
    remedy = ours if b"<<<<<<< " in content else "delete it to measure again"
    try:
        data = msgspec.json.decode(content, type=dict[str, Any])
        schema, digest = data.pop("schema", None), data.pop("digest", None)
        if schema != SCHEMA:
            reason = f"schema is {schema!r:.60}, this version reads {SCHEMA}"
            raise RecordError(f"{path}: {reason}; measure again")
        record = msgspec.convert(data, Record)
        for fault in record_faults(record):
            raise RecordError(f"{path}: {fault}")
        record.edited = digest != digest_record(data)
        return record
    except msgspec.ValidationError as error:
        raise RecordError(f"{path}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{path}: is not JSON ({error}); {remedy}") from None


def _read_bytes(path: Path) -> bytes:
    """Return the bytes of a regular file of at most LONGEST_BYTES."""
    try:
        with open_regular(path, os.O_RDONLY) as file:
            _refuse_if_long(os.fstat(file.fileno()).st_size, path)
            # Some editors begin a file with a byte order mark.
            return file.read(LONGEST_BYTES).removeprefix(b"\xef\xbb\xbf")
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        kind = RecordError if error.errno == errno.EINVAL else UnreadableError
        raise kind(f"{path}: can't be read: {error.strerror}") from None


def _refuse_if_long(size: int, path: Path) -> None:
    if size > LONGEST_BYTES:
        limit = f"no record is longer than {LONGEST_BYTES}"
        raise RecordError(f"{path}: has {size} bytes, {limit}")


def write(record: Record, path: Path) -> None:
    """Write a record atomically. Raise RecordError if `read` would reject it."""
    try:
        fault = next(record_faults(record), None)
        content = b"" if fault else to_json(record).encode()
    except (TypeError, ValueError, RecursionError) as error:
        # For example, JSON has no sets and no lone surrogates.
        raise RecordError(f"{path}: can't be written as JSON: {error}") from None
    if fault is not None:
        raise RecordError(f"{path}: {fault}")
    _refuse_if_long(len(content), path)
    _parse(content, path)
    write_atomically(path, content)


def to_json(record: Record) -> str:
    """Return JSON with one field or row per line, for readable diffs."""
    data = json.loads(json.dumps(record, default=structs.asdict, allow_nan=False))
    for row in data["rows"]:
        for name, value in row["metrics"].items():
            row["metrics"][name] = round_to_nanoseconds(name, value)
    rows, data = data["rows"], {"schema": SCHEMA, "digest": digest_record(data)} | data
    del data["rows"]
    lines = [f" {json.dumps(key)}: {_dump_line(value)}" for key, value in data.items()]
    body = ",\n".join(f"  {_dump_line(row)}" for row in rows)
    lines.append(f' "rows": [\n{body}\n ]' if rows else ' "rows": []')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _dump_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def digest_record(data: dict[str, Any]) -> str:
    """Return the SHA-256 of a record's content, whatever the layout of its JSON."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def round_to_nanoseconds(name: str, value: Any) -> Any:
    """Round a metric's samples in ms to nanoseconds; return other values unchanged."""
    if isinstance(value, list) and name.endswith("_ms"):
        return [round(x, 6) if isinstance(x, float) else x for x in value]
    return value
