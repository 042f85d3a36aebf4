"""Find Triton's cache folder, and check that it is writable."""

import os
from pathlib import Path
from tempfile import TemporaryFile

REMEDY = "set TRITON_CACHE_DIR to a folder on a disk of this machine"


def compiled_folder() -> Path:
    """Return Triton's cache folder for compiled kernels."""
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
    given = os.environ.get("TRITON_CACHE_DIR")
    return Path(given) if given else Path(home, ".triton", "cache")


def why_unwritable(folder: Path) -> str:
    """Return why a folder can't store kernels, with a remedy, or "" if it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"can't keep compiled kernels in {folder}: {error.strerror}; {REMEDY}"
