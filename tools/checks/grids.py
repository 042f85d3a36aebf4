"""Rows and grids: a record of today's code has a row for each configuration of the
experiment, and no other. Its hash says which code that is, not that all rows are there.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module

from systems import lacks
from systems.experiments import STEMS
from systems.records.record import Record
from systems.running.resuming import unlike_grid
from tools.render.load import is_fresh


def compare(found: Mapping[str, list[Record]]) -> Iterator[str]:
    """A line for each record that differs. Experiments import torch, and some Triton:
    what can't be imported here is not compared.
    """
    for stem, records in found.items():
        if lacks("torch", *STEMS[stem].needs):
            continue
        for record in records:
            if record.kind == "measured" and is_fresh(record):
                module = import_module(STEMS[stem].module)
                configs = module.configs(quick=record.grid == "quick")
                if unlike := unlike_grid(record, configs):
                    again = f"`regen_tables.py --only {stem} --force`"
                    yield f"{record.place} {unlike}; measure it again by {again}"
