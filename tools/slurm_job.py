"""What a job of `regen_tables.py --slurm` runs on its node: one stem, as the command measures it on a GPU of its own.

Slurm warns a job before its time limit and before a preemption. The job then ends by an exit code at which its batch
script queues it again, and the next start goes on from the last row. On another model of GPU that is another record.
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
from systems.experiments.measure import device_for
from tools.regen_tables import Outcome, measure_one

# How a job asks to be queued again; and what srun makes of a process, a container's say, that the warning killed.
AGAIN, WARNED = 75, 128 + signal.SIGUSR2


class Interrupted(BaseException):
    """Slurm's warning."""


@dataclass(frozen=True)
class Task:
    """One stem to measure. `minutes` is --time-limit, of each start; `restarts` how often it may start again."""

    stem: str
    results: Path
    quick: bool
    force: bool
    minutes: float
    restarts: int

    def __call__(self) -> Outcome:
        # Cancelled, or the node was lost: end with no outcome, since Slurm may start this job again.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR2, self._interrupt)
        restarted = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        try:
            if restarted > self.restarts:
                raise Interrupted
            if device_for(STEMS[self.stem].quick if self.quick else STEMS[self.stem].full) is None:
                node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
                return Outcome(self.stem, f"error: no GPU on {node}: ask for one with --gpus 1 or --gres gpu:1", 2)
            deadline = time.time() + self.minutes * 60 if self.minutes else 1e18
            return measure_one(self.stem, self.results, self.quick, self.force, deadline, restarted=restarted > 0)
        except Interrupted:
            if restarted < self.restarts:
                sys.exit(AGAIN)
            return Outcome(self.stem, f"interrupted after {restarted} restarts; run again to go on", 1)

    def _interrupt(self, *_: Any) -> None:
        raise Interrupted
