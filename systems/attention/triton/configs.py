"""Types of launch configurations, and the choice of loop splits and head swizzle."""

from functools import cache
from typing import Literal, NamedTuple

import torch

from systems.attention.relaunch import Layout


# --8<-- [start:config]
class Config(NamedTuple):
    """Launch configuration of one kernel: tiles of `q` queries and `k` keys, and
    `stages` tiles of the inner loop in flight.

    `registers` limits the registers per thread, so that more programs fit on an SM.
    Even 255, the hardware's limit, is worth setting: without a limit NVIDIA's assembler
    gives a thread that needs more only 32, and spills the rest. `ahead`: a previous
    kernel has split float32 q, k, v and do into limbs.

    `recompute` saves registers in a backward step. "addresses": recompute the addresses
    of tiles. "tiles": also load tiles twice, so that shared memory holds them only
    briefly.
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
        """Return the launch options for Triton."""
        limit = {"maxnreg": self.registers} if self.registers else {}
        return {"num_warps": self.warps, "num_stages": self.stages, **limit}


class ByMask(NamedTuple):
    """Separate configurations with and without a causal mask."""

    causal: Config
    full: Config
    # --8<-- [end:config]


# --8<-- [start:splits]
class SplitRule(NamedTuple):
    """Rule to split loops until an SM has `warps` warps, with at least `least_rows`
    rows per split and at least `least_splits` splits. Partial results must be written,
    read and combined, which pays off only for long loops.
    """

    warps: int
    least_rows: int
    least_splits: int = 2


# Many warps hide latency. Combining costs relatively more if matmuls are cheap.
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
# L2 budget for k and v of the heads that run concurrently, of 40 MiB (A100) or 50 MiB
# (Hopper). Above it programs of one head drift apart and no longer share loads. Float32
# may use more, because its matmuls are slow.
L2_BYTES = {"half": 2**23, "high": 2**25, "highest": 2**25}

# {pass: {padded head dimension: configuration, or one per mask}}; {arithmetic: Passes}.
Passes = dict[str, dict[int, Config | ByMask]]
ByArithmetic = dict[str, Passes]


class FewRows(NamedTuple):
    """Configurations that are faster if all heads together have at most `most_rows`
    rows: mostly smaller tiles, which occupy more SMs.
    """

    most_rows: int
    configs: Passes


# {arithmetic: entries by ascending `most_rows`}; without an entry `CONFIGS` applies.
FewByArithmetic = dict[str, tuple[FewRows, ...]]


@cache
def count_sms(device: torch.device) -> int:
    """Return the number of streaming multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def count_splits(
    programs: int, warps: int, n: int, rows: int, arithmetic: str, device: torch.device
) -> int:
    """Return the number of splits of a loop over n rows in steps of `rows`, a power of
    two. There are `programs` tiles, each with `warps` warps if its loop is not split.
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
    tile, so that their k and v fit the L2 budget; 1 without a mask, when all tiles are
    equally long.
    """
    if not causal:
        return 1
    _, _, n, d = k.shape
    bytes_of_head = 2 * n * d * (2 if arithmetic == "half" else 4)
    return min(heads, max(1, L2_BYTES[arithmetic] // bytes_of_head))
