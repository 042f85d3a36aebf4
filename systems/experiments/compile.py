"""The whole model through `torch.compile`: each phase of a training step, eager and
compiled, and what compiling costs.

`compiled` compiles the model; the loss and AdamW stay as they are. `compiled_optimizer`
compiles AdamW's step as well.

    python -m systems.experiments.compile --precision bf16 --execution compiled
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from torch._dynamo.exc import TorchDynamoException

from systems.benchmarking import compiling, timing
from systems.benchmarking.workload import Workload
from systems.model.sizes import SIZES, TABLE_1, VOCAB_SIZE
from systems.profiling import probes
from systems.records.outcome import Unsupported, out_of_memory_reason
from systems.running.command import main, option

PROTOCOL = {
    "clock": "wall time between two synchronisations, one pair around each phase",
    "data": "random tokens and targets, seed 0",
    "tf32": "off",
    "compiler": "torch.compile, one graph, static shapes, caches empty before each row",
}
# The steps in which each of them compiles. AdamW's first step creates its state, its
# second finds t a constant, its third finds that t changes and compiles for any t.
EXECUTIONS = {"eager": 0, "compiled": 1, "compiled_optimizer": 3}


@dataclass(frozen=True)
class Config:
    size: str = option("small", "model size of Table 1", choices=SIZES)
    precision: str = option(
        "fp32", "precision: fp32 (TF32 off) or bf16 autocast", choices=("fp32", "bf16")
    )
    execution: str = option(
        "eager", "what goes through torch.compile", choices=EXECUTIONS
    )
    context: int = option(512, "sequence length in tokens")
    batch: int = option(4, "sequences in a batch")
    vocab: int = option(VOCAB_SIZE, "vocabulary size")
    warmup: int = option(5, "steps before the clock counts, timed apart")
    steps: int = option(10, "steps that are measured")


def configs(quick: bool = False) -> list[Config]:
    """All of Table 1 in fp32 and bf16, eager and compiled; AdamW too for the smallest,
    where it takes a minute, not ten.
    """
    sizes = ("small",) if quick else tuple(TABLE_1)
    rows = [
        Config(s, p, execution)
        for s in sizes
        for p in ("fp32", "bf16")
        for execution in ("eager", "compiled")
    ]
    return rows if quick else [*rows, Config("small", "fp32", "compiled_optimizer")]


# --8<-- [start:run]
def run(config: Config) -> dict[str, Any]:
    """Samples in ms for each phase, of the warm-up steps too; peak memory in bytes;
    graphs, recompiles and kernels.
    """
    if config.warmup < EXECUTIONS[config.execution]:
        raise ValueError(
            f"--warmup must be {EXECUTIONS[config.execution]} or more, the steps that "
            "compile"
        )
    device = timing.default_device()
    c = config
    work = Workload(device, c.size, c.context, "step", c.precision, c.batch, c.vocab)
    with nullcontext() if c.execution == "eager" else compiling.fresh(device):
        if c.execution != "eager":
            work.forward = compiling.compiled(work.model)
        if config.execution == "compiled_optimizer":
            assert work.optimizer is not None
            # Not for one value of t: it would be compiled anew at each step.
            work.optimizer.step = compiling.compiled(work.optimizer.step, dynamic=None)
        try:
            metrics: dict[str, Any] = compiling.measure(
                work.step,
                warmup=config.warmup,
                repeats=config.steps,
                device=device,
                between=work.model.zero_grad,
            )
        except TorchDynamoException as error:
            if (
                config.execution != "compiled_optimizer"
                or out_of_memory_reason(error) is not None
            ):
                raise
            # A step over Python numbers is not what compilers are made for.
            said = " ".join(str(error).splitlines()[:2])
            raise Unsupported(f"AdamW's step does not compile: {said}") from error
        work.model.zero_grad()
        counted = probes.kernel_counts(work.step, device)
        return {
            **metrics,
            **{
                name: count
                for name, count in counted.items()
                if name.endswith("_kernels")
            },
        }


# --8<-- [end:run]

if __name__ == "__main__":
    main(Config, run)
