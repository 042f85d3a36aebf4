"""Exercise 1: y = Σ_d w_d x_d of each row of x, tile by tile.

                 tile 0     tile 1     tile 2
    w          [ w w w w  | w w w w  | w w . . ]
    x  row 4   [ x x x x  | x x x x  | x x . . ] -> y
       row 5   [ . . . .  | . . . .  | . . . . ]

A program owns ROWS rows and walks along COLUMNS columns at a time. A point (.)
is past the end, where memory may hold anything, even NaN, and NaN times 0 is NaN.

    pytest docs/exercises -k weighted

Hint: an offset is row · stride + column · stride. A column of row numbers is
`rows[:, None]`, a row of column numbers `columns[None, :]`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


# --8<-- [start:kernel]
@triton.jit
def weighted_sum_kernel(
    x_ptr, w_ptr, y_ptr, stride_xn, stride_xd, stride_w, n, d,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute y for ROWS rows."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    y = tl.zeros([ROWS], tl.float32)
    for start in range(0, d, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        # [ROWS, COLUMNS]: this tile of x, 0 past the end. tl.load with a mask
        x = ...
        # [COLUMNS]: this tile of w, 0 past the end
        w = ...
        # [ROWS]: what this tile adds to each row
        y += ...
    tl.store(y_ptr + rows, y, mask=rows < n)


# --8<-- [end:kernel]


def weighted_sum(x: Tensor, w: Tensor) -> Tensor:
    """Return y (n,) for x (n, d) and w (d,), all float32."""
    n, d = x.shape
    y = torch.empty(n, device=x.device)
    weighted_sum_kernel[(triton.cdiv(n, 2),)](
        x, w, y, *x.stride(), w.stride(0), n, d, ROWS=2, COLUMNS=4
    )
    return y
