"""Measure where LayerNorm and RMSNorm lose precision: errors of their intermediate
results against float64, in three formats.

    python -m systems.experiments.norm_precision --norm layer --compute running
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from systems.benchmarking import timing
from systems.precision.dtypes import DTYPES
from systems.running.command import main, option

MAGNITUDES = tuple(10.0**exponent for exponent in range(-4, 6))
VECTORS = 64
EPS = 1e-5
PROTOCOL = {
    "inputs": f"{VECTORS} vectors, normal, mean and deviation 1, times the magnitude, "
    "seed 0, rounded to the dtype",
    "error": "norm of the difference from float64 on the same rounded inputs over the "
    "norm of float64",
    "eps": f"{EPS:g}",
}
COMPUTE = {
    "running": "each stage in the dtype, means by a running sum in the dtype",
    "library": "each stage in the dtype, means by torch.mean, which adds in fp32 "
    "inside",
    "upcast": "fp32 throughout, the output rounded to the dtype",
    "fused": "PyTorch's own layer_norm or rms_norm on the dtype",
}
STAGES = ("mean", "square", "variance", "eps", "rsqrt", "output")


@dataclass(frozen=True)
class Config:
    norm: str = option("layer", "norm", choices=("layer", "rms"))
    dtype: str = option("bf16", "dtype of the input and output", choices=DTYPES)
    width: int = option(4096, "elements of a vector")
    compute: str = option("library", "where the stages are computed", choices=COMPUTE)


def configs(quick: bool = False) -> list[Config]:
    if quick:
        return [
            Config(norm, dtype, 64, "running")
            for norm in ("layer", "rms")
            for dtype in ("fp16", "bf16")
        ]
    return [
        Config(norm, dtype, width, compute)
        for norm in ("layer", "rms")
        for dtype in DTYPES
        for width in (64, 256, 1024, 4096, 16384)
        for compute in COMPUTE
        if (dtype, compute) != ("fp32", "upcast")
    ]


# --8<-- [start:stages]
def stages(x: Float[Tensor, "m v d"], norm: str, running: bool) -> dict[str, Tensor]:
    """Return {stage: tensor} of norm "layer" or "rms", each rounded to the dtype of x.
    Means are `running_mean` if `running`, else `torch.mean`.
    """
    average = running_mean if running else torch.mean
    values = {}
    if norm == "layer":
        values["mean"] = average(x, dim=-1, keepdim=True)
        x = x - values["mean"]
    values["square"] = x * x
    values["variance"] = average(values["square"], dim=-1, keepdim=True)
    values["eps"] = values["variance"] + EPS
    values["rsqrt"] = torch.rsqrt(values["eps"])
    values["output"] = x * values["rsqrt"]
    return values
    # --8<-- [end:stages]


# --8<-- [start:running]
def running_mean(
    x: Float[Tensor, "m v d"], dim: int, keepdim: bool
) -> Float[Tensor, "m v 1"]:
    """Return the mean over `dim` (kept), with each addition rounded to x's dtype."""
    total, *terms = x.split(1, dim)
    total = total.clone()
    for term in terms:
        total += term
    return total / x.shape[dim]
    # --8<-- [end:running]


def apply_norm(x: Float[Tensor, "m v d"], config: Config) -> dict[str, Tensor]:
    """Return {stage: result} of config.norm; if `compute` is "fused", only "output"."""
    if config.compute == "fused":
        fused = functional.layer_norm if config.norm == "layer" else functional.rms_norm
        return {"output": fused(x, x.shape[-1:], eps=EPS)}
    if config.compute == "upcast":
        values = stages(x.float(), config.norm, running=False)
        return values | {"output": values["output"].to(x.dtype)}
    return stages(x, config.norm, running=config.compute == "running")


# --8<-- [start:run]
def run(config: Config) -> dict[str, list[float | None]]:
    """Return for each intermediate result, by magnitude of the input: relative error
    (None if not finite), and shares of elements that are not finite or wrongly zero.
    """
    device = timing.default_device()
    z = 1 + torch.randn(
        VECTORS,
        config.width,
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
    )
    magnitudes = torch.tensor(MAGNITUDES, dtype=torch.float64)[:, None, None]
    x = (magnitudes * z).to(device=device, dtype=DTYPES[config.dtype])
    exact, parts = stages(x.double(), config.norm, running=False), apply_norm(x, config)
    stats: dict[str, list[float | None]] = {"input_nonfinite": shares(~x.isfinite())}
    for stage, value in parts.items():
        difference = (value.double() - exact[stage]).norm(dim=(1, 2)) / exact[
            stage
        ].norm(dim=(1, 2))
        stats[f"{stage}_error"] = [
            round_digits(e) if e < math.inf else None for e in difference.tolist()
        ]
        stats[f"{stage}_nonfinite"] = shares(~value.isfinite())
        stats[f"{stage}_zero"] = shares((value == 0) & (exact[stage] != 0))
    return stats
    # --8<-- [end:run]


def shares(true: Tensor) -> list[float | None]:
    """Return the share of True by magnitude, the first dimension of `true`."""
    return [round_digits(value) for value in true.double().mean(dim=(1, 2)).tolist()]


def round_digits(value: float) -> float:
    """Round to four significant digits, enough to compare errors."""
    return float(f"{value:.4g}")


if __name__ == "__main__":
    main(Config, run)
