"""What Slurm's own commands say: the states of jobs, by `squeue` alone.

A cluster without accounting has no `sacct`, so nothing here asks it.
"""

import subprocess
from dataclasses import dataclass

from tools.slurm.options import SlurmError

# A job ended so through no fault of its own. Where Slurm doesn't queue it again, we do.
LOST = {"BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "TIMEOUT"}
# All states of a job that has ended. The controller has forgotten one without a name.
ENDED = {
    *LOST,
    "",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "OUT_OF_MEMORY",
    "REVOKED",
}


@dataclass(frozen=True)
class State:
    """What squeue says of a job; all empty where it does not know the job any more."""

    name: str = ""
    reason: str = ""
    restarts: int = 0
    node: str = ""

    def __str__(self) -> str:
        where = self.node if self.name == "RUNNING" else self.reason
        again = f", restarted {self.restarts} times" if self.restarts else ""
        return self.name + (f" ({where})" if where not in ("", "None") else "") + again


def run(*command: str) -> str:
    """What a command of Slurm prints. Raises SlurmError with its last line where it
    fails.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} got no answer for a minute") from None
    if done.returncode:
        fallback = f"{command[0]} ended with exit code {done.returncode}"
        raise SlurmError(reason_in(done.stderr) or fallback)
    return done.stdout


def reason_in(stderr: str) -> str:
    """The last line of a command's complaint, without the command's name."""
    return (stderr.strip().splitlines() or [""])[-1].split("error: ")[-1]


def states() -> dict[str, State]:
    """The state of every job of this user that the controller remembers, by its id."""
    columns = "JobID:|,State:|,Reason:60|,RestartCnt:|,NodeList:60|"
    lines = run("squeue", "--noheader", "--me", "--states=all", "-O", columns)
    cells = [[cell.strip() for cell in line.split("|")] for line in lines.splitlines()]
    try:
        return {
            job: State(name, reason, int(restarts), node)
            for job, name, reason, restarts, node, *_ in cells
        }
    except ValueError:
        first = lines.splitlines()[0][:60]
        raise SlurmError(f"squeue answered what is no list of jobs: {first}") from None
