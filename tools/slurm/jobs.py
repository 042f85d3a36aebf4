"""Measure through Slurm: one job per stem, submitted by submitit and followed until all
have ended.

A job measures as `regen_tables.py` does on a GPU of its own, so records, rows in
progress and messages are the same. What is known of jobs stands in a folder of the
user's own (see `private_folder`): `<stem>-<grid>.job` holds the id of a job until its
outcome was shown, and the folder of that name holds its log and its outcome.
"""

import fcntl
import io
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from systems import ROOT
from systems.records import store
from tools.measuring import Outcome
from tools.slurm import controller
from tools.slurm.controller import ENDED, LOST, State
from tools.slurm.options import Options, SlurmError
from tools.slurm.task import AGAIN, WARNED, Task


@dataclass(frozen=True)
class Job:
    """A submitted job. `file` remembers its id, and the folder of that name holds what
    the job leaves.
    """

    stem: str
    id: str
    file: Path

    @property
    def log(self) -> Path:
        return self.file.with_suffix("") / f"{self.id}_0_log.out"

    def outcome(self) -> Outcome | None:
        """The outcome that the job wrote. None if it wrote none yet, or was killed."""
        from submitit.core.utils import JobPaths

        folder = self.file.with_suffix("")
        written = JobPaths(folder, job_id=self.id).result_pickle
        try:
            # A shared folder shows a new file once it has been listed.
            os.listdir(folder)
            how, value = pickle.loads(written.read_bytes())
        except (OSError, EOFError):
            return None
        if how == "success":
            return value
        message = f"crashed: {value.splitlines()[-1]}; see {self.log}"
        return Outcome(self.stem, message, 1)

    def rows(self, results: Path) -> str:
        """How many rows the record in progress has, whatever device the job runs on."""
        partials = results.glob(f"*/{self.stem}{store.PARTIAL_SUFFIX}")
        try:
            written, latest = max((path.stat().st_mtime, path) for path in partials)
            if written < self.file.stat().st_mtime:
                return ""
            record = store.read(latest)
        except (ValueError, FileNotFoundError):
            # There is none yet, or it has just become a whole record.
            return ""
        return f"{len(record.rows)}/{record.expected_rows}"


def measure(
    stems: Sequence[str],
    results: Path,
    quick: bool,
    force: bool,
    minutes: float,
    options: Options,
    wait: bool,
) -> tuple[list[Outcome], bool]:
    """Submit what has no job yet, and follow all jobs. Returns their outcomes, and
    whether all have ended.
    """
    if find_spec("submitit") is None:
        raise SlurmError("--slurm needs submitit: pip install '.[slurm]'")
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise SlurmError(
            "--slurm needs sbatch and srun, and they are not found here: "
            "log in to the cluster"
        )
    results = results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    folder = private_folder(results)
    grid = "quick" if quick else "full"
    jobs, outcomes = [], {}
    with one_at_a_time(folder):
        # A controller that doesn't answer is one error, not one for each stem.
        controller.states()
        for stem in stems:
            file = folder / f"{stem}-{grid}.job"
            if file.exists() and (id := file.read_text(errors="replace")):
                job = Job(stem, id, file)
                print(f"{stem}: job {id} was submitted earlier, log {job.log}")
            else:
                task = Task(stem, results, quick, force, minutes, options.restarts)
                try:
                    job = submit(task, file, options)
                except SlurmError as error:
                    outcomes[stem] = Outcome(stem, f"error: {error}", 2)
                    continue
                print(f"{stem}: submitted job {job.id}, log {job.log}")
            jobs.append(job)
            sys.stdout.flush()
    watch = Watch(jobs, results / "quick" if quick else results, options, wait)
    watch.follow()
    # Outcomes are kept until all of them can be shown, so that a look in between
    # submits nothing anew.
    for job in jobs if not watch.running else ():
        job.file.unlink(missing_ok=True)
    outcomes |= watch.outcomes
    return [outcomes[stem] for stem in stems], not watch.running


def private_folder(results: Path) -> Path:
    """Where the jobs that measure into `results` have their files: below the user's
    home, which a cluster's nodes share, or XDG_STATE_HOME.

    Tasks and outcomes are pickles, and reading one runs what it says. A group may write
    to `results`, so they lie where nobody else can; SlurmError where others could.
    """
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    name = sha256(str(results).encode()).hexdigest()[:16]
    ours = Path(home) / "transformer-systems"
    for folder in (ours, ours / name):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise SlurmError(
                f"{folder} holds files of jobs that others could replace: "
                f"make it yours alone (chmod 700), or set XDG_STATE_HOME"
            )
    return ours / name


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Of two submissions at once the second waits, and then finds the jobs of the
    first.
    """
    with open(folder / "lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def submit(task: Task, file: Path, options: Options) -> Job:
    """Hand the task to sbatch. SlurmError says why it was refused."""
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    sbatch = {
        "partition": options.partition,
        "account": options.account,
        "gres": options.gres,
        "gpus": options.gpus,
        "constraint": options.constraint,
        "mem": options.memory,
    }
    python = options.python or sys.executable
    executor = submitit.SlurmExecutor(
        file.with_suffix(""), python=f"{options.prefix} {python}".strip()
    )
    executor.update_parameters(
        job_name=task.stem,
        time=options.time,
        setup=options.setup,
        # How early the warning comes: a short job is warned in its last quarter, not as
        # soon as it has started.
        signal_delay_s=min(90, options.time * 15),
        stderr_to_stdout=True,
        additional_parameters={
            **{name: value for name, value in sbatch.items() if value},
            "chdir": ROOT,
            # After a node is lost Slurm starts the job again by itself.
            "requeue": True,
            **options.sbatch,
        },
        # The batch script runs outside of any container, where Slurm's commands are.
        teardown=[
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
        # submitit's last line says how its own callers go on.
        reason = controller.reason_in(str(error).split("\n(you may")[0])
        raise SlurmError(f"not submitted: {reason}") from None
    file.write_text(job.id)
    return job


class Watch:
    """Jobs, followed until they have ended. `running` are those that have not yet;
    `outcomes` has one for each job when `follow` returns.
    """

    def __init__(self, jobs: list[Job], results: Path, options: Options, wait: bool):
        self.jobs, self.results, self.options, self.wait = jobs, results, options, wait
        self.running = list(jobs)
        self.outcomes: dict[str, Outcome] = {}
        # The line that is shown of each stem, and by "" the controller's.
        self.lines: dict[str, str] = {}
        self.seen_ended: set[str] = set()
        self.answered = time.monotonic()
        self.console = Console()

    def follow(self) -> None:
        """Look again and again, or once, where nobody waits. Ctrl-C leaves the jobs
        running, or cancels them.
        """
        with Live(console=self.console, transient=True, auto_refresh=False) as live:
            while self.running:
                try:
                    self.look()
                    if not self.wait:
                        break
                    live.update(self.table(), refresh=True)
                    if self.running:
                        time.sleep(self.options.poll)
                except KeyboardInterrupt:
                    live.stop()
                    if not cancelled(self.running):
                        break
                    live.start()
        for job in self.running:
            where = f"{self.lines.get(job.stem, '')} {job.rows(self.results)}"
            self.outcomes[job.stem] = Outcome(job.stem, where.strip())

    def look(self) -> None:
        """Ask once where the jobs stand. A controller may be silent for a while."""
        try:
            states = controller.states()
        except SlurmError as error:
            silent = time.monotonic() - self.answered
            if self.wait and silent < self.options.patience:
                self.show("", f"{error}; asking again")
                return
            raise SlurmError(
                f"{error}; jobs go on without it, run the same command to see them"
            ) from None
        self.answered = time.monotonic()
        self.show("", "")
        for job in list(self.running):
            state = states.get(job.id, State())
            final = not self.wait or job.id in self.seen_ended
            outcome = outcome_of(job, state, self.options, final)
            if outcome is not None:
                self.outcomes[job.stem] = outcome
                self.running.remove(job)
            elif state.name in ENDED:
                self.seen_ended.add(job.id)
            else:
                self.seen_ended.discard(job.id)
            self.show(job.stem, str(state) if outcome is None else outcome.message)

    def show(self, stem: str, line: str) -> None:
        """Each change is a line that stays on the screen, or in the file that a batch
        of commands writes.
        """
        if self.wait and line and self.lines.get(stem) != line:
            text = f"{stem}: {line}" if stem else line
            self.console.print(text, highlight=False, soft_wrap=True)
        self.lines[stem] = line

    def table(self) -> Table:
        """The live table."""
        caption = self.lines[""] or None
        table = Table("experiment", "job", "state", "rows", caption=caption)
        for job in self.jobs:
            line = self.lines.get(job.stem, "")
            table.add_row(job.stem, job.id, line, job.rows(self.results))
        return table


def outcome_of(job: Job, state: State, options: Options, final: bool) -> Outcome | None:
    """The outcome of a job, None while it goes on.

    On a shared folder the file of an outcome may take a moment to appear. So only a
    `final` look, the second one at a job that has ended, says that there is none.
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
            controller.run("scontrol", "requeue", job.id)
            return None
        except SlurmError as error:
            return Outcome(job.stem, f"{how}; not queued again: {error}", 1)
    if (reason := why_not_writable(job.file.parent)) is not None:
        message = f"error: can't write to {job.file.parent}: {reason}"
        return Outcome(job.stem, f"{message}; make room and run again to go on", 2)
    if job.log.exists():
        return Outcome(job.stem, f"{how}; see {job.log}", 1)
    message = f"error: {how}; no log: can the node write {job.log.parent}?"
    return Outcome(job.stem, message, 2)


def why_not_writable(folder: Path) -> str | None:
    """Why nothing can be written there, None where it can. Of a full disk or a quota a
    job's log can't tell.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**16))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror
    return None


def cancelled(jobs: list[Job]) -> bool:
    """Ask whether to cancel, and do. No answer, or a second Ctrl-C, leaves the jobs
    running.
    """
    question = f"\ncancel {len(jobs)} jobs? Otherwise they go on"
    try:
        if not typer.confirm(f"{question}, and the same command shows them"):
            return False
        controller.run("scancel", *(job.id for job in jobs))
    except (typer.Abort, KeyboardInterrupt):
        return False
    except SlurmError as error:
        print(f"not cancelled: {error}", file=sys.stderr)
    return True
