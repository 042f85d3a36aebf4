import os

# Ignore the user's matplotlib backend: an unknown one would make the import fail, and
# SVG figures need none.
os.environ.pop("MPLBACKEND", None)
