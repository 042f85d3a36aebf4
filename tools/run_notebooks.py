"""Execute the guide's notebooks and store their outputs in them, because the site build
runs no code.

    python tools/run_notebooks.py
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from systems import ROOT, require, run_cli  # noqa: E402

if __name__ == "__main__":
    require("nbformat", "nbclient", "torch", "typer", "msgspec")

import nbformat  # noqa: E402
from nbclient import NotebookClient  # noqa: E402
from traitlets.config import Config  # noqa: E402

from systems.records.files import write_atomically  # noqa: E402
from tools.rendering import fail  # noqa: E402

NOTEBOOKS = ROOT / "docs/notebooks"


class Loop(asyncio.SelectorEventLoop):
    # nbclient then leaves signals to Python; its own handlers lose some.
    add_signal_handler = asyncio.AbstractEventLoop.add_signal_handler


def execute_notebook(path: Path) -> str:
    """Run a notebook, return its JSON. Raise if cells fail; exit at a user's edits."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        magic = cell.source.partition("\n")[0]
        if magic.startswith("%%exercise "):
            file = NOTEBOOKS.parent / "exercises" / f"{magic.split()[1]}.py"
            lines = file.read_text("utf-8").rstrip().split("\n")
            lines = [line for line in lines if "--8<--" not in line]
            empty = "\n".join([magic, *lines])
            # Any other text may be a reader's work.
            if cell.source not in (magic, empty):
                where = f"{path}: a cell of {file.stem} differs from {file}"
                fail(f"{where}; copy what you need, then leave only its first line")
            cell.source = empty
    with TemporaryDirectory() as folder:
        # Use file sockets, because other processes could take or read a port.
        socket = Config(transport="ipc", ip=f"{folder}/kernel")
        sockets = Config(ConnectionFileMixin=socket)
        options = {"timeout": 120, "shutdown_kernel": "immediate"}
        # Join the pieces of a cell's output: how many there are depends on timing.
        options |= {"record_timing": False, "coalesce_streams": True}
        place = {"metadata": {"path": str(ROOT)}}
        # Import from ROOT first, even with PYTHONSAFEPATH, and ignore start-up files.
        folders = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        own = {"PYTHONPATH": folders, "IPYTHONDIR": folder}
        own |= {"PYTHONSAFEPATH": "", "PYTHONSTARTUP": ""}
        client = NotebookClient(notebook, config=sockets, resources=place, **options)
        try:
            with asyncio.Runner(loop_factory=Loop) as runner:
                runner.run(client.async_execute(env=os.environ | own))
        except RuntimeError:
            fail(f"{path}: stopped, or its kernel died; the file is as before")
    # Drop the Python version, which differs between machines.
    notebook.metadata["language_info"] = {"name": "python"}
    return nbformat.writes(notebook) + "\n"


def main() -> None:
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        write_atomically(notebook, execute_notebook(notebook))
        print(notebook.name)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    run_cli(main, __doc__)
