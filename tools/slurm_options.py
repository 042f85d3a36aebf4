"""What a user may ask of Slurm, from pyproject.toml and from flags."""

import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools.regen_tables import ROOT


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


def read_options(flags: dict[str, Any], pyproject: Path = ROOT / "pyproject.toml") -> Options:
    """The options of pyproject.toml with the flags that were given laid over them."""
    table = "[tool.regen_tables.slurm]"
    try:
        given = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["regen_tables"]["slurm"]
    except (FileNotFoundError, KeyError):
        given = {}
    except tomllib.TOMLDecodeError as error:
        raise SlurmError(f"{pyproject.name} is not TOML: {error}") from None
    types = {name: type(default) for name, default in asdict(Options()).items()}
    for name, value in given.items():
        if name not in types:
            raise SlurmError(f"{table} of {pyproject.name} has no option {name!r}; there are: {', '.join(types)}")
        if types[name] is str and type(value) is int:
            given[name] = str(value)
        elif type(value) is not types[name]:
            raise SlurmError(f"{table} of {pyproject.name}: {name} is {value!r}, not {types[name].__name__}")
    options = Options(**given | {name: value for name, value in flags.items() if value not in (None, "", [])})
    for name, least in (("time", 1), ("restarts", 0), ("poll", 1), ("patience", 0)):
        if getattr(options, name) < least:
            raise SlurmError(f"{name} must be {least} or more, not {getattr(options, name)}")
    return options
