"""What a launch configuration of a Triton kernel is, and what launches choose beside
it: splits of a loop, heads that run together.

`tables` has the configurations, `chooser` says which a launch gets.
"""

from functools import cache
from typing import Literal, NamedTuple

import torch

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

    `recompute`: what a step of a backward kernel works out anew instead of keeping it.
    "addresses": those of the tiles that it loads, two registers of a thread for each of
    its copies. "tiles": these addresses, and each tile that it multiplies twice, which
    it reads from the L2 cache twice: shared memory need not hold one for long.
    """

    q: int
    k: int
    warps: int
    stages: int
    registers: int | None = None
    ahead: bool = False
    recompute: Literal["", "addresses", "tiles"] = ""

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
MAX_SPLITS = 16
# --8<-- [end:splits]
# Of the L2 cache's 40 MiB (A100) or 50 MiB (Hopper), what keys and values of the heads
# may take whose tiles run together: with more, programs of one head no longer read the
# same keys at about the same time. Float32 products take so much longer that reading
# matters less; they count as float32, in three limbs they take half as much again.
L2_BYTES = {"half": 2**23, "high": 2**25, "highest": 2**25}

# By pass and padded head dimension, and by the mask where that matters; by arithmetic.
Passes = dict[str, dict[int, Config | ByMask]]
ByArithmetic = dict[str, Passes]


class FewRows(NamedTuple):
    """What is faster where all heads together have at most so many rows.

    Smaller tiles mostly keep more of the GPU busy, and float32 that few programs read
    is seldom worth splitting into limbs ahead.
    """

    most_rows: int
    configs: Passes


# By arithmetic, the fewest rows first. What has no entry is as with many rows.
FewByArithmetic = dict[str, tuple[FewRows, ...]]


@cache
def count_sms(device: torch.device) -> int:
    """Streaming multiprocessors of this GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def count_splits(
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
        room = rule.warps * count_sms(device) // (programs * warps)
        splits = min(room, n // max(rows, rule.least_rows), MAX_SPLITS)
        if splits >= rule.least_splits:
            most = max(most, splits)
    return 1 << (most.bit_length() - 1)


def choose_head_swizzle(k: Layout, heads: int, causal: bool, arithmetic: str) -> int:
    """Head swizzle: of how many of all `heads` the long tiles run before the short
    ones. It is as many as keep their k and v in the L2 cache.

    Without a mask all tiles are as long, and one head after the other reads less.
    """
    if not causal:
        return 1
    _, _, n, d = k.shape
    bytes_of_head = 2 * n * d * (2 if arithmetic == "half" else 4)
    return min(heads, max(1, L2_BYTES[arithmetic] // bytes_of_head))
