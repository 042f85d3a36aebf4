"""Check that each fresh record has exactly the rows of its experiment's grid."""

from collections.abc import Iterator, Mapping
from importlib import import_module

from systems import find_missing
from systems.experiments import STEMS
from systems.records.record import Record
from systems.running.resuming import grid_difference
from tools.render.load import is_fresh


def check_grids(found: Mapping[str, list[Record]]) -> Iterator[str]:
    """Yield a finding for each fresh record whose rows differ from the grid."""
    for stem, records in found.items():
        if find_missing("torch", *STEMS[stem].needs):
            continue
        for record in records:
            if record.kind == "measured" and is_fresh(record):
                module = import_module(STEMS[stem].module)
                configs = module.configs(quick=record.grid == "quick")
                if unlike := grid_difference(record, configs):
                    again = f"`regen_tables.py --only {stem} --force`"
                    yield f"{record.results_path} {unlike}; measure it again by {again}"
