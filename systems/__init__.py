"""How fast and how memory-hungry transformers are on a GPU: the model, the clock, the
experiments.
"""

import errno
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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


def run_as_command(main: Callable[..., Any], help: str | None) -> None:
    """Call `main` with what the command line gives for its parameters; --help shows
    `help`, the docstring of a module, whose examples are lines of their own. Under
    PYTHONOPTIMIZE=2 there is none.
    """
    import typer

    main.__doc__ = (help or "").replace("\n\n    python", "\n\n\b\n    python")
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    app.command()(main)
    try:
        app()
    except OSError as error:
        # Our own output's error names no file.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename:
            raise
        # Python would complain once more when it flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: can't write: {error.strerror}", file=sys.stderr)
        raise SystemExit(2) from None
