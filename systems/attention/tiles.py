"""Launch configurations of the Triton kernels: one literal table by GPU, arithmetic, pass and head dimension.

A tile has `q` rows of queries and `k` rows of keys. `stages` is how many tiles of the inner loop are in flight.
"""

from typing import NamedTuple

import torch
import triton


class Tile(NamedTuple):
    """The launch configuration of one kernel."""

    q: int
    k: int
    warps: int
    stages: int


# The interpreter runs one operation after another: warps and stages mean nothing to it.
INTERPRETER_TILE = Tile(64, 64, 4, 1)

FLOAT32_SM_80 = {
    "forward": {
        16: Tile(64, 32, 4, 2),
        32: Tile(64, 32, 4, 2),
        64: Tile(64, 32, 4, 2),
        128: Tile(32, 32, 4, 1),
        256: Tile(32, 16, 4, 1),
    },
    "dkdv": {
        16: Tile(32, 32, 4, 2),
        32: Tile(32, 32, 4, 2),
        64: Tile(32, 32, 4, 1),
        128: Tile(16, 32, 8, 1),
        256: Tile(16, 16, 8, 1),
    },
    "dq": {
        16: Tile(32, 32, 4, 2),
        32: Tile(32, 32, 4, 2),
        64: Tile(32, 32, 4, 1),
        128: Tile(32, 16, 8, 1),
        256: Tile(16, 16, 8, 1),
    },
}
FLOAT32_OTHER = {
    "forward": {
        16: Tile(32, 32, 4, 2),
        32: Tile(32, 32, 4, 2),
        64: Tile(32, 32, 4, 1),
        128: Tile(32, 16, 4, 1),
        256: Tile(16, 16, 4, 1),
    },
    "dkdv": {
        16: Tile(32, 32, 4, 1),
        32: Tile(32, 32, 4, 1),
        64: Tile(16, 32, 4, 1),
        128: Tile(16, 16, 4, 1),
        256: Tile(16, 16, 8, 1),
    },
    "dq": {
        16: Tile(32, 32, 4, 1),
        32: Tile(32, 32, 4, 1),
        64: Tile(32, 16, 4, 1),
        128: Tile(16, 16, 4, 1),
        256: Tile(16, 16, 8, 1),
    },
}
# TILES[architecture][arithmetic][pass][padded head dimension]
TILES: dict[str, dict[str, dict[str, dict[int, Tile]]]] = {
    # Hopper: 227 KiB of shared memory in a block.
    "sm_90": {
        "half": {
            "forward": {
                16: Tile(64, 128, 4, 3),
                32: Tile(64, 128, 4, 3),
                64: Tile(64, 64, 4, 4),
                128: Tile(128, 128, 8, 3),
                256: Tile(128, 64, 8, 2),
            },
            "dkdv": {
                16: Tile(128, 64, 4, 3),
                32: Tile(128, 64, 4, 3),
                64: Tile(64, 64, 4, 2),
                128: Tile(64, 128, 8, 2),
                256: Tile(64, 64, 8, 2),
            },
            "dq": {
                16: Tile(64, 128, 4, 4),
                32: Tile(64, 128, 4, 3),
                64: Tile(64, 64, 4, 3),
                128: Tile(128, 128, 8, 2),
                256: Tile(128, 32, 8, 3),
            },
        },
        "tf32": {
            "forward": {
                16: Tile(64, 32, 4, 2),
                32: Tile(64, 32, 4, 2),
                64: Tile(128, 64, 4, 2),
                128: Tile(32, 64, 4, 2),
                256: Tile(32, 32, 8, 1),
            },
            "dkdv": {
                16: Tile(32, 64, 4, 2),
                32: Tile(32, 64, 4, 2),
                64: Tile(64, 128, 8, 1),
                128: Tile(32, 32, 4, 1),
                256: Tile(16, 32, 8, 1),
            },
            "dq": {
                16: Tile(64, 32, 4, 2),
                32: Tile(64, 32, 4, 2),
                64: Tile(64, 64, 4, 1),
                128: Tile(128, 64, 8, 1),
                256: Tile(32, 16, 8, 1),
            },
        },
        "fp32": {
            "forward": {
                16: Tile(64, 64, 4, 1),
                32: Tile(64, 64, 4, 1),
                64: Tile(128, 64, 4, 1),
                128: Tile(64, 64, 4, 1),
                256: Tile(64, 64, 8, 1),
            },
            "dkdv": {
                16: Tile(64, 64, 4, 1),
                32: Tile(64, 64, 4, 1),
                64: Tile(64, 128, 8, 1),
                128: Tile(32, 128, 8, 1),
                256: Tile(16, 32, 8, 1),
            },
            "dq": {
                16: Tile(64, 64, 4, 2),
                32: Tile(64, 64, 4, 1),
                64: Tile(64, 64, 4, 1),
                128: Tile(128, 32, 8, 1),
                256: Tile(32, 16, 8, 1),
            },
        },
    },
    # A100, and whatever has as much: 163 KiB.
    "sm_80": {
        "half": {
            "forward": {
                16: Tile(128, 64, 4, 3),
                32: Tile(128, 64, 4, 3),
                64: Tile(128, 64, 4, 3),
                128: Tile(128, 64, 8, 3),
                256: Tile(64, 32, 4, 2),
            },
            "dkdv": {
                16: Tile(64, 64, 4, 2),
                32: Tile(64, 64, 4, 2),
                64: Tile(64, 64, 4, 2),
                128: Tile(64, 64, 8, 2),
                256: Tile(32, 32, 8, 1),
            },
            "dq": {
                16: Tile(64, 64, 4, 2),
                32: Tile(64, 64, 4, 2),
                64: Tile(64, 64, 4, 2),
                128: Tile(64, 64, 8, 2),
                256: Tile(32, 32, 8, 1),
            },
        },
        "tf32": FLOAT32_SM_80,
        "fp32": FLOAT32_SM_80,
    },
    # Every other GPU: small enough for 99 KiB.
    "other": {
        "half": {
            "forward": {
                16: Tile(64, 64, 4, 2),
                32: Tile(64, 64, 4, 2),
                64: Tile(64, 64, 4, 2),
                128: Tile(64, 32, 4, 2),
                256: Tile(32, 32, 4, 1),
            },
            "dkdv": {
                16: Tile(32, 64, 4, 2),
                32: Tile(32, 64, 4, 2),
                64: Tile(32, 64, 4, 2),
                128: Tile(32, 32, 4, 1),
                256: Tile(16, 32, 8, 1),
            },
            "dq": {
                16: Tile(64, 32, 4, 2),
                32: Tile(64, 32, 4, 2),
                64: Tile(64, 32, 4, 2),
                128: Tile(32, 32, 4, 1),
                256: Tile(32, 16, 8, 1),
            },
        },
        "tf32": FLOAT32_OTHER,
        "fp32": FLOAT32_OTHER,
    },
}


def architecture(capability: tuple[int, int]) -> str:
    """The part of the table for a GPU of this compute capability."""
    if capability[0] == 9:
        return "sm_90"
    return "sm_80" if capability in ((8, 0), (10, 0), (10, 3)) else "other"


def padded(d: int) -> int:
    """The head dimension that a tile has: a power of two from 16 on, as tensor cores need."""
    return max(16, triton.next_power_of_2(d))


def choose(kernel: str, d: int, arithmetic: str, device: torch.device) -> Tile:
    """The tile of this kernel ("forward", "dkdv" or "dq") for head dimension d and a kind of `arithmetic`."""
    if device.type == "cpu":
        return INTERPRETER_TILE
    capability = torch.cuda.get_device_capability(device)
    return TILES[architecture(capability)][arithmetic][kernel][padded(d)]
