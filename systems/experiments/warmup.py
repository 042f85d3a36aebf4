"""Measure the cost of a process's first steps: the time of forward and backward passes
after 0, 1, 2 or 5 warm-up steps, each five times in a new process.

    python -m systems.experiments.warmup --warmup 0
"""

from dataclasses import dataclass

from systems.benchmarking import timing
from systems.benchmarking.workload import Workload
from systems.model.sizes import SIZES
from systems.running.command import main, option

FRESH_PROCESS = True
PROCESSES = 5
PROTOCOL = {
    "clock": "wall time between two synchronisations, one pair around each phase",
    "process": "a new one for each row, five for each number of warm-up steps, in turn",
    "tf32": "off",
}


@dataclass(frozen=True)
class Config:
    warmup: int = option(0, "steps before the clock counts")
    steps: int = option(10, "steps that are measured")
    size: str = option("small", "model size of Table 1", choices=SIZES)
    context: int = option(128, "sequence length in tokens")
    batch: int = option(4, "sequences in a batch")
    process: int = option(1, "number of the process, which changes nothing")


def configs(quick: bool = False) -> list[Config]:
    if quick:
        return [Config(warmup, steps=1, context=32, batch=1) for warmup in (0, 1)]
    return [
        Config(warmup, process=process)
        for process in range(1, PROCESSES + 1)
        for warmup in (0, 1, 2, 5)
    ]


# --8<-- [start:run]
def run(config: Config) -> dict[str, list[float] | int]:
    """Return ms to create the model and ms of each phase; on a GPU also peak bytes."""
    device = timing.default_device()
    setup = timing.Clock(device)
    with setup.phase("setup"):
        work = Workload(
            *(device, config.size, config.context, "forward_backward", "fp32"),
            batch=config.batch,
        )
    samples = timing.measure(
        work.step,
        warmup=config.warmup,
        repeats=config.steps,
        device=device,
        between=work.model.zero_grad,
    )
    return {**setup.samples_ms, **samples}
    # --8<-- [end:run]


if __name__ == "__main__":
    main(Config, run)
