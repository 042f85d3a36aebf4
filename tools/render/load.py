"""Records from their folders, in the order in which pages show them, and their age."""

import re
from collections import defaultdict
from pathlib import Path

from systems import ROOT
from systems.experiments import STEMS
from systems.records import store
from systems.records.record import Record
from systems.records.source_hash import source_hash

GENERATED = ROOT / "docs" / "generated"


def primary_gpu() -> str:
    """The GPU whose numbers stand in the prose: `extra.primary_gpu` of mkdocs.yml."""
    match = re.search(
        r"^\s+primary_gpu:\s*(\S+)",
        (ROOT / "mkdocs.yml").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    if match is None:
        raise ValueError(
            "mkdocs.yml names no extra.primary_gpu: give the name of a folder of docs/results"
        )
    return match[1]


def is_fresh(record: Record) -> bool:
    """Whether the source that was measured, or one that was found to agree with it, is
    the source of the tree.
    """
    attention = {
        row.config["attention"] for row in record.rows if "attention" in row.config
    }
    present = source_hash(STEMS[record.stem].module, sorted(attention))
    return present in (record.source_hash, *record.verified_hashes)


def load(results: Path) -> dict[str, list[Record]]:
    """Complete records by stem: the primary GPU's first, then other measured ones, then
    reported ones.
    """
    primary, found = primary_gpu(), defaultdict(list)
    for path in sorted(results.glob("*/*.json")):
        if path.name.endswith(store.PARTIAL_SUFFIX) or path.parent.name == "quick":
            continue
        record = store.read(path)
        if record.stem not in STEMS or path.stem != record.stem:
            raise store.RecordError(
                f"{path}: stem is {record.stem!r}, which is not this file's experiment"
            )
        if path.parent.name != record.device.slug or record.grid != "full":
            raise store.RecordError(
                f"{path}: is a {record.grid} record of {record.device.slug}, misplaced here"
            )
        found[record.stem].append(record)
    for of_stem in found.values():
        of_stem.sort(
            key=lambda r: (
                r.kind == "reported",
                r.device.slug not in (primary, "meta"),
                r.device.slug,
            )
        )
    return found


def stale_records(results: Path) -> list[str]:
    """A line for each measured record that is older than the source."""
    return [
        f"{results.name}/{r.device.slug}/{stem}.json is stale: its source has changed since; measure or --verify {stem}"
        for stem, of_stem in load(results).items()
        for r in of_stem
        if r.kind == "measured" and not is_fresh(r)
    ]
