"""Test the batch script, with a real Slurm on this machine."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from systems import ROOT
from systems.experiments import STEMS
from systems.records import store
from tests.factories import regen_command, wait_until
from tests.needed import skip_or_fail

FILE = "tools/regen_tables.sbatch"
SETTINGS = Path(__file__).with_name("slurm.conf")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def slurm(tmp_path) -> Iterator[Callable[..., str]]:
    programs = {
        name: shutil.which(name, path="/usr/sbin:/sbin")
        for name in ("munged", "slurmctld", "slurmd")
    }
    if None in programs.values() or os.geteuid() != 0:
        skip_or_fail("needs Debian's slurm-wlm and munge, and root")
    folder = tmp_path / "slurm"
    (folder / "state").mkdir(parents=True)
    host, ports = socket.gethostname().split(".")[0], (free_port(), free_port())
    settings = SETTINGS.read_text().format(host=host, folder=folder, ports=ports)
    (folder / "slurm.conf").write_text(settings)
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, *options: str) -> None:
        with open(folder / f"{name}.out", "wb") as log:
            line = [programs[name] or name, *options]
            streams = {"stdout": log, "stderr": log}
            running.append(subprocess.Popen(line, env=environment, **streams))

    def run(*line: str, tree: Path = tmp_path, **more: str) -> str:
        given = {"cwd": tree, "env": environment | more, "timeout": 60, "text": True}
        return subprocess.run(line, stdout=subprocess.PIPE, **given).stdout

    files = {"key-file": "key", "socket": "munge.socket", "pid-file": "munge.pid"}
    files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
    try:
        named = [f"--{option}={folder / name}" for option, name in files.items()]
        start("munged", "--foreground", "--force", *named)
        wait_until((folder / "munge.socket").exists)
        start("slurmctld", "-D")
        start("slurmd", "-D", "-N", "node1")
        wait_until(lambda: "idle" in run("sinfo", "--noheader", "--format=%t"))
        yield run
        run("scancel", "--user=root")
        wait_until(lambda: not run("squeue", "--noheader"))
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()


@pytest.mark.slurm
def test_preempted_tasks_resume_and_render(slurm, tree, tmp_path):
    rows, log = 12, tmp_path / "log"
    settings = {"FAKE_ROWS": str(rows), "FAKE_SLEEP": "400", "FAKE_LOG": str(log)}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = regen_command(tree, FAKE_MENDED="1", PATH=path, **settings)["env"]

    def submit(*options: str) -> str:
        return slurm("sbatch", "--parsable", *options, tree=tree, **environment).strip()

    def count_starts() -> int:
        lines = log.read_text().splitlines() if log.exists() else []
        return len({line.split()[1] for line in lines})

    job = submit("--array=0-1", FILE)
    submit("--dependency=singleton", "--array=0", FILE, "--render")
    wait_until(lambda: count_starts() == 1)
    # Slurm sends this signal before a time limit ends the job.
    slurm("scancel", "--batch", "--signal=USR1", f"{job}_0")
    wait_until(lambda: count_starts() == 2)
    # This job preempts the running task, whichever of the two it is.
    submit("--partition=urgent", "--gres=gpu:1", "--wrap", "sleep 1")
    wait_until(lambda: count_starts() == 4)
    wait_until(lambda: not slurm("squeue", "--noheader"))
    text = "".join(path.read_text() for path in tree.glob("slurm-*.log"))
    for stem in ("crash", "fake"):
        assert store.read(tree / f"docs/results/meta/{stem}.json").complete, text
        table = tree / f"docs/generated/{stem}-table.md"
        assert table.read_text() == f"{rows} rows"
    # Only interrupted rows ran twice, and rendering ran once.
    assert 2 * rows <= len(log.read_text().splitlines()) <= 2 * rows + 2
    assert text.count("rendered") == 1


@pytest.mark.parametrize("options", ["", "--only=warmup", "--only warmup", "--list"])
def test_slurm_script_passes_options_that_name_an_action(tmp_path, options):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || echo "$@"\n')
    python.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    line = ["bash", ROOT / FILE, *options.split()]
    text = subprocess.check_output(line, env=environment, text=True)
    assert text.split() == ["tools/regen_tables.py", *options.split()]


def test_slurm_array_has_a_task_per_experiment():
    (last,) = re.findall(r"^#SBATCH --array=0-(\d+)$", (ROOT / FILE).read_text(), re.M)
    assert int(last) == len(STEMS) - 1
