"""Table of experiments by "stem", the name that their module and record share."""

import sys
from dataclasses import dataclass
from typing import Any

from systems import require

GPU, GPU_OR_CPU, META = ("cuda",), ("cuda", "cpu"), ("meta",)


@dataclass(frozen=True)
class Stem:
    """An experiment: its module, and the devices ("cuda", "cpu", or "meta" for tensors
    without data) that run its full grid and its quick grid, `configs(quick=True)`.

    `precompiled` lists the implementations or executions that parallel processes of
    `cores_per_process` cores compile before measuring. `needs` lists required modules.
    """

    module: str
    full: tuple[str, ...] = GPU
    quick: tuple[str, ...] = GPU_OR_CPU
    precompiled: tuple[str, ...] = ()
    cores_per_process: int = 1
    needs: tuple[str, ...] = ()


PEERS = ("ours", "ours_triton", "ours_high", "flex", "fa4", "fa4_ordered")
OPTIONS: dict[str, dict[str, Any]] = {
    "model_sizes": {"full": META, "quick": META},
    "end_to_end": {},
    "warmup": {},
    "accumulation": {},
    "autocast": {},
    "norm_precision": {},
    "mixed_precision": {},
    "peak_memory": {"quick": GPU},
    "saved_tensors": {"full": META, "quick": META},
    "gradient_checkpointing": {},
    "attention": {},
    "compile": {"quick": GPU, "precompiled": ("compiled",), "cores_per_process": 3},
    "kernel_profile": {"quick": GPU},
    "weighted_sum": {"needs": ("triton",)},
    "nsys": {"quick": GPU},
    "flash_accuracy": {
        "precompiled": ("triton", "hopper", "torch"),
        "needs": ("triton",),
    },
    "flash_benchmarking": {"precompiled": ("ours",), "needs": ("triton",)},
    "flash_peers": {"quick": GPU, "precompiled": PEERS, "needs": ("triton",)},
    "flash_leaderboard": {"needs": ("triton",)},
    "model_attention": {"needs": ("triton",)},
    "flash_ablation": {"needs": ("triton",)},
    "method": {"quick": GPU},
}
STEMS = {
    name: Stem(f"systems.experiments.{name}", **options)
    for name, options in OPTIONS.items()
}


if sys.argv[:1] == ["-m"]:
    # Before `python -m systems.experiments.<stem>` runs, check its required modules.
    named = (stem for stem in STEMS.values() if stem.module in sys.orig_argv)
    require("torch", *(module for stem in named for module in stem.needs))
