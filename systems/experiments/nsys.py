"""Profile a training step with Nsight Systems and with torch.profiler, to see whether
they report the same kernels, and how much each slows the step.

    python -m systems.experiments.nsys --size small
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from systems.benchmarking.phases import PHASES
from systems.experiments import kernel_profile
from systems.model.sizes import SIZES, TABLE_1, VOCAB_SIZE
from systems.profiling import nsys
from systems.records.outcome import Unsupported
from systems.running.command import main, option

PROTOCOL = {
    "kernels": "of passes after the warm-up, per pass, under each profiler one after "
    "the other, each in a process of its own choice: nsys starts one",
    "tf32": "off",
}
INSTRUMENTS = ("torch", "nsys")


@dataclass(frozen=True)
class Config:
    size: str = option("small", "model size of Table 1", choices=SIZES)
    context: int = option(512, "sequence length in tokens")
    precision: str = option(
        "fp32", "precision: fp32 (TF32 off) or bf16 autocast", choices=("fp32", "bf16")
    )
    batch: int = option(4, "sequences in a batch")
    vocab: int = option(VOCAB_SIZE, "vocabulary size")
    warmup: int = option(5, "steps before the profiler starts")
    passes: int = option(3, "steps that are profiled")


def configs(quick: bool = False) -> list[Config]:
    """Return configurations: Table 1 at contexts 128 to 1024; `small` also in bf16."""
    if quick:
        return [Config(context=128, batch=1, warmup=1, passes=2)]
    fp32 = [Config(size, n) for size in TABLE_1 for n in (128, 256, 512, 1024)]
    # Kernel times of steps hardly differ, so two are enough.
    cells = [*fp32, Config("small", precision="bf16")]
    return [replace(cell, warmup=2, passes=2) for cell in cells]


# --8<-- [start:run]
def run(config: Config) -> dict[str, Any]:
    """Return, per profiler and phase, wall-clock samples in ms, the sum of kernel times
    in ms, and the number of kernels. Raise `Unsupported` if nsys is missing.
    """
    if not nsys.is_installed():
        raise Unsupported("no nsys on the PATH: install Nsight Systems (see nsys.md)")
    metrics: dict[str, Any] = {}
    for tool in INSTRUMENTS:
        profile = kernel_profile.Config(mode="step", profiler=tool, **asdict(config))
        result = kernel_profile.run(profile)
        for phase in PHASES:
            metrics[f"{tool}_{phase}_kernels"] = sum(
                kernel["calls"]
                for kernel in result["kernels"]
                if kernel["phase"].split("/")[0] == phase
            )
            for name in (f"profiled_{phase}", f"{phase}_gpu_busy"):
                metrics[f"{tool}_{name}_ms"] = result[f"{name}_ms"]
    return metrics
    # --8<-- [end:run]


if __name__ == "__main__":
    main(Config, run)
