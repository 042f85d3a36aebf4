"""Detach CUPTI, the library that watches the GPU, after a profile. PyTorch leaves it
attached (issue 144455), which makes every later launch slower.
"""

import os
import sys
import time

# Whatever starts a profiler imports this.
PROFILES = "systems.profiling.torch_trace"
# With this variable set, CUPTI detaches at the end of a profile. In older CUDA, CUDA
# graphs failed afterwards.
LEAVE, SINCE_CUDA = "TEARDOWN_CUPTI", (12, 6)
# CUPTI detaches in a thread of its own during one of the next CUDA calls. A profile
# that begins before then loses kernels.
CALLS, PAUSE = 10, 0.005


# --8<-- [start:detach_cupti]
def detach_cupti() -> None:
    """Detach CUPTI from this process if a profiler ran."""
    if PROFILES not in sys.modules:
        return
    import torch

    from systems.profiling.torch_trace import run_profiled

    cuda = tuple(int(part) for part in (torch.version.cuda or "0").split(".")[:2])
    if cuda < SINCE_CUDA or not torch.cuda.is_initialized():
        return
    kept = os.environ.get(LEAVE)
    os.environ[LEAVE] = "1"
    try:
        # The variable acts at the end of a profile, so profile nothing once more.
        run_profiled(lambda: None, "cuda")
        for _ in range(CALLS):
            torch.cuda.synchronize()
            time.sleep(PAUSE)
    except RuntimeError:
        pass
    finally:
        os.environ.pop(LEAVE)
        if kept is not None:
            os.environ[LEAVE] = kept
    # --8<-- [end:detach_cupti]
