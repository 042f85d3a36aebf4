"""Measure experiments, each in a child process: show their progress, return their
outcomes.

The child is `systems.running.measure`. It reports by lines of JSON on its standard
output, so this process imports no torch.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from systems import ROOT, lacks, plain_console, printable
from systems.experiments import STEMS
from tools.states import state_of

OUT_OF_TIME = "out of time; run again to go on"
# How long a child that is told to end may take, in seconds.
GRACE = 10


@dataclass
class Outcome:
    """The outcome of measuring one stem: a line for the user, the exit code (0 complete
    or out of time, 1 rows failed, 2 could not start), and how many rows were measured
    by their status. A stem is `skipped` where this machine can't measure it.
    """

    stem: str
    message: str = ""
    code: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    skipped: bool = False
    seconds: float = 0.0


@dataclass
class Task:
    """A stem to measure, with arguments and environment for its child."""

    stem: str
    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def measure_all(
    stems: Sequence[str],
    results: Path,
    quick: bool = False,
    force: bool = False,
    deadline: float = 1e18,
    gpus: Sequence[str] = ("",),
) -> list[Outcome]:
    """Measure what is missing or stale (with `force` what is fresh, too) until
    `deadline`, in seconds of `time.time`; on each of these GPUs one stem at a time.
    Return the outcome of each stem.
    """
    outcomes: dict[str, Outcome] = {}

    def tasks() -> Iterator[Task]:
        for stem in stems:
            found = task_of(stem, results, quick, force, deadline)
            if isinstance(found, Task):
                yield found
            else:
                outcomes[stem] = found

    for outcome in run_all(tasks(), gpus):
        outcomes[outcome.stem] = outcome
    return [outcomes[stem] for stem in stems]


def task_of(
    stem: str, results: Path, quick: bool, force: bool, deadline: float
) -> Task | Outcome:
    """Return the task of measuring a stem, or why it is not measured."""
    from systems.records.device import no_gpu
    from systems.records.store import RecordError
    from systems.running.machine import device_for
    from systems.running.resuming import record_path, written_at

    grid, entry = "quick" if quick else "full", STEMS[stem]
    device = device_for(entry.quick if quick else entry.full)
    if device is None:
        cpu_can = "cpu" in entry.quick and not quick
        remedy = "; --quick runs it on a CPU" if cpu_can else ""
        return Outcome(stem, f"skipped: {no_gpu()}{remedy}", skipped=True)
    if missing := lacks(*entry.needs):
        return Outcome(stem, f"skipped: can't be measured: {missing}", skipped=True)
    try:
        path = record_path(results, device, stem, grid)
        seen = written_at(path)
        state = "" if force else state_of(path)[0]
    except RecordError as error:
        # The other experiments can be measured all the same.
        return Outcome(stem, f"error: {error} (--force measures again)", 2)
    if state in ("fresh", "verified"):
        return Outcome(stem, f"{state} already (--force measures again)")
    if time.time() >= deadline:
        # Starting takes seconds for each experiment that is left.
        return Outcome(stem, OUT_OF_TIME)
    arguments = [str(results.resolve()), "--grid", grid, "--deadline", str(deadline)]
    arguments += ["--seen", str(seen)]
    # On a CPU Triton's kernels run in its interpreter, chosen before triton is
    # imported.
    interpreter = {"TRITON_INTERPRET": "1"} if device.slug == "cpu" else {}
    return Task(stem, arguments, interpreter)


def run_all(tasks: Iterator[Task], gpus: Sequence[str] = ("",)) -> list[Outcome]:
    """Run a child for each task, on each of these GPUs one at a time, and show their
    reports as progress bars. A GPU without a name is the one that is visible.
    """
    outcomes, free, running = [], list(gpus), list[Child]()
    with progress_bars() as bars, DefaultSelector() as selector:
        try:
            while True:
                while free and (task := next(tasks, None)):
                    running.append(child := Child(task, free.pop(), bars))
                    selector.register(child.pipe, EVENT_READ, child)
                if not running:
                    return outcomes
                for key, _ in selector.select():
                    child = key.data
                    if not child.take_reports():
                        selector.unregister(child.pipe)
                        outcomes.append(child.ended())
                        running.remove(child)
                        free.append(child.gpu)
        finally:
            # Ctrl-C, SIGTERM, or an error of one of them.
            end([child.process for child in running])


def progress_bars() -> Any:
    """Return bars that show for each experiment its row and the time that is left."""
    from rich import progress

    return progress.Progress(
        "{task.description:>12}",
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[now]}", markup=False),
        progress.TimeElapsedColumn(),
        "left:",
        progress.TimeRemainingColumn(),
        console=plain_console(),
    )


class Child:
    """A process that measures one stem, with its progress bar and its outcome."""

    def __init__(self, task: Task, gpu: str, bars: Any):
        self.gpu, self.bars, self.outcome = gpu, bars, Outcome(task.stem)
        self.started, self.unread = time.monotonic(), b""
        visible = {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}
        module, own = "systems.running.measure", ["--parent", str(os.getpid())]
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, task.stem, *task.arguments, *own],
            cwd=ROOT,
            env=os.environ | visible | task.environment,
            stdout=subprocess.PIPE,
            # With the processes of its rows a group of its own, to be ended together.
            process_group=0,
        )
        assert self.process.stdout
        self.pipe = self.process.stdout
        self.bar = bars.add_task(task.stem, total=None, now="starting")

    def take_reports(self) -> bool:
        """Show what the child has reported; False once it has closed its output."""
        read = os.read(self.pipe.fileno(), 2**16)
        *lines, self.unread = (self.unread + read).split(b"\n")
        for line in lines:
            self.take_report(json.loads(line))
        return bool(read)

    def take_report(self, report: dict[str, Any]) -> None:
        outcome = self.outcome

        def show(line: str) -> None:
            self.bars.console.print(printable(line))

        match report["event"]:
            case "start":
                total, done = report["total"], report["done"]
                self.bars.update(self.bar, total=total, completed=done)
            case "there":
                # They may be of another day, and of somebody else.
                rows, commit = report["rows"], report["commit"][:10]
                of = f"{report['since']} UTC, commit {commit}"
                show(f"{outcome.stem}: {rows} rows are there, of {of}")
            case "compiling":
                self.bars.update(self.bar, now="compiling")
            case "compiled_in_part":
                stopped = f"compiling ahead was stopped after {report['minutes']} min"
                show(f"{outcome.stem}: {stopped}; rows compile the rest")
            case "row":
                status, config = report["status"], report["config"]
                outcome.rows[status] = outcome.rows.get(status, 0) + 1
                now = printable(" ".join(map(str, list(config.values())[:4])))
                self.bars.update(self.bar, advance=1, now=now)
                if status != "ok":
                    show(f"{outcome.stem} {config}: {status}: {report['reason']}")
            case "already":
                outcome.message = "another run has measured it meanwhile"
            case "complete":
                outcome.message = "measured"
            case "out_of_time":
                outcome.message = OUT_OF_TIME
            case "failed":
                counts = f"{report['failed']} failed, {report['missing']} missing"
                outcome.message = f"{counts}; run again to retry them"
            case "error":
                outcome.message = printable(f"error: {report['message']}")

    def ended(self) -> Outcome:
        """Return the outcome, once the child has closed its output."""
        code, outcome = self.process.wait(), self.outcome
        self.pipe.close()
        if code < 0:
            # It was killed; the process of its row would go on beside what runs next.
            signal_group(self.process, signal.SIGTERM)
        # Only a child that reached its end reported an outcome and ended by itself.
        if not outcome.message or code not in (0, 1, 2):
            again = "run again to go on from the last row"
            outcome.message = f"crashed (exit code {code}); {again}"
            code = 1
        outcome.code, outcome.seconds = code, time.monotonic() - self.started
        # A bar of each that has ended would leave no room for those that run.
        self.bars.remove_task(self.bar)
        self.bars.console.print(f"{outcome.stem}: {outcome.message}")
        return outcome


def end(children: list[subprocess.Popen[bytes]]) -> None:
    """End all children, each with the processes of its rows. They clean up, unless they
    are deep in a library, or we are told once more.
    """
    # The number of one that has been waited for may be another's by now.
    running = [child for child in children if child.returncode is None]
    last = time.monotonic() + GRACE
    try:
        for child in running:
            signal_group(child, signal.SIGTERM)
        for child in running:
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=max(0.0, last - time.monotonic()))
    finally:
        for child in running:
            signal_group(child, signal.SIGKILL)
        for child in running:
            child.wait()
            assert child.stdout
            child.stdout.close()


def signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)
