"""The launch configurations, a literal table for each family of GPUs: by arithmetic,
pass, padded head dimension and, where it matters, mask; and those for few rows.

Hopper's were timed on an H200. The other GPUs were not at hand: their configurations
were compiled and chosen by what their loops need, which `tools/compile_ahead.py`
prints. `tools/tune_flash.py` times configurations on the GPU that its owner has.
"""

from systems.attention.triton.configs import (
    ByArithmetic,
    ByMask,
    Config,
    FewByArithmetic,
    FewRows,
)

# --- Hopper ---------------------------------------------------------------------------
# 227 KiB of shared memory in a block. Each was the fastest of those timed on an H200.

SM_90: ByArithmetic = {
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
# The fewest rows first. What has no entry is as with many rows.
FEW_ROWS_SM_90: FewByArithmetic = {
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

# --- A100 -----------------------------------------------------------------------------
# 163 KiB of shared memory in a block. Every warp reads the whole streamed tile from
# shared memory, which feeds an SM 128 bytes in a clock, and its tensor cores want 256
# bytes for a product of 16 x 8 x 16 of which each warp reuses nothing. So a tile that
# stays has 32 rows for each warp where registers allow it: 128 rows on 4 warps. With
# 16 rows for a warp no product is computed by two. No loop of 16 bits spills a register
# or reloads one: where dk, dv and two factors fill them, from d 128 on, addresses are
# worked out anew; dv's product before dp's spills as much.
# Float32 is split into limbs ahead: in the loop that takes longer than the products.
SM_80: ByArithmetic = {
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
    # At d 256 the assembler of some Tritons falls back to 32 registers and spills the
    # rest, unless it is told how many there are. Two programs fit where tiles are
    # read anew, and spill less.
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
# 99 KiB of shared memory in a block, 48 warps in an SM. Their tensor cores form sums in
# float32 at half rate or less: they limit every loop, so what counts is that no product
# is computed twice, and that two programs fit. Of float32 in limbs 99 KiB hold too few
# rows for that, unless the backward kernels read anew what they multiply twice.
SM_86: ByArithmetic = {
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
# As much shared memory and tensor cores of the same kind as the family before; the same
# configurations were found best when compiled for it.
SM_120 = SM_86

# --- B100, B200, B300 -----------------------------------------------------------------
# 227 KiB of shared memory in a block. Tensor cores read both factors from memory of
# their own or from shared memory, for tiles of 64 rows on, at their full rate from 128
# on. That memory has 512 columns for all programs of an SM: float32 in limbs needs so
# many that only small tiles fit, which the cores of the generation before multiply.
SM_100: ByArithmetic = {
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
# Tiles of 128 rows would be fewer than SMs; with half as many rows there are twice as
# many. To split float32 ahead takes one launch more.
FEW_ROWS_OTHERS: FewByArithmetic = {
    "half": (
        FewRows(
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
            FewRows(
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

CONFIGS: dict[str, ByArithmetic] = {
    "sm_80": SM_80,
    "sm_86": SM_86,
    "sm_90": SM_90,
    "sm_100": SM_100,
    "sm_120": SM_120,
}
FEW_ROWS: dict[str, FewByArithmetic] = {
    name: FEW_ROWS_SM_90 if name == "sm_90" else FEW_ROWS_OTHERS for name in CONFIGS
}
