"""Render the records into docs/generated, or check that the files there are theirs."""

import sys
from pathlib import Path
from typing import NoReturn

from systems import ROOT, printable
from systems.records.files import write_whole

# What every folder of rendered files has.
MARK = "facts.yml"


def stop(message: str, code: int = 2) -> NoReturn:
    """Exit with one line that says what is wrong."""
    print(f"error: {printable(message)}", file=sys.stderr)
    raise SystemExit(code)


def texts_in(generated: Path) -> dict[str, str]:
    """Return the text of each file in a folder, by name."""
    return {
        path.name: path.read_text(encoding="utf-8", errors="replace")
        for path in (generated.iterdir() if generated.is_dir() else ())
        if path.is_file()
    }


def rendered(results: Path) -> dict[str, str]:
    """Return the text of each file to be rendered; a terminal shows a spinner."""
    from rich.console import Console

    with Console(stderr=True).status("rendering tables and figures"):
        from tools.render.everything import render_all

        return render_all(results)


def write_rendered(results: Path, generated: Path | None = None) -> int:
    """Rewrite docs/generated, or the folder named: it then holds what the records give,
    and nothing else. A folder of other files is refused. Return the exit code.
    """
    from tools.render import load

    folder = generated or load.GENERATED
    present = texts_in(folder)
    if generated and present and MARK not in present:
        stop(f"--generated {generated}: holds files that were not rendered")
    # Before the seconds that rendering takes.
    folder.mkdir(parents=True, exist_ok=True)
    wanted = rendered(results)
    changed = [name for name in wanted if wanted[name] != present.get(name)]
    extra = present.keys() - wanted.keys()
    # First what tells that the folder is ours: where this is killed, it is taken again.
    for name in sorted(changed, key=lambda name: name != MARK):
        try:
            write_whole(folder / name, wanted[name])
        except OSError as error:
            # On a full disk the error itself names no file.
            raise OSError(error.errno, error.strerror, str(folder / name)) from None
    for name in extra:
        (folder / name).unlink()
    print(f"rendered {len(wanted)} files, {len(changed) + len(extra)} changed")
    return 0


def check_tree(
    results: Path, fresh: bool = False, generated: Path | None = None
) -> int:
    """Print every difference between the tree and its records; with `fresh`, stale
    records too. Return 1 if there is one.
    """
    from tools.checks import grids, same_cell
    from tools.checks.pages import check_pages
    from tools.render import load

    folder = generated or load.GENERATED
    wanted, present = rendered(results), texts_in(folder)
    findings = check_pages(ROOT)
    for name in wanted.keys() | present.keys():
        if (text := wanted.get(name)) != (there := present.get(name)):
            fault = "missing" if there is None else "differs from what the records give"
            fault = "no record gives this file" if text is None else fault
            where = generated or "docs/generated"
            findings.append(f"{where}/{name}: {fault}; run --render")
    found = load.load(results)
    records = [record for of_stem in found.values() for record in of_stem]
    findings += [*same_cell.compare(found), *grids.compare(found)]
    warnings = load.stale_records(records)
    if fresh:
        findings, warnings = [*findings, *warnings], []
    for message in warnings:
        print(printable(f"warning: {message}"))
    for finding in sorted(findings):
        print(printable(finding))
    if findings:
        print(f"{len(findings)} findings")
    else:
        print(f"{len(wanted)} generated files, all as the records give them")
    return 1 if findings else 0
