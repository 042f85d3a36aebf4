"""How fast and how memory-hungry transformers are on a GPU: the model, the clock, the
experiments.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

# The project's folder, which holds this package.
ROOT = Path(__file__).resolve().parent.parent


def need_torch() -> None:
    """End a command that computes by one line where torch is not installed. Formulas,
    records and rendering need none.
    """
    if find_spec("torch") is None:
        print(
            "error: torch is not installed here: run `make .venv/all`, then "
            "`source .venv/bin/activate`",
            file=sys.stderr,
        )
        raise SystemExit(2)
