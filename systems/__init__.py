"""How fast and how memory-hungry transformers are on a GPU: the model, the clock, the
experiments.
"""

from pathlib import Path

# The project's folder, which holds this package.
ROOT = Path(__file__).resolve().parent.parent
