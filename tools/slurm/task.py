"""What a job of `regen_tables.py --slurm` runs on its node: one stem, measured as the
command would measure it on a GPU of its own.

Slurm warns a job before its time limit and before a preemption. The job then ends with
an exit code at which its batch script queues it again, and the next start goes on from
the last row. On another model of GPU it begins that model's own record.
"""

import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from systems.experiments import STEMS
from systems.running.machine import device_for
from tools.measuring import Outcome, measure_if_stale

# The exit code by which a job asks to be queued again, and that of srun where the
# warning itself killed the process, a container's for example.
AGAIN, WARNED = 75, 128 + signal.SIGUSR2


class Interrupted(BaseException):
    """Slurm's warning."""


@dataclass(frozen=True)
class Task:
    """One stem to measure. `minutes` is the --time-limit of each start, 0 for none;
    `restarts` is how often the job may start again.
    """

    stem: str
    results: Path
    quick: bool
    force: bool
    minutes: float
    restarts: int

    def __call__(self) -> Outcome:
        # Cancelled, or the node was lost: end with no outcome, since Slurm may start
        # this job again.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR2, self._interrupt)
        restarted = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        try:
            if restarted > self.restarts:
                raise Interrupted
            return self._measure()
        except Interrupted:
            if restarted < self.restarts:
                sys.exit(AGAIN)
            message = f"interrupted after {restarted} restarts; run again to go on"
            return Outcome(self.stem, message, 1)

    def _measure(self) -> Outcome:
        stem = STEMS[self.stem]
        if device_for(stem.quick if self.quick else stem.full) is None:
            node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
            message = f"no GPU on {node}: ask for one with --gpus 1 or --gres gpu:1"
            return Outcome(self.stem, f"error: {message}", 2)
        deadline = time.time() + self.minutes * 60 if self.minutes else 1e18
        return measure_if_stale(
            self.stem, self.results, self.quick, self.force, deadline
        )

    def _interrupt(self, *_: Any) -> None:
        raise Interrupted
