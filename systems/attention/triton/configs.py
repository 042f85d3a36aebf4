"""Launch configurations of the Triton kernels: a literal table by GPU, arithmetic,
pass, head dimension and mask.

A second one has tiles for few rows.

A tile has `q` rows of queries and `k` rows of keys. `stages` is how many tiles of the
inner loop are in flight.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton

from systems.attention.relaunch import Layout


# --8<-- [start:tile]
class Tile(NamedTuple):
    """The launch configuration of one kernel.

    `registers` is the most that a thread may have, if that is limited: with fewer, more
    programs run side by side. `ahead`: float32 q, k, v and do have been cut into pieces
    before; a step cuts only p and ds.
    """

    q: int
    k: int
    warps: int
    stages: int
    registers: int | None = None
    ahead: bool = False

    @property
    def options(self) -> dict[str, int]:
        """What Triton is told beside the sizes of the tile."""
        limit = {"maxnreg": self.registers} if self.registers else {}
        return {"num_warps": self.warps, "num_stages": self.stages, **limit}


class ByMask(NamedTuple):
    """Where the best tile under a causal mask is not the best without one."""

    causal: Tile
    full: Tile


# --8<-- [end:tile]


# --8<-- [start:sharing]
class Sharing(NamedTuple):
    """Programs share loops until a multiprocessor has so many `warps`, with
    `least_rows` or more for each.

    Where that gives fewer than `least_parts`, it takes less time not to share. Rows are
    those of a whole loop: a causal mask leaves half of them on average. Parts must be
    written, read and added up. The more of the loop each has, the more of them are
    worth that.
    """

    warps: int
    least_rows: int
    least_parts: int = 2


# Many warps hide waiting, and let long and short tiles end together. The less time
# products take, the more it matters what adding up costs: two parts save half of a
# loop, four save three quarters, and both take one launch more.
SHARING = {
    "half": (
        Sharing(warps=8, least_rows=128, least_parts=4),
        Sharing(warps=16, least_rows=768),
    ),
    "high": (Sharing(warps=8, least_rows=32), Sharing(warps=16, least_rows=256)),
    "highest": (Sharing(warps=8, least_rows=32), Sharing(warps=16, least_rows=128)),
}
MOST_PARTS = 16
# --8<-- [end:sharing]
# Of the L2 cache's 40 MiB (A100) or 50 MiB (Hopper), what keys and values of the heads
# may take whose tiles run together: with more, programs of one head no longer read the
# same keys at about the same time. Float32 products take so much longer that reading
# matters less; they count as float32, in three pieces they take half as much again.
L2_BYTES = {"half": 2**23, "high": 2**25, "highest": 2**25}

# The interpreter runs one operation after another: warps and stages mean nothing to it.
INTERPRETER_TILE = Tile(64, 64, 4, 1)

# By pass and padded head dimension, and by the mask where that matters.
Passes = dict[str, dict[int, Tile | ByMask]]

FLOAT32_SM_80: Passes = {
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
FLOAT32_OTHER: Passes = {
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
# By architecture and arithmetic.
TILES: dict[str, dict[str, Passes]] = {
    # Hopper: 227 KiB of shared memory in a block.
    "sm_90": {
        "half": {
            "forward": {
                16: Tile(64, 128, 4, 3, registers=128),
                32: Tile(64, 128, 4, 3),
                64: ByMask(
                    causal=Tile(64, 64, 4, 3, registers=128),
                    full=Tile(64, 128, 4, 2, registers=168),
                ),
                128: ByMask(causal=Tile(64, 64, 4, 3), full=Tile(256, 64, 8, 3)),
                256: Tile(128, 64, 8, 2),
            },
            "dkdv": {
                16: Tile(64, 64, 4, 3, registers=168),
                32: Tile(64, 64, 4, 3, registers=168),
                64: ByMask(
                    causal=Tile(64, 64, 4, 3), full=Tile(64, 64, 4, 3, registers=168)
                ),
                128: Tile(64, 128, 8, 3),
                256: Tile(64, 64, 8, 2),
            },
            "dq": {
                16: Tile(64, 64, 4, 3),
                32: Tile(64, 64, 4, 3),
                64: Tile(64, 128, 4, 3),
                128: Tile(128, 64, 8, 3),
                256: Tile(128, 32, 8, 3),
            },
        },
        "high": {
            "forward": {
                16: Tile(64, 64, 4, 3, ahead=True),
                32: Tile(64, 64, 4, 3, ahead=True),
                64: Tile(64, 64, 4, 3, ahead=True),
                128: Tile(128, 64, 8, 2, ahead=True),
                256: Tile(64, 64, 8, 1),
            },
            "dkdv": {
                16: Tile(64, 64, 4, 3, ahead=True),
                32: Tile(64, 64, 4, 3, ahead=True),
                64: Tile(64, 64, 4, 2, ahead=True),
                128: Tile(32, 128, 8, 2, ahead=True),
                256: Tile(16, 32, 8, 1),
            },
            "dq": {
                16: Tile(64, 64, 4, 3, ahead=True),
                32: Tile(64, 64, 4, 3, ahead=True),
                64: Tile(64, 64, 4, 2, ahead=True),
                128: Tile(128, 32, 8, 3, ahead=True),
                256: Tile(32, 16, 8, 1),
            },
        },
        "highest": {
            "forward": {
                16: Tile(64, 64, 4, 3, ahead=True),
                32: Tile(64, 32, 4, 3, ahead=True),
                64: Tile(128, 64, 8, 3, ahead=True),
                128: Tile(128, 64, 8, 1, ahead=True),
                256: Tile(64, 64, 8, 1),
            },
            "dkdv": {
                16: Tile(64, 64, 4, 3, ahead=True),
                32: Tile(64, 64, 4, 3, ahead=True),
                64: Tile(32, 64, 4, 2, ahead=True),
                128: Tile(32, 128, 8, 1),
                256: Tile(16, 32, 8, 1),
            },
            "dq": {
                16: Tile(64, 64, 4, 3, ahead=True),
                32: Tile(64, 64, 4, 3, ahead=True),
                64: Tile(128, 64, 8, 2, ahead=True),
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
        "high": FLOAT32_SM_80,
        "highest": FLOAT32_SM_80,
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
        "high": FLOAT32_OTHER,
        "highest": FLOAT32_OTHER,
    },
}


class FewRows(NamedTuple):
    """What is faster where all heads together have at most so many rows.

    Smaller tiles mostly keep more of the GPU busy, and float32 that few programs read
    is seldom worth cutting ahead.
    """

    most_rows: int
    tiles: Passes


FLOAT32_512_ROWS_SM_90 = FewRows(
    512,
    {
        "forward": {64: Tile(32, 32, 4, 1), 128: Tile(32, 32, 4, 1)},
        "dkdv": {64: Tile(32, 16, 4, 1), 128: Tile(32, 16, 4, 1)},
        "dq": {64: Tile(16, 32, 4, 1), 128: Tile(16, 32, 4, 1)},
    },
)
FLOAT32_2048_ROWS_SM_90 = FewRows(
    2048,
    {
        "forward": {16: Tile(64, 64, 4, 1), 32: Tile(64, 64, 4, 1)},
        "dkdv": {16: Tile(64, 64, 4, 1), 32: Tile(64, 64, 4, 1)},
        "dq": {16: Tile(64, 64, 4, 2), 32: Tile(64, 64, 4, 1)},
    },
)
# By architecture and arithmetic, the fewest rows first. What has no entry is as with
# many rows.
FEW_ROWS: dict[str, dict[str, tuple[FewRows, ...]]] = {
    "sm_90": {
        "half": (
            FewRows(
                2048,
                {
                    "forward": {128: Tile(64, 64, 4, 3)},
                    "dkdv": {128: Tile(64, 32, 4, 3)},
                    "dq": {128: Tile(64, 64, 4, 3)},
                },
            ),
        ),
        "high": (FLOAT32_512_ROWS_SM_90, FLOAT32_2048_ROWS_SM_90),
        "highest": (
            FLOAT32_512_ROWS_SM_90,
            FewRows(
                1024,
                {
                    "forward": {},
                    "dkdv": {128: Tile(32, 16, 4, 1, ahead=True)},
                    "dq": {128: Tile(16, 32, 4, 1, ahead=True)},
                },
            ),
            FLOAT32_2048_ROWS_SM_90,
        ),
    }
}


def architecture(capability: tuple[int, int]) -> str:
    """The part of the table for a GPU of this compute capability."""
    if capability[0] == 9:
        return "sm_90"
    return "sm_80" if capability in ((8, 0), (10, 0), (10, 3)) else "other"


@cache
def multiprocessors(device: torch.device) -> int:
    """How many this GPU has."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def padded(d: int) -> int:
    """The head dimension that a tile has: a power of two from 16 on, as tensor cores
    need.
    """
    return max(16, triton.next_power_of_2(d))


def for_mask(entry: Tile | ByMask, causal: bool) -> Tile:
    """What an entry of the table says for this mask."""
    if isinstance(entry, ByMask):
        return entry.causal if causal else entry.full
    return entry


def choose(
    kernel: str, d: int, arithmetic: str, causal: bool, rows: int, device: torch.device
) -> Tile:
    """The tile of this kernel ("forward", "dkdv" or "dq") for head dimension d and a
    kind of `arithmetic`.

    Tiles are cut from so many `rows` of all heads together: of queries, or for dkdv of
    keys.
    """
    if device.type == "cpu":
        return INTERPRETER_TILE
    part = architecture(torch.cuda.get_device_capability(device))
    for few in FEW_ROWS.get(part, {}).get(arithmetic, ()):
        if rows <= few.most_rows and padded(d) in few.tiles[kernel]:
            return for_mask(few.tiles[kernel][padded(d)], causal)
    return for_mask(TILES[part][arithmetic][kernel][padded(d)], causal)


def parts_for(
    programs: int, warps: int, n: int, rows: int, arithmetic: str, device: torch.device
) -> int:
    """How many programs share a loop over n rows in steps of `rows`: a power of two, so
    that few kernels are compiled.

    There are `programs` tiles, for each of which one program alone would have `warps`
    warps.
    """
    if device.type == "cpu":
        return 1
    most = 1
    for sharing in SHARING[arithmetic]:
        room = sharing.warps * multiprocessors(device) // (programs * warps)
        parts = min(room, n // max(rows, sharing.least_rows), MOST_PARTS)
        if parts >= sharing.least_parts:
            most = max(most, parts)
    return 1 << (most.bit_length() - 1)


def heads_together(k: Layout, heads: int, causal: bool, arithmetic: str) -> int:
    """Of how many of all `heads` the long tiles run before the short ones: of those
    whose k and v stay in the L2 cache.

    Without a mask all tiles are as long, and one head after the other reads less.
    """
    if not causal:
        return 1
    _, _, n, d = k.shape
    bytes_of_head = 2 * n * d * (2 if arithmetic == "half" else 4)
    return min(heads, max(1, L2_BYTES[arithmetic] // bytes_of_head))
