"""Launch configurations of the Hopper kernels by padded head dimension."""

from typing import NamedTuple


# --8<-- [start:configs]
class Config(NamedTuple):
    """Launch configuration: a program owns `groups` x 64 queries (or keys), and loops
    over tiles of `rows` keys (or queries) in a ring buffer of `stages` stages.
    """

    groups: int
    rows: int
    stages: int
    # Registers per thread of consumers, and the average over all warps (maxnreg).
    registers: int = 240
    maxnreg: int = 168
    # Forward: P V of a step overlaps with softmax of the next step (same consumer).
    overlap: bool = True
    # Forward: consumers start their matmuls one after another.
    turns: bool = False
    # dk and dv: k and v stay in registers as matmul operands.
    in_registers: bool = False
    # Forward: programs per SM (more than one only in an experiment).
    programs: int = 1
    # Forward: query tiles per program in the last heads, which are all interleaved.
    last_items: int = 2


# Launch configurations by kernel and padded head dimension.
CONFIGS = {
    "forward": {
        64: Config(3, 128, 3, 160, 128, overlap=False, turns=True),
        128: Config(2, 128, 3),
    },
    "dq": {64: Config(2, 64, 4), 128: Config(2, 64, 4)},
    "dkdv": {64: Config(2, 64, 4, in_registers=True), 128: Config(2, 64, 3)},
}


# One-pass backward by padded head dimension: stages of rings (q and do; dS; partial
# dq), and registers per thread in the key groups and in the dq group.
ONE_PASS = {
    64: {
        "STAGES": 5,
        "DS_STAGES": 3,
        "DQ_STAGES": 3,
        "REGISTERS": 192,
        "DQ_REGISTERS": 80,
    },
    128: {
        "STAGES": 2,
        "DS_STAGES": 2,
        "DQ_STAGES": 2,
        "REGISTERS": 208,
        "DQ_REGISTERS": 72,
    },
}
ONE_PASS_MAXNREG = 128
ONE_PASS_KEYS, ONE_PASS_QUERIES = 128, 64
# SHORT_FORWARD, with four consumers, was faster at a padded head dimension of 64 up to
# SHORT keys (SHORT / 2 if not causal): three compute while one starts or ends.
SHORT = 2048
SHORT_FORWARD = Config(4, 64, 5, 112, 96, overlap=False, turns=True)
# --8<-- [end:configs]
