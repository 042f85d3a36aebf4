"""The launch configurations of `tables.toml`, by family of GPUs."""

import tomllib
from pathlib import Path
from typing import Any

from systems.attention.triton.configs import (
    Config,
    ConfigPair,
    ConfigsByArithmetic,
    ConfigsByPass,
    FewRowsByArithmetic,
    FewRowsTable,
)

CONTENT = tomllib.loads(Path(__file__).with_name("tables.toml").read_text("utf-8"))


def read_entry(entry: dict[str, Any]) -> Config | ConfigPair:
    if "causal" in entry:
        return ConfigPair(Config(**entry["causal"]), Config(**entry["full"]))
    return Config(**entry)


def read_kernels(content: dict[str, Any]) -> ConfigsByPass:
    """Return {kernel: entries by padded head dimension} from the content of a table."""
    return {
        kernel: {int(d): read_entry(e) for d, e in content.get(kernel, {}).items()}
        for kernel in ("forward", "dkdv", "dq")
    }


def read_few_rows(gpu: str) -> FewRowsByArithmetic:
    """Return {arithmetic: tables for few rows} of a family of GPUs such as "sm_90"."""
    return {
        arithmetic: tuple(
            FewRowsTable(table["most_rows"], read_kernels(table))
            for table in CONTENT["few_rows"]
            if gpu in table["gpus"] and arithmetic in table["arithmetics"]
        )
        for arithmetic in CONFIGS[gpu]
    }


# Section of `tables.toml` for each family. The GeForce RTX 50 has the shared memory and
# tensor cores of the RTX 30.
SECTIONS = {name: name for name in CONTENT if name != "few_rows"} | {"sm_120": "sm_86"}
CONFIGS: dict[str, ConfigsByArithmetic] = {
    gpu: {name: read_kernels(kernels) for name, kernels in CONTENT[section].items()}
    for gpu, section in SECTIONS.items()
}
FEW_ROWS = {gpu: read_few_rows(gpu) for gpu in CONFIGS}
