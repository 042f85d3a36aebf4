"""The types of a record (rows, device, software and source), and rules beyond types,
such as bounds on times in ms. `systems.records.store` rejects files that violate them.
"""

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, cast

from msgspec import Meta, Struct

from systems.records.device import Device, Name, PlainText

# The phases of a training step, in order.
PHASES = ("forward", "loss", "backward", "optimizer")

# Matches text that a web page or terminal would execute: control characters, mkdocs
# macros, {attribute=lists}, scripts. Plain < and { are allowed, as in names of C++.
UNSAFE_TEXT = re.compile(
    r"[\x00-\x1f\x7f-\x9f]|\{[$@~:{%]|\{[^{}]*=|<script|<iframe|[\s/]on\w+\s*=|script:",
    re.IGNORECASE,
)
# Upper bounds of times (eleven days, in ms) and of memory in bytes.
LONGEST_MS, MOST_BYTES = 1e9, 2**60

Count = Annotated[int, Meta(ge=0, le=100_000)]
# No row takes four months: a larger number is an error.
Seconds = Annotated[float, Meta(ge=0, le=1e7)]


class Git(Struct, forbid_unknown_fields=True):
    commit: Annotated[str, Meta(pattern=r"^[0-9A-Za-z._-]{1,64}$")]
    dirty: bool


class Row(Struct, forbid_unknown_fields=True, dict=True):
    """A configuration and its metrics (samples in ms, bytes), or why there are none."""

    # Not stored, set on profiled rows: the `end_to_end` row that timed the same pass.
    clock = cast("Row | None", None)

    config: dict[str, Any]
    status: Literal["ok", "out_of_memory", "unsupported", "failed"]
    metrics: dict[str, Any] = {}
    reason: str | None = None
    # Seconds since the previous row ended, or since measuring began.
    seconds: Seconds | None = None


class Record(Struct, forbid_unknown_fields=True, dict=True):
    """The rows of an experiment, measured on one device with one version of code."""

    # Not stored: whether the file was edited by hand (its digest does not match).
    edited = False
    # Not stored, set on records of profiles: the `end_to_end` record of the same GPU.
    clock = cast("Record | None", None)

    stem: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*$")]
    kind: Literal["measured", "reported"]
    device: Device
    rows: list[Row]
    expected_rows: Count
    grid: Literal["full", "quick"] = "full"
    protocol: dict[PlainText, PlainText] = {}
    software: dict[PlainText, PlainText] = {}
    # Whether each of this project's attention kernels is available, or why not.
    kernels: dict[PlainText, PlainText] = {}
    started_utc: PlainText | None = None
    command: PlainText | None = None
    git: Git | None = None
    source_hash: PlainText | None = None
    # The publication that a reported record's numbers come from.
    source: Name | None = None
    # Remarks on the numbers.
    notes: list[PlainText] = []

    @property
    def complete(self) -> bool:
        return len(self.rows) == self.expected_rows and all(
            row.status != "failed" for row in self.rows
        )

    @property
    def results_path(self) -> str:
        """The path in docs/results (or its folder "quick"): "nvidia-l4/warmup.json"."""
        return f"{self.device.slug}/{self.stem}.json"

    def row(self, config: dict[str, Any]) -> Row | None:
        """Return the row with exactly this configuration, or None."""
        return next((row for row in self.rows if row.config == config), None)

    def find(self, **wanted: Any) -> Row | None:
        """Return the first row with these config values, such as d=64, or None."""
        return next((r for r in self.rows if wanted.items() <= r.config.items()), None)


def record_faults(record: Record) -> Iterator[str]:
    """Yield a message for each fault of a record. A message names the faulty field."""
    reported, first = record.kind == "reported", {}
    if reported != (record.source is not None):
        yield f"source is {record.source!r}, which no {record.kind} record has"
    if len(record.rows) > record.expected_rows:
        yield f"has {len(record.rows)} rows, expected_rows is {record.expected_rows}"
    for i, row in enumerate(record.rows):
        place = f"rows[{i}]"
        for fault in _faults(row.config):
            yield f"{place}.config{fault}"
        for name, value in row.config.items():
            if isinstance(value, list | dict):
                yield f"{place}.config.{name}: is {value!r:.60}, not one value"
        if not reported and row.config.keys() != record.rows[0].config.keys():
            odd = sorted(row.config.keys() ^ record.rows[0].config.keys())[0]
            yield f"{place}.config: {odd!r} is not in all rows"
        # Only reported records may have several rows for one configuration.
        key = repr(sorted(row.config.items()))
        if not reported and first.setdefault(key, i) != i:
            yield f"{place}.config: is that of rows[{first[key]}]"
        # Only reported rows may have both the status "ok" and a reason, as a remark.
        if bool(row.reason) != (row.status != "ok") and not (reported and row.reason):
            yield f"{place}.reason: is {row.reason!r}, the status {row.status}"
        if (row.status == "ok") != bool(row.metrics):
            yield f"{place}: is {row.status} with {len(row.metrics)} metrics"
        for fault in faults_in_metrics(row.metrics, reported):
            yield f"{place}.metrics.{fault}"
        for fault in _sample_count_mismatches(row.metrics):
            yield f"{place}.metrics.{fault}"


def faults_in_metrics(metrics: dict[str, Any], reported: bool = False) -> Iterator[str]:
    """Yield a message for each fault of metrics: NaN, infinity, impossible times and
    bytes, unsafe texts. Metrics of a `reported` record may be text ("about 14").
    """
    for name, value in metrics.items():
        yield from (f"{name}{fault}" for fault in [*_faults(name), *_faults(value)])
        if reported and isinstance(value, str):
            continue
        if name.endswith("_ms"):
            yield from _impossible_times(name, value)
        least = int(name.startswith(("peak_", "added_")))
        if name.endswith("_bytes") and not _is_between(value, least, MOST_BYTES, int):
            yield f"{name}: is {value!r:.60}, no number of bytes"
        for item in value if isinstance(value, list) else ():
            if isinstance(item, dict):
                yield from (f"{name}.{f}" for f in faults_in_metrics(item, reported))


def _impossible_times(name: str, value: Any) -> Iterator[str]:
    """Yield a fault for times out of bounds, no samples, or a sample of zero."""
    if not isinstance(value, list):
        if not _is_between(value, 0, LONGEST_MS):
            yield f"{name}: is {value!r:.60}, no time in ms"
    elif not value:
        yield f"{name}: has no samples"
    else:
        for i, sample in enumerate(value):
            if not (_is_between(sample, 0, LONGEST_MS) and sample > 0):
                yield f"{name}[{i}]: is {sample!r:.60}, no time in ms above 0"
                return


def _sample_count_mismatches(metrics: dict[str, Any]) -> Iterator[str]:
    """Yield a fault for each phase with more or fewer samples than the loss phase."""
    of = {p: metrics[f"{p}_ms"] for p in PHASES if f"{p}_ms" in metrics}
    counts = {p: len(samples) for p, samples in of.items() if isinstance(samples, list)}
    for phase, count in counts.items():
        if counts.get("loss", count) != count:
            yield f"{phase}_ms: has {count} samples, loss_ms {counts['loss']}"


def _is_between(value: Any, least: float, most: float, *kinds: type) -> bool:
    """Return whether `value` is of `kinds` (default: int, float), within the bounds."""
    return type(value) in (kinds or (int, float)) and least <= value <= most


def _faults(value: Any) -> Iterator[str]:
    """Yield a fault for each NaN, infinity or text that a page would execute."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f": is {value}, not a finite number"
    if isinstance(value, str) and UNSAFE_TEXT.search(value):
        yield f": is {value!r:.60}, which a page would obey"
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if type(item) is not int:
                yield from (f"[{key}]{fault}" for fault in _faults(item))
            if type(key) is str:
                yield from (f"[{key}]{fault}" for fault in _faults(key))
