"""On which device this machine can measure a stem, and whether torch would use it."""

import gc
import sys

from systems.records.device import CPU, META, SIMULATED, Device, find_gpu, plain
from systems.running.limited import as_simulated
from systems.running.reports import CannotStart


def device_for(allowed: tuple[str, ...]) -> Device | None:
    """The best of the allowed kinds of device that this machine has, or None."""
    if "meta" in allowed:
        return META
    gpu = find_gpu()
    if gpu is not None and "cuda" in allowed:
        return as_simulated(gpu)
    return CPU if "cpu" in allowed else None


def check_torch(device: Device) -> None:
    """A GPU that torch can't use would silently become a CPU measurement."""
    if not device.is_gpu or "torch" not in sys.modules:
        return
    import torch

    if not torch.cuda.is_available():
        fault = f"torch {torch.__version__} can't use the {device.name}"
        raise CannotStart(f"{fault}: install a CUDA build of torch")
    # A smaller GPU that is simulated is the larger one.
    expected = device.name.partition(SIMULATED)[0]
    if (name := plain(torch.cuda.get_device_name(0))) != expected:
        fault = f"torch would use {name}, not {device.name}"
        raise CannotStart(f"{fault}: set CUDA_VISIBLE_DEVICES")


def free_memory() -> None:
    """Give back what the last configuration left, so that each starts alike."""
    gc.collect()
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
