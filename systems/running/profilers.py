"""A profiler that has stopped goes on making launches longer: PyTorch leaves CUPTI, the
library that watches the GPU, attached to the process (its issue 144455). What is timed
next would be timed beside it.
"""

import os
import sys
import time

# Whatever starts a profiler imports this.
PROFILES = "systems.profiling.torch_trace"
# CUPTI leaves when a profile ends under this, where CUDA is as new: before, it and CUDA
# graphs did not go together afterwards.
LEAVE, SINCE_CUDA = "TEARDOWN_CUPTI", (12, 6)
# It goes during one of the process's next calls of CUDA, from a thread of its own. A
# profile that begins before then loses kernels.
CALLS, PAUSE = 10, 0.005


# --8<-- [start:let_go]
def let_go() -> None:
    """Detach from this process what a profiler left attached. Nothing where the GPU
    fails: its rows say how.
    """
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
        # The last profile ended otherwise: end one of nothing.
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


# --8<-- [end:let_go]
