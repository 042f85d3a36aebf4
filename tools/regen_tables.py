"""Measure the experiments that have no fresh record, then rewrite the guide's tables,
figures and numbers.

Finished rows survive an interruption: run the same command again to go on. On a Slurm
cluster, use `sbatch tools/regen_tables.sbatch`. Examples:

    python tools/regen_tables.py                    measure, then render
    python tools/regen_tables.py --list             show the state of each record
    python tools/regen_tables.py --only end_to_end --time-limit 30
    python tools/regen_tables.py --quick            a reduced grid, on a CPU too
    python tools/regen_tables.py --check            fail if --render would change files
    python tools/regen_tables.py --at-once 4        on a node with four GPUs
"""

import shlex
import sys
import time
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# The line above makes imports work without installation. Slow modules are imported
# inside functions, so that --help answers at once.
from systems import ROOT, escape_text, plain_console, require, run_cli  # noqa: E402

if __name__ == "__main__":
    require("typer", "rich", "msgspec", "matplotlib")

import typer  # noqa: E402

from systems.experiments import STEMS  # noqa: E402
from systems.running.reports import exit_when_terminated  # noqa: E402
from tools.measuring import Outcome, measure_all  # noqa: E402
from tools.rendering import (  # noqa: E402
    check_guide,
    fail,
    report_errors,
    require_rendered_folder,
    write_rendered,
)
from tools.states import print_states  # noqa: E402

RESULTS = ROOT / "docs" / "results"


def parse_stem(text: str) -> str:
    if text in STEMS:
        return text
    names = ", ".join(STEMS)
    raise typer.BadParameter(f"no experiment is named {text!r}; there are: {names}")


def parse_folder(text: str) -> Path:
    """Return the path. Reject "", which an unset shell variable gives."""
    if text:
        return Path(text)
    raise typer.BadParameter("the name of the folder is empty")


def flag(name: str, help: str) -> Any:
    return typer.Option(False, name, help=help)


def option(name: str, shape: str, help: str, default: Any = None, **more: Any) -> Any:
    return typer.Option(
        default, name, metavar=shape, help=help, show_default=False, **more
    )


def command(
    only: list[str] | None = option(
        "--only",
        "STEM",
        "Measure this experiment alone; may be repeated.",
        parser=parse_stem,
    ),
    quick: bool = flag("--quick", "Measure a reduced grid; its records stay apart."),
    force: bool = flag("--force", "Measure again what is fresh; go on with the rest."),
    time_limit: float | None = option(
        "--time-limit", "MIN", "Stop between rows after MIN minutes.", min=0.01
    ),
    at_once: int = option(
        "--at-once", "N", "Measure on the first N visible GPUs at a time.", 1, min=1
    ),
    no_render: bool = flag("--no-render", "Measure, and leave the tables alone."),
    listed: bool = flag("--list", "Instead, show the state of each record."),
    render: bool = flag("--render", "Instead, rewrite tables, figures and facts."),
    check: bool = flag("--check", "Instead, fail if --render would change a file."),
    results: Path | None = option(
        "--results", "FOLDER", "Folder of records (docs/results).", parser=parse_folder
    ),
    generated: Path | None = option(
        "--generated",
        "FOLDER",
        "Folder to render to (docs/generated). Required to render the records of "
        "another --results.",
        parser=parse_folder,
    ),
) -> int:
    results = results or RESULTS
    switches = {"--list": listed, "--render": render, "--check": check}
    action, *others = [x for x, is_set in switches.items() if is_set] or ["measuring"]
    measuring = {
        "--only": only,
        "--quick": quick,
        "--force": force,
        "--time-limit": time_limit,
        "--at-once": at_once > 1,
        "--no-render": no_render,
    }
    # Reject options that the action would ignore.
    for name, is_set in measuring.items():
        if is_set and action != "measuring":
            fail(f"{name} goes with measuring, not with {action}")
    if others or (listed and generated):
        fail(f"{[*others, '--generated'][0]} does not go with {action}")
    if generated and (quick or no_render):
        fail("--generated goes with rendering, not with --quick or --no-render")
    hint = "; every finished configuration is kept, run the same command to go on"
    with report_errors(hint if action == "measuring" else ""):
        require_results_folder(action, results, generated)
        if listed:
            return print_states(results)
        if render:
            return write_rendered(results, generated)
        if check:
            return check_guide(results, generated)
        # `--only` may name a stem twice.
        stems = list(dict.fromkeys(only or STEMS))
        deadline = time.time() + time_limit * 60 if time_limit else 1e18
        outcomes = measure_all(stems, results, quick, force, deadline, at_once)
        return summarize_and_render(outcomes, results, quick, generated, no_render)


def require_results_folder(action: str, results: Path, generated: Path | None) -> None:
    """Exit if a folder is wrong for `action`: "measuring" or an option ("--check")."""
    from systems.records.store import PARTIAL_SUFFIX
    from tools.render.load import is_quick_folder, list_record_files

    measures = action == "measuring"
    is_own = results.resolve() == RESULTS.resolve()
    if not (measures or is_own or results.is_dir()):
        fail(f"--results {results}: no such folder")
    if any((results / f"{stem}.json").exists() for stem in STEMS):
        fail(f"--results {results}: contains records; give its parent folder")
    if measures and is_quick_folder(results):
        fail(
            f"--results {results}: a folder of this name holds records of reduced "
            f"grids only; --quick --results {results.parent} measures into it"
        )
    if not (measures or action == "--list" or is_own or generated):
        fail(
            f"this guide's own tables do not show {results}: add --generated FOLDER "
            "to name the folder of its tables"
        )
    if generated and not (measures or is_own):
        names = (path.name for path in list_record_files(results))
        if all(name.endswith(PARTIAL_SUFFIX) for name in names):
            fail(f"--results {results}: no folder in it has a complete record")
    if generated and action != "--check":
        require_rendered_folder(generated)


def summarize_and_render(
    outcomes: list[Outcome],
    results: Path,
    quick: bool,
    generated: Path | None,
    no_render: bool,
) -> int:
    """Print outcomes; return the largest exit code, or exit if all are skipped. Unless
    `quick`, `no_render` or code 2, render the guide's records, others into `generated`.
    """
    if all(outcome.skipped for outcome in outcomes):
        reasons = (o.stem + o.message.removeprefix("skipped:") for o in outcomes)
        fail(f"nothing was measured: {', '.join(reasons)}")
    from tools.render.spanning.student import outcome_table

    rows = [(o.stem, o.message, o.rows, o.seconds) for o in outcomes]
    plain_console().print(outcome_table(rows))
    for outcome in outcomes:
        if outcome.code:
            print(f"{outcome.stem}: {outcome.message}", file=sys.stderr)
    code = max(outcome.code for outcome in outcomes)
    if quick and any(outcome.code != 2 for outcome in outcomes):
        quick_results = shlex.quote(str(results / "quick"))
        flags = f"--render --results {quick_results} --generated FOLDER"
        hint = f"reduced grid: its records stay apart; `{flags}` writes their tables"
        print(escape_text(hint))
    elif code != 2 and not (quick or no_render):
        # Render the guide's own records, others only into a folder `generated`.
        if generated or results.resolve() == RESULTS.resolve():
            write_rendered(results, generated)
        else:
            hint = "--render --generated FOLDER writes their tables"
            print(escape_text(f"the records are in {results}; {hint}"))
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        run_cli(command, __doc__, arguments)
    except SystemExit as error:
        return error.code  # pyright: ignore[reportReturnType]


if __name__ == "__main__":
    # SIGTERM must also end the child processes that measure.
    exit_when_terminated()
    for stream in (sys.stdout, sys.stderr):
        # Escape characters that the terminal can't encode, such as in paths.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())
