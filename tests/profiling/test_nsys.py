"""Test Nsight Systems' command line, with a stand-in that fails on request."""

import json
import os
import sys

import pytest

from systems.profiling import nsys
from systems.profiling.nsys import NsysError

FAKE = """
import json, os, pathlib, subprocess, sys
plan = json.loads(pathlib.Path({plan!r}).read_text())
arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(arguments) + "\\n")
if arguments == ["--version"]:
    print(plan["version"])
    sys.exit(plan.get("version_code", 0))
what = arguments[0]
if plan.get(what):
    print("Generating ...")
    sys.exit(plan[what])
output = arguments[arguments.index("--output") + 1]
if what == "profile":
    work = arguments[arguments.index("--output") + 2:]
    code = subprocess.run(work).returncode
    if code == 0 and plan["report"]:
        pathlib.Path(output + ".nsys-rep").write_text("report")
    sys.exit(code)
pathlib.Path(output).write_bytes(b"export")
"""
VERSION = "NVIDIA Nsight Systems version 2024.6.2.225-246235244400v0"


class FakeNsys:
    """A stand-in for `nsys` on the PATH, which behaves as `plan` says."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.log = folder, folder / "log"
        program = folder / "nsys"
        script = folder / "nsys.py"
        script.write_text(FAKE.format(plan=str(folder / "plan"), log=str(self.log)))
        # A path with a space can't follow "#!".
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        self.plan()

    def plan(self, **changes):
        (self.folder / "plan").write_text(
            json.dumps({"version": VERSION, "report": True, **changes})
        )

    def calls(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def fake_nsys(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    return FakeNsys(folder, monkeypatch)


WORK = [sys.executable, "-c", "print('measured')"]


def test_nsys_command_captures_and_exports(fake_nsys, tmp_path):
    # `.7B-128` must not be taken for a suffix.
    report = tmp_path / "traces" / "2.7B-128.nsys-rep"
    printed, export = nsys.profile(WORK, report, tmp_path)
    assert printed.strip() == "measured" and report.read_text() == "report"
    assert (
        export == report.with_name("2.7B-128.sqlite")
        and export.read_bytes() == b"export"
    )
    asked, profiled, exported = fake_nsys.calls()
    assert asked == ["--version"]
    assert profiled == [
        *("profile", "--trace", "cuda,nvtx", "--sample", "none", "--cpuctxsw", "none"),
        *("--capture-range", "cudaProfilerApi", "--capture-range-end", "stop"),
        *("--force-overwrite", "true"),
        *("--output", str(tmp_path / "traces" / "2.7B-128"), *WORK),
    ]
    assert exported[:5] == ["export", "--type", "sqlite", "--force-overwrite", "true"]
    assert exported[5:] == ["--output", str(export), str(report)]


def test_missing_nsys_gives_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not nsys.is_installed()
    text = "no nsys on the PATH: install Nsight Systems .*or give --profiler torch"
    with pytest.raises(NsysError, match=text):
        nsys.profile(WORK, tmp_path / "r.nsys-rep", tmp_path)


OLD_OR_ODD = {
    "NVIDIA Nsight Systems version 2020.3.4.32-52657a0": "is version 2020.3, too old .*"
    " install 2022.1 or later",
    "NVIDIA Nsight Systems version 2021.5.1.0": "is version 2021.5, too old",
    "bash: something else": "does not tell its version: install nsys again",
}


@pytest.mark.parametrize("version", OLD_OR_ODD)
def test_unsupported_nsys_versions_are_rejected(fake_nsys, tmp_path, version):
    fake_nsys.plan(version=version)
    with pytest.raises(NsysError, match=OLD_OR_ODD[version]):
        nsys.profile(WORK, tmp_path / "r.nsys-rep", tmp_path)
    assert fake_nsys.calls() == [["--version"]]


FAILURES = {
    "nsys --version failed": {"version_code": 3},
    "nsys profile failed (exit code 1): denied; repair that": {"profile": "denied"},
    "nsys export failed (exit code 1): it is damaged": {"export": "it is damaged"},
    "nsys profile wrote no r.nsys-rep: no CUDA work ran while it": {"report": False},
    "nsys profile failed (exit code 1): ValueError: of the work": {},
}


@pytest.mark.parametrize("said", FAILURES)
def test_failure_quotes_the_last_line_of_output(fake_nsys, tmp_path, said):
    fake_nsys.plan(**FAILURES[said])
    work = WORK if FAILURES[said] else [*WORK[:2], "raise ValueError('of the work')"]
    with pytest.raises(NsysError) as error:
        nsys.profile(work, tmp_path / "r.nsys-rep", tmp_path)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_old_report_is_not_reused(fake_nsys, tmp_path):
    report = tmp_path / "r.nsys-rep"
    nsys.profile(WORK, report, tmp_path)
    fake_nsys.plan(report=False)
    with pytest.raises(NsysError, match="wrote no r.nsys-rep"):
        nsys.profile(WORK, report, tmp_path)


def test_broken_nsys_gives_the_reason(fake_nsys, tmp_path):
    (fake_nsys.folder / "nsys").write_text("#!/no/such/interpreter\n")
    with pytest.raises(NsysError, match=r"nsys --version can't be run \(No such file"):
        nsys.find_nsys()
