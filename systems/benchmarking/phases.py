"""The phases of a training step, and marks that profilers record: `mark("forward")` is
an NVTX range for Nsight Systems and a `record_function` for torch.profiler.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

FORWARD, LOSS, BACKWARD, OPTIMIZER = PHASES = "forward", "loss", "backward", "optimizer"


@contextmanager
def mark(name: str) -> Iterator[None]:
    """Label the work launched inside the context, for any active profiler."""
    on_gpu = torch.cuda.is_initialized()
    if on_gpu:
        torch.cuda.nvtx.range_push(name)
    try:
        with torch.profiler.record_function(name):
            yield
    finally:
        if on_gpu:
            torch.cuda.nvtx.range_pop()
