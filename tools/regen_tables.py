"""Measure on this machine what is missing or stale, then rewrite every table, figure and number of the guide.

Each experiment is measured in a process of its own, row by row; stop it at any time and run it again to go on.
Examples:

\b
    python tools/regen_tables.py                      measure, then render
    python tools/regen_tables.py --list               what is fresh, stale or missing
    python tools/regen_tables.py --only end_to_end --time-limit 30
    python tools/regen_tables.py --quick              a reduced grid, on a CPU too
    python tools/regen_tables.py --check              is everything committed what the records give?
    python tools/regen_tables.py --slurm --gpus 1     on a cluster: one job per experiment
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import typer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from systems.experiments import STEMS  # noqa: E402 (the line above makes it importable from a plain source tree)

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass
class Outcome:
    """What came of measuring one stem."""

    stem: str
    said: str
    code: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


@app.command(help=__doc__)
def main(
    only: list[str] = typer.Option([], metavar="STEM", help="Only this experiment; may be given more than once."),
    force: bool = typer.Option(False, "--force", help="Measure again even what is fresh."),
    quick: bool = typer.Option(False, "--quick", help="A reduced grid, kept apart and never published."),
    time_limit: float = typer.Option(0, metavar="MIN", help="Stop between configurations after MIN minutes."),
    show_list: bool = typer.Option(False, "--list", help="Show the state of each experiment on each device."),
    render: bool = typer.Option(False, "--render", help="Only render: records to tables, figures and facts."),
    check: bool = typer.Option(False, "--check", help="Fail if rendering again would change a committed file."),
    fresh: bool = typer.Option(False, "--fresh", help="With --check: a stale record is an error too."),
    verify: str = typer.Option(
        "", metavar="STEM", help="Measure three rows again; if they agree, the record is fresh."
    ),
    results: Path = typer.Option(ROOT / "docs" / "results", help="Folder of the records.", show_default="docs/results"),
    slurm: bool = typer.Option(False, "--slurm", help="Measure in Slurm jobs, one per experiment, and follow them."),
    no_wait: bool = typer.Option(False, "--no-wait", help="With --slurm: submit or look, and return at once."),
    partition: str = typer.Option("", help="With --slurm: partition of the jobs."),
    account: str = typer.Option("", help="With --slurm: account that pays."),
    gres: str = typer.Option("", help="With --slurm: resources, as gpu:a100:1."),
    gpus: str = typer.Option("", help="With --slurm: GPUs, as 1 or a100:1."),
    constraint: str = typer.Option("", help="With --slurm: features of the node."),
    time_: int | None = typer.Option(None, "--time", metavar="MIN", help="With --slurm: time limit of a job."),
    memory: str = typer.Option("", help="With --slurm: memory, as 64G."),
    setup: list[str] = typer.Option([], metavar="LINE", help="With --slurm: a line of shell to run first; repeatable."),
    prefix: str = typer.Option("", help="With --slurm: what goes before python, as 'singularity exec --nv IMAGE'."),
    python: str = typer.Option("", help="With --slurm: the python on the node, if it is not this one."),
    restarts: int | None = typer.Option(None, help="With --slurm: how often a job that was interrupted starts again."),
) -> None:
    from systems.records import RecordError

    flags = dict(partition=partition, account=account, gres=gres, gpus=gpus, constraint=constraint, time=time_)
    flags |= dict(memory=memory, setup=setup, prefix=prefix, python=python, restarts=restarts)
    for stem in [*only, *([verify] if verify else [])]:
        if stem not in STEMS:
            stop(f"no experiment is named {stem!r}; there are: {', '.join(STEMS)}")
    if time_limit < 0:
        stop(f"--time-limit must be a number of minutes, not {time_limit:g}")
    if not slurm and (no_wait or any(value not in (None, "", []) for value in flags.values())):
        stop("--no-wait and the options of a job go with --slurm")
    stems = only or list(STEMS)
    try:
        if show_list:
            print_states(results)
        elif check:
            raise typer.Exit(check_tree(results, fresh))
        elif render:
            write_rendered(results)
        elif verify:
            outcome = run_child(verify, results, "--verify")
            print(f"{verify}: {outcome.said if outcome.code else 'rows measured again agree, the record is fresh'}")
            write_rendered(results)
            raise typer.Exit(outcome.code)
        elif slurm:
            raise typer.Exit(measure_by_slurm(stems, results, quick, force, time_limit, flags, not no_wait))
        else:
            raise typer.Exit(measure(stems, results, quick, force, time_limit))
    except RecordError as error:
        stop(str(error))
    except OSError as error:
        stop(f"can't use {error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        stop("stopped; every finished configuration is kept, run the same command to go on")


def stop(message: str) -> NoReturn:
    """One line that says what is wrong, exit code 2."""
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(2)


def measure(stems: list[str], results: Path, quick: bool, force: bool, time_limit: float) -> int:
    """Measure what is missing or stale, show a summary, render. Returns the exit code."""
    deadline = time.time() + time_limit * 60 if time_limit else 1e18
    return conclude([measure_one(stem, results, quick, force, deadline) for stem in stems], results, quick)


def measure_by_slurm(
    stems: list[str],
    results: Path,
    quick: bool,
    force: bool,
    time_limit: float,
    flags: dict[str, Any],
    wait: bool,
) -> int:
    """The same in jobs of a cluster. Where some go on when it returns, nothing is rendered yet."""
    from tools import slurm
    from tools.slurm_options import SlurmError, read_options

    try:
        outcomes, ended = slurm.measure(stems, results, quick, force, time_limit, read_options(flags), wait)
    except SlurmError as error:
        stop(str(error))
    return conclude(outcomes, results, quick, ended)


def measure_one(
    stem: str, results: Path, quick: bool, force: bool, deadline: float, restarted: bool = False
) -> Outcome:
    """Measure one stem unless its record is fresh. A restarted run goes on from its last row, even with `force`."""
    from systems.experiments.measure import device_for, record_path

    grid = "quick" if quick else "full"
    device = device_for(STEMS[stem].quick if quick else STEMS[stem].full)
    if device is None:
        remedy = "; --quick runs it on a CPU" if "cpu" in STEMS[stem].quick and not quick else ""
        return Outcome(stem, f"skipped: needs a GPU and none was found{remedy}")
    if not force and state_of(record_path(results, device, stem, grid))[0] == "fresh":
        return Outcome(stem, "fresh already (--force measures again)")
    flags = ["--grid", grid, "--deadline", str(deadline), *(["--force"] if force and not restarted else [])]
    return run_child(stem, results, *flags)


def conclude(outcomes: list[Outcome], results: Path, quick: bool, ended: bool = True) -> int:
    """Show the summary and, where all has ended, render. Returns the exit code."""
    print_outcomes(outcomes)
    for outcome in outcomes:
        if outcome.code:
            print(f"{outcome.stem}: {outcome.said}", file=sys.stderr)
    code = max(outcome.code for outcome in outcomes)
    if not ended:
        print("jobs go on; run the same command to see where they stand")
    elif quick:
        print("reduced grid: its records stay in", results / "quick", "and are not rendered")
    elif code != 2:
        write_rendered(results)
    return code


def run_child(stem: str, results: Path, *flags: str) -> Outcome:
    """Measure one stem in a child process, with a progress bar fed by what the child reports."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    command = [sys.executable, "-m", "systems.experiments.measure", stem, str(results.resolve()), *flags]
    outcome, started = Outcome(stem, "measured"), time.monotonic()
    columns = (
        TextColumn("{task.description:>12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child,
        Progress(*columns) as progress,
    ):
        assert child.stdout is not None
        task = progress.add_task(stem, total=None, now="starting")
        try:
            for line in child.stdout:
                # Whatever an experiment prints of its own is no report.
                if line.startswith('{"event"'):
                    follow(json.loads(line), outcome, progress, task)
        except BaseException:
            # Ctrl-C, or what warns a job of a cluster.
            child.terminate()
            raise
    outcome.seconds = time.monotonic() - started
    outcome.code = child.returncode
    if child.returncode < 0 or (child.returncode == 1 and outcome.said == "measured"):
        outcome.code, outcome.said = 1, f"crashed (exit code {child.returncode}); run again to go on from the last row"
    return outcome


def follow(event: dict[str, Any], outcome: Outcome, progress: Any, task: Any) -> None:
    """One report of the child: onto the progress bar and into the outcome."""
    if event["event"] == "start":
        progress.update(task, total=event["total"], completed=event["done"])
    elif event["event"] == "compiling":
        progress.update(task, now="compiling")
    elif event["event"] == "row":
        outcome.statuses[event["status"]] = outcome.statuses.get(event["status"], 0) + 1
        progress.update(task, advance=1, now=" ".join(str(value) for value in list(event["config"].values())[:4]))
        if event["status"] != "ok":
            progress.console.print(f"{outcome.stem} {event['config']}: {event['status']}: {event['reason']}")
    elif event["event"] == "out_of_time":
        outcome.said = "out of time; run again to go on"
    elif event["event"] == "failed":
        outcome.said = f"{event['failed']} failed, {event['missing']} missing; run again to retry them"
    elif event["event"] == "error":
        outcome.said = f"error: {event['message']}"


def state_of(path: Path) -> tuple[str, Any]:
    """fresh, stale, partial or missing; and the record, if there is one."""
    from systems import records
    from systems.experiments.measure import partial_path
    from tools.render import is_fresh

    if path.exists():
        record = records.read(path)
        return ("fresh" if is_fresh(record) else "stale"), record
    try:
        return "partial", records.read(partial_path(path))
    except (FileNotFoundError, NotADirectoryError, records.RecordError):
        # Work in progress that can't be read is started over, as `measure` says when it does.
        return "missing", None


def print_states(results: Path) -> None:
    """The --list table: every stem on every device that has a record or could have one here."""
    from rich.console import Console
    from rich.table import Table

    from systems.experiments.measure import device_for

    table = Table("experiment", "device", "state", "rows", "measured (UTC)", "took")
    for stem, entry in STEMS.items():
        here = device_for(entry.full)
        slugs = {path.parent.name for path in results.glob(f"*/{stem}*.json")} | ({here.slug} if here else set())
        for slug in sorted(slugs) or ["-"]:
            state, record = state_of(results / slug / f"{stem}.json")
            if record is None:
                table.add_row(stem, slug, state if here else "missing (needs a GPU)", "", "", "")
                continue
            took = sum(row.seconds or 0 for row in record.rows)
            cells = (f"{len(record.rows)}/{record.expected_rows}", record.started_utc or "", f"{took / 60:.1f} min")
            table.add_row(stem, slug, "reported" if record.kind == "reported" else state, *cells)
    Console().print(table)


def print_outcomes(outcomes: list[Outcome]) -> None:
    """The summary at the end."""
    from rich.console import Console
    from rich.table import Table

    table = Table("experiment", "outcome", "rows", "took")
    for outcome in outcomes:
        rows = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in outcome.statuses.items())
        table.add_row(outcome.stem, outcome.said, rows, f"{outcome.seconds:.0f} s" if outcome.seconds else "")
    Console().print(table)


def write_rendered(results: Path) -> None:
    """Rewrite docs/generated so that it holds what the records give, and nothing else."""
    from tools.render import GENERATED, render_all

    wanted = render_all(results)
    GENERATED.mkdir(parents=True, exist_ok=True)
    changed = 0
    for name, text in wanted.items():
        path = GENERATED / name
        if not path.exists() or path.read_text(encoding="utf-8", errors="replace") != text:
            path.write_text(text, encoding="utf-8")
            changed += 1
    for path in GENERATED.iterdir():
        if path.name not in wanted:
            path.unlink()
            changed += 1
    print(f"rendered {len(wanted)} files, {changed} changed")


def check_tree(results: Path, fresh: bool) -> int:
    """Print every difference between the tree and its records. 0 if there is none, otherwise 1."""
    from tools.check_pages import check_pages
    from tools.render import GENERATED, render_all, stale_records

    wanted = render_all(results)
    present = {path.name: path.read_text(encoding="utf-8", errors="replace") for path in sorted(GENERATED.glob("*"))}
    findings = [f"docs/generated/{name}: missing; run --render" for name in wanted.keys() - present.keys()]
    findings += [
        f"docs/generated/{name}: no record gives this file; run --render" for name in present.keys() - wanted.keys()
    ]
    findings += [
        f"docs/generated/{name}: differs from what the records give; run --render"
        for name in wanted.keys() & present.keys()
        if wanted[name] != present[name]
    ]
    findings += check_pages(ROOT)
    for message in stale_records(results):
        if fresh:
            findings.append(message)
        else:
            print(f"warning: {message}")
    for finding in sorted(findings):
        print(finding)
    print(f"{len(findings)} findings" if findings else f"{len(wanted)} generated files, all as the records give them")
    return 1 if findings else 0


if __name__ == "__main__":
    app()
