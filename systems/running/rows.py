"""Measure rows of an experiment as they are asked for: a configuration as JSON on each
line of standard input, its row on a line of standard output. It ends where its input
does, so it never outlives who asks.

    python -m systems.running.rows systems.experiments.triton_versions
"""

import json
import sys
from importlib import import_module

from msgspec import structs

from systems import run_as_command
from systems.records.outcome import measure_row
from systems.running.host_memory import bound_memory
from systems.running.limited import limit_memory
from systems.running.machine import free_memory


def main(module: str) -> None:
    """Measure rows of this module."""
    experiment = import_module(module)
    bound_memory()
    limit_memory()
    for line in sys.stdin:
        row = measure_row(experiment.Config(**json.loads(line)), experiment.run)
        print(json.dumps(row, default=structs.asdict), flush=True)
        free_memory()


if __name__ == "__main__":
    run_as_command(main, __doc__)
