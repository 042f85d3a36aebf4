"""Launch configurations for each family of GPUs, by arithmetic, pass, padded head
dimension and sometimes mask, with separate tables for few rows.

Hopper's configurations were timed on an H200; the others follow from the registers and
shared memory of compiled kernels. `tools/tune_flash.py` times them on your GPU.
"""

from systems.attention.triton.configs import (
    Config,
    ConfigPair,
    ConfigsByArithmetic,
    FewRowsByArithmetic,
    FewRowsTable,
)

# --- Hopper ---------------------------------------------------------------------------
# 227 KiB of shared memory per thread block. The tables were timed on an H200.

SM_90: ConfigsByArithmetic = {
    "half": {
        "forward": {
            16: Config(64, 128, 4, 3, registers=128),
            32: Config(64, 128, 4, 3),
            64: ConfigPair(
                causal=Config(64, 64, 4, 3, registers=128),
                full=Config(64, 128, 4, 2, registers=168),
            ),
            128: ConfigPair(causal=Config(64, 64, 4, 3), full=Config(256, 64, 8, 3)),
            256: Config(128, 64, 8, 2),
        },
        "dkdv": {
            16: Config(64, 64, 4, 3, registers=168),
            32: Config(64, 64, 4, 3, registers=168),
            64: ConfigPair(
                causal=Config(64, 64, 4, 3), full=Config(64, 64, 4, 3, registers=168)
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
            256: Config(32, 32, 4, 1, registers=255, ahead=True),
        },
        "dq": {
            16: Config(64, 64, 4, 3, ahead=True),
            32: Config(64, 64, 4, 3, ahead=True),
            64: Config(128, 64, 8, 2, ahead=True),
            128: Config(128, 32, 8, 1),
            256: Config(32, 32, 4, 1, registers=255, ahead=True),
        },
    },
}

FLOAT32_512_ROWS_SM_90 = FewRowsTable(
    512,
    {
        "forward": {64: Config(32, 32, 4, 1), 128: Config(32, 32, 4, 1)},
        "dkdv": {64: Config(32, 16, 4, 1), 128: Config(32, 16, 4, 1)},
        "dq": {64: Config(16, 32, 4, 1), 128: Config(16, 32, 4, 1)},
    },
)
FLOAT32_2048_ROWS_SM_90 = FewRowsTable(
    2048,
    {
        "forward": {16: Config(64, 64, 4, 1), 32: Config(64, 64, 4, 1)},
        "dkdv": {16: Config(64, 64, 4, 1), 32: Config(64, 64, 4, 1)},
        "dq": {16: Config(64, 64, 4, 2), 32: Config(64, 64, 4, 1)},
    },
)
# Tables for few rows, ordered by `most_rows`. Without an entry, SM_90 applies.
FEW_ROWS_SM_90: FewRowsByArithmetic = {
    "half": (
        FewRowsTable(
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
        FewRowsTable(
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

# --- A100 -----------------------------------------------------------------------------
# 163 KiB of shared memory per thread block. Every warp reads each tile of the loop from
# shared memory, so the program's tile has 32 rows for each warp if registers suffice.
# From d = 128, accumulators fill the registers, so addresses are recomputed. A separate
# kernel splits float32 into limbs (`ahead`).
SM_80: ConfigsByArithmetic = {
    "half": {
        "forward": {
            16: Config(128, 64, 4, 3),
            32: Config(128, 64, 4, 3),
            64: Config(128, 64, 4, 3),
            128: Config(128, 32, 4, 2),
            256: Config(64, 32, 4, 2),
        },
        "dkdv": {
            16: Config(64, 128, 4, 2),
            32: Config(32, 128, 4, 2),
            64: Config(16, 128, 4, 2),
            128: Config(64, 64, 4, 2, recompute="addresses"),
            256: Config(64, 64, 8, 1, recompute="addresses"),
        },
        "dq": {
            16: Config(128, 64, 4, 2),
            32: Config(128, 64, 4, 2),
            64: Config(128, 32, 4, 2),
            128: Config(64, 64, 4, 2),
            256: Config(64, 64, 8, 1),
        },
    },
    "high": {
        "forward": {
            16: Config(64, 64, 4, 3, ahead=True),
            32: Config(64, 32, 4, 3, ahead=True),
            64: Config(64, 32, 4, 2, ahead=True),
            128: Config(128, 32, 8, 2, ahead=True),
            256: Config(32, 32, 4, 1, ahead=True),
        },
        "dkdv": {
            16: Config(64, 64, 4, 2, ahead=True),
            32: Config(32, 64, 4, 2, ahead=True),
            64: Config(32, 64, 4, 2, ahead=True),
            128: Config(32, 32, 4, 2, ahead=True),
            256: Config(32, 16, 4, 1, ahead=True),
        },
        "dq": {
            16: Config(64, 64, 4, 2, ahead=True),
            32: Config(64, 32, 4, 3, ahead=True),
            64: Config(64, 32, 4, 2, ahead=True),
            128: Config(128, 16, 8, 2, ahead=True),
            256: Config(16, 32, 4, 1, ahead=True),
        },
    },
    # At d = 256, some assemblers use 32 registers and spill unless `registers` is set;
    # recompute="tiles" saves shared memory, so that two programs fit on an SM.
    "highest": {
        "forward": {
            16: Config(64, 64, 4, 3, ahead=True),
            32: Config(64, 32, 4, 3, ahead=True),
            64: Config(64, 32, 4, 2, ahead=True),
            128: Config(128, 16, 8, 2, ahead=True),
            256: Config(32, 32, 4, 1, registers=255, ahead=True),
        },
        "dkdv": {
            16: Config(64, 64, 4, 2, ahead=True),
            32: Config(32, 64, 4, 2, ahead=True),
            64: Config(32, 64, 4, 2, ahead=True),
            128: Config(32, 32, 4, 1, ahead=True, recompute="addresses"),
            256: Config(32, 16, 4, 1, registers=255, ahead=True, recompute="tiles"),
        },
        "dq": {
            16: Config(64, 64, 4, 2, ahead=True),
            32: Config(64, 32, 4, 3, ahead=True),
            64: Config(64, 32, 4, 2, ahead=True),
            128: Config(32, 32, 4, 1, ahead=True),
            256: Config(16, 32, 4, 1, registers=255, ahead=True, recompute="tiles"),
        },
    },
}

# --- GeForce, A10, L4, L40S, and every GPU that is not named --------------------------
# 99 KiB of shared memory per thread block, 48 warps per SM. GeForce's tensor cores
# accumulate in float32 at half rate, and are the bottleneck. Tiles are small enough
# that two programs fit on an SM.
SM_86: ConfigsByArithmetic = {
    "half": {
        "forward": {
            16: Config(128, 64, 4, 3),
            32: Config(128, 64, 4, 3),
            64: Config(128, 64, 4, 2),
            128: Config(128, 32, 4, 2),
            256: Config(64, 64, 8, 1),
        },
        "dkdv": {
            16: Config(64, 128, 4, 2),
            32: Config(32, 128, 4, 2),
            64: Config(16, 128, 4, 2),
            128: Config(64, 64, 8, 2),
            256: Config(32, 32, 4, 1),
        },
        "dq": {
            16: Config(128, 64, 4, 2),
            32: Config(128, 64, 4, 2),
            64: Config(128, 32, 4, 2),
            128: Config(64, 64, 8, 2),
            256: Config(32, 32, 4, 1),
        },
    },
    "high": {
        "forward": {
            16: Config(64, 64, 4, 3, ahead=True),
            32: Config(64, 32, 4, 3, ahead=True),
            64: Config(64, 32, 4, 2, ahead=True),
            128: Config(128, 16, 8, 2, ahead=True),
            256: Config(32, 32, 4, 1, ahead=True),
        },
        "dkdv": {
            16: Config(64, 64, 4, 2, ahead=True),
            32: Config(32, 64, 4, 2, ahead=True),
            64: Config(32, 64, 4, 2, ahead=True),
            128: Config(32, 32, 4, 2, ahead=True),
            256: Config(32, 16, 4, 1, ahead=True, recompute="tiles"),
        },
        "dq": {
            16: Config(64, 64, 4, 2, ahead=True),
            32: Config(64, 32, 4, 3, ahead=True),
            64: Config(64, 32, 4, 2, ahead=True),
            128: Config(32, 32, 4, 2, ahead=True),
            256: Config(16, 32, 4, 1, ahead=True),
        },
    },
    "highest": {
        "forward": {
            16: Config(64, 64, 4, 3, ahead=True),
            32: Config(64, 32, 4, 3, ahead=True),
            64: Config(64, 32, 4, 2, ahead=True),
            128: Config(32, 32, 4, 1, ahead=True),
            256: Config(16, 32, 4, 1, registers=255, ahead=True),
        },
        "dkdv": {
            16: Config(64, 64, 4, 2, ahead=True),
            32: Config(32, 64, 4, 2, ahead=True),
            64: Config(32, 64, 4, 2, ahead=True),
            128: Config(32, 32, 4, 1, ahead=True, recompute="tiles"),
            256: Config(32, 16, 4, 1, registers=255, ahead=True, recompute="tiles"),
        },
        "dq": {
            16: Config(64, 64, 4, 2, ahead=True),
            32: Config(64, 32, 4, 3, ahead=True),
            64: Config(64, 32, 4, 2, ahead=True),
            128: Config(32, 32, 4, 1, ahead=True),
            256: Config(16, 32, 4, 1, registers=255, ahead=True, recompute="tiles"),
        },
    },
}

# --- GeForce RTX 50 -------------------------------------------------------------------
# Shared memory and tensor cores are as above, so the configurations are the same.
SM_120 = SM_86

# --- B100, B200, B300 -----------------------------------------------------------------
# 227 KiB of shared memory per thread block. Tensor cores need tiles of 128 rows for
# full rate. Tensor memory has 512 columns per SM, so only small tiles fit for float32.
SM_100: ConfigsByArithmetic = {
    "half": {
        "forward": {
            16: Config(128, 64, 4, 3),
            32: Config(128, 64, 4, 3),
            64: Config(128, 64, 4, 3),
            128: Config(128, 64, 8, 3),
            256: Config(128, 64, 8, 2),
        },
        "dkdv": {
            16: Config(64, 128, 8, 2),
            32: Config(64, 128, 8, 2),
            64: Config(64, 128, 8, 2),
            128: Config(64, 128, 8, 2),
            256: Config(64, 64, 8, 1),
        },
        "dq": {
            16: Config(128, 64, 4, 2),
            32: Config(128, 64, 4, 2),
            64: Config(128, 64, 4, 3),
            128: Config(128, 64, 8, 2),
            256: Config(64, 64, 8, 1),
        },
    },
    "high": {
        "forward": {
            16: Config(64, 64, 4, 3, ahead=True),
            32: Config(64, 64, 4, 3, ahead=True),
            64: Config(64, 64, 4, 3, ahead=True),
            128: Config(64, 32, 4, 2, ahead=True),
            256: Config(32, 32, 4, 1, ahead=True),
        },
        "dkdv": {
            16: Config(64, 64, 4, 2, ahead=True),
            32: Config(64, 64, 4, 2, ahead=True),
            64: Config(64, 64, 4, 2, ahead=True),
            128: Config(32, 32, 4, 2, ahead=True),
            256: Config(32, 16, 4, 1, ahead=True),
        },
        "dq": {
            16: Config(64, 64, 4, 2, ahead=True),
            32: Config(64, 64, 4, 2, ahead=True),
            64: Config(64, 64, 4, 2, ahead=True),
            128: Config(64, 64, 4, 1, ahead=True),
            256: Config(16, 32, 4, 1, ahead=True),
        },
    },
    "highest": {
        "forward": {
            16: Config(64, 64, 4, 2, ahead=True),
            32: Config(64, 64, 4, 2, ahead=True),
            64: Config(64, 32, 4, 2, ahead=True),
            128: Config(32, 32, 4, 1, ahead=True),
            256: Config(32, 32, 4, 1, registers=255, ahead=True),
        },
        "dkdv": {
            16: Config(32, 64, 4, 2, ahead=True),
            32: Config(32, 64, 4, 2, ahead=True),
            64: Config(32, 32, 4, 1, ahead=True),
            128: Config(32, 32, 4, 1, ahead=True, recompute="addresses"),
            256: Config(32, 16, 4, 1, registers=255, ahead=True, recompute="tiles"),
        },
        "dq": {
            16: Config(64, 64, 4, 2, ahead=True),
            32: Config(64, 32, 4, 3, ahead=True),
            64: Config(64, 32, 4, 2, ahead=True),
            128: Config(32, 32, 4, 1, ahead=True),
            256: Config(16, 32, 4, 1, registers=255, ahead=True, recompute="tiles"),
        },
    },
}

# --- All but Hopper, with few rows ----------------------------------------------------
# Tiles are small, because there would be fewer tiles of 128 rows than SMs.
FEW_ROWS_OTHERS: FewRowsByArithmetic = {
    "half": (
        FewRowsTable(
            8192,
            {
                "forward": {},
                "dkdv": {
                    16: Config(64, 64, 4, 2),
                    32: Config(64, 64, 4, 2),
                    64: Config(64, 64, 4, 2),
                },
                "dq": {
                    16: Config(64, 64, 4, 2),
                    32: Config(64, 64, 4, 2),
                    64: Config(64, 64, 4, 2),
                },
            },
        ),
    ),
    **dict.fromkeys(
        ("high", "highest"),
        (
            FewRowsTable(
                2048,
                {
                    "forward": {
                        16: Config(64, 32, 4, 2),
                        32: Config(64, 32, 4, 2),
                        64: Config(64, 32, 4, 2),
                    },
                    "dkdv": {
                        16: Config(32, 64, 4, 2),
                        32: Config(32, 64, 4, 2),
                        64: Config(32, 32, 4, 1),
                    },
                    "dq": {
                        16: Config(64, 32, 4, 2),
                        32: Config(64, 32, 4, 2),
                        64: Config(32, 32, 4, 1),
                    },
                },
            ),
        ),
    ),
}

CONFIGS: dict[str, ConfigsByArithmetic] = {
    "sm_80": SM_80,
    "sm_86": SM_86,
    "sm_90": SM_90,
    "sm_100": SM_100,
    "sm_120": SM_120,
}
FEW_ROWS: dict[str, FewRowsByArithmetic] = {
    name: FEW_ROWS_SM_90 if name == "sm_90" else FEW_ROWS_OTHERS for name in CONFIGS
}
