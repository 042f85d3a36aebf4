"""Records from their folders, in the order in which pages show them, and their age."""

import ast
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from systems import ROOT
from systems.experiments import STEMS
from systems.records import store
from systems.records.record import Record
from systems.records.source_hash import source_hash
from systems.running.software import TUNED, attention_in, tuned_software
from tools.render.clocks import note_clocks

GENERATED = ROOT / "docs" / "generated"
# Records by stem, the primary GPU's first.
Found = Mapping[str, list[Record]]


class PlainYaml(yaml.SafeLoader):
    """Reads mkdocs.yml whose tags ask for Python objects; what they ask for is None."""


PlainYaml.add_multi_constructor("", lambda loader, suffix, node: None)


def primary_gpu() -> str:
    """The GPU whose numbers stand in the prose: `extra.primary_gpu` of mkdocs.yml."""
    return _primary_gpu_in((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


@cache
def _primary_gpu_in(config: str) -> str:
    try:
        name = yaml.load(config, PlainYaml)["extra"]["primary_gpu"]
    except (KeyError, TypeError):
        name = None
    if not isinstance(name, str):
        raise store.RecordError(
            "mkdocs.yml: extra.primary_gpu must name a GPU's folder of docs/results, "
            f"got {name!r}"
        )
    return name


def of_sentences(record: Record) -> bool:
    """Whether its numbers stand in sentences. What needs no GPU is measured on the
    meta device.
    """
    return record.kind == "measured" and record.device.slug in (primary_gpu(), "meta")


def ours(found: Found, stem: str) -> Record | None:
    """The record of a stem whose numbers stand in sentences."""
    return next(filter(of_sentences, found.get(stem, [])), None)


def of_gpu(found: Found, stem: str, slug: str) -> Record | None:
    """What this GPU measured."""
    same = (r for r in found.get(stem, []) if r.device.slug == slug)
    return next((r for r in same if r.kind == "measured"), None)


FRESH, VERIFIED, STALE = AGES = ("fresh", "verified", "stale")


def is_fresh(record: Record) -> bool:
    """Whether the source that was measured, or one that was found to agree with it, is
    the source of the tree; and so are the launch configurations of its owner.
    """
    return age(record) != STALE


def age(record: Record) -> str:
    """Return the age of a record: fresh (measured by the present source), verified (by
    an older one, but three rows measured again by the present one agreed) or stale.
    """
    attention = attention_in(record)
    module, triton = STEMS[record.stem].module, record.software.get("triton", "")
    tuned = tuned_software(module, attention, record.device.slug, triton)
    if tuned.get(TUNED) != record.software.get(TUNED):
        return STALE
    present = hash_now(module, tuple(attention))
    if present == record.source_hash:
        return FRESH
    return VERIFIED if present in record.verified_hashes else STALE


@cache
def hash_now(module: str, attention: tuple[str, ...]) -> str:
    """`source_hash` of the tree, which nobody edits while a command runs: asked for
    wherever a record is named.
    """
    return source_hash(module, attention)


def read(path: Path) -> Record:
    """The whole record in this file. RecordError where it is not the one that belongs
    there, or was edited by hand; FileNotFoundError where there is none.
    """
    record = store.read(path)
    grid = "quick" if is_quick(path.parent.parent) else "full"
    ran = sum(row.status != "failed" for row in record.rows)
    faults = {
        f"is a {record.grid} record of {record.stem} on {record.device.slug}, "
        "misplaced here": (record.stem, record.device.slug, record.grid)
        != (path.stem, path.parent.name, grid),
        f"{record.stem} is no experiment": record.stem not in STEMS,
        f"has {ran} rows that did not fail, expected_rows is "
        f"{record.expected_rows}": not record.complete,
        "was edited by hand; restore it or measure again": record.edited,
    }
    for fault, wrong in faults.items():
        if wrong:
            raise store.RecordError(f"{path}: {fault}")
    return record


@cache
def constant(stem: str, name: str) -> Any:
    """A number or names that the module of an experiment defines, read from its
    text.
    """
    path = ROOT / "systems" / "experiments" / f"{stem}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (value,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )
    return value


def is_quick(results: Path) -> bool:
    """Whether this folder holds the records of reduced grids."""
    return Path(os.path.abspath(results)).name == "quick"


def files_in(results: Path) -> list[Path]:
    """All records there, and work in progress. OSError where a folder can't be listed;
    a glob would find it empty.
    """
    try:
        folders = [entry.path for entry in os.scandir(results) if entry.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(
        Path(entry.path)
        for folder in folders
        for entry in os.scandir(folder)
        if entry.name.endswith(store.SUFFIX)
    )


def load(results: Path) -> dict[str, list[Record]]:
    """Complete records by stem: the primary GPU's first, then other measured ones, then
    reported ones. RecordError where a file can't be read, or where there are GPUs, but
    not the primary one.
    """
    primary = primary_gpu()
    found: dict[str, list[Record]] = defaultdict(list)
    for path in files_in(results):
        if path.name.endswith(store.PARTIAL_SUFFIX) or path.parent.name == "quick":
            continue
        found[path.stem].append(read(path))
    note_clocks(found)
    measured = {r.device.slug for rs in found.values() for r in rs if is_of_gpu(r)}
    # A reduced grid is looked at wherever it was measured.
    if measured and primary not in measured and not is_quick(results):
        raise store.RecordError(
            f"mkdocs.yml: extra.primary_gpu is {primary!r}, and no record in {results} "
            f"is of that GPU; there are: {', '.join(sorted(measured))}"
        )
    for of_stem in found.values():
        of_stem.sort(
            key=lambda r: (
                r.kind == "reported",
                r.device.slug not in (primary, "meta"),
                r.device.slug,
            )
        )
    return found


def is_of_gpu(record: Record) -> bool:
    """Whether it was measured on a GPU."""
    return record.kind == "measured" and record.device.is_gpu


def stale_records(records: Iterable[Record]) -> list[str]:
    """A line for each measured record that is older than the source."""
    return [
        f"{r.place} is stale: its source has changed since; "
        f"measure or --verify {r.stem}"
        for r in records
        if r.kind == "measured" and not is_fresh(r)
    ]
