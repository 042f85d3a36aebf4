"""`python -m systems.experiments` runs none: it names those that there are."""

import sys

from systems.experiments import STEMS

print(
    f"error: name one: python -m systems.experiments.STEM, of {', '.join(STEMS)}; "
    "tools/regen_tables.py measures all",
    file=sys.stderr,
)
raise SystemExit(2)
