"""Measure on this machine what is missing or stale, then rewrite every table, figure
and number of the guide.

Each experiment is measured in a process of its own, row by row; stop it at any time and
run it again to go on. Examples:

    python tools/regen_tables.py                    measure, then render
    python tools/regen_tables.py --list             what is fresh, stale or missing
    python tools/regen_tables.py --only end_to_end --time-limit 30
    python tools/regen_tables.py --quick            a reduced grid, on a CPU too
    python tools/regen_tables.py --check            is all as the records give it?
    python tools/regen_tables.py --slurm --gpus 1   on a cluster: a job per experiment
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# The line above makes these importable from a plain source tree. What takes long to
# import is imported where it is used, so that --help answers at once.
from systems import ROOT  # noqa: E402
from systems.experiments import STEMS  # noqa: E402
from tools.measuring import Outcome, measure_if_stale, run_child, state_of  # noqa: E402
from tools.slurm.options import FLAGS, Options  # noqa: E402

GRID = {"only", "force", "quick", "time_limit"}
# The flags that each action reads, besides --results. An action would ignore any other,
# so giving one is an error.
READS = {
    "measuring": GRID,
    "--slurm": {*GRID, "no_wait", *FLAGS},
    "--list": set(),
    "--render": set(),
    "--check": {"fresh"},
    "--verify": set(),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks. Returns the exit code."""
    given = vars(command_line().parse_args(arguments))
    results: Path = given.pop("results")
    action = next((a for a in READS if a.removeprefix("--") in given), "measuring")
    value = given.pop(action.removeprefix("--"), None)
    for name in sorted(given.keys() - READS[action]):
        readers = " or ".join(a for a, reads in READS.items() if name in reads)
        stop(f"{flag(name)} goes with {readers}, not with {action}")
    from systems.records.store import RecordError

    try:
        match action:
            case "--list":
                print_states(results)
                return 0
            case "--render":
                write_rendered(results)
                return 0
            case "--check":
                return check_tree(results, **given)
            case "--verify":
                return verify(value, results)
            case "--slurm":
                return measure_by_slurm(results, **given)
            case _:
                return measure(results, **given)
    except RecordError as error:
        stop(str(error))
    except OSError as error:
        stop(f"can't use {error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        stop(
            "stopped; every finished configuration is kept, "
            "run the same command to go on"
        )


def stop(message: str) -> NoReturn:
    """One line that says what is wrong, exit code 2."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


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
        type=Path,
        default=ROOT / "docs" / "results",
        help="where the records are (docs/results)",
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
        help="measure three rows again; if they agree, the record is fresh",
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

    checking = parser.add_argument_group("with --check").add_argument
    checking("--fresh", **switch, help="a stale record is an error too")

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


def minutes(text: str) -> float:
    """A time limit as a flag's value."""
    try:
        if (value := float(text)) > 0:
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text} is no number of minutes above 0")


def measure(
    results: Path,
    only: Sequence[str] = tuple(STEMS),
    quick: bool = False,
    force: bool = False,
    time_limit: float = 0,
) -> int:
    """Measure what is missing or stale, show a summary, and render. Returns the exit
    code.
    """
    deadline = time.time() + time_limit * 60 if time_limit else 1e18
    outcomes = [
        measure_if_stale(stem, results, quick, force, deadline) for stem in only
    ]
    return conclude(outcomes, results, quick)


def measure_by_slurm(
    results: Path,
    only: Sequence[str] = tuple(STEMS),
    quick: bool = False,
    force: bool = False,
    time_limit: float = 0,
    no_wait: bool = False,
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
    return conclude(outcomes, results, quick, all_ended)


def verify(stem: str, results: Path) -> int:
    """Measure three rows of a stale record again; where they agree it is fresh. Returns
    the exit code.
    """
    outcome = run_child(stem, results, "--verify")
    agreed = "rows measured again agree, the record is fresh"
    print(f"{stem}: {outcome.message if outcome.code else agreed}")
    write_rendered(results)
    return outcome.code


def conclude(
    outcomes: list[Outcome], results: Path, quick: bool, all_ended: bool = True
) -> int:
    """Show the summary and, where all have ended, render. Returns the exit code."""
    print_outcomes(outcomes)
    for outcome in outcomes:
        if outcome.code:
            print(f"{outcome.stem}: {outcome.message}", file=sys.stderr)
    code = max(outcome.code for outcome in outcomes)
    if not all_ended:
        print("jobs go on; run the same command to see where they stand")
    elif quick:
        quick_results = results / "quick"
        print(f"reduced grid: its records stay in {quick_results} and are not rendered")
    elif code != 2:
        write_rendered(results)
    return code


def print_states(results: Path) -> None:
    """The --list table: every stem on every device that has a record of it, and on the
    device of this machine.
    """
    from rich.console import Console
    from rich.table import Table

    from systems.running.measure import device_for

    table = Table("experiment", "device", "state", "rows", "measured (UTC)", "took")
    for stem, entry in STEMS.items():
        here = device_for(entry.full)
        slugs = {path.parent.name for path in results.glob(f"*/{stem}*.json")}
        slugs |= {here.slug} if here else set()
        for slug in sorted(slugs) or ["-"]:
            state, record = state_of(results / slug / f"{stem}.json")
            if record is None:
                table.add_row(stem, slug, state if here else "missing (needs a GPU)")
                continue
            seconds = sum(row.seconds or 0 for row in record.rows)
            table.add_row(
                stem,
                slug,
                "reported" if record.kind == "reported" else state,
                f"{len(record.rows)}/{record.expected_rows}",
                record.started_utc,
                f"{seconds / 60:.1f} min",
            )
    Console().print(table)


def print_outcomes(outcomes: list[Outcome]) -> None:
    """The summary at the end."""
    from rich.console import Console
    from rich.table import Table

    table = Table("experiment", "outcome", "rows", "took")
    for outcome in outcomes:
        counts = outcome.rows.items()
        rows = ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in counts)
        took = f"{outcome.seconds:.0f} s" if outcome.seconds else ""
        table.add_row(outcome.stem, outcome.message, rows, took)
    Console().print(table)


def generated_files() -> dict[str, str]:
    """What docs/generated holds now, by name."""
    from tools.render.load import GENERATED

    return {
        path.name: path.read_text(encoding="utf-8", errors="replace")
        for path in GENERATED.glob("*")
    }


def write_rendered(results: Path) -> None:
    """Rewrite docs/generated: it holds what the records give, and nothing else."""
    from tools.render.everything import render_all
    from tools.render.load import GENERATED

    wanted, present = render_all(results), generated_files()
    changed = [name for name in wanted if wanted[name] != present.get(name)]
    extra = present.keys() - wanted.keys()
    GENERATED.mkdir(parents=True, exist_ok=True)
    for name in changed:
        (GENERATED / name).write_text(wanted[name], encoding="utf-8")
    for name in extra:
        (GENERATED / name).unlink()
    print(f"rendered {len(wanted)} files, {len(changed) + len(extra)} changed")


def check_tree(results: Path, fresh: bool = False) -> int:
    """Print every difference between the tree and its records; with `fresh`, stale
    records too. 0 if there is none, otherwise 1.
    """
    from tools.checks.pages import check_pages
    from tools.render.everything import render_all
    from tools.render.load import stale_records

    wanted, present = render_all(results), generated_files()
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
        f"docs/generated/{name}: {fault}; run --render"
        for name, fault in faults.items()
    ]
    findings += check_pages(ROOT)
    stale = stale_records(results)
    findings += stale if fresh else []
    for message in [] if fresh else stale:
        print(f"warning: {message}")
    for finding in sorted(findings):
        print(finding)
    if findings:
        print(f"{len(findings)} findings")
    else:
        print(f"{len(wanted)} generated files, all as the records give them")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
