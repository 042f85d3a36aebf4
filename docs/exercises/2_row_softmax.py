"""Exercise 2: the softmax of each row, where a whole row fits into one tile.

    x   [ 2  1  3  0  1  .  .  . ]     . lies past the end of the row
          minus the largest, 3
        [-1 -2  0 -3 -2  .  .  . ]
          exp: nothing exceeds 1, so nothing overflows
    e   [.37 .14 1 .05 .14  0  0  0 ]  past the end: 0, which adds nothing
          divided by the sum
    p   [.22 .08 .59 .03 .08 ]

A program owns one row. A tile's length is a power of two, so it reaches past the end.

    pytest docs/exercises -k row_softmax

Hint: which value of `other` has the exponential 0, and is never the largest number
of a row?
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


# --8<-- [start:kernel]
@triton.jit
def row_softmax_kernel(x_ptr, p_ptr, stride_x, d, COLUMNS: tl.constexpr):
    """Compute p for one row."""
    row = tl.program_id(0)
    columns = tl.arange(0, COLUMNS)
    # [COLUMNS]: the row, and past its end a number whose exp is 0
    x = ...
    # [COLUMNS]: exp of the row minus its largest number
    e = ...
    # [COLUMNS]
    p = ...
    tl.store(p_ptr + row * d + columns, p, mask=columns < d)


# --8<-- [end:kernel]


def row_softmax(x: Tensor) -> Tensor:
    """Return the softmax of each row of x (n, d), float32 with contiguous rows."""
    n, d = x.shape
    p = torch.empty(n, d, device=x.device)
    columns = triton.next_power_of_2(d)
    row_softmax_kernel[(n,)](x, p, x.stride(0), d, COLUMNS=columns)
    return p
