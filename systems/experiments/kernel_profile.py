"""Profile the kernels of each phase of a forward pass or training step, and the GPU's
idle time between kernels, by torch.profiler or Nsight Systems.

    python -m systems.experiments.kernel_profile --mode step --profiler nsys
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from systems import ROOT
from systems.benchmarking import phases, timing
from systems.benchmarking.workload import Workload
from systems.model.sizes import SIZES, TABLE_1, VOCAB_SIZE
from systems.model.train_step import Phase
from systems.model.transformer import TransformerBlock
from systems.profiling import nsys, torch_trace
from systems.profiling.annotated_attention import causal_attention
from systems.profiling.digest import gpu_metrics
from systems.profiling.marks import LAYER, PARTS, STEP
from systems.profiling.trace import Kernel
from systems.running.command import config_options, main, option

PROTOCOL = {
    "kernels": "per pass, after warm-up; a kernel's phase is the one that launched it",
    "data": "random tokens and targets, seed 0",
    "tf32": "off",
}
MODES = ("forward", "step")
PROFILERS = {
    "torch": "torch.profiler",
    "nsys": "Nsight Systems",
    "capture": "none: this process only starts and stops the capture of nsys",
}
MARKS = (STEP, *phases.PHASES, LAYER, *PARTS)
# The contexts from which a step exceeds 40 GiB, which not every GPU has.
OVER_40_GIB = {"large": 1024, "xl": 512, "2.7B": 128}
# Folder of traces, which are not committed: they are large and name the machine.
TRACES = ROOT / "traces"


@dataclass(frozen=True)
class Config:
    size: str = option("small", "model size of Table 1", choices=SIZES)
    context: int = option(128, "sequence length in tokens")
    mode: str = option("step", "what to profile", choices=MODES)
    precision: str = option(
        "fp32", "precision: fp32 (TF32 off) or bf16 autocast", choices=("fp32", "bf16")
    )
    profiler: str = option("torch", "profiler", choices=PROFILERS)
    keep_traces: bool = option(
        False, "keep the trace of torch.profiler, for ui.perfetto.dev"
    )
    batch: int = option(4, "sequences in a batch")
    vocab: int = option(VOCAB_SIZE, "vocabulary size")
    warmup: int = option(5, "passes before the profiler starts")
    passes: int = option(3, "passes that are profiled")


def configs(quick: bool = False) -> list[Config]:
    """Return all steps; forward passes in fp32 at 512 and where steps exceed 40 GiB."""
    if quick:
        return [Config("small", 128, m, batch=1, warmup=1, passes=2) for m in MODES]
    cells = [*product(("fp32", "bf16"), TABLE_1, (128, 256, 512, 1024))]
    return [
        # Kernel times of passes hardly differ, so few are enough.
        Config(size, context, mode, precision, warmup=2, passes=2)
        for mode in reversed(MODES)
        for precision, size, context in cells
        if mode == "step"
        or (context, precision) == (512, "fp32")
        or context >= OVER_40_GIB.get(size, 2048)
    ]


# --8<-- [start:run]
def run(config: Config) -> dict[str, Any]:
    """Return wall-clock ms, GPU ms and kernels of passes. Raise ValueError on a CPU."""
    device = require_gpu()
    metrics: dict[str, Any] = {"profiler": config.profiler, "passes": config.passes}
    if config.profiler == "nsys":
        # Free memory for the process that nsys starts.
        timing.empty_cache(device)
        times, kernels, metrics["report"] = profile_with_nsys(config)
    else:
        run_passes = make_pass_runner(config, device)
        run_passes(config.warmup)
        passes = partial(run_passes, config.passes)
        if config.profiler == "capture":
            return metrics | run_capture(passes)
        path = trace_path(config, ".json.gz") if config.keep_traces else None
        times, kernels = torch_trace.profile_kernels(passes, device, MARKS, path)
    metrics |= {f"profiled_{name}": samples for name, samples in times.items()}
    return metrics | measure_marks(device) | gpu_metrics(kernels, config.passes)
    # --8<-- [end:run]


def make_pass_runner(c: Config, device: str) -> Callable[[int], dict[str, list[float]]]:
    """Return f(n), which runs n passes in profiler ranges and returns ms by phase."""
    work = Workload(device, c.size, c.context, c.mode, c.precision, c.batch, c.vocab)
    mark_layers(work.model)

    def marked_step(phase: Phase) -> None:
        with phases.mark(STEP):
            work.step(phase)

    def run_passes(passes: int) -> dict[str, list[float]]:
        return select_samples(
            timing.measure(
                marked_step,
                warmup=0,
                repeats=passes,
                device=device,
                between=work.model.zero_grad,
            )
        )

    return run_passes


def select_samples(metrics: dict[str, list[float] | int]) -> dict[str, list[float]]:
    """Return the samples in ms among the metrics of `timing.measure`."""
    return {name: x for name, x in metrics.items() if isinstance(x, list)}


def require_gpu() -> str:
    if timing.default_device() != "cuda":
        raise ValueError("kernels run on a GPU, and torch sees none here")
    return "cuda"


def mark_layers(model: nn.Module) -> None:
    """Put profiler ranges around each layer and around parts of its attention."""
    for layer in model.modules():
        if isinstance(layer, TransformerBlock):
            layer.attn.attention = causal_attention
            layer.__class__ = MarkedBlock


class MarkedBlock(TransformerBlock):
    """A Transformer block with a profiler range around its forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        with phases.mark(LAYER):
            return super().forward(x)


def measure_marks(device: str) -> dict[str, list[float]]:
    """Time a thousand empty profiler ranges five times, without a profiler, in ms."""

    def run_marks(phase: Phase) -> None:
        with phase("thousand_marks"):
            for _ in range(1000):
                with phases.mark(LAYER):
                    pass

    return select_samples(timing.measure(run_marks, warmup=1, repeats=5, device=device))


def run_capture(passes: Callable[[], dict[str, list[float]]]) -> dict[str, list[float]]:
    """Run `passes` while nsys records, and return their samples in ms by phase."""
    torch.cuda.profiler.start()
    try:
        return passes()
    finally:
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def trace_path(config: Config, suffix: str) -> Path:
    """Return a trace's path; "_" replaces the dot of "2.7B", where nsys cuts names."""
    c, size = config, config.size.replace(".", "_")
    cell = f"{size}-{c.context}-batch{c.batch}-{c.mode}-{c.precision}"
    return TRACES / f"kernel_profile-{cell}{suffix}"


def profile_with_nsys(c: Config) -> tuple[dict[str, list[float]], list[Kernel], str]:
    """Run the pass under nsys. Return wall-clock times in ms by phase, the kernels, and
    the report's path. Raise NsysError, TraceError, or the process's OutOfMemoryError.
    """
    report = trace_path(c, nsys.REPORT)
    options = config_options(replace(c, profiler="capture"))
    module = "systems.experiments.kernel_profile"
    work = [sys.executable, "-m", module, *options, "--json"]
    output, export = nsys.profile(work, report, ROOT)
    # Find the row, because nsys adds lines to the output of the process.
    rows = [line for line in output.splitlines() if line.startswith('{"config"')]
    if not rows:
        raise nsys.NsysError(
            "the process that nsys started printed no row: run it by itself with "
            "--profiler capture"
        )
    row = json.loads(rows[0])
    if row["status"] == "out_of_memory":
        raise torch.OutOfMemoryError(row["reason"])
    samples = {name: x for name, x in row["metrics"].items() if name.endswith("_ms")}
    kernels = nsys.read_export(export, MARKS)
    return samples, kernels, report.relative_to(ROOT).as_posix()


if __name__ == "__main__":
    main(Config, run)
