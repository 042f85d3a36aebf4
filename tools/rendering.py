"""Write what the records give into docs/generated, or say where the tree differs from
it.
"""

import sys
from pathlib import Path
from typing import Any, NoReturn

from systems import ROOT
from systems.records.files import write_whole

# What every folder of rendered files has.
MARK = "facts.yml"


def stop(message: str, code: int = 2) -> NoReturn:
    """One line that says what is wrong, exit code 2 if none is given."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(code)


def texts_in(generated: Path) -> dict[str, str]:
    """What a folder of rendered files holds now, by name."""
    return {
        path.name: path.read_text(encoding="utf-8", errors="replace")
        for path in (generated.iterdir() if generated.is_dir() else ())
        if path.is_file()
    }


def rendered(results: Path) -> Any:
    """What the records give, by file name; on a terminal something moves meanwhile."""
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
    if wanted.broken:
        stop("\n       ".join(map(str, wanted.broken)))
    return 0


def check_tree(
    results: Path, fresh: bool = False, generated: Path | None = None
) -> int:
    """Print every difference between the tree and its records; with `fresh`, stale
    records too. Return 0 if there is none, 2 if a
    record can't be read or was edited by hand, otherwise 1.
    """
    from tools.checks import grids, same_cell
    from tools.checks.pages import check_pages
    from tools.render import load

    folder = generated or load.GENERATED
    wanted, present = rendered(results), texts_in(folder)
    if wanted.broken:
        stop("\n       ".join(map(str, wanted.broken)))
    faults = {name: "missing" for name in wanted.keys() - present.keys()}
    faults |= {
        name: "no record gives this file" for name in present.keys() - wanted.keys()
    }
    faults |= {
        name: "differs from what the records give"
        for name in wanted.keys() & present.keys()
        if wanted[name] != present[name]
    }
    findings = [
        f"{generated or 'docs/generated'}/{name}: {fault}; run --render"
        for name, fault in faults.items()
    ]
    findings += check_pages(ROOT)
    found = load.load_sound(results)[0]
    records = [record for of_stem in found.values() for record in of_stem]
    stale, edited = load.stale_records(records), load.edited_records(records)
    findings += [*(stale if fresh else []), *edited]
    findings += [*same_cell.compare(found), *grids.compare(found)]
    for message in [] if fresh else stale:
        print(f"warning: {message}")
    for finding in sorted(findings):
        print(finding)
    if findings:
        print(f"{len(findings)} findings")
    else:
        print(f"{len(wanted)} generated files, all as the records give them")
    return 2 if edited or wanted.broken else 1 if findings else 0
