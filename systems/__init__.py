"""Measure how fast and memory-hungry transformers are on a GPU."""

import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import EACCES, EROFS
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent

# Advice for modules that some operating systems lack, by module name.
REMEDIES = {
    "triton": "Triton is not installed here, and our kernels are written in it: on "
    "Linux `pip install triton`; macOS and Windows have none, and there "
    'flash_attention(..., backend="torch") computes the same',
    "fcntl": "measuring locks the files that it writes, as Linux and macOS can: on "
    "Windows run it inside WSL",
}


def find_missing(*modules: str) -> str:
    """Return install advice for the first missing module of `modules`, or ""."""
    for module in modules:
        with suppress(ModuleNotFoundError):
            if find_spec(module):
                continue
        install = "run `make .venv/all`, then `source .venv/bin/activate`"
        return REMEDIES.get(module, f"{module} is not installed here: {install}")
    return ""


def require(*modules: str) -> None:
    """Print advice and exit with code 2 if a module is missing; set sys.excepthook."""
    sys.excepthook = hide_traceback
    if text := find_missing(*modules):
        print(f"error: {text}", file=sys.stderr)
        raise SystemExit(2)


def hide_traceback(kind: Any, error: Any, trace: Any) -> None:
    """As excepthook, print one line for Ctrl-C or a failed import, else a traceback."""
    if issubclass(kind, KeyboardInterrupt):
        print("Aborted!", file=sys.stderr)
    elif issubclass(kind, EOFError) and "marshal" in str(error):
        text = "a full disk cut compiled files: delete the folders named __pycache__"
        print(f"error: {text}, here and in .venv", file=sys.stderr)
    elif text := import_fault(error):
        print(f"error: {text}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def import_fault(error: BaseException) -> str:
    """Return "NAME can't be imported: REASON" if an import raised `error`, else ""."""
    folders = tuple(f"{ROOT / name}{os.sep}" for name in ("systems", "tools"))
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.line or "" for frame in frames if frame.filename.startswith(folders)]
    # A failed import statement is the last line of this project in the traceback.
    importing = r"(?:from |import |import_module\(\")(\w+)"
    package = re.match(importing, lines[-1]) if lines else None
    if package is None or package[1] in ("systems", "tools"):
        return ""
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return escape_text(f"{package[1]} can't be imported: {reason}")


def torch_fault() -> str:
    """Return a warning if torch is installed outside pyproject.toml's range, or ""."""
    import tomllib
    from importlib import metadata

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    package = Requirement(project["project"]["optional-dependencies"]["torch"][0])
    try:
        version = metadata.version(package.name)
    except metadata.PackageNotFoundError:
        return ""
    if package.specifier.contains(version, prereleases=True):
        return ""
    return f"torch {version} is not {package.specifier}: run pip install -e '.[torch]'"


def escape_text(text: str) -> str:
    """Return the text; unprintable characters, such as newlines, become escapes."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def git_environment() -> dict[str, str]:
    """Return the environment without the variables that git sets for its hooks."""
    names = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR")
    return {key: text for key, text in os.environ.items() if key not in names}


def plain_console() -> Any:
    """Return a rich console that prints brackets and colons unchanged."""
    from rich.console import Console

    return Console(markup=False, emoji=False)


def align_rows(found: Mapping[str, str]) -> str:
    """Return a line for each item of `found`, {name: text}; texts form a column."""
    return "".join(f"{name:20}{escape_text(text)}\n" for name, text in found.items())


def run_cli(
    main: Callable[..., int | None], help: str | None, arguments: Any = None
) -> NoReturn:
    """Run `main` as a command with `arguments` (default: sys.argv), and exit with the
    code that it returns (None: 0), or with 2 after a usage error. --help prints `help`.
    """
    import typer

    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # The shell closed this stream (`>&-`): open the null device in its place.
            os.set_inheritable(nowhere := os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, os.fdopen(nowhere, "r" if name == "stdin" else "w"))
    main.__doc__ = (help or "").replace("\n\n    python", "\n\n\b\n    python")
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    app.command()(main)
    try:
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as error:
        # Typer and rich exit if the pipe is closed, as in `... | head`: no error.
        if error.code != 1 or not isinstance(error.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        prefix = f"can't use {error.filename}: " if error.filename else ""
        if prefix and error.errno not in (EACCES, EROFS):
            raise
        # Write buffered text. This fails only if stdout itself caused the error.
        with suppress(OSError):
            sys.stdout.flush()
        # Discard further output, or Python would report the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if code := 2 * (not isinstance(error, BrokenPipeError)):
            print(f"error: {prefix}{error.strerror or error}", file=sys.stderr)
    except Exception as error:
        # Detect usage errors by `format_message`: typer versions differ in their class.
        if (message := getattr(error, "format_message", None)) is None:
            raise
        print(f"error: {escape_text(message())}", file=sys.stderr)
        code = 2
    raise SystemExit(code or 0)
