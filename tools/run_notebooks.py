"""Execute the notebooks of the guide and write their outputs into them: the site build
itself runs no code. A test executes them again and compares.

    python tools/run_notebooks.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from systems import need  # noqa: E402

if __name__ == "__main__":
    need("nbformat", "nbclient", "torch")

import nbformat  # noqa: E402
from nbclient import NotebookClient  # noqa: E402
from traitlets.config import Config  # noqa: E402

NOTEBOOKS = Path(__file__).resolve().parents[1] / "docs/notebooks"


def executed(path: Path) -> str:
    """Return the notebook's text after a fresh kernel ran it. An error in a cell
    raises.
    """
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        # Sockets that are files: no port that another process could take or listen to.
        sockets = Config(
            ConnectionFileMixin=Config(transport="ipc", ip=f"{folder}/kernel")
        )
        # The pieces in which a cell's output arrives depend on its pace: join them.
        options = {"timeout": 120, "record_timing": False, "coalesce_streams": True}
        NotebookClient(notebook, config=sockets, **options).execute()
    # The kernel's version differs between machines.
    notebook.metadata["language_info"] = {"name": "python"}
    return nbformat.writes(notebook) + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(description="Execute the notebooks.").parse_args()
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook.write_text(executed(notebook), encoding="utf-8")
        print(notebook.name)
