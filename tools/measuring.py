"""Measure experiments, each in a child process running `systems.running.measure`.

A child prints its progress as JSON. This process shows it, and imports no torch.
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

from systems import ROOT, escape_text, find_missing, plain_console, require
from systems.experiments import STEMS
from tools.rendering import fail
from tools.states import read_state

# Environment variables that children don't inherit, because these debugging aids and
# settings of containers change what is measured. With PYTHONSAFEPATH, a child could
# import another clone's code.
DROPPED = set(
    "CUBLAS_WORKSPACE_CONFIG CUDA_LAUNCH_BLOCKING DISABLE_PTXAS_OPT"
    " NVIDIA_TF32_OVERRIDE PYTHONDEVMODE TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
    " PYTHONMALLOC PYTHONSAFEPATH PYTHONTRACEMALLOC PYTORCH_NO_CUDA_MEMORY_CACHING"
    " TORCHDYNAMO_DISABLE TORCH_COMPILE_DISABLE TRITON_DEBUG TRITON_DEFAULT_FP_FUSION"
    " TRITON_INTERPRET".split()
)
OUT_OF_TIME = "out of time; run again to go on"
# Seconds that a child has between SIGTERM and SIGKILL.
GRACE = 10


@dataclass
class Outcome:
    """The outcome of measuring one experiment: a line for the user, the exit code (0
    complete or out of time, 1 rows failed, 2 could not start), and the number of rows
    by status. `skipped` means that this machine can't measure the experiment.
    """

    stem: str
    message: str = ""
    code: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    skipped: bool = False
    seconds: float = 0.0


@dataclass
class Task:
    """An experiment to measure: arguments and environment of its child process."""

    stem: str
    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def measure_all(
    stems: Sequence[str],
    results: Path,
    quick: bool = False,
    force: bool = False,
    deadline: float = 1e18,
    at_once: int = 1,
) -> list[Outcome]:
    """Measure the experiments that lack a record of the current code in `results` (with
    `force`, all), by reduced grids if `quick`, one at a time on each of `at_once` GPUs.
    Start none after `deadline` (`time.time`). Exit if kernels or GPUs are unusable.
    """
    require("torch", "fcntl")
    from systems.records.device import find_gpu
    from systems.running.machine import triton_cache_folder, why_unwritable

    if find_gpu() is not None and (fault := why_unwritable(triton_cache_folder())):
        fail(fault)
    gpus, outcomes = [""], dict[str, Outcome]()
    if at_once > 1:
        from tools.at_once import first_gpus, sort_longest_first

        gpus, stems = first_gpus(at_once), sort_longest_first(stems)

    def plan_tasks() -> Iterator[Task]:
        for stem in stems:
            plan = plan_task(stem, results, quick, force, deadline)
            if isinstance(plan, Task):
                yield plan
            else:
                outcomes[stem] = plan

    for outcome in run_tasks(plan_tasks(), gpus):
        outcomes[outcome.stem] = outcome
    return [outcomes[stem] for stem in stems]


def plan_task(
    stem: str, results: Path, quick: bool, force: bool, deadline: float
) -> Task | Outcome:
    """Return the task of measuring an experiment, or an outcome if it can't be measured
    or need not be. `measure_all` explains the arguments.
    """
    from systems.records.device import why_no_gpu
    from systems.records.store import RecordError
    from systems.running.machine import choose_device
    from systems.running.resuming import modification_time_ns, record_path

    grid, entry = "quick" if quick else "full", STEMS[stem]
    device = choose_device(entry.quick if quick else entry.full)
    if device is None:
        cpu_can = "cpu" in entry.quick and not quick
        remedy = "; --quick runs it on a CPU" if cpu_can else ""
        return Outcome(stem, f"skipped: {why_no_gpu()}{remedy}", skipped=True)
    if missing := find_missing(*entry.needs):
        return Outcome(stem, f"skipped: can't be measured: {missing}", skipped=True)
    try:
        path = record_path(results, device, stem, grid)
        seen = modification_time_ns(path)
        state = "" if force else read_state(path)[0]
    except RecordError as error:
        # An unreadable record must not stop the other experiments.
        return Outcome(stem, f"error: {error} (--force measures again)", 2)
    if state == "fresh":
        return Outcome(stem, "fresh already (--force measures again)")
    if time.time() >= deadline:
        # Don't spend seconds on starting a child that would stop at once.
        return Outcome(stem, OUT_OF_TIME)
    arguments = [str(results.resolve()), "--grid", grid, "--deadline", str(deadline)]
    arguments += ["--seen", str(seen)]
    # On a CPU, run kernels in Triton's interpreter; set it before Triton's import.
    interpreter = {"TRITON_INTERPRET": "1"} if device.slug == "cpu" else {}
    return Task(stem, arguments, interpreter)


def run_tasks(tasks: Iterator[Task], gpus: Sequence[str] = ("",)) -> list[Outcome]:
    """Run a process per task, one at a time per GPU id ("": any); return outcomes."""
    outcomes, free, running = [], list(gpus), list[Child]()
    with make_progress_bars() as bars, DefaultSelector() as selector:
        try:
            while True:
                while free and (task := next(tasks, None)):
                    running.append(child := Child(task, free.pop(), bars))
                    selector.register(child.pipe, EVENT_READ, child)
                if not running:
                    return outcomes
                for key, _ in selector.select():
                    child = key.data
                    if not child.read_reports():
                        selector.unregister(child.pipe)
                        outcomes.append(child.finish())
                        running.remove(child)
                        free.append(child.gpu)
        finally:
            # Also end the children after Ctrl-C, SIGTERM or an error.
            terminate([child.process for child in running])


def make_progress_bars() -> Any:
    """Return progress bars that show current row and remaining time per experiment."""
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
    """A process that measures one experiment, with its progress bar and outcome."""

    def __init__(self, task: Task, gpu: str, bars: Any):
        self.gpu, self.bars, self.outcome = gpu, bars, Outcome(task.stem)
        self.started, self.unread = time.monotonic(), b""
        visible = {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}
        inherited = {k: v for k, v in os.environ.items() if k not in DROPPED}
        module, own = "systems.running.measure", ["--parent", str(os.getpid())]
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, task.stem, *task.arguments, *own],
            cwd=ROOT,
            env=inherited | visible | task.environment,
            stdout=subprocess.PIPE,
            # In a process group, one signal also ends the processes that measure rows.
            process_group=0,
        )
        assert self.process.stdout
        self.pipe = self.process.stdout
        self.bar = bars.add_task(task.stem, total=None, now="starting")

    def read_reports(self) -> bool:
        """Show the child's new reports. Return False once it has closed its output."""
        read = os.read(self.pipe.fileno(), 2**16)
        *lines, self.unread = (self.unread + read).split(b"\n")
        for line in lines:
            # Skip what a user's `sitecustomize` prints.
            if line.startswith(b"{"):
                self.show_report(json.loads(line))
        return bool(read)

    def show_report(self, report: dict[str, Any]) -> None:
        outcome = self.outcome

        def print_line(line: str) -> None:
            self.bars.console.print(escape_text(line))

        match report["event"]:
            case "start":
                total, done = report["total"], report["done"]
                self.bars.update(self.bar, total=total, completed=done)
            case "there":
                # Say where the existing rows come from: an old run, or other people.
                rows, commit = report["rows"], report["commit"][:10]
                origin = f"{report['since']} UTC, commit {commit}"
                print_line(f"{outcome.stem}: {rows} rows are there, of {origin}")
            case "shared":
                print_line(f"{outcome.stem}: others use this GPU, see nvidia-smi")
            case "compiling":
                self.bars.update(self.bar, now="compiling")
            case "compiled_in_part":
                message = f"compiling ahead was stopped after {report['minutes']} min"
                print_line(f"{outcome.stem}: {message}; rows compile the rest")
            case "row":
                status, config = report["status"], report["config"]
                outcome.rows[status] = outcome.rows.get(status, 0) + 1
                now = escape_text(" ".join(map(str, list(config.values())[:4])))
                self.bars.update(self.bar, advance=1, now=now)
                if status != "ok":
                    print_line(f"{outcome.stem} {config}: {status}: {report['reason']}")
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
                outcome.message = escape_text(f"error: {report['message']}")

    def finish(self) -> Outcome:
        """Wait until the child exits, and return its outcome."""
        code, outcome = self.process.wait(), self.outcome
        self.pipe.close()
        if code < 0:
            # The child was killed, but the process of its last row may still run.
            signal_group(self.process, signal.SIGTERM)
        # A child without a reported outcome, or with an unknown exit code, has crashed.
        if not outcome.message or code not in (0, 1, 2):
            again = "run again to go on from the last row"
            outcome.message = f"crashed (exit code {code}); {again}"
            code = 1
        outcome.code, outcome.seconds = code, time.monotonic() - self.started
        # Remove the bar, so that bars of running experiments fit the terminal.
        self.bars.remove_task(self.bar)
        self.bars.console.print(f"{outcome.stem}: {outcome.message}")
        return outcome


def terminate(children: list[subprocess.Popen[bytes]]) -> None:
    """Send SIGTERM to all children, and SIGKILL after GRACE seconds or a Ctrl-C."""
    # Skip finished children, whose process id may have been reused.
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
    """Send a signal to a child and the processes of its rows."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)
