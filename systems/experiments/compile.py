"""Time each phase of a training step when the model runs eagerly, under `torch.compile`
(with the cost of compiling), and as CUDA graphs.

The executions of a configuration share one model and alternate. GPU time is measured
afterwards. `--optimizer` compiles AdamW's step too.

    python -m systems.experiments.compile --precision bf16 --execution compiled
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from typing import Any
from weakref import WeakValueDictionary

from torch._dynamo.exc import TorchDynamoException

from systems.benchmarking import compiling, gpu_time, graphs, timing
from systems.benchmarking.workload import Workload
from systems.formulas.memory_costs import Pass
from systems.formulas.memory_peak import bytes_at_peak
from systems.model.sizes import SIZES, TABLE_1, VOCAB_SIZE
from systems.records.outcome import AlternatingRun, Unsupported, out_of_memory_reason
from systems.running import precompile as precompiled
from systems.running.command import main, option

IN_TURNS = "execution"
PROTOCOL = gpu_time.STEP_CLOCKS | {
    "data": "random tokens and targets, seed 0",
    "tf32": "off",
    "order": "the executions of a cell in turn, one model for all; the first step of a "
    "later turn is not counted",
    "compiler": "torch.compile, one graph, static shapes, caches empty before each "
    "cell; compiling is timed ahead, in parallel processes of 3 cores, as GPU memory "
    "allows; rows without `again_` times compile alone, when measured",
    "graph": "a CUDA graph of each phase of the eager step, captured in each turn",
}
EXECUTIONS = {
    "eager": "as written, kernel by kernel",
    "graph": "as written, each phase launched in one call, as a CUDA graph",
    "compiled": "through torch.compile",
}
# Number of steps that compile, by `optimizer`. The model compiles in its first step,
# AdamW in its first three: without state, for a constant step number t, and for any t.
COMPILE_STEPS = {False: 1, True: 3}
# Model sizes that may be launch-bound. CUDA graphs don't speed up larger sizes.
GRAPHS = {"fp32": ("small", "medium"), "bf16": tuple(TABLE_1)}


@dataclass(frozen=True)
class Config:
    size: str = option("small", "model size of Table 1", choices=SIZES)
    precision: str = option(
        "fp32", "precision: fp32 (TF32 off) or bf16 autocast", choices=("fp32", "bf16")
    )
    execution: str = option("eager", "how the model runs", choices=EXECUTIONS)
    optimizer: bool = option(False, "compile AdamW's step too, where the model is")
    context: int = option(512, "sequence length in tokens")
    batch: int = option(4, "sequences in a batch")
    vocab: int = option(VOCAB_SIZE, "vocabulary size")
    warmup: int = option(5, "steps before the clock counts, timed apart")
    # By default a turn has three steps, so one outlier hardly changes its median.
    steps: int = option(15, "steps that are measured")
    rounds: int = option(5, "turns that these steps are shared out among")


def configs(quick: bool = False) -> list[Config]:
    """Return configurations: sizes of Table 1 in fp32 and bf16, eager, compiled, and as
    CUDA graphs if launch-bound. AdamW is compiled for the smallest size only.
    """
    if quick:
        rows = [(p, execution) for p in GRAPHS for execution in ("eager", "compiled")]
        return [Config("small", *row, steps=2, rounds=2) for row in rows]
    rows = [
        Config(size, precision, execution)
        for size in TABLE_1
        for precision in GRAPHS
        for execution in EXECUTIONS
        if execution != "graph" or size in GRAPHS[precision]
    ]
    # Run the compiled row first: the shared AdamW creates its state in the first step.
    adamw = [
        Config("small", "fp32", execution, optimizer=True)
        for execution in ("compiled", "eager")
    ]
    return rows + adamw


# --8<-- [start:run]
def run(config: Config) -> AlternatingRun:
    """Return times in ms of phases and of warm-up steps, peak bytes, GPU times, and
    numbers of graphs, recompiles and kernels. Each turn (up to a `yield`) runs some of
    the steps. Raise ValueError for too few warm-up steps.
    """
    c, device, metrics = config, timing.default_device(), {}
    least, compiles = COMPILE_STEPS[c.optimizer], c.execution == "compiled"
    if compiles and c.warmup < least:
        raise ValueError(f"--warmup must be {least} or more, the steps that compile")
    work, folder = shared_workload(c, device), precompiled.code_folder(*astuple(c))
    cold = precompiled.read_samples(folder)
    caches = compiling.fresh_caches(device, folder if cold else None)
    with caches if compiles else nullcontext():
        execution = Execution(work, compiles, compiles and c.optimizer)
        ends = [c.steps * i // c.rounds for i in range(c.rounds + 1)]
        for steps in (end - start for start, end in pairwise(ends) if end > start):
            warmup = 1 if metrics else c.warmup
            with execution.running():
                times = measure(work, c.execution, warmup, steps, device)
            metrics = merge_turns(metrics, times)
            timing.empty_cache(device)
            yield
        if cold:
            # These warm-up steps found compiled code in caches, as in a second process.
            again = {n.replace("warmup_", "again_"): of for n, of in metrics.items()}
            metrics = again | cold
        if c.execution != "graph":
            clear = work.model.zero_grad
            with execution.running():
                times = gpu_time.measure(work.step, device, between=clear, counted=True)
            clear()
            metrics |= {n: of for n, of in times.items() if not n.endswith("_fused")}
    return metrics


def measure(
    work: Workload, execution: str, warmup: int, steps: int, device: str
) -> dict[str, Any]:
    """Return the metrics of `compiling.measure`; for a CUDA graph only times in ms."""
    if execution == "graph":
        capture = graphs.capture(work.step, work.model.zero_grad, device)
        with capture as replay:
            metrics = timing.measure(replay, warmup=1, repeats=steps, device=device)
        # Drop peak memory: the allocator doesn't see the memory of a replayed graph.
        return {n: samples for n, samples in metrics.items() if n.endswith("_ms")}
    clear = work.model.zero_grad
    return compiling.measure(
        work.step, warmup=warmup, repeats=steps, device=device, between=clear
    )
    # --8<-- [end:run]


def merge_turns(metrics: dict[str, Any], turn: dict[str, Any]) -> dict[str, Any]:
    """Merge `turn`, the metrics of the next steps, into a copy of `metrics`: append
    samples, except of warm-up steps, keep the larger peaks, count graphs as recompiles.
    """
    if not metrics:
        return turn
    total = dict(metrics)
    for name, value in turn.items():
        if name.startswith("warmup_"):
            continue
        if isinstance(value, list):
            total[name] = metrics[name] + value
        elif name in ("graphs", "recompiles"):
            total["recompiles"] += value
        else:
            total[name] = max(metrics[name], value)
    return total


# One model for all executions of a configuration --------------------------------------

WORKLOADS: WeakValueDictionary[Config, Workload] = WeakValueDictionary()


def shared_workload(config: Config, device: str) -> Workload:
    """Return the workload that configurations share if only `execution` differs."""
    cell = replace(config, execution="eager")
    work = WORKLOADS.get(cell)
    if work is None:
        c = config
        settings = c.size, c.context, "step", c.precision, c.batch, c.vocab
        work = WORKLOADS[cell] = Workload(device, *settings)
    return work


class Execution:
    """A way to run a workload; `model` and `optimizer` say which parts are compiled."""

    def __init__(self, work: Workload, model: bool, optimizer: bool):
        self.work = work
        self.forward = compiling.compile_work(work.model) if model else work.model
        self.update = None
        if optimizer:
            assert work.optimizer is not None
            # Static compilation would recompile when AdamW's step number t changes.
            self.update = compiling.compile_work(work.optimizer.step, dynamic=None)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the context with this execution; Unsupported if AdamW can't compile."""
        work = self.work
        work.forward = self.forward
        if self.update:
            vars(work.optimizer)["step"] = self.update
        try:
            yield
        except TorchDynamoException as error:
            if not self.update or out_of_memory_reason(error) is not None:
                raise
            # AdamW's step uses Python numbers, which some torch versions can't compile.
            message = " ".join(str(error).splitlines()[:2])
            raise Unsupported(f"AdamW's step does not compile: {message}") from error
        finally:
            work.forward = work.model
            if self.update:
                del vars(work.optimizer)["step"]


# Compiled ahead -----------------------------------------------------------------------


# Upper bound of memory besides tensors: CUDA's context and loaded kernels.
CONTEXT_BYTES = 2**30


def precompile_bytes(config: Config) -> int:
    """Return the GPU memory in bytes that `precompile` needs: CUDA context and peak."""
    c, mode = config, "step" if config.optimizer else "forward_backward"
    p = Pass(c.size, c.context, mode, c.precision, batch=c.batch, vocab=c.vocab)
    return CONTEXT_BYTES + sum(bytes_at_peak(p).values())


# --8<-- [start:ahead]
def precompile(config: Config) -> None:
    """Compile this configuration from empty caches; store the code and the step times
    for `run`. AdamW runs only with --optimizer, to save the memory of its state.
    """
    c, device = config, timing.default_device()
    folder = precompiled.code_folder(*astuple(c))
    assert folder is not None
    mode = "step" if c.optimizer else "forward_backward"
    work = Workload(device, c.size, c.context, mode, c.precision, c.batch, c.vocab)
    with compiling.fresh_caches(device, folder):
        with Execution(work, True, c.optimizer).running():
            samples = measure(work, "compiled", COMPILE_STEPS[c.optimizer], 0, device)
        precompiled.store_samples(folder, samples)
    # --8<-- [end:ahead]


if __name__ == "__main__":
    main(Config, run)
