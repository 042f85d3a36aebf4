"""Measure on this machine what is missing or stale, then rewrite every table, figure
and number of the guide.

Each experiment is measured in a process of its own, row by row; stop it at any time and
run it again to go on. On a cluster: `sbatch tools/regen_tables.sbatch`. Examples:

    python tools/regen_tables.py                    measure, then render
    python tools/regen_tables.py --list             what is fresh, stale or missing
    python tools/regen_tables.py --only end_to_end --time-limit 30
    python tools/regen_tables.py --quick            a reduced grid, on a CPU too
    python tools/regen_tables.py --check            is all as the records give it?
    python tools/regen_tables.py --at-once 4        on a node with four GPUs
"""

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import EPIPE
from io import TextIOWrapper
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# The line above makes these importable from a plain source tree. What takes long to
# import is imported where it is used, so that --help answers at once.
from systems import ROOT, need, plain_console, run_as_command  # noqa: E402

if __name__ == "__main__":
    need("typer", "rich", "msgspec", "matplotlib")

import typer  # noqa: E402

from systems.experiments import STEMS  # noqa: E402
from systems.records.store import RecordError  # noqa: E402
from systems.running.reports import exit_when_terminated  # noqa: E402
from tools.measuring import Outcome, Task, measure_all, run_all  # noqa: E402
from tools.rendering import check_tree, stop, write_rendered  # noqa: E402
from tools.states import print_states  # noqa: E402

RESULTS = ROOT / "docs" / "results"


def stem(text: str) -> str:
    if text in STEMS:
        return text
    names = ", ".join(STEMS)
    raise typer.BadParameter(f"no experiment is named {text!r}; there are: {names}")


def minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if value > 0:
        return value
    raise typer.BadParameter(f"{text} is no number of minutes above 0")


def folder(text: str) -> Path:
    """A folder, but not the empty one of a shell's variable that is not set."""
    if text:
        return Path(text)
    raise typer.BadParameter("it names no folder")


def switch(flag: str, help: str) -> Any:
    return typer.Option(False, flag, help=help)


def value(flag: str, metavar: str, help: str, default: Any = None, **more: Any) -> Any:
    return typer.Option(
        default, flag, metavar=metavar, help=help, show_default=False, **more
    )


def command(
    only: list[str] | None = value(
        "--only", "STEM", "Measure this experiment alone; may be repeated.", parser=stem
    ),
    quick: bool = switch("--quick", "Measure a reduced grid; its records stay apart."),
    force: bool = switch("--force", "Measure again even what is fresh."),
    time_limit: float | None = value(
        "--time-limit", "MIN", "Stop between rows after MIN minutes.", parser=minutes
    ),
    at_once: int = value(
        "--at-once", "N", "Measure on the first N visible GPUs at a time.", 1, min=1
    ),
    no_render: bool = switch("--no-render", "Measure, and leave the tables alone."),
    listed: bool = switch("--list", "Instead, show the state of each record."),
    render: bool = switch("--render", "Instead, rewrite tables, figures and facts."),
    check: bool = switch("--check", "Instead, fail if --render would change a file."),
    fresh: bool = switch("--fresh", "With --check, fail at stale records, too."),
    verify: str | None = value(
        "--verify",
        "STEM",
        "Instead, measure three rows again, each with those that alternate with it; if "
        "they agree, the record is verified.",
        parser=stem,
    ),
    results: Path | None = value(
        "--results", "FOLDER", "Where records are (docs/results).", parser=folder
    ),
    generated: Path | None = value(
        "--generated",
        "FOLDER",
        "Where tables are rendered to (docs/generated). Without it the records of "
        "another --results are not rendered.",
        parser=folder,
    ),
) -> int:
    results = results or RESULTS
    asked = {"--list": listed, "--render": render, "--check": check, "--verify": verify}
    action, *others = [flag for flag, given in asked.items() if given] or ["measuring"]
    # An action would ignore a flag that it does not read: giving one is an error.
    measuring = {
        "--only": only,
        "--quick": quick,
        "--force": force,
        "--time-limit": time_limit,
        "--at-once": at_once > 1,
        "--no-render": no_render,
    }
    for reader, flags in (("measuring", measuring), ("--check", {"--fresh": fresh})):
        for flag, given in flags.items():
            if given and action != reader:
                stop(f"{flag} goes with {reader}, not with {action}")
    if others or (listed and generated):
        stop(f"{[*others, '--generated'][0]} does not go with {action}")
    with one_line_errors(measures := action in ("measuring", "--verify")):
        if action == "measuring":
            look_at_commit()
        look_at_folders(action, results, generated, measures)
        if listed:
            return print_states(results)
        if render:
            return write_rendered(results, generated)
        if check:
            return check_tree(results, fresh, generated)
        if verify:
            return verify_record(verify, results, generated)
        # Named twice, an experiment is measured once.
        stems = list(dict.fromkeys(only or STEMS))
        deadline = time.time() + time_limit * 60 if time_limit else 1e18
        outcomes = measure(stems, results, quick, force, deadline, at_once)
        return summarize_and_render(outcomes, results, quick, generated, no_render)


@contextmanager
def one_line_errors(measures: bool) -> Iterator[None]:
    """Say in one line what stopped the command."""
    try:
        yield
    except RecordError as error:
        stop(str(error))
    except OSError as error:
        if error.errno == EPIPE:
            # Who read our output has seen enough, as `| head`; typer exits with 1.
            raise
        named = error.filename2 or error.filename
        what = f"can't use {named}" if named else "can't write"
        stop(f"{what}: {error.strerror}")
    except KeyboardInterrupt:
        kept = "; every finished configuration is kept, run the same command to go on"
        stop("stopped" + (kept if measures else ""))


def look_at_commit() -> None:
    """Refuse a GIT_COMMIT that names no commit."""
    from systems.running.software import named_commit

    try:
        named_commit()
    except ValueError as error:
        stop(str(error))


def look_at_folders(
    action: str, results: Path, generated: Path | None, measures: bool
) -> None:
    """Refuse a folder of records that is none, or not of full grids; and to render
    other records than the guide's where the guide's tables are.
    """
    from tools.render.load import is_quick

    ours = same(results, RESULTS)
    if results.exists() and not results.is_dir():
        stop(f"--results {results}: is a file, not a folder")
    if not (action == "measuring" or ours or results.is_dir()):
        stop(f"--results {results}: no such folder")
    if measures and is_quick(results):
        stop(
            f"--results {results}: in a folder of this name lie records of reduced "
            f"grids alone; --quick --results {results.parent} measures into it"
        )
    if not (measures or action == "--list" or ours or generated):
        stop(
            f"this guide's own tables are not of {results}: add --generated FOLDER "
            "to say where its tables are"
        )


def same(one: Path, other: Path) -> bool:
    """Return whether both name one folder, which may not exist."""
    return one.resolve() == other.resolve()


def look_at_caches() -> None:
    """Refuse or warn before anything is compiled that could not be kept."""
    from systems.records.device import find_gpu
    from systems.running.caches import compiled_folder, unwritable

    if find_gpu() is not None and (fault := unwritable(compiled_folder())):
        stop(fault)


def measure(
    stems: Sequence[str],
    results: Path,
    quick: bool = False,
    force: bool = False,
    deadline: float = 1e18,
    at_once: int = 1,
) -> list[Outcome]:
    """Measure what is missing or stale. Return the outcome of each stem."""
    need("torch", "fcntl")
    look_at_caches()
    if at_once == 1:
        return measure_all(stems, results, quick, force, deadline)
    from tools.at_once import CannotShare, first_gpus, longest_first

    try:
        gpus, stems = first_gpus(at_once), longest_first(stems)
    except CannotShare as error:
        stop(str(error))
    return measure_all(stems, results, quick, force, deadline, gpus)


def verify_record(stem: str, results: Path, generated: Path | None) -> int:
    """Measure three rows of a stale record again; if they agree with it, it is
    verified. Return the exit code.
    """
    need("torch", "fcntl")
    arguments = [str(results.resolve()), "--verify"]
    (outcome,) = run_all(iter([Task(stem, arguments)]))
    if outcome.code:
        stop(outcome.message.removeprefix("error: "), outcome.code)
    print(f"{stem}: rows measured again agree, the record is verified")
    render_own(results, generated)
    return 0


def summarize_and_render(
    outcomes: list[Outcome],
    results: Path,
    quick: bool,
    generated: Path | None,
    no_render: bool,
) -> int:
    """Show the summary, and render. Return the exit code: 2 where none of what was
    asked for could be measured here.
    """
    if all(outcome.skipped for outcome in outcomes):
        reasons = (o.stem + o.message.removeprefix("skipped:") for o in outcomes)
        stop(f"nothing was measured: {', '.join(reasons)}")
    print_outcomes(outcomes)
    for outcome in outcomes:
        if outcome.code:
            print(f"{outcome.stem}: {outcome.message}", file=sys.stderr)
    code = max(outcome.code for outcome in outcomes)
    if quick and any(outcome.code != 2 for outcome in outcomes):
        quick_results = shlex.quote(str(results / "quick"))
        shown = f"--render --results {quick_results} --generated FOLDER"
        print(f"reduced grid: its records stay apart; `{shown}` writes their tables")
    elif code != 2 and not (quick or no_render):
        render_own(results, generated)
    return code


def render_own(results: Path, generated: Path | None) -> None:
    """Render the guide's own records, or others into the folder named for them."""
    if generated or same(results, RESULTS):
        write_rendered(results, generated)
    else:
        shown = "--render --generated FOLDER writes their tables"
        print(f"the records are in {results}; {shown}")


def print_outcomes(outcomes: list[Outcome]) -> None:
    """Print the summary."""
    from tools.render.spanning.student import outcome_table

    rows = [(o.stem, o.message, o.rows, o.seconds) for o in outcomes]
    plain_console().print(outcome_table(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks. Return the exit code."""
    try:
        run_as_command(command, __doc__, arguments)
    except SystemExit as ended:
        return ended.code  # pyright: ignore[reportReturnType]


if __name__ == "__main__":
    # Told to end, it ends what measures, too.
    exit_when_terminated()
    for stream in (sys.stdout, sys.stderr):
        # A folder's name may be no valid text, and a terminal may lack characters.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())
