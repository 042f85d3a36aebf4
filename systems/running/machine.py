"""Choose the device for an experiment, check that torch would use it and that kernels
can be stored, reset it between rows, and limit host memory.
"""

import gc
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from systems.records.device import CPU, META, Device, clean_name, find_gpu, newest_cuda
from systems.running.reports import CannotStart

# The module that runs torch.profiler: unless it was imported, no profiler has run.
TRACE_MODULE = "systems.profiling.torch_trace"
# Environment variable that makes CUPTI detach after a profile, and the first CUDA
# version in which CUDA graphs still work after detaching.
DETACH_VARIABLE, SINCE_CUDA = "TEARDOWN_CUPTI", (12, 6)
# Number of CUDA calls, and the pause in seconds after each, that give CUPTI time to
# detach. A profile that starts before CUPTI has detached would lose kernels.
CALLS, PAUSE = 10, 0.005


def choose_device(allowed: tuple[str, ...]) -> Device | None:
    """Return the first of "meta", "cuda", "cpu" that is allowed and found, or None."""
    if "meta" in allowed:
        return META
    gpu = find_gpu()
    if gpu is not None and "cuda" in allowed:
        return gpu
    return CPU if "cpu" in allowed else None


def check_torch(device: Device) -> None:
    """Raise CannotStart if torch is imported and would use another GPU, or none."""
    if not device.is_gpu or "torch" not in sys.modules:
        return
    import torch

    if not torch.cuda.is_available():
        raise CannotStart(why_unusable(device))
    if (name := clean_name(torch.cuda.get_device_name(0))) != device.name:
        fault = f"torch would use {name}, not {device.name}"
        kind = "MIG device" if " MIG " in name else "GPU"
        raise CannotStart(
            f"{fault}: set CUDA_VISIBLE_DEVICES to the UUID of the {kind}, which "
            "nvidia-smi -L lists"
        )


def why_unusable(gpu: Device) -> str:
    """Return why torch can't use a GPU, with a remedy."""
    import torch

    fault = f"torch {torch.__version__} can't use the {gpu.name}"
    built, runs = torch.version.cuda, newest_cuda()
    if built is None:
        return f"{fault}: install a CUDA build of torch"
    if runs and runs[0] < int(built.partition(".")[0]):
        return (
            f"{fault}: it is built for CUDA {built}, and driver {gpu.driver} runs CUDA "
            f"{runs[0]}.{runs[1]} at most: update the driver, or install a torch for "
            f"CUDA {runs[0]}"
        )
    return f"{fault}, though it is built for CUDA {built}: torch.cuda.init() says why"


def free_memory() -> None:
    """Free memory of the previous row, so that all rows start in the same state."""
    gc.collect()
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_initialized():
            # A cuBLAS workspace would keep the rest of its segment from being freed.
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()


def triton_cache_folder() -> Path:
    """Return Triton's cache folder for compiled kernels."""
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
    folder = os.environ.get("TRITON_CACHE_DIR")
    return Path(folder) if folder else Path(home, ".triton", "cache")


def why_unwritable(folder: Path) -> str:
    """Return why a folder can't store kernels, with a remedy, or "" if it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        fault = f"can't keep compiled kernels in {folder}: {error.strerror}"
        return f"{fault}; set TRITON_CACHE_DIR to a folder on a disk of this machine"


# --8<-- [start:detach_cupti]
def detach_cupti() -> None:
    """Detach CUPTI, NVIDIA's profiling library, from this process if a profiler ran.
    PyTorch leaves it attached (issue 144455), which slows all later launches.
    """
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


def limit_host_memory() -> None:
    """Without a GPU, limit this process to 90 % of free memory. If memory ran out, the
    system would kill processes. Keep a lower existing limit (`ulimit -d`).
    """
    free = available_host_bytes()
    if free is None or find_gpu() is not None:
        return
    try:
        import resource
    except ModuleNotFoundError:
        # Windows has no limits on the memory of a process.
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = free // 10 * 9
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    # Some systems reject this limit.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def available_host_bytes(root: Path = Path("/")) -> int | None:
    """Return bytes free in the system or, if fewer, in the control group, or None."""
    free = []
    with suppress(OSError, ValueError):
        for line in (root / "proc" / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free.append(1024 * int(line.split()[1]))
    with suppress(OSError, ValueError, KeyError):
        cgroup = (root / "proc" / "self" / "cgroup").read_text()
        path = cgroup.rpartition("0::/")[2].strip()
        group = root / "sys" / "fs" / "cgroup" / path
        # In a container, the control group may be mounted at the root.
        group = group if (group / "memory.max").exists() else root / "sys/fs/cgroup"
        limit, used = ((group / f"memory.{n}").read_text() for n in ("max", "current"))
        lines = (group / "memory.stat").read_text().splitlines()
        stat = dict(line.split() for line in lines)
        cached = int(stat["active_file"]) + int(stat["inactive_file"])
        free.append(max(0, int(limit) - int(used) + cached))
    return min(free, default=None)
