"""Records as files: JSON in and out, checked field by field.

A file on disk is always whole: it is written beside its place, flushed, then renamed
over it.
"""

import json
import math
import os
import types
import typing
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from systems.records.record import SCHEMA, Record

SUFFIX, PARTIAL_SUFFIX = ".json", ".partial.json"


class RecordError(ValueError):
    """A record that can't be read: the message names the file, the field and what was
    expected.
    """


def read(path: Path) -> Record:
    """The record in this file. RecordError names the file and field at fault;
    FileNotFoundError if absent.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RecordError(
            f"{path}: is not JSON ({error}); delete it to measure again"
        ) from error
    if isinstance(data, dict) and data.get("schema") != SCHEMA:
        raise RecordError(
            f"{path}: schema is {data.get('schema')!r}, this version reads {SCHEMA}; measure again"
        )
    return _checked(data, Record, str(path))


def write(record: Record, path: Path) -> None:
    """Put the record at `path` in one step: a reader sees the old file or the new one,
    never a part.
    """
    text = to_json(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def to_json(record: Record) -> str:
    """The record as text: one field a line, one row a line, so that a change shows as
    the rows that changed.
    """
    data = asdict(record)
    rows = data.pop("rows")
    data = {"schema": data.pop("schema"), **data}
    lines = [
        f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
        for key, value in data.items()
    ]
    for row in rows:
        row["metrics"] = {
            name: to_nanoseconds(name, value) for name, value in row["metrics"].items()
        }
    body = ",\n".join(
        f"  {json.dumps(row, ensure_ascii=False, allow_nan=False)}" for row in rows
    )
    return (
        "{\n"
        + ",\n".join([*lines, f' "rows": [\n{body}\n ]' if rows else ' "rows": []'])
        + "\n}\n"
    )


def to_nanoseconds(name: str, value: Any) -> Any:
    """Samples in ms without the digits that subtracting clock readings leaves behind:
    no clock here reads less.
    """
    if isinstance(value, list) and name.endswith("_ms"):
        return [
            round(sample, 6) if isinstance(sample, float) else sample
            for sample in value
        ]
    return value


def _checked(value: Any, annotation: Any, where: str) -> Any:
    """`value` as `annotation` says, with dictionaries made into dataclasses.
    RecordError names what differs.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if is_dataclass(annotation) and isinstance(annotation, type):
        return _checked_fields(value, annotation, where)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _checked(value, next(a for a in arguments if a is not type(None)), where)
    if origin is Literal:
        if value not in arguments:
            raise RecordError(
                f"{where}: is {value!r}, not one of {', '.join(map(str, arguments))}"
            )
        return value
    if origin is list and isinstance(value, list):
        return [
            _checked(item, arguments[0], f"{where}[{i}]")
            for i, item in enumerate(value)
        ]
    if origin is dict and isinstance(value, dict):
        return {
            key: _checked(item, arguments[1], f"{where}.{key}")
            for key, item in value.items()
        }
    if isinstance(value, float) and not math.isfinite(value):
        raise RecordError(f"{where}: is {value}, not a finite number")
    if annotation is Any and isinstance(value, list | dict):
        return _checked(
            value, list[Any] if isinstance(value, list) else dict[str, Any], where
        )
    plain = origin or annotation
    if plain is Any or type(value) is plain or (plain is float and type(value) is int):
        return value
    raise RecordError(
        f"{where}: is {value!r:.60}, not {getattr(plain, '__name__', plain)}"
    )


def _checked_fields(value: Any, cls: type, where: str) -> Any:
    if not isinstance(value, dict):
        raise RecordError(
            f"{where}: is {value!r:.60}, not an object with the fields of {cls.__name__}"
        )
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in fields(cls)}
    if unknown := sorted(value.keys() - known.keys()):
        raise RecordError(f"{where}: has the unknown field {unknown[0]!r}")
    for name, spec in known.items():
        if (
            name not in value
            and spec.default is MISSING
            and spec.default_factory is MISSING
        ):
            raise RecordError(f"{where}: lacks the field {name!r}")
    return cls(
        **{
            name: _checked(item, hints[name], f"{where}: {name}")
            for name, item in value.items()
        }
    )
