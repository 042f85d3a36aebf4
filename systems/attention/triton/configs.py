"""Launch configurations of the Triton kernels, and the choices beside them: split loops
and head swizzle.

`tables` holds the configurations, `chooser` selects one.
"""

from functools import cache
from typing import Literal, NamedTuple

import torch

from systems.attention.relaunch import Layout


# --8<-- [start:config]
class Config(NamedTuple):
    """Launch configuration of one kernel: tiles of `q` queries and `k` keys, and
    `stages` tiles of the inner loop in flight.

    `registers` limits the registers of a thread, so that more programs fit on an SM.
    255 is the hardware's limit, and yet worth setting: without any limit NVIDIA's
    assembler gives a thread that needs too many only 32, and spills the rest. `ahead`:
    a kernel before has split float32 q, k, v and do into limbs; a step splits only p
    and ds.

    `recompute`: what a backward step recomputes instead of keeping. "addresses":
    addresses of its tiles, which take two registers of a thread for each copy. "tiles":
    these addresses, and each tile that it multiplies twice, which it loads twice from
    L2, so that shared memory need not hold one for long.
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
    """Configurations with and without a causal mask, where the best ones differ."""

    causal: Config
    full: Config


# --8<-- [end:config]


# --8<-- [start:splits]
class SplitRule(NamedTuple):
    """Split loops until an SM has `warps` warps, with at least `least_rows` rows per
    split.

    Below `least_splits` splits it is faster not to split. Rows are those of a whole
    loop; a causal mask halves them on average. The results of splits must be written,
    read and combined, which pays off for long loops.
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
    """Configurations that are faster when all heads together have at most `most_rows`
    rows.

    Smaller tiles mostly fill more of the GPU, and splitting float32 into limbs ahead
    rarely pays if few programs read them.
    """

    most_rows: int
    configs: Passes


# By arithmetic, the fewest rows first. What has no entry is as with many rows.
FewByArithmetic = dict[str, tuple[FewRows, ...]]


@cache
def count_sms(device: torch.device) -> int:
    """Return the number of streaming multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def count_splits(
    programs: int, warps: int, n: int, rows: int, arithmetic: str, device: torch.device
) -> int:
    """Return the number of splits of a loop over n rows in steps of `rows`: a power of
    two, so that few kernels are compiled.

    There are `programs` tiles, each with `warps` warps if its loop is not split.
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
    """Return the head swizzle: how many heads run their long tiles before any short
    one. Their k and v fit the L2 cache.

    Without a mask all tiles are equally long, and one head after the other reads less.
    """
    if not causal:
        return 1
    _, _, n, d = k.shape
    bytes_of_head = 2 * n * d * (2 if arithmetic == "half" else 4)
    return min(heads, max(1, L2_BYTES[arithmetic] // bytes_of_head))
