"""Choose the device for an experiment, and check that torch would use it."""

import gc
import sys

from systems.records.device import CPU, META, Device, drop_markup, find_gpu, newest_cuda
from systems.running.reports import CannotStart


def device_for(allowed: tuple[str, ...]) -> Device | None:
    """Return this machine's best device of the allowed kinds, or None."""
    if "meta" in allowed:
        return META
    gpu = find_gpu()
    if gpu is not None and "cuda" in allowed:
        return gpu
    return CPU if "cpu" in allowed else None


def check_torch(device: Device) -> None:
    """Raise CannotStart if torch would use another device."""
    if not device.is_gpu or "torch" not in sys.modules:
        return
    import torch

    if not torch.cuda.is_available():
        raise CannotStart(why_unusable(device))
    if (name := drop_markup(torch.cuda.get_device_name(0))) != device.name:
        fault = f"torch would use {name}, not {device.name}"
        kind = "MIG device" if " MIG " in name else "GPU"
        raise CannotStart(
            f"{fault}: set CUDA_VISIBLE_DEVICES to the UUID of the {kind}, which "
            "nvidia-smi -L lists"
        )


def why_unusable(gpu: Device) -> str:
    """Return why torch can't use a GPU, and a remedy. A driver supports its own major
    version of CUDA and older ones.
    """
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
            torch.cuda.empty_cache()
