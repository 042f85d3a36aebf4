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
# Four months: longer than any row took, shorter than a clock that was set anew.
Seconds = Annotated[float, Meta(ge=0, le=1e7)]


class Git(Struct, forbid_unknown_fields=True):
    commit: Annotated[str, Meta(pattern=r"^[0-9A-Za-z._-]{1,64}$")]
    dirty: bool


class Row(Struct, forbid_unknown_fields=True, dict=True):
    """One configuration and what came of it. Times are lists of samples in ms, memory
    is bytes.
    """

    # No field, so not in the file: of a profiled row, the row of `end_to_end` that
    # timed the same cell.
    clock = cast("Row | None", None)

    config: dict[str, Any]
    status: Literal["ok", "out_of_memory", "unsupported", "failed"]
    metrics: dict[str, Any] = {}
    reason: str | None = None
    # Since the row before it ended, or the measuring began.
    seconds: Seconds | None = None


class Record(Struct, forbid_unknown_fields=True, dict=True):
    """All rows of one stem on one device by one source and one set of versions (or as
    reported by one source text).
    """

    # No field, so not in the file: whether reading found a digest of other content.
    edited = False
    # Nor is this: of a profile, the record of `end_to_end` that its rows are timed by.
    clock = cast("Record | None", None)

    stem: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*$")]
    kind: Literal["measured", "reported"]
    device: Device
    rows: list[Row]
    expected_rows: Count
    grid: Literal["full", "quick"] = "full"
    protocol: dict[Plain, Plain] = {}
    software: dict[Plain, Plain] = {}
    # Of what runs our attention kernels: which of them this GPU and this software get,
    # and why not the others. Records from before have none.
    kernels: dict[Plain, Plain] = {}
    started_utc: Plain | None = None
    command: Plain | None = None
    git: Git | None = None
    source_hash: Plain | None = None
    # Hashes of later sources under which rows measured again agreed (see
    # `tools/regen_tables.py --verify`).
    verified_hashes: list[Plain] = []
    # Of a reported record: where the figures stand.
    source: Name | None = None
    # What a reader must know about the figures beside what the other fields say.
    notes: list[Plain] = []

    @property
    def complete(self) -> bool:
        return len(self.rows) == self.expected_rows and all(
            row.status != "failed" for row in self.rows
        )

    @property
    def place(self) -> str:
        """Its file in a folder of results: "nvidia-h200/warmup.json"."""
        return f"{self.device.slug}/{self.stem}.json"

    def row(self, config: dict[str, Any]) -> Row | None:
        """The row of this configuration."""
        return next((row for row in self.rows if row.config == config), None)

    def find(self, **wanted: Any) -> Row | None:
        """The first row whose configuration has these values."""
        return next(
            (row for row in self.rows if wanted.items() <= row.config.items()), None
        )
