"""Short names of dtypes, and relative errors."""

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DTYPE_NAMES = {torch.float64: "fp64"} | {dtype: name for name, dtype in DTYPES.items()}


def relative_error(result: Tensor, exact: Tensor) -> float:
    """Return ‖result - exact‖ / ‖exact‖; `exact` is float64, so no norm overflows."""
    return ((result.double() - exact).norm() / exact.norm()).item()
