"""A record: where a measurement comes from, and its rows.

The types say what a file may hold: `systems.records.store` reads it into them and
refuses anything else. What types can't say stands in `systems.records.rules`.
"""

from typing import Annotated, Any, Literal, cast

from msgspec import Meta, Struct

from systems.records.device import Device, Name, Plain

# The phases of a training step, in order.
PHASES = ("forward", "loss", "backward", "optimizer")

Count = Annotated[int, Meta(ge=0, le=100_000)]
# At most four months, so that a clock that was set again is noticed.
Seconds = Annotated[float, Meta(ge=0, le=1e7)]


class Git(Struct, forbid_unknown_fields=True):
    commit: Annotated[str, Meta(pattern=r"^[0-9A-Za-z._-]{1,64}$")]
    dirty: bool


class Row(Struct, forbid_unknown_fields=True, dict=True):
    """One configuration and its result: times as samples in ms, memory in bytes."""

    # Not in the file: for a profiled row, the row of `end_to_end` of the same cell.
    clock = cast("Row | None", None)

    config: dict[str, Any]
    status: Literal["ok", "out_of_memory", "unsupported", "failed"]
    metrics: dict[str, Any] = {}
    reason: str | None = None
    # Since the previous row ended or measuring began.
    seconds: Seconds | None = None


class Record(Struct, forbid_unknown_fields=True, dict=True):
    """All rows of one stem on one device, by one source and one set of versions."""

    # Not in the file: whether the digest did not match the content.
    edited = False
    # Not in the file: for a profile, the record of `end_to_end` with its wall times.
    clock = cast("Record | None", None)

    stem: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*$")]
    kind: Literal["measured", "reported"]
    device: Device
    rows: list[Row]
    expected_rows: Count
    grid: Literal["full", "quick"] = "full"
    protocol: dict[Plain, Plain] = {}
    software: dict[Plain, Plain] = {}
    # Which of our attention kernels this GPU and software get, and why not the others.
    kernels: dict[Plain, Plain] = {}
    started_utc: Plain | None = None
    command: Plain | None = None
    git: Git | None = None
    source_hash: Plain | None = None
    # Hashes of later sources that `tools/regen_tables.py --verify` found to agree.
    verified_hashes: list[Plain] = []
    # Where the numbers of a reported record were published.
    source: Name | None = None
    # What else a reader must know about the numbers.
    notes: list[Plain] = []

    @property
    def complete(self) -> bool:
        return len(self.rows) == self.expected_rows and all(
            row.status != "failed" for row in self.rows
        )

    @property
    def place(self) -> str:
        """Return its path in a folder of results: "nvidia-h200/warmup.json"."""
        return f"{self.device.slug}/{self.stem}.json"

    def row(self, config: dict[str, Any]) -> Row | None:
        """Return the row of this configuration, or None."""
        return next((row for row in self.rows if row.config == config), None)

    def find(self, **wanted: Any) -> Row | None:
        """Return the first row whose configuration has these values, or None."""
        return next(
            (row for row in self.rows if wanted.items() <= row.config.items()), None
        )
