"""Detach CUPTI, NVIDIA's profiling library, after a profile. PyTorch leaves it attached
(PyTorch issue 144455), which slows all later launches.
"""

import os
import sys
import time

# The module that runs torch.profiler: unless it was imported, no profiler has run.
TRACE_MODULE = "systems.profiling.torch_trace"
# Environment variable that makes CUPTI detach after a profile, and the first CUDA
# version in which CUDA graphs still work after detaching.
DETACH_VARIABLE, SINCE_CUDA = "TEARDOWN_CUPTI", (12, 6)
# Number of CUDA calls, and the pause in seconds after each, that give CUPTI time to
# detach. A profile that starts before CUPTI has detached would lose kernels.
CALLS, PAUSE = 10, 0.005


# --8<-- [start:detach_cupti]
def detach_cupti() -> None:
    """Detach CUPTI from this process if a profiler ran."""
    if TRACE_MODULE not in sys.modules:
        return
    import torch

    from systems.profiling.torch_trace import run_profiled

    cuda = tuple(int(part) for part in (torch.version.cuda or "0").split(".")[:2])
    if cuda < SINCE_CUDA or not torch.cuda.is_initialized():
        return
    previous = os.environ.get(DETACH_VARIABLE)
    os.environ[DETACH_VARIABLE] = "1"
    try:
        # Run an empty profile, because CUPTI detaches at the end of a profile.
        run_profiled(lambda: None, "cuda")
        for _ in range(CALLS):
            torch.cuda.synchronize()
            time.sleep(PAUSE)
    except RuntimeError:
        pass
    finally:
        os.environ.pop(DETACH_VARIABLE)
        if previous is not None:
            os.environ[DETACH_VARIABLE] = previous
    # --8<-- [end:detach_cupti]
