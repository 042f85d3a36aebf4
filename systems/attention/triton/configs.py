"""Types of launch configurations, and the choice of loop splits and head swizzle."""

from functools import cache
from typing import Literal, NamedTuple

import torch

from systems.attention.relaunch import Layout


# --8<-- [start:config]
class Config(NamedTuple):
    """Launch configuration of a kernel: tiles of `q` queries and `k` keys, with
    `stages` stages of the software pipeline.

    `registers` limits the registers per thread, so that more programs fit on an SM. Set
    255, the hardware's limit, where NVIDIA's assembler would use only 32 and spill.
    If `ahead`, a separate kernel first splits float32 q, k, v and do into bfloat16
    summands (limbs). `recompute` saves registers in a backward step: "addresses"
    computes tile addresses again; "tiles" also reloads tiles, to save shared memory.
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
        """Return Triton's num_warps, num_stages, and if `registers` is set maxnreg."""
        limit = {"maxnreg": self.registers} if self.registers else {}
        return {"num_warps": self.warps, "num_stages": self.stages, **limit}


class ConfigPair(NamedTuple):
    """Separate configurations with and without a causal mask."""

    causal: Config
    full: Config
    # --8<-- [end:config]


# --8<-- [start:splits]
class SplitRule(NamedTuple):
    """Rule for splitting loops until each SM has `warps` warps, into at least
    `least_splits` splits of at least `least_rows` rows. Combining partial results costs
    time, so only long loops are split.
    """

    warps: int
    least_rows: int
    least_splits: int = 2


# Rules by arithmetic. The cheaper the matmuls are, the more rows a split must have.
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
# Bytes of the L2 cache (40 MiB on an A100, 50 MiB on Hopper) for k and v of the heads
# that run concurrently, by arithmetic. Float32 gets more, because its matmuls are slow.
L2_BUDGET = {"half": 2**23, "high": 2**25, "highest": 2**25}

# Configurations by pass and padded head dimension.
ConfigsByPass = dict[str, dict[int, Config | ConfigPair]]
ConfigsByArithmetic = dict[str, ConfigsByPass]


class FewRowsTable(NamedTuple):
    """Configurations with small tiles, for at most `most_rows` rows over all heads."""

    most_rows: int
    configs: ConfigsByPass


# Tables by arithmetic, ordered by `most_rows`; without an entry, `CONFIGS` applies.
FewRowsByArithmetic = dict[str, tuple[FewRowsTable, ...]]


@cache
def count_sms(device: torch.device) -> int:
    """Return the number of streaming multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def count_splits(
    programs: int, warps: int, n: int, rows: int, arithmetic: str, device: torch.device
) -> int:
    """Return into how many splits SPLIT_RULES[arithmetic] divide a loop over n rows in
    steps of `rows`: a power of two, on a CPU 1. A kernel without splits would have
    `programs` programs of `warps` warps.
    """
    if device.type == "cpu":
        return 1
    best = 1
    for rule in SPLIT_RULES[arithmetic]:
        room = rule.warps * count_sms(device) // (programs * warps)
        splits = min(room, n // max(rows, rule.least_rows), MAX_SPLITS)
        if splits >= rule.least_splits:
            best = max(best, splits)
    return 1 << (best.bit_length() - 1)


def choose_head_swizzle(k: Layout, heads: int, causal: bool, arithmetic: str) -> int:
    """Return the head swizzle: how many of `heads` (over all batches) have their tiles
    interleaved, longest first. Their k and v must fit in L2_BUDGET[arithmetic].
    Return 1 without a causal mask, because then all tiles take equally long.
    """
    if not causal:
        return 1
    _, _, n, d = k.shape
    bytes_of_head = 2 * n * d * (2 if arithmetic == "half" else 4)
    return min(heads, max(1, L2_BUDGET[arithmetic] // bytes_of_head))
