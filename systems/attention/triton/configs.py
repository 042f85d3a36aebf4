"""Launch configurations of the Triton kernels: a literal table by GPU, arithmetic,
pass, head dimension and mask.

A second one has configurations for few rows.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton

from systems.attention.relaunch import Layout


# --8<-- [start:config]
class Config(NamedTuple):
    """The launch configuration of one kernel: tiles of `q` rows of queries and `k` rows
    of keys, and `stages` tiles of the inner loop in flight.

    `registers` is the most that a thread may have, if that is limited: with fewer, more
    programs run side by side. 255 is all that there are, and yet worth saying: NVIDIA's
    assembler, not told of a limit, gives a thread that needs too many only 32, and
    spills the rest. `ahead`: float32 q, k, v and do have been split into limbs before;
    a step splits only p and ds.
    """

    q: int
    k: int
    warps: int
    stages: int
    registers: int | None = None
    ahead: bool = False

    @property
    def options(self) -> dict[str, int]:
        """Triton's options of a launch."""
        limit = {"maxnreg": self.registers} if self.registers else {}
        return {"num_warps": self.warps, "num_stages": self.stages, **limit}


class ByMask(NamedTuple):
    """Where the best configuration under a causal mask is not the best without one."""

    causal: Config
    full: Config


# --8<-- [end:config]


# --8<-- [start:splits]
class SplitRule(NamedTuple):
    """Loops are split until an SM has so many `warps`, with `least_rows` or more for
    each split.

    Where that gives fewer than `least_splits`, it takes less time not to split. Rows
    are those of a whole loop: a causal mask leaves half of them on average. What splits
    compute must be written, read and combined: that pays the more, the longer their
    loops are.
    """

    warps: int
    least_rows: int
    least_splits: int = 2


# Many warps hide waiting, and let long and short tiles end together. The less time
# products take, the more it matters what combining costs: two splits save half of a
# loop, four save three quarters, and both take one launch more.
SPLIT_RULES = {
    "half": (
        SplitRule(warps=8, least_rows=128, least_splits=4),
        SplitRule(warps=16, least_rows=768),
    ),
    "high": (SplitRule(warps=8, least_rows=32), SplitRule(warps=16, least_rows=256)),
    "highest": (SplitRule(warps=8, least_rows=32), SplitRule(warps=16, least_rows=128)),
}
MOST_SPLITS = 16
# --8<-- [end:splits]
# Of the L2 cache's 40 MiB (A100) or 50 MiB (Hopper), what keys and values of the heads
# may take whose tiles run together: with more, programs of one head no longer read the
# same keys at about the same time. Float32 products take so much longer that reading
# matters less; they count as float32, in three limbs they take half as much again.
L2_BYTES = {"half": 2**23, "high": 2**25, "highest": 2**25}

# The interpreter runs one operation after another: warps and stages mean nothing to it.
INTERPRETER_CONFIG = Config(64, 64, 4, 1)

# By pass and padded head dimension, and by the mask where that matters.
Passes = dict[str, dict[int, Config | ByMask]]

FLOAT32_SM_80: Passes = {
    "forward": {
        16: Config(64, 32, 4, 2),
        32: Config(64, 32, 4, 2),
        64: Config(64, 32, 4, 2),
        128: Config(32, 32, 4, 1),
        256: Config(32, 16, 4, 1, registers=255),
    },
    "dkdv": {
        16: Config(32, 32, 4, 2),
        32: Config(32, 32, 4, 2),
        64: Config(32, 32, 4, 1),
        128: Config(16, 32, 8, 1),
        256: Config(16, 16, 8, 1, registers=255),
    },
    "dq": {
        16: Config(32, 32, 4, 2),
        32: Config(32, 32, 4, 2),
        64: Config(32, 32, 4, 1),
        128: Config(32, 16, 8, 1),
        256: Config(16, 16, 8, 1, registers=255),
    },
}
FLOAT32_OTHER: Passes = {
    "forward": {
        16: Config(32, 32, 4, 2),
        32: Config(32, 32, 4, 2),
        64: Config(32, 32, 4, 1),
        128: Config(32, 16, 4, 1),
        256: Config(16, 16, 4, 1, registers=255),
    },
    "dkdv": {
        16: Config(32, 32, 4, 1),
        32: Config(32, 32, 4, 1),
        64: Config(16, 32, 4, 1),
        128: Config(16, 16, 4, 1),
        256: Config(16, 16, 8, 1, registers=255),
    },
    "dq": {
        16: Config(32, 32, 4, 1),
        32: Config(32, 32, 4, 1),
        64: Config(32, 16, 4, 1),
        128: Config(16, 16, 4, 1),
        256: Config(16, 16, 8, 1, registers=255),
    },
}
# By architecture and arithmetic.
CONFIGS: dict[str, dict[str, Passes]] = {
    # Hopper: 227 KiB of shared memory in a block.
    "sm_90": {
        "half": {
            "forward": {
                16: Config(64, 128, 4, 3, registers=128),
                32: Config(64, 128, 4, 3),
                64: ByMask(
                    causal=Config(64, 64, 4, 3, registers=128),
                    full=Config(64, 128, 4, 2, registers=168),
                ),
                128: ByMask(causal=Config(64, 64, 4, 3), full=Config(256, 64, 8, 3)),
                256: Config(128, 64, 8, 2),
            },
            "dkdv": {
                16: Config(64, 64, 4, 3, registers=168),
                32: Config(64, 64, 4, 3, registers=168),
                64: ByMask(
                    causal=Config(64, 64, 4, 3),
                    full=Config(64, 64, 4, 3, registers=168),
                ),
                128: Config(64, 128, 8, 3),
                256: Config(64, 64, 8, 2),
            },
            "dq": {
                16: Config(64, 64, 4, 3),
                32: Config(64, 64, 4, 3),
                64: Config(64, 128, 4, 3),
                128: Config(128, 64, 8, 3),
                256: Config(128, 32, 8, 3),
            },
        },
        "high": {
            "forward": {
                16: Config(64, 64, 4, 3, ahead=True),
                32: Config(64, 64, 4, 3, ahead=True),
                64: Config(64, 64, 4, 3, ahead=True),
                128: Config(128, 64, 8, 2, ahead=True),
                256: Config(64, 64, 8, 1),
            },
            "dkdv": {
                16: Config(64, 64, 4, 3, ahead=True),
                32: Config(64, 64, 4, 3, ahead=True),
                64: Config(64, 64, 4, 2, ahead=True),
                128: Config(32, 128, 8, 2, ahead=True),
                256: Config(16, 32, 8, 1),
            },
            "dq": {
                16: Config(64, 64, 4, 3, ahead=True),
                32: Config(64, 64, 4, 3, ahead=True),
                64: Config(64, 64, 4, 2, ahead=True),
                128: Config(128, 32, 8, 3, ahead=True),
                256: Config(32, 16, 8, 1),
            },
        },
        "highest": {
            "forward": {
                16: Config(64, 64, 4, 3, ahead=True),
                32: Config(64, 32, 4, 3, ahead=True),
                64: Config(128, 64, 8, 3, ahead=True),
                128: Config(128, 64, 8, 1, ahead=True),
                256: Config(64, 64, 8, 1),
            },
            "dkdv": {
                16: Config(64, 64, 4, 3, ahead=True),
                32: Config(64, 64, 4, 3, ahead=True),
                64: Config(32, 64, 4, 2, ahead=True),
                128: Config(32, 128, 8, 1),
                256: Config(16, 32, 8, 1, registers=255),
            },
            "dq": {
                16: Config(64, 64, 4, 3, ahead=True),
                32: Config(64, 64, 4, 3, ahead=True),
                64: Config(128, 64, 8, 2, ahead=True),
                128: Config(128, 32, 8, 1),
                256: Config(32, 16, 8, 1, registers=255),
            },
        },
    },
    # A100, and whatever has as much: 163 KiB.
    "sm_80": {
        "half": {
            "forward": {
                16: Config(128, 64, 4, 3),
                32: Config(128, 64, 4, 3),
                64: Config(128, 64, 4, 3),
                128: Config(128, 64, 8, 3),
                256: Config(64, 32, 4, 2),
            },
            "dkdv": {
                16: Config(64, 64, 4, 2),
                32: Config(64, 64, 4, 2),
                64: Config(64, 64, 4, 2),
                128: Config(64, 64, 8, 2),
                256: Config(32, 32, 8, 1),
            },
            "dq": {
                16: Config(64, 64, 4, 2),
                32: Config(64, 64, 4, 2),
                64: Config(64, 64, 4, 2),
                128: Config(64, 64, 8, 2),
                256: Config(32, 32, 8, 1),
            },
        },
        "high": FLOAT32_SM_80,
        "highest": FLOAT32_SM_80,
    },
    # Every other GPU: small enough for 99 KiB.
    "other": {
        "half": {
            "forward": {
                16: Config(64, 64, 4, 2),
                32: Config(64, 64, 4, 2),
                64: Config(64, 64, 4, 2),
                128: Config(64, 32, 4, 2),
                256: Config(32, 32, 4, 1),
            },
            "dkdv": {
                16: Config(32, 64, 4, 2),
                32: Config(32, 64, 4, 2),
                64: Config(32, 64, 4, 2),
                128: Config(32, 32, 4, 1),
                256: Config(16, 32, 8, 1),
            },
            "dq": {
                16: Config(64, 32, 4, 2),
                32: Config(64, 32, 4, 2),
                64: Config(64, 32, 4, 2),
                128: Config(32, 32, 4, 1),
                256: Config(32, 16, 8, 1),
            },
        },
        "high": FLOAT32_OTHER,
        "highest": FLOAT32_OTHER,
    },
}


class FewRows(NamedTuple):
    """What is faster where all heads together have at most so many rows.

    Smaller tiles mostly keep more of the GPU busy, and float32 that few programs read
    is seldom worth splitting into limbs ahead.
    """

    most_rows: int
    configs: Passes


FLOAT32_512_ROWS_SM_90 = FewRows(
    512,
    {
        "forward": {64: Config(32, 32, 4, 1), 128: Config(32, 32, 4, 1)},
        "dkdv": {64: Config(32, 16, 4, 1), 128: Config(32, 16, 4, 1)},
        "dq": {64: Config(16, 32, 4, 1), 128: Config(16, 32, 4, 1)},
    },
)
FLOAT32_2048_ROWS_SM_90 = FewRows(
    2048,
    {
        "forward": {16: Config(64, 64, 4, 1), 32: Config(64, 64, 4, 1)},
        "dkdv": {16: Config(64, 64, 4, 1), 32: Config(64, 64, 4, 1)},
        "dq": {16: Config(64, 64, 4, 2), 32: Config(64, 64, 4, 1)},
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
                    "forward": {128: Config(64, 64, 4, 3)},
                    "dkdv": {128: Config(64, 32, 4, 3)},
                    "dq": {128: Config(64, 64, 4, 3)},
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
                    "dkdv": {128: Config(32, 16, 4, 1, ahead=True)},
                    "dq": {128: Config(16, 32, 4, 1, ahead=True)},
                },
            ),
            FLOAT32_2048_ROWS_SM_90,
        ),
    }
}


def architecture(capability: tuple[int, int]) -> str:
    """The key of the table for a GPU of this compute capability."""
    if capability[0] == 9:
        return "sm_90"
    return "sm_80" if capability in ((8, 0), (10, 0), (10, 3)) else "other"


@cache
def sm_count(device: torch.device) -> int:
    """Streaming multiprocessors of this GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def padded(d: int) -> int:
    """The head dimension that a tile has: a power of two from 16 on, as tensor cores
    need.
    """
    # Triton 3.7 has another type for it.
    return max(16, triton.next_power_of_2(d))  # pyright: ignore[reportReturnType]


def for_mask(entry: Config | ByMask, causal: bool) -> Config:
    """What an entry of the table says for this mask."""
    if isinstance(entry, ByMask):
        return entry.causal if causal else entry.full
    return entry


def choose(
    kernel: str, d: int, arithmetic: str, causal: bool, rows: int, device: torch.device
) -> Config:
    """The configuration of this kernel ("forward", "dkdv" or "dq") for head dimension d
    and a kind of `arithmetic`.

    `rows` of all heads together are tiled: those of queries, or for dkdv of keys.
    """
    if device.type == "cpu":
        return INTERPRETER_CONFIG
    gpu = architecture(torch.cuda.get_device_capability(device))
    for few in FEW_ROWS.get(gpu, {}).get(arithmetic, ()):
        if rows <= few.most_rows and padded(d) in few.configs[kernel]:
            return for_mask(few.configs[kernel][padded(d)], causal)
    return for_mask(CONFIGS[gpu][arithmetic][kernel][padded(d)], causal)


def splits_for(
    programs: int, warps: int, n: int, rows: int, arithmetic: str, device: torch.device
) -> int:
    """Into how many splits a loop over n rows in steps of `rows` goes: a power of two,
    so that few kernels are compiled.

    There are `programs` tiles, for each of which one program alone would have `warps`
    warps.
    """
    if device.type == "cpu":
        return 1
    most = 1
    for rule in SPLIT_RULES[arithmetic]:
        room = rule.warps * sm_count(device) // (programs * warps)
        splits = min(room, n // max(rows, rule.least_rows), MOST_SPLITS)
        if splits >= rule.least_splits:
            most = max(most, splits)
    return 1 << (most.bit_length() - 1)


def head_swizzle_for(k: Layout, heads: int, causal: bool, arithmetic: str) -> int:
    """Head swizzle: of how many of all `heads` the long tiles run before the short
    ones. It is as many as keep their k and v in the L2 cache.

    Without a mask all tiles are as long, and one head after the other reads less.
    """
    if not causal:
        return 1
    _, _, n, d = k.shape
    bytes_of_head = 2 * n * d * (2 if arithmetic == "half" else 4)
    return min(heads, max(1, L2_BYTES[arithmetic] // bytes_of_head))
