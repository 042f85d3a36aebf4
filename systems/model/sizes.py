"""The five models of the assignment's Table 1. Imports no torch: the pages' renderer
reads them too.
"""

from dataclasses import dataclass


# --8<-- [start:sizes]
@dataclass(frozen=True)
class ModelSize:
    """One row of the table: the width, the feed-forward width, layers and heads."""

    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int


SIZES = {
    "small": ModelSize(768, 3072, 12, 12),
    "medium": ModelSize(1024, 4096, 24, 16),
    "large": ModelSize(1280, 5120, 36, 20),
    "xl": ModelSize(1600, 6400, 48, 25),
    "2.7B": ModelSize(2560, 10240, 32, 32),
}
VOCAB_SIZE = 10_000
# --8<-- [end:sizes]
