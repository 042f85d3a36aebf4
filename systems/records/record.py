"""The types of a record: rows, device, software and source. `systems.records.store`
rejects files that violate these types or the rules in `systems.records.rules`.
"""

from typing import Annotated, Any, Literal, cast

from msgspec import Meta, Struct

from systems.records.device import Device, Name, Plain

# The phases of a training step, in order.
PHASES = ("forward", "loss", "backward", "optimizer")

Count = Annotated[int, Meta(ge=0, le=100_000)]
# No row takes four months: a larger number is an error.
Seconds = Annotated[float, Meta(ge=0, le=1e7)]


class Git(Struct, forbid_unknown_fields=True):
    commit: Annotated[str, Meta(pattern=r"^[0-9A-Za-z._-]{1,64}$")]
    dirty: bool


class Row(Struct, forbid_unknown_fields=True, dict=True):
    """A configuration and its metrics: times as samples in ms, memory in bytes."""

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
    protocol: dict[Plain, Plain] = {}
    software: dict[Plain, Plain] = {}
    # Whether each of this project's attention kernels is available, or why not.
    kernels: dict[Plain, Plain] = {}
    started_utc: Plain | None = None
    command: Plain | None = None
    git: Git | None = None
    source_hash: Plain | None = None
    # The publication that a reported record's numbers come from.
    source: Name | None = None
    # Remarks on the numbers.
    notes: list[Plain] = []

    @property
    def complete(self) -> bool:
        return len(self.rows) == self.expected_rows and all(
            row.status != "failed" for row in self.rows
        )

    @property
    def results_path(self) -> str:
        """The record's path in docs/results, such as "nvidia-h200/warmup.json"."""
        return f"{self.device.slug}/{self.stem}.json"

    def row(self, config: dict[str, Any]) -> Row | None:
        """Return the row with exactly this configuration, or None."""
        return next((row for row in self.rows if row.config == config), None)

    def find(self, **wanted: Any) -> Row | None:
        """Return the first row whose configuration has the `wanted` values, or None."""
        return next((r for r in self.rows if wanted.items() <= r.config.items()), None)
