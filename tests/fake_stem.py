"""An experiment for tests that sleeps and needs no torch."""

import os
import time
from dataclasses import dataclass

from systems.running.command import option

FRESH_PROCESS = bool(os.environ.get("FAKE_FRESH_PROCESS"))
PROTOCOL = {"clock": "none"}


@dataclass(frozen=True)
class Config:
    index: int = option(1, "number of the row")
    sleep: int = option(3, "time that it takes, in ms")


def configs(quick: bool = False) -> list[Config]:
    rows = int(os.environ.get("FAKE_ROWS", "6"))
    sleep = int(os.environ.get("FAKE_SLEEP", "3"))
    # Descending numbers, so that tests detect rows that are not in the grid's order.
    return [Config(n, sleep) for n in range(rows, 0, -1)][: 2 if quick else rows]


def run(config: Config) -> dict[str, object]:
    if log := os.environ.get("FAKE_LOG"):
        with open(log, "a") as file:
            file.write(f"{config.index} {os.getpid()}\n")
    if config.index == int(os.environ.get("FAKE_CUDA_ERROR", "0")):
        raise RuntimeError("CUDA error: an illegal memory access\nCompile with X")
    time.sleep(config.sleep / 1e3)
    times = [config.index * t for t in (1.0, 1.0, 1.5)]
    return {"work_ms": times, "count": config.index}
