"""What a user may ask of Slurm, from pyproject.toml and from flags."""

import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from systems import ROOT


class SlurmError(Exception):
    """Why jobs can't be submitted or followed, and what to do about it."""


# --8<-- [start:options]
@dataclass(frozen=True)
class Options:
    """In [tool.regen_tables.slurm] of pyproject.toml, or as flags of the same names."""

    partition: str = ""
    account: str = ""
    gres: str = ""
    gpus: str = ""
    constraint: str = ""
    memory: str = ""
    # Minutes that one job may take.
    time: int = 240
    # Lines of shell before the measurement: "module load ...".
    setup: list[str] = field(default_factory=list)
    # What comes before python: "singularity exec --nv ... IMAGE".
    prefix: str = ""
    # The python of the node or the container, if it is not the present one.
    python: str = ""
    # How often a job that was interrupted may start again.
    restarts: int = 3
    # Any other option of sbatch by its long name: {qos = "short"}.
    sbatch: dict[str, Any] = field(default_factory=dict)
    # Seconds between two questions to the controller, and how long it may be silent.
    poll: int = 10
    patience: int = 600


# --8<-- [end:options]

# The options that are flags too, with what --help says of each.
FLAGS = {
    "partition": ("NAME", "partition of the jobs"),
    "account": ("NAME", "account that pays"),
    "gres": ("LIST", "resources, as gpu:a100:1"),
    "gpus": ("COUNT", "GPUs, as 1 or a100:1"),
    "constraint": ("LIST", "features of the node"),
    "memory": ("SIZE", "memory, as 64G"),
    "time": ("MIN", "time limit of a job"),
    "setup": ("LINE", "a line of shell to run first; may be given more than once"),
    "prefix": ("COMMAND", "put before python, as 'singularity exec --nv IMAGE'"),
    "python": ("FILE", "the python on the node, if it is not this one"),
    "restarts": ("COUNT", "how often a job that was interrupted may start again"),
}


def read_options(
    flags: dict[str, Any], pyproject: Path = ROOT / "pyproject.toml"
) -> Options:
    """The options of pyproject.toml, replaced by the flags that were given."""
    table = f"[tool.regen_tables.slurm] of {pyproject.name}"
    try:
        document = tomllib.loads(pyproject.read_text(encoding="utf-8"))
        options = document["tool"]["regen_tables"]["slurm"]
    except (FileNotFoundError, KeyError, TypeError):
        options = {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SlurmError(f"{pyproject.name} is not TOML: {error}") from None
    if not isinstance(options, dict):
        raise SlurmError(f"{table} is {options!r}, not a table")
    types = {name: type(default) for name, default in asdict(Options()).items()}
    for name, value in options.items():
        if name not in types:
            known = ", ".join(types)
            raise SlurmError(f"{table} has no option {name!r}; there are: {known}")
        if types[name] is str and type(value) is int:
            # gpus = 1
            options[name] = str(value)
        elif type(value) is not types[name]:
            raise SlurmError(
                f"{table}: {name} is {value!r}, not {types[name].__name__}"
            )
    if not all(isinstance(line, str) for line in options.get("setup", ())):
        raise SlurmError(f"{table}: setup is {options['setup']!r}, not lines of text")
    read = Options(**options | flags)
    for name, least in (("time", 1), ("restarts", 0), ("poll", 1), ("patience", 0)):
        if (value := getattr(read, name)) < least:
            raise SlurmError(f"{name} must be {least} or more, not {value}")
    return read
