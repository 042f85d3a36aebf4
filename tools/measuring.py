"""Measure one experiment in a child process: its progress on the screen, its outcome
returned.

The child is `systems.running.measure`. It reports by lines of JSON on its standard
output, so this process imports no torch.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from systems import ROOT, lacks
from systems.experiments import STEMS
from tools.states import state_of

OUT_OF_TIME = "out of time; run again to go on"
# How long a child that is told to end may take, in seconds.
GRACE = 10


@dataclass
class Outcome:
    """What came of measuring one stem: a line for the user, the exit code (0 complete
    or out of time, 1 rows failed, 2 could not start), and how many rows were measured
    by their status. A stem is `skipped` where this machine can't measure it, or need
    not.
    """

    stem: str
    message: str
    code: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    skipped: bool = False
    seconds: float = 0.0


def measure_if_stale(
    stem: str,
    results: Path,
    quick: bool,
    force: bool,
    deadline: float,
    lane: "Lane | None" = None,
) -> Outcome:
    """Measure one stem until `deadline` (in seconds of `time.time`), unless its record
    is fresh. With `force` too it goes on from where it was stopped. In a `lane`, where
    others are measured beside it.
    """
    from systems.records.device import no_gpu
    from systems.records.store import RecordError
    from systems.running.machine import device_for
    from systems.running.resuming import record_path

    grid = "quick" if quick else "full"
    device = device_for(STEMS[stem].quick if quick else STEMS[stem].full)
    if device is None:
        cpu_can = "cpu" in STEMS[stem].quick and not quick
        remedy = "; --quick runs it on a CPU" if cpu_can else ""
        message = f"skipped: {no_gpu()}{remedy}"
        return Outcome(stem, message, skipped=True)
    if said := lacks(*STEMS[stem].needs):
        return Outcome(stem, f"skipped: can't be measured: {said}", skipped=True)
    path = record_path(results, device, stem, grid)
    try:
        state = "" if force else state_of(path)[0]
        if state in ("fresh", "verified"):
            return Outcome(stem, f"{state} already (--force measures again)")
    except RecordError as error:
        # The other experiments can be measured all the same.
        return Outcome(stem, f"error: {error} (--force measures again)", 2)
    if time.time() >= deadline:
        # To start would take seconds for each experiment that is left.
        return Outcome(stem, OUT_OF_TIME)
    flags = ["--grid", grid, "--deadline", str(deadline)]
    # On a CPU Triton's kernels run in its interpreter, chosen before triton is
    # imported.
    environment = {"TRITON_INTERPRET": "1"} if device.slug == "cpu" else {}
    return run_child(stem, results, *flags, lane=lane, **environment)


@dataclass
class Lane:
    """A GPU, the cores of the host that measure on it; the bars that all lanes share,
    and whether all are to stop.
    """

    gpu: str
    cores: list[int]
    bars: Any
    stopped: threading.Event
    # What runs in it now.
    child: subprocess.Popen[str] | None = None


def progress_bars() -> Any:
    """A bar for each experiment, with the row at hand and the time that is left."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description:>12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )


def run_child(
    stem: str,
    results: Path,
    *flags: str,
    lane: Lane | None = None,
    **environment: str,
) -> Outcome:
    """Run `systems.running.measure` with these flags and show its reports as a progress
    bar.
    """
    module = "systems.running.measure"
    command = [sys.executable, "-m", module, stem, str(results.resolve()), *flags]
    bars: AbstractContextManager[Any]
    bars = nullcontext(lane.bars) if lane else progress_bars()
    if lane:
        environment["CUDA_VISIBLE_DEVICES"] = lane.gpu
        if lane.cores:
            command += ["--cores", ",".join(map(str, lane.cores))]
    outcome, started = Outcome(stem, ""), time.monotonic()
    with (
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            text=True,
            # With the processes of its rows a group of its own, to be ended together.
            process_group=0,
        ) as child,
        bars as progress,
    ):
        assert child.stdout is not None
        task = progress.add_task(stem, total=None, now="starting")
        if lane:
            lane.child = child
            if lane.stopped.is_set():
                # Who ended the others had not seen this one yet.
                end([child])
        try:
            for line in child.stdout:
                # Whatever an experiment prints of its own is no report.
                if line.startswith('{"event"'):
                    take_report(json.loads(line), outcome, progress, task)
        except BaseException:
            # Ctrl-C, or the warning of a cluster that ends the job.
            end([child])
            raise
        finally:
            if lane:
                # A bar of each that has ended would leave no room for those that run.
                progress.remove_task(task)
    outcome.seconds = time.monotonic() - started
    outcome.code = child.returncode
    if child.returncode < 0:
        # It was killed; the process of its row would go on beside what runs next.
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
    # Only a child that reached its end said what came of it, and ended by itself.
    if not outcome.message or child.returncode not in (0, 1, 2):
        outcome.code = 1
        outcome.message = (
            f"crashed (exit code {child.returncode}); "
            "run again to go on from the last row"
        )
    return outcome


def end(children: list[subprocess.Popen[str]]) -> None:
    """End them all, each with the processes of its rows. They clean up, unless they are
    deep in a library, or we are told once more.
    """
    # The number of one that has been waited for may be another's by now. Of one that
    # ended just now, processes of rows may still run.
    running = [child for child in children if child.returncode is None]
    last = time.monotonic() + GRACE
    try:
        for child in running:
            signal_all(child, signal.SIGTERM)
        for child in running:
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=max(0.0, last - time.monotonic()))
    finally:
        for child in running:
            signal_all(child, signal.SIGKILL)
        for child in running:
            child.wait()


def signal_all(child: subprocess.Popen[str], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def take_report(
    report: dict[str, Any], outcome: Outcome, progress: Any, task: Any
) -> None:
    """Show one report of the child on the progress bar, and keep it in the outcome."""
    match report["event"]:
        case "start":
            progress.update(task, total=report["total"], completed=report["done"])
        case "there":
            # They may be of another day, and of somebody else.
            rows, commit = report["rows"], report["commit"][:10]
            of = f"{report['since']} UTC, commit {commit}"
            progress.console.print(f"{outcome.stem}: {rows} rows are there, of {of}")
        case "compiling":
            progress.update(task, now="compiling")
        case "compiled_in_part":
            stopped = f"compiling ahead was stopped after {report['minutes']} minutes"
            progress.console.print(f"{outcome.stem}: {stopped}; rows compile the rest")
        case "row":
            status, config = report["status"], report["config"]
            outcome.rows[status] = outcome.rows.get(status, 0) + 1
            values = [str(value) for value in config.values()]
            progress.update(task, advance=1, now=" ".join(values[:4]))
            if status != "ok":
                row = f"{outcome.stem} {config}"
                progress.console.print(f"{row}: {status}: {report['reason']}")
        case "complete":
            outcome.message = "measured"
        case "out_of_time":
            outcome.message = OUT_OF_TIME
        case "failed":
            counts = f"{report['failed']} failed, {report['missing']} missing"
            outcome.message = f"{counts}; run again to retry them"
        case "error":
            outcome.message = f"error: {report['message']}"
