import os

# Figures are drawn as SVG, for which matplotlib needs none of its backends: one that is
# chosen for windows, and not known here, would keep it from being imported.
os.environ.pop("MPLBACKEND", None)
