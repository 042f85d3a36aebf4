"""Run a command under Nsight Systems and export what it saw: one report to open in its
window, one SQLite file to read.

`nsys` is a program of its own, not a library: it starts the process that it watches.
Only what runs between `cudaProfilerStart` and `cudaProfilerStop` is kept, so that
warm-up is never in a report. Imports no torch.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

# The first whose --capture-range-end lets a process go on to its own end; exports have
# all columns read here.
OLDEST = (2022, 1)
REPORT = ".nsys-rep"


class NsysError(ValueError):
    """Why Nsight Systems can't be used, and what to do about it."""


def is_installed() -> bool:
    """Whether there is an `nsys` on the PATH, of whatever version."""
    return shutil.which("nsys") is not None


def find() -> str:
    """Where `nsys` is. NsysError where there is none, or one that is too old or broken."""
    program = shutil.which("nsys")
    if program is None:
        raise NsysError(
            "no nsys on the PATH: install Nsight Systems (nsys.md says how), or give --profiler torch"
        )
    said = _run([program, "--version"], "nsys --version")
    version = re.search(r"version (\d{4})\.(\d+)", said)
    if version is None:
        raise NsysError(
            f"{program} does not tell its version: install Nsight Systems again, or give --profiler torch"
        )
    if (int(version[1]), int(version[2])) < OLDEST:
        raise NsysError(
            f"{program} is version {version[1]}.{version[2]}, too old to be told what to capture: install "
            f"{OLDEST[0]}.{OLDEST[1]} or later, or give --profiler torch"
        )
    return program


# --8<-- [start:command]
def command_line(program: str, report: Path, work: Sequence[str]) -> list[str]:
    """The command that profiles `work` into `report`: CUDA and NVTX, only while the
    process says so.
    """
    return [
        *(program, "profile", "--trace", "cuda,nvtx"),
        # Samples of the CPU and its context switches would need rights, and change what
        # is measured.
        *("--sample", "none", "--cpuctxsw", "none"),
        *("--capture-range", "cudaProfilerApi", "--capture-range-end", "stop"),
        *("--force-overwrite", "true", "--output", str(report.with_suffix(""))),
        *work,
    ]


# --8<-- [end:command]


def profile(work: Sequence[str], report: Path, cwd: Path) -> tuple[str, Path]:
    """Run `work` under nsys. Returns what it printed, and the export; `report`
    (.nsys-rep) stays beside it.
    """
    assert report.suffix == REPORT
    program = find()
    report.parent.mkdir(parents=True, exist_ok=True)
    # What an earlier run left must not be taken for this one's.
    export = report.with_suffix(".sqlite")
    for old in (report, export):
        old.unlink(missing_ok=True)
    printed = _run(command_line(program, report, work), "nsys profile", cwd)
    if not report.exists():
        raise NsysError(
            f"nsys profile wrote no {report.name}: no CUDA work ran while it captured; run the command by itself, or "
            "give --profiler torch"
        )
    _run(
        [
            program,
            "export",
            "--type",
            "sqlite",
            "--force-overwrite",
            "true",
            "--output",
            str(export),
            str(report),
        ],
        "nsys export",
    )
    return printed, export


def _run(command: list[str], what: str, cwd: Path | None = None) -> str:
    """Standard output of a command. NsysError names the command and its last words
    where it fails.
    """
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, errors="replace"
        )
    except OSError as error:
        raise NsysError(
            f"{what} can't be run ({error.strerror}): repair it, or give --profiler torch"
        ) from error
    if done.returncode:
        words = (
            done.stderr.strip() or done.stdout.strip() or "it said nothing"
        ).splitlines()[-1]
        raise NsysError(
            f"{what} failed (exit code {done.returncode}): {words}; repair that, or give --profiler torch"
        )
    return done.stdout
