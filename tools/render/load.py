"""Load records in the order in which pages show them, and find out which are stale."""

import ast
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from systems import ROOT
from systems.experiments import STEMS
from systems.formulas.gpus import GPUS
from systems.records import store
from systems.records.record import Record
from systems.records.source_hash import source_hash
from systems.running.software import attention_names, is_tuning_current
from tools.render.clocks import attach_clock_rows
from tools.render.rows import measured_records

GENERATED = ROOT / "docs" / "generated"
# Records by stem; the primary GPU's records come first.
Found = Mapping[str, list[Record]]
current_hash = cache(source_hash)


def primary_gpu() -> str:
    """Return the GPU that pages quote ("nvidia-h200"). Raise RecordError if not set."""
    config = (ROOT / "mkdocs.yml").read_text("utf-8", "replace")
    if "\n>>>>>>> " in config:
        raise store.RecordError("mkdocs.yml: has a merge conflict")
    gpus = re.findall(r"""^  primary_gpu: *["']?([A-Za-z][\w.-]*)""", config, re.M)
    if len(gpus) != 1:
        raise store.RecordError(
            "mkdocs.yml: extra.primary_gpu must name one folder of docs/results, once"
        )
    return gpus[0]


def primary_gpu_key() -> str:
    """Return the primary GPU's key in GPUS (data sheets), or "" if it has none."""
    return {gpu.slug: name for name, gpu in GPUS.items()}.get(primary_gpu(), "")


def is_primary(record: Record) -> bool:
    """Return whether a record was measured on the primary GPU or the meta device."""
    return record.kind == "measured" and record.device.slug in (primary_gpu(), "meta")


def primary_record(found: Found, stem: str) -> Record | None:
    """Return experiment `stem`'s record of the primary GPU or meta device, or None."""
    return next(filter(is_primary, found.get(stem, [])), None)


def gpu_record(found: Found, stem: str, slug: str) -> Record | None:
    """Return the record of experiment `stem` measured on the GPU `slug`, or None."""
    same = (r for r in found.get(stem, []) if r.device.slug == slug)
    return next((r for r in same if r.kind == "measured"), None)


def is_fresh(record: Record) -> bool:
    """Return whether a record is fresh: measured with the current source code. Other
    records are stale. Tuned launch configurations count as source code.
    """
    if not is_tuning_current(record):
        return False
    attention = attention_names(row.config for row in record.rows)
    present = current_hash(STEMS[record.stem].module, tuple(attention))
    return present == record.source_hash


def read_record(path: Path) -> Record:
    """Read the record at `path`. Raise RecordError if partial, misplaced or invalid."""
    record = store.read(path)
    grid = "quick" if is_quick_folder(path.parent.parent) else "full"
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
    for fault in filter(faults.get, faults):
        raise store.RecordError(f"{path}: {fault}")
    return record


@cache
def read_constant(stem: str, name: str) -> Any:
    """Return a constant of an experiment's module, without importing the module."""
    path = Path(__file__).parents[2] / "systems" / "experiments" / f"{stem}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (value,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )
    return value


def is_quick_folder(results: Path) -> bool:
    """Return whether a folder is named "quick", as folders of `--quick` records are."""
    return Path(os.path.abspath(results)).name == "quick"


def list_record_files(results: Path) -> list[Path]:
    """Return the paths of complete and partial records in the subfolders of `results`.
    Raise OSError for a folder that can't be listed, which `glob` would ignore.
    """
    try:
        folders = [entry.path for entry in os.scandir(results) if entry.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(
        Path(entry.path)
        for folder in folders
        for entry in os.scandir(folder)
        if entry.name.endswith(store.SUFFIX) and not entry.name.startswith(".")
    )


def load_records(results: Path) -> dict[str, list[Record]]:
    """Return {experiment: complete records}, first the primary GPU's, then other GPUs',
    then published ones. Raise RecordError for an invalid file, for one in a subfolder
    of a GPU's folder, or (unless `results` is named "quick") if other GPUs have records
    and the primary GPU has none.
    """
    primary = primary_gpu()
    found: dict[str, list[Record]] = defaultdict(list)
    for path in sorted(results.glob(f"*/*/**/*{store.SUFFIX}")):
        parts = path.relative_to(results).parts
        if parts[0] != "quick" and not any(part.startswith(".") for part in parts):
            where = f"records are shown from folders {results}/GPU only"
            raise store.RecordError(f"{path} lies too deep: {where}")
    for path in list_record_files(results):
        if not path.name.endswith(store.PARTIAL_SUFFIX) and path.parent.name != "quick":
            found[path.stem].append(read_record(path))
    attach_clock_rows(found)
    every = measured_records(record for rs in found.values() for record in rs)
    measured = {record.device.slug for record in every if record.device.is_gpu}
    # Records of reduced grids may come from any GPU.
    if measured and primary not in measured and not is_quick_folder(results):
        quick = f"; --results {results / 'quick'} has its records of reduced grids"
        raise store.RecordError(
            f"mkdocs.yml: extra.primary_gpu is {primary!r}, and no record in {results} "
            f"is of that GPU; there are: {', '.join(sorted(measured))}"
            f"{quick * (results / 'quick' / primary).is_dir()}"
        )
    for rs in found.values():
        rs.sort(key=lambda r: (r.kind == "reported", not is_primary(r), r.device.slug))
    return found
