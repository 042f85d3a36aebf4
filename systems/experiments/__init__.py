"""All experiments by stem: the name shared by module, record, fragments and page.
Imports nothing heavy.
"""

import sys
from dataclasses import dataclass
from types import TracebackType

from systems import need


@dataclass(frozen=True)
class Stem:
    """An experiment's module, and the devices of its full and quick grids: "cuda",
    "cpu", or "meta" (tensors without data).

    On a GPU, rows of the implementations or executions in `rehearsed` are compiled
    ahead in parallel, by processes of `cores_of_each` cores. `needs` lists modules that
    the import requires besides torch.
    """

    module: str
    full: tuple[str, ...]
    quick: tuple[str, ...]
    rehearsed: tuple[str, ...] = ()
    cores_of_each: int = 1
    needs: tuple[str, ...] = ()


STEMS = {
    "model_sizes": Stem(
        "systems.experiments.model_sizes", full=("meta",), quick=("meta",)
    ),
    "end_to_end": Stem(
        "systems.experiments.end_to_end",
        full=("cuda",),
        quick=("cuda", "cpu"),
    ),
    "warmup": Stem(
        "systems.experiments.warmup",
        full=("cuda",),
        quick=("cuda", "cpu"),
    ),
    "accumulation": Stem(
        "systems.experiments.accumulation", full=("cuda",), quick=("cuda", "cpu")
    ),
    "autocast": Stem(
        "systems.experiments.autocast", full=("cuda",), quick=("cuda", "cpu")
    ),
    "norm_precision": Stem(
        "systems.experiments.norm_precision", full=("cuda",), quick=("cuda", "cpu")
    ),
    "mixed_precision": Stem(
        "systems.experiments.mixed_precision", full=("cuda",), quick=("cuda", "cpu")
    ),
    "peak_memory": Stem(
        "systems.experiments.peak_memory", full=("cuda",), quick=("cuda",)
    ),
    "saved_tensors": Stem(
        "systems.experiments.saved_tensors", full=("meta",), quick=("meta",)
    ),
    "gradient_checkpointing": Stem(
        "systems.experiments.gradient_checkpointing",
        full=("cuda",),
        quick=("cuda", "cpu"),
    ),
    "attention": Stem(
        "systems.experiments.attention", full=("cuda",), quick=("cuda", "cpu")
    ),
    "compile": Stem(
        "systems.experiments.compile",
        full=("cuda",),
        quick=("cuda",),
        rehearsed=("compiled",),
        cores_of_each=3,
    ),
    "kernel_profile": Stem(
        "systems.experiments.kernel_profile", full=("cuda",), quick=("cuda",)
    ),
    "weighted_sum": Stem(
        "systems.experiments.weighted_sum",
        full=("cuda",),
        quick=("cuda", "cpu"),
        needs=("triton",),
    ),
    "nsys": Stem("systems.experiments.nsys", full=("cuda",), quick=("cuda",)),
    "flash_accuracy": Stem(
        "systems.experiments.flash_accuracy",
        full=("cuda",),
        quick=("cuda", "cpu"),
        rehearsed=("triton", "hopper", "torch"),
        needs=("triton",),
    ),
    "flash_benchmarking": Stem(
        "systems.experiments.flash_benchmarking",
        full=("cuda",),
        quick=("cuda", "cpu"),
        rehearsed=("ours",),
        needs=("triton",),
    ),
    "flash_peers": Stem(
        "systems.experiments.flash_peers",
        full=("cuda",),
        quick=("cuda",),
        rehearsed=("ours", "ours_triton", "ours_high", "flex", "fa4", "fa4_ordered"),
        needs=("triton",),
    ),
    "flash_leaderboard": Stem(
        "systems.experiments.flash_leaderboard",
        full=("cuda",),
        quick=("cuda", "cpu"),
        needs=("triton",),
    ),
    "model_attention": Stem(
        "systems.experiments.model_attention",
        full=("cuda",),
        quick=("cuda", "cpu"),
        needs=("triton",),
    ),
    "flash_ablation": Stem(
        "systems.experiments.flash_ablation",
        full=("cuda",),
        quick=("cuda", "cpu"),
        needs=("triton",),
    ),
    "method": Stem("systems.experiments.method", full=("cuda",), quick=("cuda",)),
}


def without_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print only "Aborted!" after Ctrl-C, also during the import of torch."""
    if issubclass(kind, KeyboardInterrupt):
        print("Aborted!", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if sys.argv[:1] == ["-m"]:
    # Python is about to run an experiment: `python -m systems.experiments.<stem>`.
    sys.excepthook = without_traceback
    named = (stem for stem in STEMS.values() if stem.module in sys.orig_argv)
    need("torch", *(module for stem in named for module in stem.needs))
