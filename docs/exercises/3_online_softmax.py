"""Exercise 3: the sum of a softmax in one pass, while the row still arrives.

    x         [ 1  0  0  1 | 3  1  2  3 | 2  0  .  . ]
    m    -∞ ->       1     ->     3     ->     3           the largest so far
    l     0 ->    Σ e^x/e  ->  old sum · e^(1-3)  -> ...   Σ exp(x - m) so far
                               + Σ e^(x-3)

The sum so far is relative to an m that may turn out too small. When m rises, the old
sum must shrink, as if it had been relative to the new m from the start.

    pytest docs/exercises -k online

Hint: exp(x - m) = exp(x - m_old) · exp(m_old - m). In the first tile m_old is -∞, and
exp(-∞) = 0, so the first tile needs no special case.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


# --8<-- [start:kernel]
@triton.jit
def online_softmax_kernel(x_ptr, p_ptr, stride_x, d, COLUMNS: tl.constexpr):
    """Compute p for one row: one loop finds m and l, a second loop writes p."""
    row = tl.program_id(0)
    m = float("-inf")
    l = 0.0
    for start in range(0, d, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        offsets = row * stride_x + columns
        # [COLUMNS]
        x = tl.load(x_ptr + offsets, mask=columns < d, other=float("-inf"))
        # The largest number so far, this tile included
        m_new = ...
        # The sum so far, corrected, and what this tile adds to it
        l = ...
        m = m_new
    for start in range(0, d, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        x = tl.load(x_ptr + row * stride_x + columns, mask=columns < d)
        tl.store(p_ptr + row * d + columns, tl.exp(x - m) / l, mask=columns < d)


# --8<-- [end:kernel]


def online_softmax(x: Tensor) -> Tensor:
    """Return the softmax of each row of x (n, d), float32 with contiguous rows."""
    n, d = x.shape
    p = torch.empty(n, d, device=x.device)
    online_softmax_kernel[(n,)](x, p, x.stride(0), d, COLUMNS=4)
    return p
