"""Model sizes, without importing torch: Table 1 of the assignment, and a 10B model."""

from dataclasses import dataclass


# --8<-- [start:sizes]
@dataclass(frozen=True)
class ModelSize:
    """The size of a model: width, feed-forward width, number of layers and of heads."""

    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int


TABLE_1 = {
    "small": ModelSize(768, 3072, 12, 12),
    "medium": ModelSize(1024, 4096, 24, 16),
    "large": ModelSize(1280, 5120, 36, 20),
    "xl": ModelSize(1600, 6400, 48, 25),
    "2.7B": ModelSize(2560, 10240, 32, 32),
}
# CS336 of 2026 adds the 10B, and calls the 2.7B of Table 1 "xl".
SIZES = TABLE_1 | {"10B": ModelSize(4608, 12288, 50, 36)}
VOCAB_SIZE = 10_000
# --8<-- [end:sizes]
