"""Measure on this machine what is missing or stale, then rewrite every table, figure
and number of the guide.

Each experiment is measured in a process of its own, row by row; stop it at any time and
run it again to go on. Examples:

    python tools/regen_tables.py                    measure, then render
    python tools/regen_tables.py --list             what is fresh, stale or missing
    python tools/regen_tables.py --only end_to_end --time-limit 30
    python tools/regen_tables.py --quick            a reduced grid, on a CPU too
    python tools/regen_tables.py --check            is all as the records give it?
    python tools/regen_tables.py --at-once 4        on a node with four GPUs
    python tools/regen_tables.py --slurm --gpus 1   on a cluster: a job per experiment
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# The line above makes these importable from a plain source tree. What takes long to
# import is imported where it is used, so that --help answers at once.
from systems import ROOT, need  # noqa: E402
from systems.experiments import STEMS  # noqa: E402
from systems.running.reports import exit_when_terminated  # noqa: E402
from tools.measuring import (  # noqa: E402
    Lane,
    Outcome,
    measure_if_stale,
    run_child,
)
from tools.rendering import check_tree, stop, write_rendered  # noqa: E402
from tools.slurm.options import FLAGS, Options  # noqa: E402
from tools.states import print_states  # noqa: E402

RESULTS = ROOT / "docs" / "results"
GRID = {"only", "force", "quick", "time_limit", "generated"}
# The flags that each action reads, besides --results. An action would ignore any other,
# so giving one is an error.
READS = {
    "measuring": {*GRID, "at_once"},
    "--slurm": {*GRID, "no_wait", *FLAGS},
    "--list": set(),
    "--render": {"generated"},
    "--check": {"fresh", "generated"},
    "--verify": {"generated"},
}
# These keep each row that they measured.
MEASURES = ("measuring", "--slurm", "--verify")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks. Returns the exit code."""
    given = vars(command_line().parse_args(arguments))
    results: Path = given.pop("results", RESULTS)
    action = next((a for a in READS if a.removeprefix("--") in given), "measuring")
    value = given.pop(action.removeprefix("--"), None)
    if "only" in given:
        given["only"] = each_once(given["only"])
    for name in sorted(given.keys() - READS[action]):
        readers = " or ".join(a for a, reads in READS.items() if name in reads)
        stop(f"{flag(name)} goes with {readers}, not with {action}")
    try:
        from systems.records.store import RecordError
        from systems.running.limited import simulated_gib
        from systems.running.software import named_commit
        from tools.render.load import is_quick

        simulated_gib()
        if action in ("measuring", "--slurm"):
            named_commit()
    except ModuleNotFoundError as error:
        not_installed(error)
    except ValueError as error:
        stop(str(error))

    try:
        tree = same(results, RESULTS)
        if results.exists() and not results.is_dir():
            stop(f"--results {results}: is a file, not a folder")
        if action not in ("measuring", "--slurm") and not (tree or results.is_dir()):
            stop(f"--results {results}: no such folder")
        if action in ("--render", "--check") and not tree and "generated" not in given:
            stop(
                f"this guide's own tables are not of {results}: add --generated FOLDER "
                "to say where its tables are"
            )
        if action in ("measuring", "--slurm", "--verify") and is_quick(results):
            stop(
                f"--results {results}: in a folder of this name lie records of reduced "
                f"grids alone; --quick --results {results.parent} measures into it"
            )
        match action:
            case "--list":
                return print_states(results)
            case "--render":
                write_rendered(results, **given)
                return 0
            case "--check":
                return check_tree(results, **given)
            case "--verify":
                return verify(value, results, **given)
            case "--slurm":
                return measure_by_slurm(results, **given)
            case _:
                return measure(results, **given)
    except RecordError as error:
        stop(str(error))
    except ModuleNotFoundError as error:
        not_installed(error)
    except BrokenPipeError:
        # Who read our output has seen enough: `| head`. Python would complain once more
        # when it flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        named = error.filename2 or error.filename
        used = f"can't use {named}" if named else "can't write"
        stop(f"{used}: {error.strerror}")
    except KeyboardInterrupt:
        kept = "; every finished configuration is kept, run the same command to go on"
        stop("stopped" + (kept if action in MEASURES else ""))


def each_once(stems: list[str]) -> list[str]:
    """Named twice, an experiment is measured once."""
    return list(dict.fromkeys(stems))


def same(one: Path, other: Path) -> bool:
    """Whether both name one folder, by whatever way, be it there or not."""
    return one.resolve() == other.resolve()


def not_installed(error: ModuleNotFoundError) -> NoReturn:
    stop(
        f"{error.name} is not installed for {sys.executable}: run `make .venv/all`, "
        "then `source .venv/bin/activate`"
    )


class OneLineErrors(argparse.ArgumentParser):
    """Says what is wrong without the usage around it."""

    def error(self, message: str) -> NoReturn:
        stop(message)


def command_line() -> argparse.ArgumentParser:
    """The parser. Its result has the flags that were given, and --results."""
    parser = OneLineErrors(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--results",
        metavar="FOLDER",
        type=folder,
        help="where the records are (docs/results)",
    )
    parser.add_argument(
        "--generated",
        metavar="FOLDER",
        type=folder,
        help="where tables are rendered to (docs/generated); without it the records of "
        "another --results are not rendered",
    )
    switch: Any = {"action": "store_true"}
    one_of = parser.add_argument_group("actions, instead of measuring here")
    action = one_of.add_mutually_exclusive_group().add_argument
    action("--list", **switch, help="show the state of each experiment on each device")
    action("--render", **switch, help="rewrite tables, figures and facts from records")
    action("--check", **switch, help="fail if rendering would change a committed file")
    action(
        "--verify",
        metavar="STEM",
        type=stem,
        help="measure three rows again, each with those that take turns with it; if "
        "they agree, the record is verified",
    )
    action("--slurm", **switch, help="measure in Slurm jobs, one per experiment")

    measuring = parser.add_argument_group("measuring, here or by --slurm").add_argument
    measuring(
        "--only",
        metavar="STEM",
        type=stem,
        action="append",
        help="only this experiment; may be given more than once",
    )
    measuring("--force", **switch, help="measure again even what is fresh")
    measuring("--quick", **switch, help="a reduced grid, kept apart and not published")
    measuring(
        "--time-limit",
        metavar="MIN",
        type=minutes,
        help="stop between configurations after MIN minutes",
    )

    measuring(
        "--at-once",
        metavar="N",
        type=several,
        help="N experiments at a time, each on one of the first N visible GPUs and its "
        "share of the cores; not with --slurm",
    )

    checking = parser.add_argument_group("with --check").add_argument
    checking(
        "--fresh",
        **switch,
        help="stale records, and measuring that took too long, are errors, too",
    )

    jobs = parser.add_argument_group("with --slurm").add_argument
    jobs("--no-wait", **switch, help="submit or look, and return at once")
    for name, (metavar, text) in FLAGS.items():
        default = getattr(Options(), name)
        kind: Any = {"type": int} if isinstance(default, int) else {}
        kind |= {"action": "append"} if isinstance(default, list) else {}
        jobs(flag(name), metavar=metavar, help=text, **kind)
    return parser


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def stem(text: str) -> str:
    """An experiment's name as a flag's value."""
    if text not in STEMS:
        raise argparse.ArgumentTypeError(
            f"no experiment is named {text!r}; there are: {', '.join(STEMS)}"
        )
    return text


def folder(text: str) -> Path:
    """A folder as a flag's value: not that of a shell's variable which is not set."""
    if not text:
        raise argparse.ArgumentTypeError("it names no folder")
    return Path(text)


def minutes(text: str) -> float:
    """A time limit as a flag's value."""
    try:
        if (value := float(text)) > 0:
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text} is no number of minutes above 0")


def several(text: str) -> int:
    """A number of GPUs as a flag's value."""
    if text.isdecimal() and int(text) > 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text} is no number of GPUs above 1")


def measure(
    results: Path,
    only: Sequence[str] = tuple(STEMS),
    quick: bool = False,
    force: bool = False,
    time_limit: float = 0,
    at_once: int = 1,
    generated: Path | None = None,
) -> int:
    """Measure what is missing or stale, show a summary, and render. Returns the exit
    code.
    """
    need("torch", "fcntl")
    look_at_caches()
    deadline = time.time() + time_limit * 60 if time_limit else 1e18

    def measured(stem: str, lane: Lane | None) -> Outcome:
        return measure_if_stale(stem, results, quick, force, deadline, lane)

    outcomes = outcomes_of(only, at_once, results, measured)
    return conclude(outcomes, results, quick, generated)


def outcomes_of(
    stems: Sequence[str],
    at_once: int,
    results: Path,
    measured: Callable[[str, Lane | None], Outcome],
) -> list[Outcome]:
    """Of each stem, one after the other or several at once."""
    if at_once < 2:
        return [measured(stem, None) for stem in stems]
    from tools.at_once import CannotShare, measure_at_once

    try:
        return measure_at_once(stems, at_once, results, measured)
    except CannotShare as error:
        stop(str(error))


def look_at_caches() -> None:
    """Before anything is compiled for a GPU that is here: can it be kept?"""
    from systems.records.device import find_gpu
    from systems.running.caches import compiled_folder, shared_by_machines, unwritable

    if find_gpu() is not None:
        if fault := unwritable(compiled_folder()):
            stop(fault)
        if warning := shared_by_machines(compiled_folder()):
            print(f"warning: {warning}", file=sys.stderr)


def measure_by_slurm(
    results: Path,
    only: Sequence[str] = tuple(STEMS),
    quick: bool = False,
    force: bool = False,
    time_limit: float = 0,
    no_wait: bool = False,
    generated: Path | None = None,
    **flags: Any,
) -> int:
    """The same in jobs of a cluster. Where some are still running when it returns,
    nothing is rendered yet. Returns the exit code.
    """
    from tools.slurm import jobs
    from tools.slurm.options import SlurmError, read_options

    try:
        outcomes, all_ended = jobs.measure(
            only, results, quick, force, time_limit, read_options(flags), not no_wait
        )
    except SlurmError as error:
        stop(str(error))
    return conclude(outcomes, results, quick, generated, all_ended)


def verify(stem: str, results: Path, generated: Path | None = None) -> int:
    """Measure three rows of a stale record again; where they agree it is verified.
    Returns the exit code.
    """
    need("torch", "fcntl")
    outcome = run_child(stem, results, "--verify")
    if outcome.code:
        stop(outcome.message.removeprefix("error: "), outcome.code)
    print(f"{stem}: rows measured again agree, the record is verified")
    render_if_told(results, generated)
    return 0


def conclude(
    outcomes: list[Outcome],
    results: Path,
    quick: bool,
    generated: Path | None,
    all_ended: bool = True,
) -> int:
    """Show the summary and, where all have ended, render. Returns the exit code: 2,
    where none of what was asked for could be measured here.
    """
    if all(outcome.skipped for outcome in outcomes):
        reasons = (o.stem + o.message.removeprefix("skipped:") for o in outcomes)
        stop(f"nothing was measured: {', '.join(reasons)}")
    print_outcomes(outcomes)
    for outcome in outcomes:
        if outcome.code:
            print(f"{outcome.stem}: {outcome.message}", file=sys.stderr)
    code = max(outcome.code for outcome in outcomes)
    if not all_ended:
        print("jobs go on; run the same command to see where they stand")
    elif quick and any(outcome.code != 2 for outcome in outcomes):
        quick_results = shlex.quote(str(results / "quick"))
        shown = f"--render --results {quick_results} --generated FOLDER"
        print(f"reduced grid: its records stay apart; `{shown}` writes their tables")
    elif code != 2 and not quick:
        render_if_told(results, generated)
    return code


def render_if_told(results: Path, generated: Path | None) -> None:
    """Render after measuring: the guide's own records, or where a folder is named."""
    if generated or same(results, RESULTS):
        write_rendered(results, generated)
    else:
        shown = "--render --generated FOLDER writes their tables"
        print(f"the records are in {results}; {shown}")


def print_outcomes(outcomes: list[Outcome]) -> None:
    """The summary at the end."""
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(Column("experiment", no_wrap=True), "outcome", "rows", "took")
    for outcome in outcomes:
        counts = outcome.rows.items()
        rows = ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in counts)
        took = f"{outcome.seconds:.0f} s" if outcome.seconds else ""
        table.add_row(outcome.stem, outcome.message, rows, took)
    Console().print(table)


if __name__ == "__main__":
    # Told to end, it ends what measures, too.
    exit_when_terminated()
    for stream in (sys.stdout, sys.stderr):
        # A folder's name may be no text, and a terminal may not have all characters.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())
