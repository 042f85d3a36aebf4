"""Which software, which kernels, how fast: the same attention with each Triton that a
torch of our range brings, and which of our kernels it gets.

The rows of each Triton have a process of their own, which imports it from a folder that
holds triton-3.9.0 and the like: `build`, where `make versions` leaves them, or the one
that TRITON_FOLDER names. The one that is installed needs none.

    PYTHONPATH=build/triton-3.9.0 python -m systems.experiments.triton_versions \\
        --triton 3.9.0 --implementation ours --n 4096 --d 128
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import triton

from systems import ROOT
from systems.experiments import flash_peers
from systems.records.outcome import NotInstalled, Turns
from systems.running.command import main, option

# The rows of one version have a process in common: to import all of it takes seconds.
PROCESS_OF = "triton"
FOLDER = "TRITON_FOLDER"
# The newest that torch 2.11, 2.12 or 2.13, 2.14, and 2.15 bring with them.
VERSIONS = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
# What "auto" chooses, and the kernels that each version runs.
IMPLEMENTATIONS = ("ours", "ours_triton")
# The first of `flash_peers`.
SHAPES = 8
PROTOCOL = flash_peers.PROTOCOL | {
    "order": "five rounds by each version, one version after the other, each in a "
    "process that goes on",
    "torch": "the installed one, with each Triton",
}


@dataclass(frozen=True)
class Config:
    triton: str = option(VERSIONS[0], "version of Triton")
    implementation: str = option("ours", "the faster of ours, or one", IMPLEMENTATIONS)
    batch: int = option(4, "sequences in a batch")
    heads: int = option(16, "heads")
    n: int = option(4096, "sequence length in tokens")
    d: int = option(128, "head dimension")
    causal: bool = option(True, "causal mask")


def configs(quick: bool = False) -> list[Config]:
    """The versions of a shape and its kernels one after the other, so that they meet
    the same GPU.
    """
    if quick:
        return [Config(triton.__version__, "ours", 1, 1, 160, 16)]
    peers = flash_peers.configs()
    shapes = dict.fromkeys((c.batch, c.heads, c.n, c.d, c.causal) for c in peers)
    return [
        Config(version, name, *shape)
        for shape in list(shapes)[:SHAPES]
        for name in IMPLEMENTATIONS
        for version in VERSIONS
    ]


def folder_of(version: str) -> Path:
    """Where this Triton lies, if it is not the installed one."""
    return Path(os.environ.get(FOLDER) or ROOT / "build") / f"triton-{version}"


def environment(config: Config) -> dict[str, str]:
    """What a process is given, to import the Triton of its rows."""
    folder = folder_of(config.triton)
    if config.triton == triton.__version__ or not folder.is_dir():
        return {}
    paths = (str(folder.resolve()), os.environ.get("PYTHONPATH"))
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run(config: Config) -> Turns:
    """What `flash_peers` measures of this shape in bf16."""
    if triton.__version__ != config.triton:
        raise NotInstalled(
            f"Triton {config.triton}, found {triton.__version__}: `make versions` puts "
            f"it into build, and {FOLDER} may name another folder with "
            f"triton-{config.triton}"
        )
    shape = {name: v for name, v in asdict(config).items() if name != "triton"}
    return (yield from flash_peers.run(flash_peers.Config(**shape)))


if __name__ == "__main__":
    main(Config, run)
