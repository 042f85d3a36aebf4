"""Which launch configuration a Triton kernel gets on this GPU.

Where there are few rows, the table for few rows decides. For many, what the owner of
the GPU had timed there (`tuned`) comes before our table.
"""

from functools import cache
from pathlib import Path

import torch
import triton

from systems.attention.triton.configs import ByMask, Config
from systems.attention.triton.tables import CONFIGS, FEW_ROWS

# Where `tuned` keeps what owners of GPUs had timed.
TUNED = Path(__file__).with_name("tuned")
# The interpreter runs one operation after another: warps and stages mean nothing to it.
INTERPRETER_CONFIG = Config(64, 64, 4, 1)


def architecture(capability: tuple[int, int]) -> str:
    """The key of the table for a GPU of this compute capability. What nobody compiled
    for gets the one that needs least shared memory.
    """
    if capability[0] in (9, 12):
        return f"sm_{capability[0]}0"
    if capability in ((10, 0), (10, 3)):
        return "sm_100"
    return "sm_80" if capability == (8, 0) else "sm_86"


def pad_head_dim(d: int) -> int:
    """The head dimension that a tile has: a power of two from 16 on, as tensor cores
    need.
    """
    # Triton 3.7 has another type for it.
    return max(16, triton.next_power_of_2(d))  # pyright: ignore[reportReturnType]


def select_by_mask(entry: Config | ByMask, causal: bool) -> Config:
    """What an entry of the table says for this mask."""
    if isinstance(entry, ByMask):
        return entry.causal if causal else entry.full
    return entry


@cache
def owner_configs(device: torch.device) -> dict[tuple[str, str, int, bool], Config]:
    """Return the configurations that the owner of this GPU had timed, for many rows, by
    arithmetic, kernel, padded head dimension and mask.
    """
    if not any(TUNED.glob("*.json")):
        return {}
    # Imported here: most have no such file, and need nothing of the records.
    from systems.attention.triton import tuned
    from systems.records.files import slug_of

    slug = slug_of(torch.cuda.get_device_name(device))
    tuned_configs = tuned.configs(slug, triton.__version__)
    return {key: Config(*numbers) for key, numbers in tuned_configs.items()}


def choose_config(
    kernel: str, d: int, arithmetic: str, causal: bool, rows: int, device: torch.device
) -> Config:
    """The configuration of this kernel ("forward", "dkdv" or "dq") for head dimension d
    and a kind of `arithmetic`.

    `rows` of all heads together are tiled: those of queries, or for dkdv of keys.
    """
    if device.type == "cpu":
        return INTERPRETER_CONFIG
    gpu, size = architecture(torch.cuda.get_device_capability(device)), pad_head_dim(d)
    for few in FEW_ROWS[gpu].get(arithmetic, ()):
        if rows <= few.most_rows and size in few.configs[kernel]:
            return select_by_mask(few.configs[kernel][size], causal)
    tuned = owner_configs(device).get((arithmetic, kernel, size, causal))
    return tuned or select_by_mask(CONFIGS[gpu][arithmetic][kernel][size], causal)
