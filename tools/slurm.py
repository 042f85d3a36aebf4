"""Measure through Slurm: one job per stem, submitted by submitit and followed with squeue.

A job measures as `regen_tables.py` does on a GPU of its own, so records, rows in progress and messages are the same.
What is known of jobs stands beside the records, in `.slurm/`: `<stem>-<grid>.job` holds the id of a job until its
outcome was shown, and the folder of that name its log and its outcome. Only `squeue` is asked for states: a cluster
without accounting has no `sacct`.
"""

import fcntl
import io
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from systems import records
from tools.regen_tables import ROOT, Outcome
from tools.slurm_job import AGAIN, WARNED, Task
from tools.slurm_options import Options, SlurmError

# Ends that are not the job's own doing. Where Slurm doesn't queue such a job again, we do.
LOST = {"BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "TIMEOUT"}
# All ends; the empty one is that of a job which the controller has forgotten.
ENDED = {"", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "REVOKED"} | LOST


@dataclass(frozen=True)
class Job:
    """A submitted job; `file` remembers its id, and the folder of that name holds what it leaves."""

    stem: str
    id: str
    file: Path

    @property
    def log(self) -> Path:
        return self.file.with_suffix("") / f"{self.id}_0_log.out"

    def outcome(self) -> Outcome | None:
        """What the job itself says came of it. None if it has not, or was killed."""
        from submitit.core.utils import JobPaths

        folder = self.file.with_suffix("")
        try:
            # A shared folder shows a new file once it has been listed.
            os.listdir(folder)
            how, value = pickle.loads(JobPaths(folder, job_id=self.id).result_pickle.read_bytes())
        except (OSError, EOFError):
            return None
        if how == "success":
            return value
        return Outcome(self.stem, f"crashed: {value.splitlines()[-1]}; see {self.log}", 1)

    def rows(self, results: Path) -> str:
        """How far the record in progress is, on whatever device the job runs."""
        try:
            found = {p.stat().st_mtime: p for p in results.glob(f"*/{self.stem}{records.PARTIAL_SUFFIX}")}
            if max(found) < self.file.stat().st_mtime:
                return ""
            record = records.read(found[max(found)])
        except (ValueError, FileNotFoundError):
            # None yet, or just become a whole record.
            return ""
        return f"{len(record.rows)}/{record.expected_rows}"


@dataclass(frozen=True)
class State:
    """What squeue says of a job; all empty of a job that it does not know (any more)."""

    name: str = ""
    reason: str = ""
    restarts: int = 0
    node: str = ""

    def __str__(self) -> str:
        where = self.node if self.name == "RUNNING" else self.reason
        again = f", restarted {self.restarts} times" if self.restarts else ""
        return self.name + (f" ({where})" if where not in ("", "None") else "") + again


def slurm(*command: str) -> str:
    """The output of a command of Slurm. SlurmError with its last line where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} got no answer for a minute") from None
    if done.returncode:
        raise SlurmError(reason_in(done.stderr) or f"{command[0]} ended with exit code {done.returncode}")
    return done.stdout


def reason_in(stderr: str) -> str:
    """The last line of what a command of Slurm complains of, without its own name."""
    return (stderr.strip().splitlines() or [""])[-1].split("error: ")[-1]


def ask() -> dict[str, State]:
    """The states of all jobs of this user that the controller remembers."""
    fields_wanted = "JobID:|,State:|,Reason:60|,RestartCnt:|,NodeList:60|"
    lines = slurm("squeue", "--noheader", "--me", "--states=all", "-O", fields_wanted).splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {job: State(name, why, int(restarts), node) for job, name, why, restarts, node, *_ in cells}


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Of two submissions at once the second waits, and then finds the jobs of the first."""
    with open(folder / "lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def submit(task: Task, file: Path, options: Options) -> Job:
    """Hand the task to sbatch. SlurmError says why it was refused."""
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    asked = {name: getattr(options, name) for name in ("partition", "account", "gres", "gpus", "constraint")}
    python = options.python or sys.executable
    executor = submitit.SlurmExecutor(file.with_suffix(""), python=f"{options.prefix} {python}".strip())
    executor.update_parameters(
        job_name=task.stem,
        time=options.time,
        setup=options.setup,
        # The warning comes this early. In the last quarter of a short job, lest a new one is warned at once.
        signal_delay_s=min(90, options.time * 15),
        stderr_to_stdout=True,
        additional_parameters={
            **{name: value for name, value in (asked | {"mem": options.memory}).items() if value},
            "chdir": ROOT,
            # After a node is lost Slurm starts the job again by itself.
            "requeue": True,
            **options.sbatch,
        },
        teardown=[
            # The batch script runs outside of any container, where Slurm's commands are.
            "code=$?",
            f"case $code in {AGAIN} | {WARNED}) scontrol requeue $SLURM_JOB_ID ;; esac",
            "exit $code",
        ],
    )
    try:
        # submitit also prints what sbatch complains of.
        with redirect_stderr(io.StringIO()):
            job = Job(task.stem, executor.submit(task).job_id, file)
    except (FailedJobError, FailedSubmissionError) as error:
        raise SlurmError(f"not submitted: {reason_in(str(error))}") from None
    file.write_text(job.id)
    return job


def measure(
    stems: list[str],
    results: Path,
    quick: bool,
    force: bool,
    minutes: float,
    options: Options,
    wait: bool,
) -> tuple[list[Outcome], bool]:
    """Submit what has no job yet, follow all. Returns what came of each, and whether all have ended."""
    if find_spec("submitit") is None:
        raise SlurmError("--slurm needs submitit: pip install '.[slurm]'")
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise SlurmError("--slurm needs sbatch and srun, and they are not found here: log in to the cluster")
    results = results.resolve()
    home = results / ".slurm"
    home.mkdir(parents=True, exist_ok=True)
    jobs, outcomes = [], {}
    with one_at_a_time(home):
        # Before anything is submitted: a controller that doesn't answer is one error, not one a stem.
        ask()
        for stem in stems:
            file = home / f"{stem}-{'quick' if quick else 'full'}.job"
            if file.exists() and (known := file.read_text()):
                jobs.append(Job(stem, known, file))
                print(f"{stem}: job {known} was submitted earlier, log {jobs[-1].log}", flush=True)
                continue
            try:
                jobs.append(submit(Task(stem, results, quick, force, minutes, options.restarts), file, options))
                print(f"{stem}: submitted job {jobs[-1].id}, log {jobs[-1].log}", flush=True)
            except SlurmError as error:
                outcomes[stem] = Outcome(stem, f"error: {error}", 2)
    running = follow(jobs, results / "quick" if quick else results, options, wait, outcomes)
    # Outcomes are kept until all of them can be shown, so that a look in between submits nothing anew.
    for job in jobs if not running else ():
        job.file.unlink(missing_ok=True)
    return [outcomes[stem] for stem in stems], not running


def follow(jobs: list[Job], results: Path, options: Options, wait: bool, outcomes: dict[str, Outcome]) -> list[Job]:
    """Watch the jobs until all have ended, or once. Adds what came of them; returns those that have not ended."""
    shown: dict[str, str] = {}
    doubtful: set[str] = set()
    running, answered, console = list(jobs), time.monotonic(), Console()
    with Live(console=console, transient=True, auto_refresh=False) as live:
        while running:
            try:
                states, problem = {}, ""
                try:
                    states = ask()
                    answered = time.monotonic()
                except SlurmError as error:
                    problem = f"{error}; asking again"
                    if not wait or time.monotonic() - answered >= options.patience:
                        raise SlurmError(f"{error}; jobs go on without it, run the same command to see them") from None
                now = {"": problem}
                for job in list(running) if not problem else ():
                    state = states.get(job.id, State())
                    outcome = look(job, state, options, final=job.id in doubtful or not wait)
                    if outcome is not None:
                        outcomes[job.stem] = outcome
                        running.remove(job)
                    (doubtful.add if state.name in ENDED else doubtful.discard)(job.id)
                    now[job.stem] = outcome.said if outcome is not None else str(state)
                for stem, line in now.items() if wait else ():
                    # A line for each change stays on the screen, or in the file that a batch of commands writes.
                    if line and shown.get(stem) != line:
                        console.print(f"{stem}: {line}" if stem else line, highlight=False, soft_wrap=True)
                shown |= now
                if not wait:
                    break
                live.update(table_of(jobs, shown, results), refresh=True)
                if running:
                    time.sleep(options.poll)
            except KeyboardInterrupt:
                live.stop()
                if not cancelled(running):
                    break
                live.start()
    for job in running:
        outcomes[job.stem] = Outcome(job.stem, f"{shown.get(job.stem, '')} {job.rows(results)}".strip())
    return running


def look(job: Job, state: State, options: Options, final: bool) -> Outcome | None:
    """What came of a job, None while it goes on. `final`: it was seen to have ended before.

    On a shared folder an outcome may take a moment to appear, so that only the second look says there is none.
    """
    if state.name not in ENDED:
        return None
    if state.name == "CANCELLED":
        return Outcome(job.stem, "cancelled; run again to go on", 1)
    if (outcome := job.outcome()) is not None:
        return outcome
    if not final:
        return None
    how = str(state) if state.name else "ended, and the controller has forgotten how"
    if state.name in LOST and state.restarts < options.restarts:
        try:
            slurm("scontrol", "requeue", job.id)
            return None
        except SlurmError as error:
            return Outcome(job.stem, f"{how}; not queued again: {error}", 1)
    if (why := refused(job.file.parent)) is not None:
        return Outcome(job.stem, f"error: can't write to {job.file.parent}: {why}; make room and run again to go on", 2)
    if job.log.exists():
        return Outcome(job.stem, f"{how}; see {job.log}", 1)
    return Outcome(job.stem, f"error: {how}; no log: can the node write {job.log.parent}?", 2)


def refused(folder: Path) -> str | None:
    """Why nothing can be written there: a full disk or a quota tells a job's log least of all. None where it can."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**16))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror
    return None


def cancelled(jobs: list[Job]) -> bool:
    """Ask whether to cancel, and do. No answer, or a second Ctrl-C, leaves the jobs alone."""
    try:
        if not typer.confirm(f"\ncancel {len(jobs)} jobs? Otherwise they go on, and the same command shows them"):
            return False
        slurm("scancel", *(job.id for job in jobs))
    except (typer.Abort, KeyboardInterrupt):
        return False
    except SlurmError as error:
        print(f"not cancelled: {error}", file=sys.stderr)
    return True


def table_of(jobs: list[Job], shown: dict[str, str], results: Path) -> Table:
    """The live table."""
    table = Table("experiment", "job", "state", "rows", caption=shown[""] or None)
    for job in jobs:
        table.add_row(job.stem, job.id, shown.get(job.stem, ""), job.rows(results))
    return table
