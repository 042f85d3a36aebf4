"""Choose the launch configuration of a Triton kernel: for few rows from `FEW_ROWS`,
else the one that was tuned on this GPU (`tuned`), else from `CONFIGS`.
"""

from functools import cache
from pathlib import Path

import torch
import triton

from systems.attention.triton.configs import Config, ConfigPair
from systems.attention.triton.tables import CONFIGS, FEW_ROWS

# The folder of configurations tuned on the user's GPU, which `tuned` reads.
TUNED_FOLDER = Path(__file__).with_name("tuned")
# Configuration in Triton's interpreter, where warps and stages have no effect.
INTERPRETER_CONFIG = Config(64, 64, 4, 1)


def table_name(capability: tuple[int, int]) -> str:
    """Return the name of a compute capability's table, such as "sm_90" for (9, 0). GPUs
    without a table get the one whose kernels need the least shared memory.
    """
    if capability[0] in (9, 12):
        return f"sm_{capability[0]}0"
    if capability in ((10, 0), (10, 3)):
        return "sm_100"
    return "sm_80" if capability == (8, 0) else "sm_86"


def pad_head_dim(d: int) -> int:
    """Return d rounded up to a power of two, at least 16, as tensor cores require."""
    # Triton 3.7 declares a return type other than int.
    return max(16, triton.next_power_of_2(d))  # pyright: ignore[reportReturnType]


def select_by_mask(entry: Config | ConfigPair, causal: bool) -> Config:
    """Return a table's entry or, if it is a pair, its `causal` or `full` member."""
    if isinstance(entry, ConfigPair):
        return entry.causal if causal else entry.full
    return entry


@cache
def load_tuned(device: torch.device) -> dict[tuple[str, str, int, bool], Config]:
    """Return the configurations that were tuned on this GPU, or {}. Their keys are
    (arithmetic, kernel, padded head dimension, causal).
    """
    if not any(TUNED_FOLDER.glob("*.json")):
        return {}
    # Import here, because most users have no tuned configurations.
    from systems.attention.triton import tuned
    from systems.records.files import gpu_slug

    slug = gpu_slug(torch.cuda.get_device_name(device))
    tuned_configs = tuned.configs(slug, triton.__version__)
    return {key: Config(*numbers) for key, numbers in tuned_configs.items()}


def choose_config(
    kernel: str, d: int, arithmetic: str, causal: bool, rows: int, device: torch.device
) -> Config:
    """Return the launch configuration of kernel "forward", "dkdv" or "dq". `arithmetic`
    comes from `choose_arithmetic`; `rows` counts queries (dkdv: keys) over all heads.
    """
    if device.type == "cpu":
        return INTERPRETER_CONFIG
    gpu, size = table_name(torch.cuda.get_device_capability(device)), pad_head_dim(d)
    for table in FEW_ROWS[gpu].get(arithmetic, ()):
        if rows <= table.most_rows and size in table.configs[kernel]:
            return select_by_mask(table.configs[kernel][size], causal)
    tuned = load_tuned(device).get((arithmetic, kernel, size, causal))
    return tuned or select_by_mask(CONFIGS[gpu][arithmetic][kernel][size], causal)
