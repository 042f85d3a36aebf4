"""Render records into docs/generated, or check that its files are up to date."""

import gc
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from systems import ROOT, escape_text
from systems.records.files import write_atomically
from systems.records.store import RecordError

# The file by which `write_rendered` recognizes a folder that it wrote before.
MARK = "facts.yml"


def fail(message: str) -> NoReturn:
    """Print an error message in one line, and exit with code 2."""
    print(f"error: {escape_text(message)}", file=sys.stderr)
    raise SystemExit(2)


@contextmanager
def report_errors(hint: str) -> Iterator[None]:
    """Print file errors, and Ctrl-C with `hint`, in one line; exit with code 2."""
    try:
        yield
    except ImportError as error:
        # An experiment that is being added or removed has no builder.
        missing = r"(?:stems\.|name ')(\w+)'(?:$| from 'tools\.render\.stems' )"
        if (stem := re.search(missing, str(error))) is None:
            raise
        path, remedy = f"tools/render/stems/{stem[1]}.py", "write it, or remove what"
        fail(f"{path} is missing: {remedy} `git grep -w {stem[1]}` finds")
    except RecordError as error:
        fail(str(error))
    except OSError as error:
        if (path := error.filename2 or error.filename) is None:
            # Standard output is full or closed: `run_cli` reports it.
            raise
        fail(f"can't use {path}: {error.strerror}")
    except KeyboardInterrupt:
        fail(f"stopped{hint}")


def read_texts(generated: Path) -> dict[str, str]:
    """Return {file name: text} of the files in a folder."""
    return {
        path.name: path.read_text(encoding="utf-8", errors="replace")
        for path in (generated.iterdir() if generated.is_dir() else ())
        if path.is_file()
    }


def render_texts(found: Mapping[str, list[Any]]) -> dict[str, str]:
    """Render `found`, {stem: records}, to {file name: text}, and show a spinner."""
    from rich.console import Console

    # Python loses signals in callbacks of garbage collection, which also takes time.
    gc.disable()
    try:
        with Console(stderr=True).status("rendering tables and figures"):
            from tools.render.everything import render

            return render(found)
    finally:
        gc.enable()


def require_rendered_folder(generated: Path) -> None:
    """Make a folder to render to. Exit if it holds more than rendered files."""
    generated.mkdir(parents=True, exist_ok=True)
    present = [*generated.iterdir()]
    if present and generated / MARK not in present or any(map(Path.is_dir, present)):
        fail(f"--generated {generated}: holds files that were not rendered")


def write_rendered(results: Path, generated: Path | None = None) -> int:
    """Render into docs/generated or the folder `generated`, delete rendered files of
    earlier runs, and return 0. Exit if `generated` holds files that were not rendered.
    """
    from tools.render import load

    folder = generated or load.GENERATED
    folder.mkdir(parents=True, exist_ok=True)
    present = read_texts(folder)
    wanted = render_texts(load.load_records(results))
    changed = [name for name in wanted if wanted[name] != present.get(name)]
    extra = present.keys() - wanted.keys()
    # An extra file with one of these prefixes was rendered by an older version.
    own = {name.partition("-")[0] for name in ("", *wanted)}
    for name in sorted(extra):
        if re.sub(r"-.*|^\..*\.tmp$", "", name) not in own:
            fail(f"{folder} holds {name}, which was not rendered: move it")
    # Write MARK first, so that an interrupted run can be repeated.
    for name in sorted(changed, key=lambda name: name != MARK):
        try:
            write_atomically(folder / name, wanted[name])
        except OSError as error:
            # Add the file's name, which the error of a full disk lacks.
            raise OSError(error.errno, error.strerror, str(folder / name)) from None
    for name in extra:
        # A temporary file of a killed run may be gone already.
        (folder / name).unlink(missing_ok=True)
        print(escape_text(f"deleted {name}, which no record gives"))
    print(f"rendered {len(wanted)} files, {len(changed) + len(extra)} changed")
    return 0


def check_guide(results: Path, generated: Path | None = None) -> int:
    """Check pages, docs/generated and records. Print findings, and stale records as
    warnings; return the exit code, 1 if there are findings.
    """
    from tools.checks.pages import check_pages
    from tools.render import load

    folder, found = generated or load.GENERATED, load.load_records(results)
    wanted, present = render_texts(found), read_texts(folder)
    findings = check_pages(ROOT)
    for name in wanted.keys() | present.keys():
        if (text := wanted.get(name)) != (old := present.get(name)):
            fault = "missing" if old is None else "differs from what the records give"
            fault = "no record gives this file" if text is None else fault
            where = generated or "docs/generated"
            findings.append(f"{where}/{name}: {fault}; run --render")
    stale = "is stale: its source has changed since; measure it again by --only"
    for stem, records in found.items():
        for record in records:
            if record.kind == "measured" and not load.is_fresh(record):
                print(escape_text(f"warning: {record.results_path} {stale} {stem}"))
    for finding in sorted(findings):
        print(escape_text(finding))
    as_given = f"{len(wanted)} generated files, all as the records give them"
    print(f"{len(findings)} findings" if findings else as_given)
    return 1 if findings else 0
