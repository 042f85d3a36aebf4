"""A profiler that has stopped goes on making launches longer: PyTorch leaves CUPTI, the
library that watches the GPU, attached to the process (its issue 144455). What is timed
after that is timed beside it, unless it is told to leave.
"""

import os
import sys
import time

LEAVE = "TEARDOWN_CUPTI"
PROFILES = "systems.profiling.torch_trace"
# Before that CUPTI and CUDA graphs did not go together once it had left.
SINCE_CUDA = (12, 6)
# It leaves during one of the process's next calls of CUDA, from a thread of its own.
CALLS, PAUSE = 10, 0.005


def told_to_leave() -> bool:
    """Whether profilers of this process leave when they stop; said here, unless the
    environment says otherwise.
    """
    import torch

    cuda = torch.version.cuda
    if cuda and tuple(int(part) for part in cuda.split(".")[:2]) >= SINCE_CUDA:
        os.environ.setdefault(LEAVE, "1")
    return os.environ.get(LEAVE) == "1"


def wait_until_gone() -> None:
    """Give a profiler that has stopped the calls during which it leaves, where what
    starts one was imported.
    """
    if PROFILES not in sys.modules or os.environ.get(LEAVE) != "1":
        return
    import torch

    if torch.cuda.is_initialized():
        for _ in range(CALLS):
            torch.cuda.synchronize()
            time.sleep(PAUSE)
