"""Launch configurations of the Hopper kernels, by the head dimension of their tiles
(`limits.TILE_DIMS`), timed on an H200.
"""

from typing import NamedTuple


# --8<-- [start:configs]
class Config(NamedTuple):
    """Launch configuration of a Hopper kernel: `groups` x 64 rows stay in a program,
    tiles of `rows` stream past them through a ring of `stages`.
    """

    groups: int
    rows: int
    stages: int
    # Of each consumer's thread, and of all threads on average.
    registers: int = 240
    maxnreg: int = 168
    # Forward: P v of a step runs beside the softmax of the next in one consumer, not
    # only in the others.
    overlap: bool = True
    # Forward: consumers start their matmuls in turns.
    turns: bool = False
    # dk and dv: k and v as the tensor cores' operands stay in registers.
    in_registers: bool = False
    # Forward: programs for each SM. More than one only to measure what the schedule is
    # worth.
    programs: int = 1
    # Forward: the last heads, with about this many items for each program, are handed
    # out together, longest items first.
    last_items: int = 2


# CONFIGS[kernel][head dimension of the tiles]
CONFIGS = {
    "forward": {
        64: Config(3, 128, 3, 160, 128, overlap=False, turns=True),
        128: Config(2, 128, 3),
    },
    "dq": {64: Config(2, 64, 4), 128: Config(2, 64, 4)},
    "dkdv": {64: Config(2, 64, 4, in_registers=True), 128: Config(2, 64, 3)},
}


# The backward pass in one kernel, also by tiles: stages of the ring of q and do, of dS
# that the dq group has yet to read, and of partial dq, each with a writer; registers of
# a key group's thread and of the dq group's.
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
# Tiles of head dimension 64, up to so many keys under a causal mask, or half of them
# without: while one of four groups begins or ends an item, three work. Small tiles
# waste less on the mask.
SHORT = 2048
SHORT_FORWARD = Config(4, 64, 5, 112, 96, overlap=False, turns=True)
# --8<-- [end:configs]
