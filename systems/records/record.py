"""A record: where a measurement comes from, and its rows."""

from dataclasses import dataclass, field
from typing import Any, Literal

from systems.records.device import Device

SCHEMA = 1


@dataclass
class Git:
    commit: str
    dirty: bool


@dataclass
class Row:
    """One configuration and what came of it. Times are lists of samples in ms, memory
    is bytes.
    """

    config: dict[str, Any]
    status: Literal["ok", "out_of_memory", "unsupported", "failed"]
    metrics: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    # Since the row before it ended, or the measuring began.
    seconds: float | None = None


@dataclass
class Record:
    """All rows of one stem on one device by one source and one set of versions (or as
    reported by one source text).
    """

    stem: str
    kind: Literal["measured", "reported"]
    device: Device
    rows: list[Row]
    expected_rows: int
    grid: Literal["full", "quick"] = "full"
    protocol: dict[str, Any] = field(default_factory=dict)
    software: dict[str, str] = field(default_factory=dict)
    started_utc: str | None = None
    command: str | None = None
    git: Git | None = None
    source_hash: str | None = None
    # Hashes of later sources under which rows measured again agreed (see
    # `tools/regen_tables.py --verify`).
    verified_hashes: list[str] = field(default_factory=list)
    # Of a reported record: where the figures stand.
    source: str | None = None
    # What a reader must know about the figures beside what the other fields say.
    notes: list[str] = field(default_factory=list)
    schema: int = SCHEMA

    @property
    def complete(self) -> bool:
        return len(self.rows) == self.expected_rows and all(
            row.status != "failed" for row in self.rows
        )

    def row(self, config: dict[str, Any]) -> Row | None:
        """The row of this configuration."""
        return next((row for row in self.rows if row.config == config), None)

    def find(self, **wanted: Any) -> Row | None:
        """The first row whose configuration has these values."""
        return next(
            (row for row in self.rows if wanted.items() <= row.config.items()), None
        )
