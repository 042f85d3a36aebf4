"""Measuring through Slurm, against a real one: controller, node and munge on loopback,
started here as root.

Its settings are those of a cluster without accounting, so that only squeue and scontrol
serve. Each wait asks until it has an answer, and every process started here is ended by
its id.
"""

import os
import re
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from signal import SIGINT, default_int_handler, signal

import pytest

from systems import ROOT
from systems.records import store
from tests.factories import command, regen_tables
from tools.slurm import controller, jobs
from tools.slurm.controller import State
from tools.slurm.options import Options, SlurmError, read_options

MISSING = [
    name
    for name in ("munged", "slurmctld", "slurmd")
    if shutil.which(name, path="/usr/sbin:/sbin") is None
]
MISSING += [] if find_spec("submitit") else ["submitit"]
MISSING += [] if os.geteuid() == 0 else ["root"]


def needs_slurm(test):
    # Where CI is set nothing may be missing: the tests run, and fail.
    skip = bool(MISSING) and not os.environ.get("CI")
    return pytest.mark.slurm(
        pytest.mark.skipif(skip, reason=f"without {', '.join(MISSING)}")(test)
    )


SETTINGS = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
# A job that is queued again waits until its credential has expired: two minutes by
# default, five seconds at least.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
# By default what waits for its time is looked at once a minute.
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1
ReturnToService=2
KillWait=5
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=main Nodes=node1 Default=YES State=UP PriorityTier=1
PartitionName=urgent Nodes=node1 State=UP PriorityTier=2
"""


def until(true: Callable[[], object], seconds: float = 60) -> None:
    """Wait for it."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Cluster:
    """A controller and a node of their own, with their state in `folder`."""

    def __init__(self, folder: Path):
        self.folder, self.running = folder, {}
        self.conf = folder / "slurm.conf"
        host = socket.gethostname().split(".")[0]
        self.conf.write_text(
            SETTINGS.format(host=host, folder=folder, ports=(free_port(), free_port()))
        )
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        names = {
            "key-file": "munge.key",
            "socket": "munge.socket",
            "pid-file": "pid",
            "log-file": "log",
        }
        files = [
            f"--{option}={folder / name}"
            for option, name in (names | {"seed-file": "seed"}).items()
        ]
        self.start("munged", "--foreground", "--force", *files)
        until((folder / "munge.socket").exists)
        self.start_controller()
        self.start_node()
        until(lambda: "idle" in self("sinfo", "--noheader", "--format=%t"))

    def __call__(self, *line: str) -> str:
        """What a command of Slurm prints."""
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        return subprocess.run(
            line, env=environment, capture_output=True, text=True, timeout=60
        ).stdout

    def start(self, name: str, *options: str) -> None:
        with open(self.folder / f"{name}.out", "a") as log:
            line = [shutil.which(name, path="/usr/sbin:/sbin") or name, *options]
            environment = {**os.environ, "SLURM_CONF": str(self.conf)}
            self.running[name] = subprocess.Popen(
                line, env=environment, stdout=log, stderr=log
            )

    def start_controller(self) -> None:
        self.start("slurmctld", "-D")
        until(lambda: "UP" in self("scontrol", "ping"))

    def start_node(self) -> None:
        self.start("slurmd", "-D", "-N", "node1")

    def stop(self, name: str) -> None:
        process = self.running.pop(name)
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def jobs(self) -> list[str]:
        return self("squeue", "--noheader", "--format=%i").split()

    def empty(self) -> None:
        for job in self.jobs():
            self("scancel", job)
        until(lambda: not self.jobs())

    def close(self) -> None:
        self.empty()
        for name in ("slurmd", "slurmctld", "munged"):
            self.stop(name)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    started = Cluster(tmp_path_factory.mktemp("slurm"))
    yield started
    started.close()


class Tree:
    """A tree whose experiments are those of the tests, and its command."""

    def __init__(self, root: Path, cluster: Cluster):
        self.root, self.cluster, self.log = root, cluster, root / "log"
        self.results = root / "docs" / "results"
        self.started: list[subprocess.Popen[str]] = []
        self.environment = {
            "SLURM_CONF": str(cluster.conf),
            "FAKE_LOG": str(self.log),
            "FAKE_ROWS": "6",
            "XDG_STATE_HOME": str(root / "state"),
        }
        self.options("poll = 1")

    @property
    def jobs(self) -> Path:
        """Where the jobs have their files."""
        (folder,) = (self.root / "state/transformer-systems").iterdir()
        return folder

    def options(self, text: str) -> None:
        (self.root / "pyproject.toml").write_text(
            f"[tool.regen_tables.slurm]\n{text}\n"
        )

    def slow(self, rows: int) -> None:
        """From now on a row takes half a second."""
        self.environment |= {"FAKE_ROWS": str(rows), "FAKE_SLEEP": "500"}

    def run(
        self, *options: str, only: tuple[str, ...] = ("fake",)
    ) -> subprocess.CompletedProcess[str]:
        stems = [part for stem in only for part in ("--only", stem)]
        return regen_tables(self.root, "--slurm", *stems, *options, **self.environment)

    def start(self, *options: str) -> subprocess.Popen[str]:
        flags = ("--slurm", "--only", "fake", *options)
        given = command(self.root, *flags, **self.environment)
        pipe = subprocess.PIPE
        self.started.append(
            subprocess.Popen(**given, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
        )
        return self.started[-1]

    def measured(self) -> list[int]:
        """The rows in the order in which they were begun."""
        return (
            [int(line.split()[0]) for line in self.log.read_text().splitlines()]
            if self.log.exists()
            else []
        )

    def began(self, rows: int) -> Callable[[], bool]:
        return lambda: len(self.measured()) >= rows

    def complete(self, device: str = "meta") -> bool:
        return store.read(self.results / device / "fake.json").complete


@pytest.fixture
def tree(tree, cluster) -> Iterator[Tree]:
    """The tree of tests/tools/conftest.py, whose command finds the cluster."""
    made = Tree(tree, cluster)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
            process.communicate()
    # A test that failed may have left the node or the controller as it should not be.
    if "slurmctld" not in cluster.running:
        cluster.start_controller()
    cluster.empty()


@needs_slurm
def test_each_stem_is_a_job_and_what_fails_leaves_the_others(tree, tmp_path):
    line = (
        "--setup",
        "export FAKE_SLEEP=4",
        "--prefix",
        f"env FAKE_LOG={tmp_path / 'other'}",
    )
    done = tree.run(*line, only=("fake", "crash", "gpu_only"))
    assert done.returncode == 2
    assert done.stderr == (
        "crash: crashed (exit code -9); run again to go on from the last row\n"
        "gpu_only: error: no GPU on node1: ask for one with --gpus 1 or --gres gpu:1\n"
    )
    # The lines of shell came before, and the prefix went before python: 4 ms, and
    # another log.
    assert (
        tree.complete()
        and store.read(tree.results / "meta/fake.json").rows[0].config["sleep"] == 4
    )
    assert not tree.log.exists() and (tmp_path / "other").exists()
    said = [text for text in done.stdout.splitlines() if text.startswith("fake: ")]
    assert (
        "fake: submitted job" in said[0]
        and said[-1] == "fake: measured"
        and "6 ok" in done.stdout
    )
    assert (
        Path(said[0].split()[-1]).read_text().count("Job completed successfully") == 1
    )
    # A job of its own for what is fresh on the node's device, which only the node
    # knows; then tables.
    done = tree.run()
    assert (
        done.returncode == 0
        and "fresh already" in done.stdout
        and "rendered" in done.stdout
    )


@needs_slurm
def test_at_its_time_limit_a_job_is_queued_again_and_goes_on(tree):
    # Of a job of a minute the warning comes after 15 to 45 seconds: these 50 are more
    # than one start can do.
    tree.slow(rows=100)
    watching = tree.start("--time", "1", "--restarts", "5", "--force")
    output, _ = watching.communicate(timeout=300)
    assert (
        watching.returncode == 0 and "restarted 1 times" in output and tree.complete()
    )
    times = Counter(tree.measured())
    restarts = output.count("restarted") and max(
        n for n in range(1, 6) if f"restarted {n} times" in output
    )
    # Only the rows that were interrupted ran twice.
    assert len(times) == 100 and times.total() <= 100 + restarts


@needs_slurm
def test_interrupted_too_often_a_job_ends_and_the_next_call_goes_on(tree):
    tree.slow(rows=12)
    watching = tree.start("--restarts", "1")
    until(tree.began(3))
    (job,) = tree.cluster.jobs()
    tree.cluster("scancel", "--signal=USR2", job)
    until(
        lambda: (
            len({line.split()[1] for line in tree.log.read_text().splitlines()}) == 2
        )
    )
    tree.cluster("scancel", "--signal=USR2", job)
    output, _ = watching.communicate(timeout=60)
    assert (
        watching.returncode == 1
        and "interrupted after 1 restarts; run again to go on" in output
    )
    before = len(tree.measured())
    assert tree.run().returncode == 0 and tree.complete()
    assert len(tree.measured()) - before <= 12 - before + 2


@needs_slurm
def test_a_preempted_job_is_queued_again_where_slurm_only_cancels_it(tree):
    tree.slow(rows=16)
    watching = tree.start()
    until(tree.began(3))
    tree.cluster(
        "sbatch", "--partition=urgent", "--output=/dev/null", "--wrap", "sleep 1"
    )
    output, _ = watching.communicate(timeout=90)
    assert (
        watching.returncode == 0
        and "fake: PREEMPTED" in output
        and "restarted 1 times" in output
    )
    assert tree.complete() and len(tree.measured()) == 16 + 1


@needs_slurm
def test_rows_of_two_gpu_models_never_meet(tree):
    # The node shows one GPU at the first start and another at the second.
    with open(tree.root / "systems" / "records" / "device.py", "a") as file:
        file.write(
            "def find_gpu():\n    n = os.environ.get('SLURM_RESTART_COUNT', 0)\n"
        )
        file.write("    return Device(f'GPU {n}', f'gpu-{n}')\n")
    with open(tree.root / "systems" / "experiments" / "__init__.py", "a") as file:
        file.write("STEMS['fake'] = replace(STEMS['gpu_only'], quick=('cuda',))\n")
    tree.slow(rows=8)
    watching = tree.start()
    until(tree.began(4))
    tree.cluster("scancel", "--signal=USR2", *tree.cluster.jobs())
    # What it says of measuring: neither GPU is the one whose numbers are rendered.
    output, _ = watching.communicate(timeout=60)
    assert "fake: measured\n" in output and tree.complete("gpu-1")
    assert store.read(tree.results / "gpu-1/fake.json").device.name == "GPU 1"
    first = store.read(tree.results / "gpu-0/fake.partial.json")
    assert first.device.name == "GPU 0" and 2 <= len(first.rows) < 8
    # The second measured all rows, those of the first too; again, if others made the
    # host slow meanwhile.
    assert Counter(tree.measured())[8] >= 2


@pytest.fixture
def ctrl_c():
    """What a shell runs in the background ignores Ctrl-C, and so would whatever that
    starts.
    """
    before = signal(SIGINT, default_int_handler)
    yield
    signal(SIGINT, before)


@needs_slurm
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_asks_and_leaves_or_cancels(tree):
    tree.slow(rows=100)
    watching = tree.start()
    until(tree.began(2))
    watching.send_signal(SIGINT)
    output, _ = watching.communicate("n\n", timeout=30)
    assert (
        watching.returncode == 0
        and "cancel 1 jobs?" in output
        and "jobs go on" in output
    )
    # A later call finds the job and its rows, and submits nothing.
    (job,) = tree.cluster.jobs()
    looked = tree.run("--no-wait")
    assert (
        looked.returncode == 0
        and f"fake: job {job} was submitted earlier" in looked.stdout
    )
    assert (
        "RUNNING (node1)" in looked.stdout
        and "/100" in looked.stdout
        and tree.cluster.jobs() == [job]
    )
    watching = tree.start()
    assert watching.stdout is not None
    until(lambda: "RUNNING" in watching.stdout.readline())
    watching.send_signal(SIGINT)
    output, _ = watching.communicate("y\n", timeout=60)
    assert (
        watching.returncode == 1
        and "cancelled; run again to go on" in output
        and not tree.cluster.jobs()
    )
    # What was measured is kept.
    rows = len(store.read(tree.results / "meta/fake.partial.json").rows)
    assert rows and tree.run("--no-wait").returncode == 0
    until(tree.began(rows + 3))
    assert len(store.read(tree.results / "meta/fake.partial.json").rows) > rows


@needs_slurm
def test_no_wait_returns_at_once_and_outcomes_are_kept_until_shown(tree):
    done = tree.run("--no-wait")
    assert (
        done.returncode == 0
        and "submitted job" in done.stdout
        and "jobs go on; run the same" in done.stdout
    )
    until(lambda: not tree.cluster.jobs())
    shown = tree.run("--no-wait")
    assert (
        shown.returncode == 0
        and "measured" in shown.stdout
        and "submitted job" not in shown.stdout
    )
    assert "fake: submitted job" in tree.run("--no-wait").stdout


@needs_slurm
def test_a_job_goes_on_when_its_node_comes_back(tree):
    tree.slow(rows=16)
    watching = tree.start()
    until(tree.began(3))
    tree.cluster.stop("slurmd")
    tree.cluster("scontrol", "update", "nodename=node1", "state=down", "reason=test")
    until(lambda: "PENDING" in tree.cluster("squeue", "--noheader", "--format=%T"))
    tree.cluster.start_node()
    # The node returns, ends what it still ran of the job, and starts it again.
    tree.cluster("scontrol", "update", "nodename=node1", "state=resume")
    output, _ = watching.communicate(timeout=120)
    assert (
        watching.returncode == 0 and tree.complete() and "restarted 1 times" in output
    )
    assert len(tree.measured()) < 16 + 16


@needs_slurm
def test_a_controller_that_stops_is_waited_for(tree):
    tree.slow(rows=30)
    watching = tree.start()
    assert watching.stdout is not None
    until(tree.began(2))
    tree.cluster.stop("slurmctld")
    until(lambda: "Unable to contact slurm controller" in watching.stdout.readline())
    refused = tree.run()
    assert refused.returncode == 2 and refused.stderr.startswith(
        "error: Unable to contact slurm controller"
    )
    assert refused.stderr.count("\n") == 1
    tree.cluster.start_controller()
    output, _ = watching.communicate(timeout=90)
    assert watching.returncode == 0 and "fake: measured" in output and tree.complete()
    assert len(tree.measured()) == 30


@needs_slurm
def test_of_a_controller_that_stays_silent_one_line_tells(tree):
    tree.slow(rows=10)
    tree.options("poll = 1\npatience = 3")
    watching = tree.start()
    until(tree.began(1))
    tree.cluster.stop("slurmctld")
    output, _ = watching.communicate(timeout=60)
    assert watching.returncode == 2
    assert output.splitlines()[-1].startswith(
        "error: Unable to contact slurm controller"
    )
    assert output.splitlines()[-1].endswith(
        "jobs go on without it, run the same command to see them"
    )
    tree.cluster.start_controller()
    done = tree.run()
    assert (
        done.returncode == 0 and "submitted earlier" in done.stdout and tree.complete()
    )


REFUSED = {
    "--partition nope": "Batch job submission failed: Invalid partition name specified",
    "--memory 900T": "Batch job submission failed: Requested node configuration is not",
    "--gpus 1": "",
}


@needs_slurm
@pytest.mark.parametrize("options", REFUSED)
def test_a_rejected_submission_is_a_line(tree, options):
    done = tree.run(*options.split())
    message = f"fake: error: not submitted: {REFUSED[options]}"
    assert done.returncode == 2 and done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1 and not tree.cluster.jobs()
    # It is no job to be waited for.
    assert tree.run().returncode == 0 and tree.complete()


@needs_slurm
def test_of_two_submissions_at_once_one_submits_and_both_follow(tree):
    tree.slow(rows=12)
    # Slow enough for both to be about to submit.
    slow = tree.root / "bin" / "sbatch"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nsleep 2\nexec {shutil.which("sbatch")} "$@"\n')
    slow.chmod(0o755)
    tree.environment["PATH"] = f"{slow.parent}:{os.environ['PATH']}"
    both = [tree.start(), tree.start()]
    outputs = [one.communicate(timeout=90)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], outputs
    assert sorted("submitted job" in output for output in outputs) == [False, True]
    assert all("fake: measured" in output for output in outputs)
    assert tree.complete() and len(tree.measured()) == 12


@needs_slurm
def test_a_folder_that_cannot_be_written_is_a_line(tree, tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = tree.run("--results", str(tmp_path / "file"))
    assert (done.returncode, done.stderr) == (
        2,
        f"error: --results {tmp_path / 'file'}: is a file, not a folder\n",
    )
    # Seen here, but not by the node: it is gone when the job starts.
    tree.cluster("scontrol", "update", "nodename=node1", "state=drain", "reason=test")
    tree.run("--no-wait")
    shutil.rmtree(tree.jobs / "fake-full")
    tree.cluster("scontrol", "update", "nodename=node1", "state=resume")
    done = tree.run()
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.endswith(
        f"no log: can the node write {tree.jobs / 'fake-full'}?\n"
    )


@needs_slurm
def test_a_full_folder_is_a_line_and_loses_nothing(tree):
    tree.results.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tree.results], check=True
    )
    try:
        tree.slow(6)
        running = tree.start()
        until(tree.began(3))
        filler = tree.results / "filler"
        with (
            pytest.raises(OSError, match="No space left"),
            open(filler, "wb", buffering=0) as file,
        ):
            while True:
                file.write(bytes(512))
        output, _ = running.communicate(timeout=120)
        line = f"fake: error: can't write {tree.results}"
        assert running.returncode == 2 and f"\n{line}" in output
        assert "No space left on device; free space" in output
        filler.unlink()
        assert tree.run().returncode == 0 and tree.complete()
        # When the third row began, the first two were written: they are not measured
        # again.
        first, second, *others = tree.measured()
        assert {first, second}.isdisjoint(others) and len({first, second, *others}) == 6
    finally:
        tree.cluster.empty()
        subprocess.run(["umount", "--lazy", tree.results], check=True)


def test_options_come_from_the_file_and_flags_win(tmp_path):
    file = tmp_path / "pyproject.toml"
    table = "[tool.regen_tables.slurm]\n"
    assert read_options({}, file) == Options()
    file.write_text(
        table + 'gpus = 1\npartition = "a"\ntime = 30\nsetup = ["module load x"]\n'
    )
    options = read_options({"partition": "b", "restarts": 0}, file)
    assert (options.gpus, options.partition) == ("1", "b")
    assert (options.time, options.restarts) == (30, 0)
    assert options.setup == ["module load x"]


TABLE = "[tool.regen_tables.slurm] of pyproject.toml"
BAD = {
    "colour = 1": f"{TABLE} has no option 'colour'; there are: partition, ",
    'time = "long"': f"{TABLE}: time is 'long', not int",
    "setup = 1": f"{TABLE}: setup is 1, not list",
    "time = 0": "time must be 1 or more, not 0",
    "restarts = -1": "restarts must be 0 or more, not -1",
    "poll =": "pyproject.toml is not TOML: ",
    "setup = [1]": f"{TABLE}: setup is [1], not lines of text",
}


@pytest.mark.parametrize("text", BAD)
def test_a_wrong_option_is_one_line(tmp_path, text):
    file = tmp_path / "pyproject.toml"
    file.write_text(f"[tool.regen_tables.slurm]\n{text}\n")
    with pytest.raises(SlurmError) as refused:
        read_options({}, file)
    assert str(refused.value).startswith(BAD[text])


@pytest.mark.parametrize(
    "content, message",
    [
        (b"[tool.regen_tables]\nslurm = 3", f"{TABLE} is 3, not a table"),
        (b"\xff", "pyproject.toml is not TOML: "),
    ],
)
def test_a_file_that_is_no_table_of_options_is_one_line(tmp_path, content, message):
    (tmp_path / "pyproject.toml").write_bytes(content)
    with pytest.raises(SlurmError, match=re.escape(message)):
        read_options({}, tmp_path / "pyproject.toml")


def test_a_controller_that_answers_garbage_is_one_line(monkeypatch):
    monkeypatch.setattr(controller, "run", lambda *_: "who are you?\nno")
    with pytest.raises(SlurmError, match="is no list of jobs: who are you"):
        controller.states()


def test_what_lies_in_the_results_folder_is_never_unpickled(tmp_path, monkeypatch):
    """Others may write there. The files of jobs lie in a folder of the user's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "results").mkdir()
    folder = jobs.private_folder(tmp_path / "results")
    assert folder.is_relative_to(tmp_path / "state")
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder, folder.parent))
    assert jobs.private_folder(tmp_path / "others") != folder
    assert jobs.private_folder(tmp_path / "results") == folder


@pytest.mark.parametrize("which", ["folder", "parent"])
@pytest.mark.parametrize("change", ["mode", "owner", "link"])
def test_a_folder_of_jobs_that_others_could_change_is_refused(
    tmp_path, monkeypatch, which, change
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = jobs.private_folder(tmp_path)
    path = made if which == "folder" else made.parent
    match change:
        case "mode":
            path.chmod(0o770)
        case "owner":
            uid = os.getuid() + 1
            monkeypatch.setattr(jobs.os, "getuid", lambda: uid)
        case "link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SlurmError, match=r"others could replace: .*chmod 700"):
        jobs.private_folder(tmp_path)


@pytest.fixture
def ended(monkeypatch, tmp_path):
    """What is made of a job that ended so, and the commands that Slurm was given."""
    commands = []
    monkeypatch.setattr(
        controller, "run", lambda *command: commands.append(command) or ""
    )
    job = jobs.Job("fake", "7", tmp_path / "fake-full.job")
    job.log.parent.mkdir()
    job.log.touch()
    return lambda state, final=True: (
        jobs.outcome_of(job, state, Options(restarts=2), final),
        commands,
    )


@pytest.mark.skipif("submitit" in MISSING, reason="without submitit")
@pytest.mark.parametrize("name", ["PREEMPTED", "TIMEOUT", "NODE_FAIL"])
def test_a_job_that_slurm_does_not_queue_again_is_queued_by_the_command(ended, name):
    assert ended(State(name), final=False) == (None, [])
    assert ended(State(name, restarts=1)) == (None, [("scontrol", "requeue", "7")])
    outcome, commands = ended(State(name, "why", restarts=2))
    assert outcome.code == 1 and len(commands) == 1
    assert outcome.message.startswith(f"{name} (why), restarted 2 times; see ")


@pytest.mark.skipif("submitit" in MISSING, reason="without submitit")
def test_a_job_that_ended_without_an_outcome_is_not_waited_for(ended):
    assert ended(State("RUNNING"))[0] is None
    outcome, _ = ended(State("FAILED", "NonZeroExitCode"))
    assert outcome.message.startswith("FAILED (NonZeroExitCode); see ")
    outcome, _ = ended(State())
    forgotten = "ended, and the controller has forgotten how; see "
    assert outcome.message.startswith(forgotten)


def test_where_there_is_no_slurm_it_says_so(tmp_path):
    flags = ("--slurm", "--results", str(tmp_path))
    done = regen_tables(ROOT, *flags, PATH="/nowhere")
    assert done.returncode == 2 and done.stderr.startswith("error: --slurm needs s")
    assert done.stderr.count("\n") == 1
